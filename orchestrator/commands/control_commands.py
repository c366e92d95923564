"""Commands on a run directory: look at it, stop it, retry, pause and resume jobs, show a trained
policy.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from orchestrator.commands import experiment_commands
from orchestrator.commands import shared_options as shared
from orchestrator.commands.shared_options import (
    ONE_JOB,
    AsJson,
    Checkpoint,
    FoundRunDir,
    RunDir,
)
from orchestrator.core.errors import UsageError
from orchestrator.core.feature import features
from orchestrator.core.text import plain

if TYPE_CHECKING:
    from orchestrator.client.run_snapshot import Snapshot
    from orchestrator.experiment.policy_process import PlayRequest

WATCH_EVERY_S = 1.0
NAMES = "names, beginnings of names, or patterns in quotes such as 'cart-s1*'"

app = typer.Typer()


def _jobs_argument(verb: str, otherwise: str) -> Any:
    """:param otherwise: what happens if no jobs are named."""
    return Argument(
        metavar="[JOB]...", help=f"Jobs to {verb}: {NAMES}; if none are named, {otherwise}."
    )


def _one_job(otherwise: str) -> Any:
    """:param otherwise: what is shown if no job is named."""
    return Argument(metavar="[JOB]", help=ONE_JOB, show_default=otherwise)


@app.command()
def status(
    run_dir: FoundRunDir = None,
    watch: Annotated[
        bool,
        Option("--watch", help="Refresh every second until all jobs or the supervisor have ended."),
    ] = False,
    with_exit_code: Annotated[
        bool,
        Option(
            "--exit-code",
            help="End with 1 if jobs failed or were cancelled, otherwise with 130 if jobs run, wait or are paused. "
            "Where jobs are made as the run goes on, end with the exit code of `run`.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the state of every job of a run directory; without one, of the only one here, otherwise
    your experiments.
    """
    found = _find_or_list(run_dir, "status", needs_one=watch or with_exit_code, as_json=as_json)
    if found is None:
        return
    from orchestrator.client import run_snapshot

    last: Snapshot | None = None
    snapshots = _snapshots(found, watch=watch)
    if as_json:
        from orchestrator.ledger import summary

        for last in snapshots:
            print(summary.to_json(last.rows), end="", flush=True)
    else:
        from orchestrator.terminal import status_view

        message = "no longer watching; the experiment continues"
        with shared.interruptible(message) if watch else contextlib.nullcontext():
            last = status_view.show(snapshots, in_place=watch)
    raise typer.Exit(run_snapshot.exit_code_of(last) if with_exit_code and last is not None else 0)


def _find_or_list(
    run_dir: Path | None, command: str, *, needs_one: bool, as_json: bool = False
) -> Path | None:
    """``run_dir``, or the only one here. Where there is not exactly one, print the list of the
    user's experiments; return None.
    """
    from orchestrator.experiment import run_directory

    found = run_dir or run_directory.only_one()
    if found is None and needs_one:
        raise UsageError(
            f"{command}: name a run directory; here is none, or more than one. `list` shows yours"
        )
    if found is None:
        experiment_commands.list_experiments(is_all=False, as_json=as_json)
    return found


def _snapshots(run_dir: Path, *, watch: bool) -> Iterator[Snapshot]:
    """The state of a run directory; where it is watched, every second until nothing goes on."""
    from orchestrator.client import run_snapshot
    from orchestrator.client.run_watch import RunWatches, with_notes
    from orchestrator.core.paths import RunPaths

    watches = RunWatches(RunPaths(run_dir))
    while True:
        snapshot = with_notes(run_snapshot.status(run_dir), watches)
        yield snapshot
        if not watch or snapshot.over:
            return
        time.sleep(WATCH_EVERY_S)


@app.command()
def logs(
    run_dir: FoundRunDir = None,
    job: Annotated[
        str | None, _one_job("the jobs are listed, with the last line of each log")
    ] = None,
    follow: Annotated[
        bool,
        Option(
            "-f", "--follow", help="Print new lines as they are written, until the job has ended."
        ),
    ] = False,
    lines: Annotated[
        int,
        Option(
            "-n", "--lines", min=0, help="Number of lines to show, from the end of the log; 0: all."
        ),
    ] = 200,
    attempt: Annotated[
        int | None, Option(min=1, help="Number of the attempt, from 1.", show_default="the last")
    ] = None,
    rank: Annotated[
        int, Option(min=0, help="Number of the rank, from 0, of a job with several ranks.")
    ] = 0,
) -> None:
    """Show the output of a job's worker: on a terminal with escape sequences made visible,
    otherwise as it is.
    """
    found = _find_or_list(run_dir, "logs", needs_one=follow or attempt is not None)
    if found is None:
        return
    from orchestrator.client import worker_logs

    if job is None:
        from orchestrator.terminal import logs_view

        if follow or attempt is not None:
            raise UsageError(f"logs: name a job; `logs {found}` lists those that have a log")
        logs_view.show(found, worker_logs.listing(found))
        return
    is_empty = True
    for text in worker_logs.log(found, job, follow=follow, lines=lines, attempt=attempt, rank=rank):
        is_empty = is_empty and not text
        sys.stdout.write(plain(text, keep="\n\r\t") if sys.stdout.isatty() else text)
        sys.stdout.flush()
    if is_empty:
        shared.print_progress(f"{job}: no output yet")


