"""The command ``verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from orchestrator.commands import shared_options as shared
from orchestrator.commands.shared_options import AsJson

app = typer.Typer()


@app.command()
def verify(
    source: Annotated[
        Path, Argument(metavar="RUN_DIR|JOBS.toml", help="A run directory, or a job file.")
    ],
    jobs: Annotated[
        list[str] | None,
        Option(
            help="A job, the beginning of its name, or a pattern; '*': all jobs. May be repeated.",
            show_default="the first job of every robot and task, as many as a few minutes allow",
        ),
    ] = None,
    iterations: Annotated[int, Option(min=3, help="Number of iterations of each training.")] = 6,
    repeats: Annotated[
        int,
        Option(
            min=1,
            help="Repeats of each measurement; with 5 the interval of the slow-down includes changes of the machine.",
        ),
    ] = 1,
    output: Annotated[
        Path | None,
        Option(
            help="Directory for certificate.json.", show_default="RUN_DIR, or runs/<name>-verify"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Verify that jobs train the same policy alone, beside others, and killed and resumed; measure
    the slow-down.
    """
    from orchestrator.features.verify import certificate_view, verification

    options = verification.VerifyOptions(
        jobs=jobs or (), iterations=iterations, repeats=repeats, output=output
    )
    with shared.stoppable("stopped; no certificate was written"):
        certificate, where = verification.verify(source, options, shared.print_progress)
    if as_json:
        shared.print_text(certificate.to_json().rstrip("\n"))
    else:
        certificate_view.show(certificate, where)
    raise typer.Exit(0 if certificate.verdict == "PASS" else 1)
