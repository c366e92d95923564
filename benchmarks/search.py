"""What a search costs beside the trainings themselves, and what it finds for its env_steps, printed
as one table.

    python -m benchmarks.search [--repeats 5] [--only start,tiny,derl,choices,beliefs,table,surrogate,confirmation,…]
        [--jobs 200] [--load 4] [--searches 1000] [--slow-searches 100] [--processes 2]
        [--trainings 60] [--robots runner,quadruped] [--samplers random,tpe,…] [--plain]
        [--rungs-by distance_m] [--run-dir DIR]

A and B of a ratio are measured interleaved in the same run, now A first and now B, and given as
medians with their range. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import orchestrator
from benchmarks import (
    choices,
    races,
    search_learning,
    search_ledger,
    search_simulation,
    table_of_bodies,
)
from benchmarks.bodies import beliefs, confirmation, searches_on_surrogate, searches_on_table
from benchmarks.harness import ROOT, Line, at_most, both_ways, busy_loop, print_table
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.paths import JobPaths
from orchestrator.machine import topology

SHORT_ENV_STEPS = 20_480
TINY_N_ENVS = 2
TINY_N_STEPS = 32


def short_jobs(
    folder: Path,
    count: int,
    start: str,
    *,
    env_steps: int = SHORT_ENV_STEPS,
    n_envs: int = 8,
    n_steps: int = 256,
) -> Path:
    """A job file of ``count`` short trainings of one robot, which differ in their seed."""
    path = folder / "short.toml"
    path.write_text(
        f"""name = "short"
[defaults]
total_timesteps = {env_steps}
n_envs = {n_envs}
eval_episodes = 0
checkpoint_every = 1_000_000_000
seeds = {list(range(count))}
resources = {{ start = "{start}" }}
[defaults.ppo]
n_steps = {n_steps}
batch_size = {min(256, n_envs * n_steps)}
[[jobs]]
name = "runner"
xml = {json.dumps(str(ROOT / "mjcf/runner.xml"))}
"""
    )
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortRun:
    """One run of :func:`short_jobs`."""

    makespan_s: float
    cpu_s: float
    """Of the supervisor and of all workers."""
    weights: Sequence[str]


def measured_run(count: int, how: str, **settings: int) -> ShortRun:
    with tempfile.TemporaryDirectory() as name:
        path = short_jobs(Path(name), count, how, **settings)
        before = sum(os.times()[:4])
        begun = time.perf_counter()
        run = orchestrator.run(path, run_dir=Path(name) / "run")
        makespan_s = time.perf_counter() - begun
        cpu_s = sum(os.times()[:4]) - before
        assert run.ok
        weights = [weights_of(result.job_dir) for result in run.results]
    return ShortRun(makespan_s=makespan_s, cpu_s=cpu_s, weights=weights)


def start_lines(
    what: str, runs: Sequence[Mapping[str, ShortRun]], forked: str, most: float
) -> list[Line]:
    """:param runs: of each repeat, that with ``exec`` and that with ``forked``.
    :param most: the target of the ratio.
    """
    differences = sum(
        one != other
        for run in runs
        for one, other in zip(run["exec"].weights, run[forked].weights, strict=True)
    )
    ratios = [run[forked].makespan_s / run["exec"].makespan_s for run in runs]
    return [
        at_most(f"{what}: makespan {forked} / exec", ratios, most),
        at_most(
            f"{what}: CPU seconds {forked} / exec",
            [run[forked].cpu_s / run["exec"].cpu_s for run in runs],
        ),
        at_most(f"{what}: makespan in seconds, {forked}", [run[forked].makespan_s for run in runs]),
        at_most(f"{what}: makespan in seconds, exec", [run["exec"].makespan_s for run in runs]),
        Line(
            what=f"{what}: jobs whose weights differ between the two",
            measured=f"{differences} of {sum(len(run['exec'].weights) for run in runs)}",
            target="0",
            good=differences == 0,
            values=[differences],
        ),
    ]


def start(repeats: int, *, jobs: int) -> list[Line]:
    """Makespan of many short jobs whose workers are forked, against the same with workers that are
    exec'ed."""
    runs = [
        {how: measured_run(jobs, how) for how in both_ways(number, "exec", "fork")}
        for number in range(repeats)
    ]
    what = f"{jobs} jobs of {SHORT_ENV_STEPS:,} env_steps of runner on {topology.detect().capacity} cores"
    return start_lines(what, runs, "fork", 0.75)


def tiny(repeats: int, *, jobs: int, load: int) -> list[Line]:
    """The same for jobs of a single iteration, by ``resources.start = "auto"``, idle and beside
    busy loops."""
    settings = {
        "env_steps": TINY_N_ENVS * TINY_N_STEPS,
        "n_envs": TINY_N_ENVS,
        "n_steps": TINY_N_STEPS,
    }
    runs: dict[int, list[dict[str, ShortRun]]] = {0: [], load: []}
    for number in range(repeats):
        for loops in both_ways(number, *runs):
            with contextlib.ExitStack() as beside:
                for _ in range(loops):
                    beside.enter_context(busy_loop())
                hows = both_ways(number, "exec", "auto")
                runs[loops].append({how: measured_run(jobs, how, **settings) for how in hows})
    lines = []
    for loops, of_load in runs.items():
        load_text = f"beside {loops} busy loops" if loops else "idle"
        what = f"{jobs} jobs of {settings['env_steps']} env_steps of runner on {topology.detect().capacity} cores"
        lines += start_lines(f"{what}, {load_text}", of_load, "auto", 1.0)
    return lines


