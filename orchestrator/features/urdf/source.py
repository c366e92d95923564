"""URDF files as robots, and what is added to MJCF files."""

from __future__ import annotations

from orchestrator.core.robot_sources import MJCF_ROOT, MJCF_SUFFIX, RobotFormat
from orchestrator.features.urdf.part import MJCF_PART, PART

MJCF = RobotFormat(
    name=MJCF_PART.name,
    title="MJCF",
    suffix=MJCF_SUFFIX,
    root=MJCF_ROOT,
    worker="orchestrator.features.urdf.worker.mjcf_robot",
    adds_actuators='let them be added to an MJCF: mjcf.actuators = "position" in the job '
    "(init --set mjcf.actuators=position)",
)
FORMAT = RobotFormat(
    name=PART.name,
    title="URDF",
    suffix=".urdf",
    root="robot",
    worker="orchestrator.features.urdf.worker.urdf_robot",
    made_of={".xacro": "xacro {file} > {made}"},
)
