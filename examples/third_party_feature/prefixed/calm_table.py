"""The table ``calm`` of a job: ``calm = { above = 100 }``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.keys.feature_tables import JobTable
from orchestrator.keys.value_types import TomlTable, key
from prefixed.calm import PART, CalmSettings

if TYPE_CHECKING:
    from orchestrator.jobfile.job_table_rules import JobTableRules
    from orchestrator.jobfile.merged_job import MergedJob

ALGORITHMS = ("ppo", "a2c")


class CalmTable(TomlTable):
    """When exploration ends."""

    above: float | None = key(
        None, "Mean return of an iteration above which ent_coef becomes 0.", 100.0
    )


def _settings(merged: Mapping[str, Any]) -> CalmSettings:
    return CalmSettings(above=merged["calm"]["above"])


def _check(job: MergedJob) -> None:
    if job.settings["calm"]["above"] is not None and job.settings["algo"] not in ALGORITHMS:
        job.report(["calm.above", "algo"], f"is for {' and '.join(ALGORITHMS)}")


def _rules() -> JobTableRules:
    from orchestrator.jobfile.job_table_rules import JobTableRules

    return JobTableRules(settings=_settings, check=_check)


TABLE = JobTable(name=PART.name, about="When exploration ends.", model=CalmTable, rules=_rules)
