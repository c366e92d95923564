"""Searches over bodies and settings, and the comparison of jobs at rungs: the tables ``[search]`` and
``[scheduler]``, the process that makes trials and promotes them, and what is shown of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.core.feature import Feature

if TYPE_CHECKING:
    from orchestrator.client.run_watch import RunWatch
    from orchestrator.core.paths import RunPaths
    from orchestrator.experiment.begun_source import BegunSource
    from orchestrator.keys.feature_tables import FeatureTable
    from orchestrator.ledger import Ledger
    from orchestrator.report.document import Section
    from orchestrator.server.companions import Companion, RunFacts


def _commands() -> Any:
    from orchestrator.features.search import commands

    return commands.app


def _job_file() -> Iterable[FeatureTable]:
    from orchestrator.features.search.job_file_tables import TABLES

    return TABLES


def _companions(run: RunFacts) -> Iterable[Companion]:
    if run.experiment is None and not _has_begun(run.paths):
        return []
    from orchestrator.features.search import search_process

    return search_process.companions(run)


def _has_begun(paths: RunPaths) -> bool:
    from orchestrator.features.search.search_paths import SearchPaths

    try:
        return SearchPaths(paths.root).declaration.exists()
    except OSError:  # no path, such as one that is too long, which is refused with other words
        return False


def _begun_source(paths: RunPaths, ledger: Ledger) -> BegunSource | None:
    from orchestrator.features.search import begun_search

    return begun_search.of(paths, ledger)


def _watch(paths: RunPaths) -> RunWatch | None:
    if not _has_begun(paths):
        return None
    from orchestrator.features.search.search_watch import SearchWatch

    return SearchWatch(paths=paths)


def _report_sections(run_dir: Path) -> Iterable[Section]:
    from orchestrator.features.search import report_sections

    return report_sections.of_directory(run_dir)


def _python() -> Mapping[str, str]:
    module = "orchestrator.features.search.api"
    return {"Search": module, "TrialResult": module}


FEATURE = Feature(
    name="search",
    about="The tables [search] and [scheduler], `best`, and orchestrator.Search.",
    commands=_commands,
    rank=40,
    job_file=_job_file,
    companions=_companions,
    begun_source=_begun_source,
    watch=_watch,
    report_sections=_report_sections,
    python=_python,
)
