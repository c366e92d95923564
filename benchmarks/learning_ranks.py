"""Does a job learn equally well over several ranks? Table and figure of docs/measurements/ranks.md.

    python -m benchmarks.learning_ranks runs/learning-ranks [--ranks 1,2,4] [--seeds 5] [--output docs/figures]

Trains the job of ``jobs/wide.toml`` with every number of ranks and every seed, one after another,
into the folder; what is there already is kept, so that the same command resumes, and a second call
only reads. Ranks are started by hand rather than by ``run``, which would not start more of them
than there are cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks import learning_figures
from benchmarks.harness import ROOT
from benchmarks.learning import mean_std, power, tested
from benchmarks.learning_runs import LEAST_SEEDS, MEASURES, Trained, values
from benchmarks.permutation_tests import Pair
from orchestrator import jobfile as job_files
from orchestrator.analysis import run_reader
from orchestrator.core.errors import OrchestratorError, UsageError
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.exit_record import ExitRecord, read_exit_record
from orchestrator.core.paths import JobPaths
from orchestrator.core.processes.environment_variables import (
    LOCAL_RANK_VARIABLE,
    RANK_VARIABLE,
    RANKS_SECRET_VARIABLE,
    WORLD_SIZE_VARIABLE,
    worker_thread_settings,
)
from orchestrator.core.text import count
from orchestrator.executors.rank_group import new_secret
from orchestrator.features.bench import workload
from orchestrator.features.bench.workload import Work

JOBS = ROOT / "jobs" / "wide.toml"

Sides = Mapping[int, Sequence[Trained]]
"""Number of ranks → results in ascending order of seeds."""


def train(folder: Path, ranks: Sequence[int], seeds: int) -> None:
    """Train what is missing, seed by seed. :raises UsageError: a training has failed."""
    wanted = [(number, seed) for seed in range(seeds) for number in ranks]
    missing = [one for one in wanted if _record(_paths(folder, *one)) is None]
    if not missing:
        return
    experiment = job_files.load(JOBS)
    job = experiment.jobs[0]
    examined = workload.examine(experiment, job, folder / "staging")
    for number, seed in missing:
        _train(_paths(folder, number, seed), examined.over_ranks(number), seed)


def _paths(folder: Path, ranks: int, seed: int) -> JobPaths:
    return JobPaths(folder / f"ranks-{ranks}-s{seed}")


def _record(paths: JobPaths) -> ExitRecord | None:
    """The exit record of a training that has succeeded."""
    for exit_path in paths.root.glob("attempts/*/exit.json"):
        record = read_exit_record(exit_path)
        if record is not None and record.code == ExitCode.SUCCEEDED:
            return record
    return None


def _train(paths: JobPaths, todo: Work, seed: int) -> None:
    if not paths.spec.exists():
        todo.make_job_directory(
            dataclasses.replace(todo.job, spec=dataclasses.replace(todo.job.spec, seed=seed)), paths
        )
    number = next(number for number in itertools.count() if not paths.attempt(number).root.exists())
    attempt = paths.attempt(number)
    attempt.root.mkdir(parents=True)
    size = todo.job.resources.ranks
    cpus = sorted(os.sched_getaffinity(0))
    processes = []
    secret = {RANKS_SECRET_VARIABLE: new_secret()}
    for rank in range(size):
        place = {
            RANK_VARIABLE: str(rank),
            WORLD_SIZE_VARIABLE: str(size),
            LOCAL_RANK_VARIABLE: str(rank),
        }
        environment = {
            **os.environ,
            **worker_thread_settings(1),
            **(place | secret if size > 1 else {}),
        }
        with attempt.log_of(rank).open("wb") as log:
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "orchestrator.worker", str(paths.root), str(number)],
                    env=environment,
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
        os.sched_setaffinity(processes[-1].pid, {cpus[rank % len(cpus)]})
    codes = [process.wait() for process in processes]
    if any(codes):
        raise UsageError(f"a rank has ended with {max(codes, key=abs)}: see {attempt.root}")


def read(folder: Path, ranks: Sequence[int], seeds: int) -> Sides:
    """:raises UsageError: a training is missing."""
    sides: dict[int, list[Trained]] = {number: [] for number in ranks}
    for number, seed in itertools.product(ranks, range(seeds)):
        paths = _paths(folder, number, seed)
        record = _record(paths)
        if record is None or record.ep_rew_mean is None:
            raise UsageError(f"{paths.root}: no training that has come to its end")
        sides[number].append(
            Trained(
                seed=seed,
                env_steps=record.env_steps,
                final=record.ep_rew_mean,
                evaluated=record.eval_mean,
                curve=run_reader.learning_curve(paths.progress_csv),
            )
        )
    return sides


def report(sides: Sides) -> str:
    """The comparison as Markdown."""
    (env_steps,) = {one.env_steps for trained in sides.values() for one in trained}
    lines = [
        f"{JOBS.stem}.toml, {env_steps:,} env_steps, seed by seed final return (deterministic evaluation):",
        "",
    ]
    seeds = [one.seed for one in next(iter(sides.values()))]
    lines += [
        f"| ranks | {' | '.join(f'seed {seed}' for seed in seeds)} | mean ± std |",
        "|---" * (2 + len(seeds)) + "|",
    ]
    for number, trained in sides.items():
        finals = [
            f"{one.final:,.0f}" + ("" if one.evaluated is None else f" ({one.evaluated:,.0f})")
            for one in trained
        ]
        means = [mean_std(returns) for measure in MEASURES if (returns := values(trained, measure))]
        lines.append(
            f"| {number} | {' | '.join(finals)} | {means[0]}{''.join(f' ({mean})' for mean in means[1:])} |"
        )
    for measure, what in MEASURES.items():
        lines += ["", *comparison(sides, measure, what)]
    return "\n".join([*lines, "", *power(len(seeds), 1)])


def comparison(sides: Sides, measure: str, what: str) -> list[str]:
    """Comparisons of every pair of numbers of ranks; empty where the measure is missing."""
    found = {number: np.array(values(trained, measure)) for number, trained in sides.items()}
    pairs = {
        (a, b): Pair(found[a], found[b])
        for a, b in itertools.combinations(found, 2)
        if found[a].size and found[b].size
    }
    if not pairs:
        return []
    return [
        f"{what}:",
        "",
        "| ranks | difference in standard deviations (95 %) | p | p, Holm |",
        "|---|---|---|---|",
        *(
            f"| {a} and {b} | {cells} |"
            for (a, b), cells in zip(pairs, tested(pairs.values()), strict=True)
        ),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", default="1,2,4", metavar="N,N")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--output", type=Path, metavar="FOLDER", help="where the figure goes, as docs/figures"
    )
    given = parser.parse_args(arguments)
    ranks = [int(number) for number in given.ranks.split(",")]
    if given.seeds < LEAST_SEEDS:
        parser.error(f"--seeds {given.seeds}: at least {LEAST_SEEDS}")
    try:
        train(given.folder, ranks, given.seeds)
        sides = read(given.folder, ranks, given.seeds)
        print(report(sides))
        if given.output is not None:
            labels = [count(number, "rank") for number in sides]
            robots = [{"quadruped": one} for one in sides.values()]
            picture = learning_figures.side_by_side(
                "learning-ranks", "Learning over ranks", labels, robots
            )
            learning_figures.write(given.output, [picture])
    except (OrchestratorError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
