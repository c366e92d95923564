"""The ``compare`` command: ratios with intervals between experiments, benchmarks or machines, and
between jobs of one run directory, which a race trains with further seeds; also as
``orchestrator.compare``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.core.feature import Feature

if TYPE_CHECKING:
    from orchestrator.report.document import Section


def _commands() -> Any:
    from orchestrator.features.compare import commands

    return commands.app


def _python() -> Mapping[str, str]:
    return {"compare": "orchestrator.features.compare.api"}


def _report_sections(run_dir: Path) -> Iterable[Section]:
    from orchestrator.features.compare import race_page

    return race_page.of_directory(run_dir)


FEATURE = Feature(
    name="compare",
    about="compare: ratios with intervals between experiments, benchmarks or machines, and between jobs.",
    commands=_commands,
    python=_python,
    report_sections=_report_sections,
    rank=97,
)
