"""Commands that look at robots, at this machine, and at the format of job files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from orchestrator.commands.shared_options import AsJson, print_json, print_text, stoppable
from orchestrator.core.errors import UsageError

app = typer.Typer()
ADVISE_S = 30.0
"""CPU seconds of measuring advice for one robot."""


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
    advise: Annotated[
        bool,
        Option(
            "--advise",
            help="Measure what changes to the physics of each robot would bring in speed and change in its motion, "
            "with lines for the job file. Nothing is changed.",
        ),
    ] = False,
    advise_time: Annotated[
        float | None,
        Option(
            min=0.5,
            max=3600,
            help="CPU seconds that --advise measures each robot.",
            show_default="30",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show which robots can be trained, how fast they simulate, and what is wrong with the
    others.
    """
    from orchestrator.experiment import robot_check
    from orchestrator.supervisor.stop_signals import StopRequests
    from orchestrator.terminal import advice_view, check_view, output

    if advise_time is not None and not advise:
        raise UsageError("--advise-time is for --advise; add --advise, or leave --advise-time out")
    advise_s = (advise_time or ADVISE_S) if advise else 0.0
    stops = StopRequests()
    with stoppable("stopped"), stops.installed(), output.examination() as show:
        rows = robot_check.check(
            paths, time_limit_s=time_limit, advise_s=advise_s, watch=stops.checking(show)
        )
    if as_json:
        print_json([row.facts() for row in rows])
    else:
        check_view.show(rows)
        advice_view.show(rows)
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
def schema() -> None:
    """Print the JSON Schema of the job file, for editors."""
    from orchestrator.jobfile import json_schema

    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