@app.command()
def stop(
    run_dir: RunDir,
    jobs: Annotated[
        list[str] | None, _jobs_argument("cancel", "the whole experiment stops")
    ] = None,
    now: Annotated[
        bool,
        Option(
            "--now", help="Kill the workers at once; their jobs resume from their last checkpoints."
        ),
    ] = False,
    wait: Annotated[
        bool, Option("--wait", help="Return when the experiment and its batch jobs have ended.")
    ] = False,
) -> None:
    """Stop an experiment so that it can be resumed, as Ctrl-C does; or cancel some of its jobs.

    Workers save a checkpoint and exit within the grace time of the run. A second stop kills them,
    as --now does.
    """
    from orchestrator.client import control

    if jobs and (now or wait):
        raise UsageError("stop: --now and --wait are for the whole experiment; leave out the jobs")
    if jobs:
        shared.print_text(control.move_jobs(run_dir, jobs, "cancel"))
        return
    shared.print_text(control.stop(run_dir, now=now))
    if wait:
        sys.stdout.flush()
        shared.print_text(control.wait_for_end(run_dir))


@app.command()
def retry(
    run_dir: RunDir,
    jobs: Annotated[
        list[str] | None, _jobs_argument("retry", "all failed and cancelled jobs")
    ] = None,
) -> None:
    """Queue failed and cancelled jobs again; they resume from their last checkpoint."""
    from orchestrator.client import control

    shared.print_text(control.move_jobs(run_dir, jobs or [], "retry"))


@app.command()
def pause(
    run_dir: RunDir,
    jobs: Annotated[list[str], Argument(metavar="JOB...", help=f"Jobs to pause: {NAMES}.")],
) -> None:
    """Pause jobs until they are resumed, also over later runs. Running ones save a checkpoint and
    exit.

    Their CPUs are free for other jobs meanwhile, and no failure is counted.
    """
    from orchestrator.client import control

    shared.print_text(control.move_jobs(run_dir, jobs, "pause"))


@app.command()
def resume(
    run_dir: Annotated[
        Path | None,
        Argument(metavar="[RUN_DIR]", help="A run directory, such as runs/robots; or give --all."),
    ] = None,
    jobs: Annotated[list[str] | None, _jobs_argument("resume", "all paused jobs")] = None,
    is_all: Annotated[
        bool,
        Option(
            "--all",
            help="Resume your experiments on this machine that a reboot or a kill has interrupted, each in the "
            "background, as it was started. What you have stopped or paused stays as it is.",
        ),
    ] = False,
    as_json: Annotated[
        bool, Option("--json", help="With --all: print JSON, and nothing else, on standard output.")
    ] = False,
) -> None:
    """Queue paused jobs again; they resume from their last checkpoint. With --all, resume
    experiments that were interrupted.

    Exit code of --all: 0 if all that was interrupted goes on, 1 if something could not be resumed.
    """
    if is_all and run_dir is not None:
        raise UsageError("resume: --all is for all of your experiments; leave out RUN_DIR")
    if is_all:
        raise typer.Exit(_resume_all(as_json=as_json))
    if run_dir is None:
        raise UsageError("resume: name a run directory whose paused jobs are queued, or give --all")
    if as_json:
        raise UsageError("resume: --json is for --all")
    from orchestrator.client import control

    shared.print_text(control.move_jobs(run_dir, jobs or [], "resume"))


def _resume_all(*, as_json: bool) -> int:
    """Resume what was interrupted, and say what has become of each experiment. Returns the exit
    code.
    """
    from orchestrator.client import resume_all
    from orchestrator.terminal import resume_view

    with shared.interruptible("stopped; what was resumed goes on"):
        resumptions = resume_view.show(resume_all.resume_all(), as_json=as_json)
    return resume_all.exit_code(resumptions)


