"""The command ``bench``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from orchestrator.commands import shared_options as shared
from orchestrator.commands.shared_options import Learner, Settings

app = typer.Typer()
STRONG_SECONDS = 120.0


@app.command()
def bench(
    jobs: Annotated[Path, Argument(metavar="JOBS.toml", help="A job file.")],
    levels: Annotated[
        str,
        Option(
            help="Numbers of processes that train at once, such as 1,2,4. auto: up to the number of cores, then twice "
            "that."
        ),
    ] = "auto",
    arms: Annotated[
        str | None,
        Option(
            help="Baselines to measure, separated by commas: ways of starting the processes.",
            show_default="all; see docs/bench.md",
        ),
    ] = None,
    repeats: Annotated[int, Option(min=1, help="Repeats of each measurement.")] = 5,
    seconds: Annotated[
        float,
        Option(min=0.1, help="Seconds for which all processes of a measurement train at once."),
    ] = 20.0,
    learner: Learner = None,
    run_dir: Annotated[
        Path | None, Option(help="Directory for all results.", show_default="runs/<name>-bench")
    ] = None,
    job: Annotated[
        str | None, Option(help="The job that every process trains.", show_default="the first job")
    ] = None,
    set_: Settings = None,
    seed: Annotated[int, Option(min=0, help="Seed of the order of the measurements.")] = 0,
    strong: Annotated[
        bool | None,
        Option(
            "--strong/--no-strong",
            help="Also measure the makespan of the whole job file.",
            show_default="unless --levels or --arms are given without --strong-seconds",
        ),
    ] = None,
    strong_seconds: Annotated[
        float | None,
        Option(
            min=1.0,
            help="For the makespan the job file is scaled down to this work, in seconds on one core.",
            show_default=f"{STRONG_SECONDS:g}",
        ),
    ] = None,
    ranks: Annotated[
        str | None,
        Option(
            metavar="N,N",
            help="Compare jobs of these numbers of ranks, such as 1,2,4, with as many separate jobs; no baselines.",
        ),
    ] = None,
) -> None:
    """Measure how training scales with the number of processes, and compare baselines. Can be
    resumed.
    """
    from orchestrator.features.bench import (
        baselines,
        bench_view,
        benchmark,
        plan,
        rank_analysis,
        scaling_analysis,
    )
    from orchestrator.jobfile import load

    is_part = levels != "auto" or arms is not None
    why_no_strong = ""
    if strong is False:
        why_no_strong = "--no-strong"
    elif strong is None and strong_seconds is None and is_part:
        why_no_strong = f"{'--levels' if levels != 'auto' else '--arms'} asks for a part; --strong measures it, too"
    experiment = load(jobs, overrides=shared.overrides(set_, learner))
    for warning in experiment.warnings:
        shared.print_progress(f"warning: {warning}")
    options = plan.BenchOptions(
        run_dir=(run_dir or Path("runs") / f"{experiment.directory_name}-bench").absolute(),
        levels=levels,
        baselines=baselines.parse_arms(arms),
        repeats=repeats,
        seconds=seconds,
        seed=seed,
        job=job,
        strong_seconds=0.0 if why_no_strong else strong_seconds or STRONG_SECONDS,
        why_no_strong=why_no_strong,
        ranks=ranks,
    )
    stopped = "stopped; run the same command again to resume"
    with shared.stoppable(stopped):
        finished = benchmark.run(experiment, options, shared.print_progress)
    if finished.measured and ranks is None:
        bench_view.show(scaling_analysis.analyse(finished.run_dir), finished.run_dir)
    elif finished.measured and (facts := rank_analysis.facts(finished.run_dir)) is not None:
        bench_view.show_ranks(facts, finished.run_dir)
    raise typer.Exit(finished.exit_code)
