"""Commands that look at robots, at this machine, and at the format of job files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from orchestrator.commands.shared_options import AsJson, print_json, print_text, stoppable

app = typer.Typer()


@app.command()
def check(
    paths: Annotated[
        list[Path],
        Argument(metavar="JOBS.toml|FILE.xml|FOLDER...", help="Job files, MJCF files, folders of MJCF files."),
    ],
    time_limit: Annotated[float, Option(min=0.1, help="Time limit for each robot, in seconds.")] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Show which robots can be trained, how fast they simulate, and what is wrong with the others."""
    from orchestrator.experiment import robot_check
    from orchestrator.supervisor.stop_signals import StopRequests
    from orchestrator.terminal import check_view, output

    stops = StopRequests()
    with stoppable("stopped"), stops.installed(), output.examination() as show:
        rows = robot_check.check(paths, time_limit_s=time_limit, watch=stops.checking(show))
    if as_json:
        print_json([row.facts() for row in rows])
    else:
        check_view.show(rows)
    raise typer.Exit(robot_check.exit_code(rows))


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Show what this machine offers, what the program will use of it, and what would cause contention."""
    from orchestrator.machine import doctor as doctors
    from orchestrator.terminal import doctor_view

    findings = doctors.examine()
    if as_json:
        print_text(doctors.to_json(findings))
    else:
        doctor_view.show(findings)


@app.command()
def schema() -> None:
    """Print the JSON Schema of the job file, for editors."""
    from orchestrator.jobfile import json_schema

    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
