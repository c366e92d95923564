"""The arms: ways in which people start trainings side by side. Those that differ in one thing isolate it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from orchestrator.core.environment import TOKEN_VARIABLE, worker_thread_settings
from orchestrator.core.errors import UsageError
from orchestrator.executors.process import package_path
from orchestrator.machine.doctor_checks import BINDING_VARIABLES

How = Literal["supervised", "alone", "fork", "spawn", "subproc"]

NO_TIMINGS = "ORCHESTRATOR_NO_TIMINGS"
"""What would switch the measuring off in the processes that are measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    how: How
    budget: bool
    """Whether the threads of a process are limited to the job's ``threads``."""
    about: str
    short: str
    """Within a sentence: "with …"."""


ARMS: Mapping[str, Arm] = MappingProxyType(
    {
        "pinned": Arm(
            how="supervised",
            budget=True,
            about="this program: supervised worker processes, thread budget, each pinned to a core of its own",
            short="pinned workers",
        ),
        "threads": Arm(
            how="alone",
            budget=True,
            about="a subprocess each, thread budget, no affinity",
            short="subprocesses with a thread budget",
        ),
        "default": Arm(
            how="alone",
            budget=False,
            about="a subprocess each, threads as the libraries come",
            short="default threads",
        ),
        "pool-fork": Arm(
            how="fork",
            budget=False,
            about="multiprocessing.Pool by fork, threads as the libraries come",
            short="Pool by fork with default threads",
        ),
        "pool-spawn": Arm(
            how="spawn",
            budget=False,
            about="multiprocessing.Pool by spawn, threads as the libraries come",
            short="Pool by spawn with default threads",
        ),
        "pool-fork-pinned": Arm(
            how="fork",
            budget=True,
            about="multiprocessing.Pool by fork, thread budget",
            short="Pool by fork with a thread budget",
        ),
        "pool-spawn-pinned": Arm(
            how="spawn",
            budget=True,
            about="multiprocessing.Pool by spawn, thread budget",
            short="Pool by spawn with a thread budget",
        ),
    }
)
SUBPROC = Arm(
    how="subproc",
    budget=True,
    about="stock Stable-Baselines3: SubprocVecEnv with a process for every environment, thread budget",
    short="SubprocVecEnv",
)
"""Beside several ranks; of its processes those beside the learner's only step environments."""
EVERY: Mapping[str, Arm] = MappingProxyType({**ARMS, "subproc": SUBPROC})


def chosen(text: str | None) -> tuple[str, ...]:
    """``"pinned,default"`` → the arms in their own order; all of them for None.

    :raises UsageError: for unknown ones, naming the valid ones.
    """
    if text is None:
        return tuple(ARMS)
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in ARMS]
    if unknown or not names:
        what = f"unknown: {', '.join(unknown)}" if unknown else "names none"
        raise UsageError(f"--arms {text}: {what}; valid: {', '.join(ARMS)}")
    return tuple(name for name in ARMS if name in names)


def command(arm: Arm, threads: int, job_dirs: Sequence[Path]) -> list[list[str]]:
    """What is to be started, for every arm but the supervised one."""
    budget = str(threads) if arm.budget else "default"
    base = [sys.executable, "-m", "orchestrator.worker.baselines.bench_child", arm.how, budget]
    if arm.how in ("alone", "subproc"):
        return [[*base, str(job_dir)] for job_dir in job_dirs]
    return [[*base, *map(str, job_dirs)]]


def environment(arm: Arm, threads: int, *, token: str, ours: Mapping[str, str] = os.environ) -> dict[str, str]:
    """For the arm's processes: ``ours`` without whatever is said there about threads.

    :param token: marks them all, so that none is left behind.
    """
    settings = worker_thread_settings(threads)
    silent = {*settings, *BINDING_VARIABLES, NO_TIMINGS}
    return {
        **{name: value for name, value in ours.items() if name not in silent},
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": "0",
        TOKEN_VARIABLE: token,
        **package_path(),
        **(settings if arm.budget else {}),
    }
