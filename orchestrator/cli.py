"""The command line: arguments to calls, results to exit codes, errors to one clear message."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from orchestrator.commands import cluster_commands
from orchestrator.core.errors import OrchestratorError, SpecError, UsageError

if TYPE_CHECKING:
    from orchestrator.experiment.preflight import Child
    from orchestrator.experiment.session import Plan, RunOptions
    from orchestrator.jobfile import Experiment

app = typer.Typer(
    name="orchestrator",
    help="Train many reinforcement-learning policies at once: every run a process of its own, pinned and supervised.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 all jobs succeeded; 1 some did not, or the run could not go on (its cluster's head is lost, "
    "the disk is full): the same command goes on; 2 wrong usage or job file; 130 stopped and resumable.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(cluster_commands.app, name="cluster")

RunDir = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A run directory, such as runs/robots.")]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output, and nothing else, on standard output.")]


class OnChangeChoice(StrEnum):
    refuse = "refuse"
    restart = "restart"
    keep = "keep"


@app.command()
def run(
    jobs: Annotated[
        Path,
        typer.Argument(
            metavar="JOBS.toml|RUN_DIR", help="The job file; or a run directory, which goes on with what it holds."
        ),
    ],
    run_dir: Annotated[Path | None, typer.Option(help="Where everything goes.", show_default="runs/<name>")] = None,
    max_parallel: Annotated[
        int | None, typer.Option(min=1, help="Jobs at once.", show_default="max_parallel of the job file")
    ] = None,
    learner: Annotated[
        str | None,
        typer.Option(help="Learner of all jobs that name none: auto, fast or sb3.", show_default="of the job file"),
    ] = None,
    executor: Annotated[str, typer.Option(help="What launches the jobs: local, or ray.")] = "local",
    ray_address: Annotated[
        str,
        typer.Option(
            metavar="local|auto|HOST:PORT",
            help="Of the Ray cluster, which this machine must be a node of; auto: whichever it is a node of; local: "
            "start Ray on this machine alone.",
        ),
    ] = "local",
    storage: Annotated[
        str,
        typer.Option(
            metavar="auto|shared|stream|URI",
            help="How other machines get at the run directory. shared: they see it; stream: its files go there and "
            "come home with the jobs; a URI (s3://bucket/folder): likewise, large ones by way of that place; auto: "
            "shared where a node sees it, else stream.",
        ),
    ] = "auto",
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over; an existing run directory is set aside.")] = False,
    on_change: Annotated[
        OnChangeChoice, typer.Option(help="What to do with jobs that ran and are declared differently now.")
    ] = OnChangeChoice.refuse,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set a default, such as ppo.n_steps=512. May be repeated."),
    ] = None,
    rebuild_ledger: Annotated[
        bool, typer.Option("--rebuild-ledger", help="Set a damaged ledger aside and make one from the job directories.")
    ] = False,
    grace: Annotated[float, typer.Option(min=0.0, help="Seconds that workers have to leave after Ctrl-C.")] = 30.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show jobs, slots and launch order; launch nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run an experiment, or go on with it: finished jobs are not run again, interrupted ones resume."""
    from orchestrator.experiment import preflight

    with contextlib.nullcontext() if jobs.is_dir() else preflight.warm_up() as warm:
        from orchestrator.experiment import session
        from orchestrator.jobfile import load, parse_override

        overrides = dict(map(parse_override, set_ or []))
        if learner is not None:
            overrides["learner"] = learner
        verdicts = None
        if jobs.is_dir():
            from orchestrator.experiment import resume

            if run_dir is not None or overrides or fresh or rebuild_ledger:
                raise UsageError(
                    f"{jobs}: a run directory goes on as it is; --run-dir, --set, --learner, --fresh and "
                    "--rebuild-ledger need the job file"
                )
            known = resume.load(jobs)
            experiment, verdicts, run_dir, given = known.experiment, known.verdicts, jobs, None
        else:
            experiment, given = load(jobs, overrides=overrides), jobs.read_bytes()
        options = session.RunOptions(
            run_dir=run_dir or Path("runs") / experiment.directory_name,
            verdicts=verdicts,
            refuse_invalid=verdicts is None,
            max_parallel=max_parallel,
            fresh=fresh,
            on_change=on_change.value,
            rebuild_ledger=rebuild_ledger,
            executor=executor,
            ray_address=ray_address,
            storage=storage,
            grace_s=grace,
        )
        try:
            if dry_run:
                _show_plan(
                    experiment, session.dry_run(experiment, options, warm=warm), options.run_dir, as_json=as_json
                )
                return
            raise typer.Exit(_run(experiment, options, given, warm, as_json=as_json))
        except KeyboardInterrupt:
            _fail("stopped; nothing was launched", 130)


