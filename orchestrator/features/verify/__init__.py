"""The ``verify`` command: proof that a job's training depends on nothing but its seed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.core.feature import Feature

if TYPE_CHECKING:
    from orchestrator.report.document import Section


def _commands() -> Any:
    from orchestrator.features.verify import commands

    return commands.app


def _report_sections(run_dir: Path) -> Iterable[Section]:
    from orchestrator.features.verify import certificate_page

    return certificate_page.of_directory(run_dir)


FEATURE = Feature(
    name="verify",
    about="verify: jobs train the same policy alone, beside others, and killed and resumed.",
    commands=_commands,
    report_sections=_report_sections,
    rank=85,
)
