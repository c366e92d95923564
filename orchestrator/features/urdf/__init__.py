"""Robots in URDF files, and what the files of robots lack: the tables ``urdf`` and ``mjcf`` of a
job.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from orchestrator.core.feature import Feature

if TYPE_CHECKING:
    from orchestrator.core.job_parts import JobPart
    from orchestrator.core.robot_sources import RobotSource
    from orchestrator.keys.feature_tables import JobTable


def _robot_sources() -> Iterable[RobotSource]:
    from orchestrator.features.urdf.source import FORMAT, MJCF

    return [FORMAT, MJCF]


def _job_parts() -> Iterable[JobPart]:
    from orchestrator.features.urdf.part import MJCF_PART, PART

    return [PART, MJCF_PART]


def _job_tables() -> Iterable[JobTable]:
    from orchestrator.features.urdf.table import MJCF_TABLE, TABLE

    return [TABLE, MJCF_TABLE]


FEATURE = Feature(
    name="urdf",
    about="Robots in URDF files, and the tables urdf and mjcf of a job: what files of robots lack.",
    robot_sources=_robot_sources,
    job_parts=_job_parts,
    job_tables=_job_tables,
)
