"""The command ``advise``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from orchestrator.commands.shared_options import AsJson, print_json, stoppable
from orchestrator.features.advice.physics_advice import MOST_CPU_S

app = typer.Typer()


@app.command()
def advise(
    paths: Annotated[
        list[Path],
        Argument(
            metavar="JOBS.toml|FILE.xml|FOLDER...",
            help="Job files, MJCF files, folders of MJCF files.",
        ),
    ],
    cpu_time: Annotated[
        float,
        Option("--time", min=0.5, max=MOST_CPU_S, help="CPU seconds of measuring for each robot."),
    ] = 30.0,
    time_limit: Annotated[
        float,
        Option(min=0.1, help="Time limit for each robot in seconds, without measuring."),
    ] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Measure what changes to the physics of each robot would bring in speed and change in its
    motion, and print lines for the job file. Nothing is changed.
    """
    from orchestrator.experiment.examination import robot_check, side_by_side
    from orchestrator.features.advice import advice_view, measuring
    from orchestrator.supervisor.stop_signals import StopRequests
    from orchestrator.terminal import check_view, output

    stops = StopRequests()
    with stoppable("stopped"), stops.handle_signals(), output.examination() as show:
        watch = side_by_side.with_check(show, stops.check)
        rows = robot_check.check(paths, time_limit_s=time_limit, watch=watch)
        advice = measuring.advice(rows, cpu_s=cpu_time, time_limit_s=time_limit, watch=watch)
    if as_json:
        print_json(measuring.facts(rows, advice))
    else:
        check_view.show(rows)
        advice_view.show(rows, advice)
    failed = any(one is not None and one.has_failed for one in advice)
    raise typer.Exit(max(int(failed), robot_check.exit_code(rows)))
