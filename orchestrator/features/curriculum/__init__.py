"""Stages of a training, each of which begins when a condition holds: the table ``curriculum`` of a
job.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from orchestrator.core.feature import Feature

if TYPE_CHECKING:
    from orchestrator.core.job_parts import JobPart
    from orchestrator.keys.feature_tables import JobTable


def _job_parts() -> Iterable[JobPart]:
    from orchestrator.features.curriculum.part import PART

    return [PART]


def _job_tables() -> Iterable[JobTable]:
    from orchestrator.features.curriculum.table import TABLE

    return [TABLE]


FEATURE = Feature(
    name="curriculum",
    about="The table curriculum of a job: stages of its training, and the conditions between them.",
    job_parts=_job_parts,
    job_tables=_job_tables,
)
