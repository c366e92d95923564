"""The cost of averaging gradients: collectives of a 64-64 policy between two ranks of one machine,
one core each.

    python -m benchmarks.allreduce [--repeats 9] [--json FILE]

Over shared memory, as ranks of one machine exchange, and over gloo, as those of several machines
do.

The ranks are processes that connect and exchange as those of a training do
(:mod:`orchestrator.worker.distributed.ranks`), but do nothing else: in a training, waiting for a
slower rank comes on top.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks import harness
from benchmarks.harness import Line, at_most
from orchestrator.core.processes.environment_variables import (
    RANK_VARIABLE,
    RANKS_SECRET_VARIABLE,
    WORLD_SIZE_VARIABLE,
    worker_thread_settings,
)
from orchestrator.core.worker_spec import Backend
from orchestrator.executors.rank_group import new_secret

RANKS = 2
CALLS = 500
WARM_UP = 100
WIDTH = 64
OBSERVATIONS = 105
"""Of Ant-v5, as is the next."""
ACTIONS = 8
MOST_US = 300.0


def parameters(observations: int, actions: int, width: int = WIDTH) -> int:
    """Numbers in a policy and its value function with two hidden layers each, and in the logarithm
    of its deviation."""
    hidden = (observations + 1) * width + (width + 1) * width
    return 2 * hidden + (width + 1) * actions + (width + 1) + actions


def shared_memory(repeats: int) -> list[Line]:
    """``distributed.backend = "auto"``."""
    figures = measured("auto", repeats)
    of = f"of {parameters(OBSERVATIONS, ACTIONS):,} float32 (a {WIDTH}-{WIDTH} policy) between {RANKS} ranks, µs"
    return lines(f"over shared memory {of}", figures, MOST_US)


def gloo(repeats: int) -> list[Line]:
    """``distributed.backend = "gloo"``."""
    return lines("the same over gloo", measured("gloo", repeats), None)


def lines(of: str, figures: Mapping[str, Sequence[float]], most_us: float | None) -> list[Line]:
    return [
        at_most(f"one all-reduce {of}", figures["allreduce"], most_us),
        at_most(
            "the mean, which determines the time of a training", figures["allreduce, mean"], most_us
        ),
        at_most(f"reduce and broadcast (parameter server) {of}", figures["parameter-server"]),
        at_most("their mean", figures["parameter-server, mean"]),
    ]


def measured(backend: Backend, repeats: int) -> dict[str, list[float]]:
    """Start the ranks. Returns the figures of the first one."""
    with tempfile.TemporaryDirectory() as folder:
        cpus = sorted(os.sched_getaffinity(0))
        ranks = []
        secret = {RANKS_SECRET_VARIABLE: new_secret()}
        for rank in range(RANKS):
            command = [
                sys.executable,
                "-m",
                "benchmarks.allreduce",
                "--as-rank",
                folder,
                str(repeats),
                backend,
            ]
            place = {RANK_VARIABLE: str(rank), WORLD_SIZE_VARIABLE: str(RANKS)}
            environment = {**os.environ, **worker_thread_settings(1), **place, **secret}
            popen = subprocess.Popen(
                command, env=environment, cwd=harness.ROOT, stdout=subprocess.PIPE, text=True
            )
            os.sched_setaffinity(popen.pid, {cpus[rank % len(cpus)]})
            ranks.append(popen)
        answers = [popen.communicate()[0] for popen in ranks]
    if any(popen.returncode for popen in ranks):
        raise SystemExit("a rank has failed; see its message above")
    figures: dict[str, list[float]] = json.loads(answers[0])
    return figures


def as_rank(folder: Path, repeats: int, backend: Any) -> None:
    """The procedure of a rank; the first one prints the median and mean microseconds of each
    repeat."""
    import numpy as np
    import torch

    from orchestrator.worker.distributed.process_group import join

    torch.set_num_threads(1)
    ranks = join(RANKS, backend, torch.device("cpu"), folder / "rendezvous")
    gradients = np.zeros(parameters(OBSERVATIONS, ACTIONS), np.float32)

    def served() -> None:
        ranks.reduce(gradients)
        ranks.broadcast(gradients)

    ways: dict[str, Callable[[], None]] = {
        "allreduce": lambda: ranks.all_reduce(gradients),
        "parameter-server": served,
    }
    figures: dict[str, list[float]] = {
        f"{name}{kind}": [] for name in ways for kind in ("", ", mean")
    }
    for _ in range(repeats):
        for name, collective in ways.items():
            seconds = [_timed(collective) for _ in range(WARM_UP + CALLS)][WARM_UP:]
            figures[name].append(statistics.median(seconds) * 1e6)
            figures[f"{name}, mean"].append(statistics.mean(seconds) * 1e6)
    ranks.close()
    if ranks.rank == 0:
        print(json.dumps(figures))


def _timed(call: Callable[[], None]) -> float:
    started = perf_counter()
    call()
    return perf_counter() - started


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as-rank"]:
        as_rank(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    else:
        harness.print_table(__doc__, {"shared_memory": shared_memory, "gloo": gloo})