@app.command("set")
def set_(
    run_dir: RunDir,
    setting: Annotated[
        str,
        Argument(
            metavar="max_parallel=N",
            help="The setting and its new value; max_parallel is the only one.",
        ),
    ],
) -> None:
    """Change how many jobs run at once in a running experiment, until it ends.

    With a lower number no job is ended: fewer are launched. The number is limited by the slots of
    the machine.
    """
    from orchestrator.client import control

    key, equals, value = (part.strip() for part in setting.partition("="))
    if key != "max_parallel" or not equals:
        other = "the rest of a job file is for the next run" if equals else "the value is missing"
        raise UsageError(
            f"set: {setting}: expected max_parallel=N, such as max_parallel=8; {other}"
        )
    number = shared.parse_max_parallel(value)
    if number is None:
        why = "a whole number from 1 on; `pause` and `stop` end jobs"
        raise UsageError(f"set: {setting}: {value or 'nothing'} is not {why}")
    shared.print_text(control.set_max_parallel(run_dir, number))


@app.command()
def play(
    run_dir: RunDir,
    job: Annotated[str | None, _one_job("--all")] = None,
    all_robots: Annotated[
        bool,
        Option(
            "--all",
            help="Show the trained policies of all robots together, in a file.",
        ),
    ] = False,
    checkpoint: Checkpoint = None,
    video: Annotated[
        bool,
        Option("--video", help="Write video.mp4, even where a window could be opened."),
    ] = False,
    gif: Annotated[
        bool, Option("--gif", help="Also write an animated GIF beside the video.")
    ] = False,
    seconds: Annotated[
        float | None,
        Option(
            min=0.01,
            max=3600,
            help="Simulated time to show, in seconds.",
            show_default="10; in a window, until it is closed",
        ),
    ] = None,
    episodes: Annotated[
        int | None,
        Option(
            min=1,
            help="Number of episodes to show; without --seconds, at most ten simulated minutes.",
        ),
    ] = None,
    seed: Annotated[int, Option(min=0, help="Seed of the episodes.")] = 0,
    nominal: Annotated[
        bool,
        Option(
            "--nominal",
            help="Show the robot of the file, without noise, delays, pushes and terrain, where the job randomizes "
            "these.",
        ),
    ] = False,
    xml: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Show the policy with the robot or in the surroundings of this MJCF. Changes by model of the job are "
            "not made in it.",
            show_default="the job's own robot",
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Play the policy in a file of a format that an installed feature reads.",
            show_default="the job's own policy",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        Option(help="Directory for the video and the preview.", show_default="the job's directory"),
    ] = None,
) -> None:
    """Show a trained policy: in a window where there is a display, otherwise as video and preview
    image.
    """
    from orchestrator.experiment.policy_process import PlayRequest

    if policy is not None and checkpoint is not None:
        raise UsageError("play: the policy in a file has no checkpoints; leave out --checkpoint")
    if all_robots and any(given is not None for given in (checkpoint, policy, xml)):
        raise UsageError(
            "play: --all shows the trained policies of all robots; leave out --checkpoint, --policy, --xml"
        )
    is_job_named = job is not None
    if is_job_named == all_robots:  # both, or neither
        raise UsageError(
            "play: name a job, or give --all, which shows the trained policies of all robots"
        )
    request = PlayRequest(
        checkpoint=checkpoint,
        policy=policy,
        interactive=not (video or gif or all_robots),
        seconds=seconds,
        episodes=episodes,
        seed=seed,
        nominal=nominal,
        xml=xml,
        output=output,
    )
    with shared.interruptible("stopped"):
        written = (
            _play_all(run_dir, request, as_gif=gif)
            if job is None
            else _play(run_dir, job, request, as_gif=gif)
        )
        for path in written:
            shared.print_text(f"wrote {path}")


def _play(run_dir: Path, job: str, request: PlayRequest, *, as_gif: bool) -> list[Path]:
    """Show the policy of a job. Returns the files that this process has written: the GIF."""
    from orchestrator.client import run_snapshot
    from orchestrator.experiment import policy_process

    paths = run_snapshot.find(run_dir, job)
    if (warning := policy_process.robot_warning(paths)) is not None:
        shared.print_progress(f"warning: {warning}")
    policy_process.use(paths, request)
    if not as_gif:
        return []
    from orchestrator.core.files import video_file

    return [video_file.write_gif(paths, request.output or paths.root)]


def _play_all(run_dir: Path, request: PlayRequest, *, as_gif: bool) -> list[Path]:
    """Show the policies of all robots together. Returns the files that are written."""
    show = next((one.play_all for one in features() if one.play_all is not None), None)
    if show is None:
        raise UsageError("play: no installed feature shows all robots together; name a job")
    return show(run_dir, request, as_gif, shared.print_progress)
