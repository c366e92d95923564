"""How many threads a worker has and which library starts them, counted in a child process.

The child gets the thread settings of a worker, imports its libraries and makes training steps;
after each of these stages it counts its threads in ``/proc``, and those that have computed. A thread
that only sleeps takes nothing from other jobs: CUDA's driver, for example, starts one wherever a GPU
is, even in a process that may not use it. This process imports none of the libraries.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.core.processes.environment_variables import worker_thread_settings
from orchestrator.core.text import last_line

# A pool of as many threads as a large machine has cores computes for over a millisecond in each.
# Where the kernel does not tell the CPU time of any thread, all count.
_CHILD = """
import json, os, sys, time
begin = time.monotonic()
threads, stages = int(sys.argv[1]), []
def has_computed(thread):
    try:
        with open(f"/proc/self/task/{thread}/schedstat") as file:
            return int(file.read().split()[0]) > 1_000_000
    except OSError:
        return False
def stage(name):
    there = os.listdir("/proc/self/task")
    computing = sum(map(has_computed, there)) or len(there)
    stages.append((name, len(there), computing, time.monotonic() - begin))
stage("start")
import numpy
matrix = numpy.ones((512, 512), numpy.float32)
for _ in range(60):
    matrix @ matrix
stage("numpy")
import torch
torch.set_num_threads(threads)
torch.set_num_interop_threads(1)
stage("torch")
import stable_baselines3, gymnasium
stage("stable-baselines3")
import mujoco
model = mujoco.MjModel.from_xml_string("<mujoco/>")
mujoco.mj_step(model, mujoco.MjData(model))
stage("mujoco")
layer = torch.nn.Linear(256, 256)
for _ in range(20):
    layer(torch.ones(2048, 256)).tanh().sum().backward()
stage("training steps")
print(json.dumps(stages))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """State of the child process after the stage ``name``."""

    name: str
    n_threads: int
    n_computing: int
    """Threads that have used over 1 ms of CPU time since they were started."""
    elapsed_s: float


class CensusError(Exception):
    """The threads could not be counted; the message says why in one line."""


class CensusTimeoutError(CensusError):
    """It took too long, which says nothing about the packages where other programs use the CPUs."""


def census(
    threads: int, environment: Mapping[str, str] = os.environ, *, timeout_s: float = 120.0
) -> tuple[Stage, ...]:
    """Count the threads of a process set up like a worker with ``threads`` threads (2 s).

    :raises CensusError: it failed.
    """
    # -P: do not import from the current folder
    command = [sys.executable, "-P", "-c", _CHILD, str(threads)]
    settings = {**environment, **worker_thread_settings(threads), "CUDA_VISIBLE_DEVICES": ""}
    try:
        done = subprocess.run(
            command,
            env=settings,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CensusTimeoutError(
            f"the imports of a worker took longer than {timeout_s:g} s"
        ) from None
    if done.returncode != 0:
        raise CensusError(last_line(done.stderr, f"exit code {done.returncode}"))
    rows = json.loads(done.stdout.splitlines()[-1])
    return tuple(
        Stage(name=name, n_threads=count, n_computing=computing, elapsed_s=elapsed)
        for name, count, computing, elapsed in rows
    )
