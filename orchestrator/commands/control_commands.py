"""Commands on a run directory: look at it, stop it, retry, pause and resume jobs, show a trained policy."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from orchestrator.commands.shared_options import AsJson, JobName, RunDir, print_progress, print_text, stoppable
from orchestrator.core.errors import UsageError
from orchestrator.core.text import plain

if TYPE_CHECKING:
    from orchestrator.experiment.control import Snapshot

WATCH_EVERY_S = 1.0
MOST_JOBS = 1_000_000

app = typer.Typer()


@app.command()
def status(
    run_dir: RunDir,
    watch: Annotated[bool, Option("--watch", help="Refresh every second until all jobs have ended.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the state of every job of a run directory."""
    snapshots = _snapshots(run_dir, watch=watch)
    if as_json:
        from orchestrator.ledger import summary

        for snapshot in snapshots:
            print(summary.to_json(snapshot.rows), end="", flush=True)
    else:
        from orchestrator.terminal import status_view

        status_view.show(snapshots, in_place=watch)


def _snapshots(run_dir: Path, *, watch: bool) -> Iterator[Snapshot]:
    from orchestrator.experiment import control

    yield (snapshot := control.status(run_dir))
    while watch and not snapshot.over:
        time.sleep(WATCH_EVERY_S)
        yield (snapshot := control.status(run_dir))


@app.command()
def logs(
    run_dir: RunDir,
    job: JobName,
    follow: Annotated[
        bool, Option("-f", "--follow", help="Print new lines as they are written, until the job has ended.")
    ] = False,
    lines: Annotated[
        int, Option("-n", "--lines", min=0, help="Number of lines to show, from the end of the log; 0: all.")
    ] = 200,
    attempt: Annotated[
        int | None, Option(min=0, help="Number of the attempt, from 0.", show_default="the last")
    ] = None,
    rank: Annotated[int, Option(min=0, help="Number of the rank, from 0, of a job with several ranks.")] = 0,
) -> None:
    """Show the output of a job's worker: on a terminal with escape sequences made visible, otherwise as it is."""
    from orchestrator.experiment import control

    for text in control.log(run_dir, job, follow=follow, lines=lines, attempt=attempt, rank=rank):
        sys.stdout.write(plain(text, keep="\n\r\t") if sys.stdout.isatty() else text)
        sys.stdout.flush()


@app.command()
def stop(
    run_dir: RunDir,
    jobs: Annotated[
        list[str] | None,
        Argument(metavar="[JOB]...", help="Jobs to cancel; if none are named, the whole experiment stops."),
    ] = None,
    now: Annotated[
        bool, Option("--now", help="Kill the workers at once; their jobs resume from their last checkpoints.")
    ] = False,
    wait: Annotated[bool, Option("--wait", help="Return when the experiment has stopped.")] = False,
) -> None:
    """Stop an experiment so that it can be resumed, as Ctrl-C does; or cancel some of its jobs.

    Workers save a checkpoint and exit within the grace time of the run. A second stop kills them, as --now does.
    """
    from orchestrator.experiment import control

    if jobs and (now or wait):
        raise UsageError("stop: --now and --wait are for the whole experiment; leave out the jobs")
    print_text(control.stop(run_dir, jobs or [], now=now))
    if wait:
        sys.stdout.flush()
        print_text(control.wait_for_end(run_dir))


@app.command()
def retry(
    run_dir: RunDir,
    jobs: Annotated[
        list[str] | None,
        Argument(metavar="[JOB]...", help="Jobs to retry; if none are named, all failed and cancelled jobs."),
    ] = None,
) -> None:
    """Queue failed and cancelled jobs again; they resume from their last checkpoint."""
    from orchestrator.experiment import control

    print_text(control.retry(run_dir, jobs or []))


@app.command()
def pause(
    run_dir: RunDir,
    jobs: Annotated[list[str], Argument(metavar="JOB...", help="Jobs to pause, or the beginnings of their names.")],
) -> None:
    """Pause jobs until they are resumed, also over later runs. Running ones save a checkpoint and exit.

    Their CPUs are free for other jobs meanwhile, and no failure is counted.
    """
    from orchestrator.experiment import control

    print_text(control.pause(run_dir, jobs))


@app.command()
def resume(
    run_dir: RunDir,
    jobs: Annotated[
        list[str] | None,
        Argument(metavar="[JOB]...", help="Jobs to resume; if none are named, all paused jobs."),
    ] = None,
) -> None:
    """Queue paused jobs again; they resume from their last checkpoint."""
    from orchestrator.experiment import control

    print_text(control.resume(run_dir, jobs or []))


@app.command("set")
def set_(
    run_dir: RunDir,
    setting: Annotated[
        str, Argument(metavar="max_parallel=N", help="The setting and its new value; max_parallel is the only one.")
    ],
) -> None:
    """Change how many jobs run at once in a running experiment, until it ends.

    With a lower number no job is ended: fewer are launched. The number is limited by the slots of the machine.
    """
    from orchestrator.experiment import control

    key, equals, value = (part.strip() for part in setting.partition("="))
    if key != "max_parallel" or not equals:
        other = "the rest of a job file is for the next run" if equals else "the value is missing"
        raise UsageError(f"set: {setting}: expected max_parallel=N, such as max_parallel=8; {other}")
    if not (value.isdecimal() and value.isascii() and 0 < int(value) < MOST_JOBS):
        why = "a whole number from 1 on; `pause` and `stop` end jobs"
        raise UsageError(f"set: {setting}: {value or 'nothing'} is not {why}")
    print_text(control.set_max_parallel(run_dir, int(value)))


@app.command()
def play(
    run_dir: RunDir,
    job: JobName,
    checkpoint: Annotated[
        str | None,
        Option(
            metavar="N|latest|PATH",
            help="Checkpoint to show: its env_steps, the latest, or a file.",
            show_default="the trained policy",
        ),
    ] = None,
    video: Annotated[
        bool, Option("--video", help="Write video.mp4 and preview.png, even where a window could be opened.")
    ] = False,
    seconds: Annotated[
        float | None,
        Option(
            min=0.01, help="Simulated time to show, in seconds.", show_default="10; in a window, until it is closed"
        ),
    ] = None,
    episodes: Annotated[int | None, Option(min=1, help="Number of episodes to show, whatever their length.")] = None,
    seed: Annotated[int, Option(min=0, help="Seed of the evaluation episodes.")] = 0,
    stochastic: Annotated[
        bool, Option("--stochastic", help="Sample actions, as in training, instead of taking their mean.")
    ] = False,
    output: Annotated[
        Path | None, Option(help="Directory for the video and the preview.", show_default="the job's directory")
    ] = None,
) -> None:
    """Show a trained policy: in a window where there is a display, otherwise as video and preview image."""
    from orchestrator.experiment import control, videos

    request = videos.PlayRequest(
        checkpoint=checkpoint,
        interactive=not video,
        seconds=seconds,
        episodes=episodes,
        seed=seed,
        stochastic=stochastic,
        output=output,
    )
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # set by __main__; from here on there is a child to end
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with stoppable("stopped"):
        paths = control.find(run_dir, job)
        if (warning := videos.robot_warning(paths)) is not None:
            print_progress(f"warning: {warning}")
        videos.play(paths, request)
