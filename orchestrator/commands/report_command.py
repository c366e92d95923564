"""``report``: write the report of a run directory."""

from __future__ import annotations

import typer

from orchestrator.commands import shared_options as shared
from orchestrator.commands.shared_options import RunDir

app = typer.Typer()


@app.command()
def report(run_dir: RunDir) -> None:
    """Write RUN_DIR/report: a page about an experiment or a benchmark, its figures, and every
    number as JSON.
    """
    from orchestrator import report as reports

    shared.print_text(str(reports.make(run_dir)))
