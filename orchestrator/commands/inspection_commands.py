"""Commands that look at robots, at this machine, and at the format of job files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from orchestrator.commands.shared_options import AsJson, print_json, print_text, stoppable
from orchestrator.core.errors import UsageError, disk_full_explained

app = typer.Typer()


@app.command()
def check(
    paths: Annotated[
        list[Path],
        Argument(
            metavar="JOBS.toml|FILE.xml|FOLDER...",
            help="Job files, MJCF files, folders of MJCF files.",
        ),
    ],
    time_limit: Annotated[
        float, Option(min=0.1, help="Time limit for each robot, in seconds.")
    ] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Show which robots can be trained, how fast they simulate, and what is wrong with the
    others.
    """
    from orchestrator.client.stop_signals import StopRequests
    from orchestrator.examination import robot_check, side_by_side
    from orchestrator.terminal import check_view, output

    stops = StopRequests()
    with stoppable("stopped"), stops.handle_signals(), output.examination() as show:
        watch = side_by_side.with_check(show, stops.check)
        rows = robot_check.check(paths, time_limit_s=time_limit, watch=watch)
    if as_json:
        print_json([row.facts() for row in rows])
    else:
        check_view.show(rows)
    raise typer.Exit(robot_check.exit_code(rows))


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Show what this machine offers, what the program will use of it, and what would cause
    contention.
    """
    from orchestrator.machine import doctor as doctors
    from orchestrator.terminal import doctor_view

    findings = doctors.examine()
    if as_json:
        print_text(doctors.to_json(findings))
    else:
        doctor_view.show(findings)


@app.command()
def schema(
    to: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Write it to this file. Editors use it for job files whose first line is `#:schema FILE`.",
            show_default="standard output",
        ),
    ] = None,
) -> None:
    """Print the JSON Schema of the job file, for editors."""
    from orchestrator.jobfile import json_schema

    text = json.dumps(json_schema(), indent=2, ensure_ascii=False)
    if to is None:
        print(text)
    else:
        _write_schema(to, f"{text}\n")


def _write_schema(file: Path, text: str) -> None:
    """:raises UsageError: ``file`` cannot be written. :raises DiskFullError: there is no room."""
    from orchestrator.core.files.atomic_files import refuse_special_file, write_whole

    try:
        refuse_special_file(file)
        with disk_full_explained(file, "run the same command again"):
            write_whole(file, text)
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"--to {file}: cannot be written ({reason}); name another file") from error
