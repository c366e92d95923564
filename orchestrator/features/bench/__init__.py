"""The concurrency benchmark: what is measured (:mod:`orchestrator.features.bench.benchmark`), what
it means, and its report.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.core.feature import Feature

if TYPE_CHECKING:
    from orchestrator.report.document import Section


def _commands() -> Any:
    from orchestrator.features.bench import commands

    return commands.app


def _report_sections(run_dir: Path) -> Iterable[Section] | None:
    from orchestrator.features.bench.samples import is_benchmark

    if not is_benchmark(run_dir):
        return None

    from orchestrator.features.bench import benchmark_page

    return benchmark_page.of_directory(run_dir)


FEATURE = Feature(
    name="bench",
    about="bench: how training scales with the number of processes, with a report.",
    commands=_commands,
    report_sections=_report_sections,
    rank=89,
)
