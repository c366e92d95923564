"""The concurrency benchmark: what is measured (:mod:`orchestrator.features.bench.benchmark`), what
it means, and its report.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.core.feature import Feature

if TYPE_CHECKING:
    from orchestrator.report.document import Document


def _commands() -> Any:
    from orchestrator.features.bench import commands

    return commands.app


def _report(run_dir: Path) -> Callable[[], Document] | None:
    from orchestrator.analysis.samples import is_benchmark

    if not is_benchmark(run_dir):
        return None

    def make_document() -> Document:
        from orchestrator.features.bench import benchmark_page

        return benchmark_page.of_directory(run_dir)

    return make_document


FEATURE = Feature(
    name="bench",
    about="bench: how training scales with the number of processes, with a report.",
    commands=_commands,
    report=_report,
    rank=89,
)
