"""What a search algorithm of the user gains when bodies are submitted one by one, printed as one
table.

    python -m benchmarks.training_pool [--repeats 5] [--bodies 100]

A and B of a ratio are measured interleaved in the same run, now A first and now B, and given as
medians with their range. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import functools
import random
import tempfile
import time
from pathlib import Path

import orchestrator
from benchmarks import search_simulation
from benchmarks.harness import ROOT, Line, at_least, both_ways, print_table
from orchestrator.machine import topology

LEAST_ENV_STEPS = 10_240
MOST_TO_LEAST = 8.0
GENERATION = 8
SIMULATED_CORES = (2, 4, 8)
PPO = {"n_steps": 256, "batch_size": 256}


def asynchronous(repeats: int, *, bodies: int) -> list[Line]:
    """Bodies of unequal cost, each as soon as a core is free, against generations that are waited
    for."""
    cores = topology.detect().capacity
    costs = [
        round(LEAST_ENV_STEPS * MOST_TO_LEAST ** (number / (bodies - 1)))
        for number in range(bodies)
    ]
    random.Random(0).shuffle(costs)
    ratios = []
    busy = dict[str, list[float]](asynchronous=[], generations=[])
    for number in range(repeats):
        seconds: dict[str, float] = {}
        for how in both_ways(number, *busy):
            at_once = bodies if how == "asynchronous" else GENERATION
            with (
                tempfile.TemporaryDirectory() as name,
                orchestrator.TrainingPool(
                    run_dir=Path(name) / "run", n_envs=8, eval_episodes=0, ppo=PPO
                ) as pool,
            ):
                pool.submit(
                    ROOT / "mjcf/runner.xml", seed=bodies, total_timesteps=LEAST_ENV_STEPS
                ).result()  # warm
                begun = time.perf_counter()
                results = list[orchestrator.Result]()
                for first in range(0, bodies, at_once):
                    some = enumerate(costs[first : first + at_once], first)
                    robots = [
                        pool.submit(ROOT / "mjcf/runner.xml", seed=seed, total_timesteps=n)
                        for seed, n in some
                    ]
                    results += [future.result() for future in robots]
                seconds[how] = time.perf_counter() - begun
            assert all(result.ok for result in results)
            busy[how].append(sum(result.wall_s or 0 for result in results) / (seconds[how] * cores))
        ratios.append(seconds["generations"] / seconds["asynchronous"])
    what = f"{bodies} bodies of runner, up to {MOST_TO_LEAST:g} times as expensive"
    here = f"{what}, on {cores} cores"
    ratio = "makespan in generations / asynchronous"
    return [
        at_least(
            f"{here}: share of the cores' time with a training, asynchronous",
            busy["asynchronous"],
            0.95,
        ),
        at_least(f"{here}: the same in generations of {GENERATION}", busy["generations"]),
        at_least(f"{here}: {ratio}", ratios, 1.2),
        *(
            at_least(
                f"{what}, on {number} cores, simulated with trainings that begin at once: {ratio}",
                [search_simulation.makespan_ratio(costs, number, GENERATION)],
            )
            for number in SIMULATED_CORES
        ),
    ]


def main() -> None:
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument(
        "--bodies", type=int, default=100, metavar="N", help="how many (default: 100)"
    )
    chosen, _ = options.parse_known_args()
    parts = {"asynchronous": functools.partial(asynchronous, bodies=chosen.bodies)}
    print_table(__doc__, parts, options)


if __name__ == "__main__":
    main()
