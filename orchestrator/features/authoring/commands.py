"""The command ``init``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from orchestrator.commands.shared_options import (
    AsJson,
    print_json,
    print_text,
    stoppable,
)
from orchestrator.core.errors import UsageError
from orchestrator.core.paths import absolute

app = typer.Typer()


@app.command()
def init(
    paths: Annotated[
        list[Path], Argument(metavar="FOLDER|FILE.xml...", help="MJCF files, and folders of them.")
    ],
    output: Annotated[
        Path, Option("--output", "-o", metavar="JOBS.toml", help="The job file to write.")
    ] = Path("jobs.toml"),
    timesteps: Annotated[
        str | None,
        Option(
            metavar="NUMBER",
            help="env_steps of each robot, such as 500_000 or 2e6.",
            show_default="those of the preset quick",
        ),
    ] = None,
    force: Annotated[bool, Option("--force", help="Replace the job file if it exists.")] = False,
    settings: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set what the files of all robots lack, such as urdf.base=floating or urdf.actuators=position; unset, "
            "it is guessed for each robot, and the job file says so. May be repeated.",
        ),
    ] = None,
    time_limit: Annotated[
        float, Option(min=0.1, help="Time limit for the check of each robot, in seconds.")
    ] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Check robots and write a short job file that trains those that can be trained; `run` then
    trains them.

    The task is the one that `auto` chooses. What is guessed of a URDF, such as a floating base for
    one with legs, is in the file, with the reason; so are the robots that cannot be trained.
    """
    from orchestrator.client.stop_signals import StopRequests
    from orchestrator.examination import robot_check, side_by_side
    from orchestrator.features.authoring import init_selection, init_settings, written_view
    from orchestrator.jobfile import job_file_text
    from orchestrator.machine import topology
    from orchestrator.terminal import output as terminal

    env_steps = None if timesteps is None else init_selection.parse_timesteps(timesteps)
    given = init_settings.parse_settings(settings or [], output)
    job_file_text.check_target(output, force=force)
    for path in paths:
        if path.suffix == ".toml" and path.is_file():
            raise UsageError(
                f"{path}: this is a job file already; `orchestrator run {path}` trains its robots"
            )
    stops = StopRequests()
    with (
        stoppable("stopped; nothing was written"),
        stops.handle_signals(),
        terminal.examination() as show,
    ):
        rows = robot_check.check(
            paths,
            time_limit_s=time_limit,
            watch=side_by_side.with_check(show, stops.check),
            job_folder=absolute(output).parent,
            robot_settings=given.of_formats,
        )
        made = init_selection.draft(
            rows,
            paths,
            output,
            timesteps=env_steps,
            jobs_at_once=topology.detect().capacity,
            settings=given.defaults,
        )
        stops.check()
        job_file_text.write(output, made.text, force=force)
    if as_json:
        print_json(init_selection.facts(made, output))
    else:
        print_text(written_view.robots(made, output))