def derl(_: int) -> list[Line]:
    """The scale of Gupta et al. (2021), by simulation: hours, and the share of the cores that
    idles."""
    lines = []
    for robot, speed in search_simulation.SPEEDS.items():
        for cores in (16, 1_152):
            mean_s = search_simulation.ENV_STEPS / speed + search_simulation.START_S
            times = search_simulation.seconds_of_bodies(
                search_simulation.BODIES, mean_s, search_simulation.SPREAD, 0
            )
            what = f"4,000 bodies × 5 million env_steps, {robot}, {cores:,} cores (simulated)"
            for how, generation in (("asynchronous", None), (f"generations of {cores:,}", cores)):
                outcome = search_simulation.simulate(times, cores, generation)
                lines.append(at_most(f"{what}, {how}: hours", [outcome.hours]))
                lines.append(at_most(f"{what}, {how}: idle share of the cores", [outcome.idle]))
    return lines


def weights_of(job_dir: Path | None) -> str:
    """SHA-256 of the weights of a trained job."""
    assert job_dir is not None
    record = ExitRecord.from_json(JobPaths(job_dir).attempt(0).exit.read_bytes())
    assert record.weights_sha256 is not None
    return record.weights_sha256


def names_of(known: Sequence[str], text: str) -> list[str]:
    """A value of an option that takes several of ``known``.

    :raises argparse.ArgumentTypeError: one is not known.
    """
    names = text.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"{','.join(unknown)}: unknown; valid: {','.join(known)}")
    return names


def main() -> None:
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument(
        "--jobs",
        type=int,
        default=200,
        metavar="N",
        help="jobs of the parts start and tiny (default: 200)",
    )
    options.add_argument(
        "--load", type=int, default=4, metavar="N", help="busy loops of the part tiny (default: 4)"
    )
    options.add_argument(
        "--searches",
        type=int,
        default=1_000,
        metavar="N",
        help="searches of each strategy in the parts table and surrogate, and cases of the part beliefs"
        " (default: 1,000)",
    )
    options.add_argument(
        "--slow-searches",
        type=int,
        default=100,
        metavar="N",
        help="the same by samplers that take seconds for a search (default: 100)",
    )
    options.add_argument(
        "--processes",
        type=int,
        default=topology.detect().capacity,
        metavar="N",
        help="processes of the parts table and surrogate (default: one for each core)",
    )
    options.add_argument(
        "--trainings",
        type=int,
        default=60,
        metavar="N",
        help="budget of a search of the part surrogate, in whole trainings (default: 60)",
    )
    options.add_argument(
        "--robots",
        type=functools.partial(names_of, table_of_bodies.ROBOTS),
        default=list(table_of_bodies.ROBOTS),
        metavar="NAME,…",
        help=f"of the parts beliefs, table and surrogate (default: {','.join(table_of_bodies.ROBOTS)})",
    )
    options.add_argument(
        "--figures", type=Path, metavar="DIR", help="also write figures of what was learned to DIR"
    )
    options.add_argument(
        "--samplers",
        type=functools.partial(names_of, searches_on_table.SAMPLERS),
        default=list(searches_on_table.SAMPLERS),
        metavar="NAME,…",
        help="of the same parts; random points are what all others are compared with"
        f" (default: {','.join(searches_on_table.SAMPLERS)})",
    )
    options.add_argument(
        "--rungs-by",
        choices=(table_of_bodies.RETURN, "distance_m", "energy_j", "cost_of_transport"),
        help="part table, only bodies with measures at rungs: what rungs compare by, higher is better (default: all"
        " bodies, by returns)",
    )
    options.add_argument(
        "--plain",
        action="store_true",
        help="part table with one seed a body and without races, as in the part surrogate",
    )
    options.add_argument(
        "--run-dir",
        type=Path,
        metavar="DIR",
        help="keep the searches of the part confirmation in DIR, or go on with those that are there",
    )
    chosen, _ = options.parse_known_args()
    if "random" not in chosen.samplers:
        options.error("--samplers: without random, with which all others are compared")
    extent = searches_on_table.Extent(
        searches=chosen.searches,
        slow_searches=chosen.slow_searches,
        processes=chosen.processes,
        robots=chosen.robots,
        samplers=chosen.samplers,
        is_plain=chosen.plain,
        rungs_by=chosen.rungs_by,
    )
    parts: dict[str, Callable[[int], list[Line]]] = {
        "start": functools.partial(start, jobs=chosen.jobs),
        "tiny": functools.partial(tiny, jobs=chosen.jobs, load=chosen.load),
        "derl": derl,
        "asha": search_learning.asha,
        "inheritance": functools.partial(search_learning.inheritance, figures=chosen.figures),
        "samplers": functools.partial(search_learning.samplers, figures=chosen.figures),
        "together": functools.partial(search_learning.together, figures=chosen.figures),
        "ledger": search_ledger.ledger,
        "races": races.races,
        "choices": choices.choices,
        "beliefs": functools.partial(beliefs.beliefs, extent=extent),
        "table": functools.partial(searches_on_table.searches_on_tables, extent=extent),
        "surrogate": functools.partial(
            searches_on_surrogate.searches_on_surrogates,
            extent=replace(extent, trainings=chosen.trainings),
        ),
        "confirmation": functools.partial(confirmation.confirmation, run_dir=chosen.run_dir),
    }
    print_table(__doc__, parts, options)


if __name__ == "__main__":
    main()
