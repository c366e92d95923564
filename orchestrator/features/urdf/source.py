"""URDF files as robots."""

from __future__ import annotations

from orchestrator.core.robot_sources import RobotFormat
from orchestrator.features.urdf.part import PART

FORMAT = RobotFormat(
    name=PART.name,
    title="URDF",
    suffix=".urdf",
    root="robot",
    worker="orchestrator.features.urdf.worker.urdf_robot",
)
