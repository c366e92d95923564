"""The command ``demo``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from orchestrator.commands.shared_options import print_text
from orchestrator.core.errors import RunInterrupted, UsageError
from orchestrator.core.files.atomic_files import write_whole

app = typer.Typer()

PACKAGE = Path(__file__).parent
JOB_FILE = "jobs.toml"
FOLDER = Path("orchestrator-demo")
RUN = "run"
"""Folder of the results, in the folder of the demonstration."""


@app.command()
def demo(
    to: Annotated[
        Path | None,
        Option(
            metavar="FOLDER",
            help="Only write the robots and their job file to this folder, as something to begin with.",
            show_default=f"train them, in the folder {FOLDER}",
        ),
    ] = None,
) -> None:
    """Train three robots that the program brings, in half a minute on two cores, and write the
    report.

    Interrupted, the same command goes on.
    """
    if to is None:
        raise typer.Exit(_train(FOLDER))
    write(to)
    jobs = shlex.quote(str(to / JOB_FILE))
    print_text(f"wrote {to}\nTrain its robots with `orchestrator run {jobs}`.")


def write(folder: Path) -> None:
    """Write robots and job file, and leave those that are there already.

    :raises UsageError: there is a file of such a name with another content.
    """
    contents = {path.name: path.read_bytes() for path in sorted(PACKAGE.glob("robots/*.xml"))}
    contents[JOB_FILE] = (PACKAGE / JOB_FILE).read_bytes()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        present = {name for name in contents if (folder / name).exists()}
        changed = [name for name in present if (folder / name).read_bytes() != contents[name]]
    except OSError as error:
        raise UsageError(f"demo: {folder}: {error.strerror}; expected a folder") from None
    if changed:
        jobs = shlex.quote(str(folder / JOB_FILE))
        raise UsageError(
            f"demo: {folder / min(changed)} exists and is not that of the demonstration, which would "
            f"replace it; `orchestrator run {jobs}` trains what is there, `--to` takes another folder"
        )
    for name in contents.keys() - present:
        write_whole(folder / name, contents[name])


def _train(folder: Path) -> int:
    from orchestrator import api
    from orchestrator import report as reports

    write(folder)
    run_dir = folder / RUN
    try:
        done = api.run(folder / JOB_FILE, run_dir=run_dir, show=True)
    except RunInterrupted as error:
        print_text(f"{error}\n`orchestrator demo` goes on.")
        return 130
    page = reports.make(run_dir)
    succeeded = [result for result in done.results if result.error is None]
    lines = [f"{len(succeeded)} of {len(done.results)} robots are trained."]
    lines += [f"  {result.job_id}: mean return {result.eval_mean:.4g}" for result in succeeded]
    lines += [
        f"report: {page}",
        f"`orchestrator play {run_dir} hopper` shows a policy; `orchestrator init FOLDER` makes a job file "
        "of your own robots.",
    ]
    print_text("\n".join(lines))
    return done.exit_code
