"""What ``doctor`` shows: a table of findings, each with what to do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestrator.machine.doctor import Finding, Level
from orchestrator.terminal import output

STYLE: Mapping[Level, str] = {"ok": "green", "note": "cyan", "warning": "yellow"}


def show(findings: Sequence[Finding], on: Console | None = None) -> None:
    """:param on: None: standard output."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for finding in findings:
        body = Text(finding.detail)
        if finding.cure:
            body.append(f"\n→ {finding.cure}", style="bold")
        table.add_row(
            Text(finding.level, style=STYLE[finding.level]), Text(finding.title, style="bold"), body
        )
    output.show(on or output.console(), table)
