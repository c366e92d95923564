"""Searches over bodies and settings: what has been found, as commands, reports and pages show it.

The searcher is :mod:`orchestrator.search`, and its tables ``[search]`` and ``[scheduler]`` are
those of :mod:`orchestrator.jobfile`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.core.feature import Feature

if TYPE_CHECKING:
    from orchestrator.core.paths import RunPaths
    from orchestrator.experiment.run_watch import RunWatch
    from orchestrator.report.document import AddedSections


def _commands() -> Any:
    from orchestrator.features.search import commands

    return commands.app


def _watch(paths: RunPaths) -> RunWatch | None:
    if not paths.search_declared.exists():
        return None
    from orchestrator.features.search.watch import SearchWatch

    return SearchWatch(paths=paths)


def _report_sections(run_dir: Path, others: Sequence[Path]) -> AddedSections | None:
    from orchestrator.features.search import report_sections

    return report_sections.of_directory(run_dir, others)


def _python() -> Mapping[str, str]:
    return dict.fromkeys(("Search", "TrialResult"), "orchestrator.features.search.api")


FEATURE = Feature(
    name="search",
    about="Searches: best and `search export`, what is shown of them, and orchestrator.Search.",
    commands=_commands,
    rank=40,
    watch=_watch,
    report_sections=_report_sections,
    python=_python,
    belongings=(
        "tests/features/search",
        "benchmarks/search.py",
        "benchmarks/search_learning.py",
        "tests/bench/test_search_benchmark.py",
    ),
)
