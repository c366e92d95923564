"""Baselines: ways of starting the processes of a measurement. Two that differ in one thing isolate
its effect.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orchestrator.core.errors import UsageError
from orchestrator.core.processes.child_process import package_path
from orchestrator.core.processes.environment_variables import (
    BINDING_VARIABLES,
    TOKEN_VARIABLE,
    worker_thread_settings,
)

How = Literal["supervised", "alone", "fork", "spawn", "subproc"]


@dataclass(frozen=True, slots=True)
class Baseline:
    how: How
    budget: bool
    """Whether the threads of a process are limited to the job's ``threads``."""
    about: str
    short: str
    """The name within a sentence: "with …"."""


DEFAULT = "the libraries' default threads"


def _pool(how: Literal["fork", "spawn"], *, budget: bool) -> Baseline:
    about = f"multiprocessing.Pool by {how}, {'thread budget' if budget else DEFAULT}"
    short = f"Pool by {how} with {'a thread budget' if budget else 'default threads'}"
    return Baseline(how, budget, about, short)


BUDGETED_FORK = "pool-fork-pinned"
BUDGETED_SPAWN = "pool-spawn-pinned"
"""Pools with a thread budget. Nothing is pinned there: these are the names in users' commands and in
benchmarks that have been measured."""
PINNED = (
    "this program: supervised worker processes, thread budget, each pinned to a core of its own"
)
STOCK = "stock Stable-Baselines3: SubprocVecEnv with one process per environment, thread budget"
BASELINES: Mapping[str, Baseline] = {
    "pinned": Baseline("supervised", True, PINNED, "pinned workers"),
    "threads": Baseline(
        "alone",
        True,
        "one subprocess each, thread budget, no affinity",
        "subprocesses with a thread budget",
    ),
    "default": Baseline("alone", False, f"one subprocess each, {DEFAULT}", "default threads"),
    "pool-fork": _pool("fork", budget=False),
    "pool-spawn": _pool("spawn", budget=False),
    BUDGETED_FORK: _pool("fork", budget=True),
    BUDGETED_SPAWN: _pool("spawn", budget=True),
}
SUBPROC = Baseline("subproc", True, STOCK, "SubprocVecEnv")
"""Compared with several ranks. All of its processes but the learner's only step environments."""
ALL_BASELINES: Mapping[str, Baseline] = {**BASELINES, "subproc": SUBPROC}


def parse_arms(text: str | None) -> tuple[str, ...]:
    """The baselines of ``--arms``: ``"default,pinned"`` → those two, in the order of
    :data:`BASELINES`; None → all.

    :raises UsageError: for unknown names; lists the valid ones.
    """
    if text is None:
        return tuple(BASELINES)
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in BASELINES]
    if unknown or not names:
        problem = f"unknown: {', '.join(unknown)}" if unknown else "expected at least one name"
        raise UsageError(f"--arms {text}: {problem}; valid: {', '.join(BASELINES)}")
    return tuple(name for name in BASELINES if name in names)


def command(baseline: Baseline, threads: int, job_dirs: Sequence[Path]) -> list[list[str]]:
    """The commands that start the trainings in ``job_dirs``, for every baseline but the supervised
    one.
    """
    budget = str(threads) if baseline.budget else "default"
    base = [
        sys.executable,
        "-m",
        "orchestrator.features.bench.worker.bench_child",
        baseline.how,
        budget,
    ]
    groups: list[Sequence[Path]] = [job_dirs]
    if baseline.how in ("alone", "subproc"):
        groups = [[job_dir] for job_dir in job_dirs]
    return [[*base, *map(str, group)] for group in groups]


def environment(baseline: Baseline, threads: int, *, token: str) -> dict[str, str]:
    """The variables of a baseline's processes: this process's, without those that set numbers of
    threads.

    :param token: marks every process, so that none is left behind.
    """
    settings = worker_thread_settings(threads)
    removed = {*settings, *BINDING_VARIABLES}
    return {
        **{name: value for name, value in os.environ.items() if name not in removed},
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": "0",
        TOKEN_VARIABLE: token,
        **package_path(),
        **(settings if baseline.budget else {}),
    }
