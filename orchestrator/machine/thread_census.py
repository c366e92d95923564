"""How many threads a worker has and which library starts them, counted in a child process.

The child gets the thread settings of a worker, imports its libraries and makes one training step;
after each of these stages it counts its threads in ``/proc``. This process imports none of the
libraries.
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

_CHILD = """
import json, os, sys, time
begin = time.monotonic()
threads, stages = int(sys.argv[1]), []
def stage(name):
    stages.append((name, len(os.listdir("/proc/self/task")), time.monotonic() - begin))
stage("start")
import numpy
numpy.ones((512, 512), numpy.float32) @ numpy.ones((512, 512), numpy.float32)
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
layer(torch.ones(2048, 256)).tanh().sum().backward()
stage("training step")
print(json.dumps(stages))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """State of the child process after the stage ``name``."""

    name: str
    n_threads: int
    elapsed_s: float


class CensusError(Exception):
    """The threads could not be counted; the message says why in one line."""


class CensusTimeoutError(CensusError):
    """It took too long, which says nothing about the packages where other programs use the CPUs."""


def census(
    threads: int, environment: Mapping[str, str] = os.environ, *, timeout_s: float = 120.0
) -> tuple[Stage, ...]:
    """Count the threads of a process set up like a worker with ``threads`` threads (1.5 s).

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
        Stage(name=name, n_threads=count, elapsed_s=elapsed) for name, count, elapsed in rows
    )
