"""``[search]`` and ``[scheduler]`` as tables of a job file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.features.search.declaration.tables import SchedulerTable, SearchTable
from orchestrator.keys.feature_tables import FeatureTable
from orchestrator.keys.problems import Problems

if TYPE_CHECKING:
    from orchestrator.jobfile.job_source import JobSource


def _job_source(top: Mapping[str, Any], entries: int, problems: Problems) -> JobSource | None:
    from orchestrator.features.search import search_source

    return search_source.of_tables(top, entries, problems)


TABLES = (
    FeatureTable(
        name="search",
        about="A search over the keys of one job.",
        model=SearchTable,
        job_source=_job_source,
        facts=lambda _: None,
    ),
    FeatureTable(
        name="scheduler",
        about="When the jobs are compared, and which of them go on; in a search: [search.scheduler].",
        model=SchedulerTable,
        job_source=_job_source,
        facts=lambda _: None,
    ),
)
"""Their source says what they mean. ``facts`` is None for each, so that ``run --dry-run --json`` has
both keys where neither is written: where they are, the forecast of the source has their values."""