def _run(experiment: Experiment, options: RunOptions, given: bytes | None, warm: Child | None, *, as_json: bool) -> int:
    from orchestrator.experiment import session
    from orchestrator.terminal import live_table

    with live_table.reporter(as_json=as_json) as reporter:
        finished = session.run(experiment, options, reporter, given=given, warm=warm)
    try:
        if as_json:
            succeeded = sum(state.name == "SUCCEEDED" for state in finished.states.values())
            text = f"{succeeded} of {len(finished.states)} jobs succeeded"
            reporter.event("ended", text, exit_code=finished.exit_code, run_dir=str(finished.paths.root))
        else:
            from orchestrator.terminal import views

            views.show_end(finished)
        sys.stdout.flush()
    except OSError:
        live_table.mute()  # the terminal was closed, the pipe's reader has ended
    return finished.exit_code


def _show_plan(experiment: Experiment, plan: Plan, run_dir: Path, *, as_json: bool) -> None:
    from orchestrator.terminal import views

    if as_json:
        print(json.dumps(views.plan_facts(experiment, plan, run_dir), indent=1, ensure_ascii=False))
    else:
        views.show_plan(experiment, plan, run_dir)


@app.command()
def status(
    run_dir: RunDir,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it again every second, until all jobs are over.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show every job of a run directory."""
    if not as_json:
        from orchestrator.terminal import views

        views.show_status(run_dir, watch=watch)
        return
    from orchestrator.experiment import control
    from orchestrator.ledger import summary

    snapshot = control.status(run_dir)
    print(summary.to_json(snapshot.rows), end="", flush=True)
    while watch and not snapshot.over:
        time.sleep(1.0)
        snapshot = control.status(run_dir)
        print(summary.to_json(snapshot.rows), end="", flush=True)


@app.command()
def logs(
    run_dir: RunDir,
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job, or the beginning of its name.")],
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as it grows, until the job is over.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="How many of the last lines; 0 for all.")] = 200,
    attempt: Annotated[int | None, typer.Option(min=0, help="Which attempt, from 0.", show_default="the last")] = None,
    rank: Annotated[int, typer.Option(min=0, help="Which process of a job with several ranks, from 0.")] = 0,
) -> None:
    """Show what a worker printed."""
    from orchestrator.experiment import control

    for text in control.log(run_dir, job, follow=follow, lines=lines, attempt=attempt, rank=rank):
        sys.stdout.write(text)
        sys.stdout.flush()


@app.command()
def stop(
    run_dir: RunDir,
    jobs: Annotated[
        list[str] | None, typer.Argument(metavar="[JOB]...", help="Jobs to cancel; without, all stops.")
    ] = None,
) -> None:
    """Stop an experiment, resumable as after Ctrl-C; or cancel some of its jobs."""
    from orchestrator.experiment import control

    print(control.stop(run_dir, jobs or []))


@app.command()
def retry(
    run_dir: RunDir,
    jobs: Annotated[
        list[str] | None, typer.Argument(metavar="[JOB]...", help="Without, all failed and cancelled ones.")
    ] = None,
) -> None:
    """Put failed and cancelled jobs back; they go on from their last checkpoint."""
    from orchestrator.experiment import control

    print(control.retry(run_dir, jobs or []))


@app.command()
def play(
    run_dir: RunDir,
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job, or the beginning of its name.")],
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="N|latest|PATH",
            help="env_steps of a checkpoint, the latest one, or a file.",
            show_default="the finished policy",
        ),
    ] = None,
    video: Annotated[
        bool, typer.Option("--video", help="Write video.mp4 and preview.png, also where a window could be opened.")
    ] = False,
    seconds: Annotated[
        float | None, typer.Option(min=0.01, help="Simulated time.", show_default="10, in a window until it is closed")
    ] = None,
    episodes: Annotated[int | None, typer.Option(min=1, help="Episodes, instead of a time.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the episodes' starts.")] = 0,
    stochastic: Annotated[bool, typer.Option("--stochastic", help="With the exploration of training.")] = False,
    output: Annotated[Path | None, typer.Option(help="Folder for the pictures.", show_default="the job's own")] = None,
) -> None:
    """Show a trained policy at work: in a window where there is a display, else as video and film strip."""
    from orchestrator.experiment import control, videos

    request = videos.Request(
        checkpoint=checkpoint,
        interactive=not video,
        seconds=seconds,
        episodes=episodes,
        seed=seed,
        stochastic=stochastic,
        output=output,
    )
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # as __main__ leaves it; now there is a child to end
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        videos.play(control.find(run_dir, job), request)
    except KeyboardInterrupt:
        _fail("stopped", 130)


@app.command()
def check(
    paths: Annotated[
        list[Path], typer.Argument(metavar="JOBS.toml|FILE.xml|FOLDER...", help="Job files, MJCF files, folders.")
    ],
    time_limit: Annotated[float, typer.Option(min=0.1, help="Seconds that one robot may take.")] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Show which robots can be trained, how fast they run, and what is wrong with the others."""
    from orchestrator.experiment import robot_check
    from orchestrator.supervisor.termination import StopRequests
    from orchestrator.terminal import check_view

    stops = StopRequests()
    try:
        with stops.installed(), check_view.progress() as told:
            rows = robot_check.check(paths, time_limit_s=time_limit, told=told, stop=stops.check)
    except KeyboardInterrupt:
        _fail("stopped", 130)
    if as_json:
        print(json.dumps([row.facts() for row in rows], indent=1, ensure_ascii=False))
    else:
        check_view.show(rows)
    raise typer.Exit(robot_check.exit_code(rows))


@app.command()
def verify(
    source: Annotated[Path, typer.Argument(metavar="RUN_DIR|JOBS.toml", help="A run directory, or a job file.")],
    jobs: Annotated[
        list[str] | None,
        typer.Option(
            help="A job, the beginning of its name, or a pattern; '*' for all. May be repeated.",
            show_default="the first of every robot and task, as many as some minutes hold",
        ),
    ] = None,
    iterations: Annotated[int, typer.Option(min=3, help="Of every training.")] = 6,
    repeats: Annotated[int, typer.Option(min=1, help="Of everything; five narrow the slow-down's interval.")] = 1,
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for certificate.json.", show_default="RUN_DIR, or runs/<name>-verify"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Prove that jobs train the same policy alone, among neighbours, and killed and resumed; tell the slow-down."""
    from orchestrator import verify as verification

    options = verification.Options(jobs=jobs or (), iterations=iterations, repeats=repeats, output=output)
    try:
        certificate, where = verification.verify(source, options, lambda text: print(text, file=sys.stderr, flush=True))
    except KeyboardInterrupt:
        _fail("stopped; there is no certificate", 130)
    if as_json:
        print(certificate.to_json(), end="")
    else:
        from orchestrator.terminal import verify_view

        verify_view.show(certificate, where)
    raise typer.Exit(0 if certificate.verdict == "PASS" else 1)


@app.command()
def bench(
    jobs: Annotated[Path, typer.Argument(metavar="JOBS.toml", help="The job file.")],
    levels: Annotated[
        str, typer.Option(help="Processes at once, such as 1,2,4; auto: up to the cores, then twice that.")
    ] = "auto",
    arms: Annotated[
        str | None, typer.Option(help="Ways of starting them, with commas.", show_default="all; see docs/bench.md")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Of every cell.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.1, help="That all processes of a cell train side by side.")] = 20.0,
    learner: Annotated[str | None, typer.Option(help="auto, fast or sb3.", show_default="of the job file")] = None,
    run_dir: Annotated[Path | None, typer.Option(help="Where figures go.", show_default="runs/<name>-bench")] = None,
    job: Annotated[
        str | None, typer.Option(help="The job that every process trains.", show_default="the first one")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a default. May be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the order in which cells are taken.")] = 0,
    retakes: Annotated[int, typer.Option(min=0, help="How often a disturbed cell is taken again.")] = 2,
    strong: Annotated[bool, typer.Option(help="Measure the makespan of the whole job file, too.")] = True,
    strong_seconds: Annotated[
        float, typer.Option(min=1.0, help="One core's work that the job file is scaled down to for that.")
    ] = 120.0,
    tune: Annotated[
        bool, typer.Option("--tune", help="Search for the best processes, threads and n_envs instead.")
    ] = False,
    ranks: Annotated[
        str | None,
        typer.Option(metavar="N,N", help="Measure one job over 1,2,4 ranks instead, beside as many jobs."),
    ] = None,
) -> None:
    """Measure how training scales with processes, started in this and in other ways; goes on where it was."""
    from orchestrator.bench import baselines as ways
    from orchestrator.bench import benchmark
    from orchestrator.jobfile import load, parse_override

    if tune and ranks is not None:
        raise UsageError("--tune and --ranks are two measurements: give one of them")
    overrides = dict(map(parse_override, set_ or []))
    if learner is not None:
        overrides["learner"] = learner
    experiment = load(jobs, overrides=overrides)
    options = benchmark.Options(
        run_dir=(run_dir or Path("runs") / f"{experiment.directory_name}-bench").absolute(),
        levels=levels,
        arms=ways.chosen(arms),
        repeats=repeats,
        seconds=seconds,
        seed=seed,
        job=job,
        retakes=retakes,
        strong_seconds=strong_seconds if strong else 0.0,
        tune=tune,
        ranks=ranks,
    )
    try:
        finished = benchmark.run(experiment, options, lambda text: print(text, file=sys.stderr, flush=True))
    except KeyboardInterrupt:
        _fail("stopped; the same command goes on", 130)
    if tune:
        print("\n".join(finished.lines))
    elif finished.measured:
        from orchestrator.terminal import bench_view

        (bench_view.show if ranks is None else bench_view.show_ranks)(finished.run_dir)
    raise typer.Exit(finished.exit_code)


class ReportFormat(StrEnum):
    html = "html"
    md = "md"


@app.command()
def report(
    run_dir: RunDir,
    format_: Annotated[
        ReportFormat, typer.Option("--format", help="A page to open, or the same printed as Markdown.")
    ] = ReportFormat.html,
) -> None:
    """Write RUN_DIR/report: a page about an experiment or a benchmark, its figures, and every number as JSON."""
    from orchestrator import report as reports

    made = reports.make(run_dir)
    print(made.markdown() if format_ is ReportFormat.md else made.page)


@app.command()
def compare(
    run_a: Annotated[Path, typer.Argument(metavar="RUN_A", help="A benchmark's or an experiment's run directory.")],
    run_b: Annotated[Path, typer.Argument(metavar="RUN_B", help="Another of the same kind.")],
    as_json: AsJson = False,
) -> None:
    """Put two benchmarks or two experiments side by side: another machine, another version; ratios with intervals."""
    from orchestrator.analysis import compare as comparison

    found = comparison.compare(run_a, run_b)
    if as_json:
        print(json.dumps(found.facts(), indent=1, ensure_ascii=False))
    else:
        from orchestrator.terminal import compare_view

        compare_view.show(found)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Show what this machine offers, what will be used of it, and what would cause contention."""
    from orchestrator.machine import doctor as doctors

    findings = doctors.examine()
    if as_json:
        print(doctors.to_json(findings))
    else:
        doctors.render(findings)


@app.command()
def schema() -> None:
    """Print the JSON Schema of the job file, for editors."""
    from orchestrator.jobfile import json_schema

    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))


def _fail(message: str, code: int) -> NoReturn:
    print(message, file=sys.stderr)
    raise SystemExit(code)


def main() -> None:
    """Entry point: every :class:`OrchestratorError` becomes its message and its exit code."""
    os.umask(os.umask(0o077) | 0o002)  # the user's own, but what we make is never writable by everybody
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a name that the terminal cannot show is no reason to fail
    try:
        app()
    except SpecError as error:
        count = len(error.problems)
        _fail(f"{error}\n{count} {'problem' if count == 1 else 'problems'}; nothing was launched", 2)
    except UsageError as error:
        _fail(f"error: {error}", 2)
    except OrchestratorError as error:
        _fail(f"error: {error}", 1)
    except BrokenPipeError:
        # The reader of our output went away (`… | head`): no reason to complain.
        from orchestrator.terminal.live_table import mute

        mute()
        raise SystemExit(141) from None
    except OSError as error:
        _fail(f"error: {error.filename or 'the system'}: {error.strerror or error}", 1)
