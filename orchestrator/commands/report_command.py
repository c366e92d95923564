"""``report``: write the report of a run directory."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from orchestrator.commands import shared_options as shared
from orchestrator.commands.shared_options import RunDir

app = typer.Typer()


class ReportFormat(StrEnum):
    html = "html"
    md = "md"


@app.command()
def report(
    run_dir: RunDir,
    others: Annotated[
        list[Path] | None,
        Argument(
            metavar="[OTHERS]...",
            help="Run directories to compare with it, if a feature that made or compared its jobs can do that.",
            show_default=False,
        ),
    ] = None,
    format_: Annotated[
        ReportFormat,
        Option(
            "--format", help="html: print the path of the page. md: print its content as Markdown."
        ),
    ] = ReportFormat.html,
) -> None:
    """Write RUN_DIR/report: a page about an experiment or a benchmark, its figures, and every
    number as JSON.
    """
    from orchestrator import report as reports

    written = reports.make(run_dir, others or ())
    shared.print_text(written.markdown() if format_ is ReportFormat.md else str(written.page))
