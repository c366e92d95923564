"""What ``doctor`` says of Slurm."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator, Mapping

from orchestrator.core.text import count, joined, rough_duration
from orchestrator.features.slurm.allocation import (
    SLURM_PROGRAMS,
    cores_of,
    memory_of,
    seconds_left,
    task_of,
)
from orchestrator.machine.doctor import Finding
from orchestrator.machine.topology import Machine


def findings(machine: Machine, environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """What an allocation of Slurm gives, or whether one can be asked for from here."""
    if "SLURM_JOB_ID" not in environment:
        missing = [
            name
            for name in SLURM_PROGRAMS
            if shutil.which(name, path=environment.get("PATH")) is None
        ]
        text = f"{joined(SLURM_PROGRAMS)} are on PATH, for `run --executor slurm`."
        if missing:
            text = f"not here: {joined(missing)} not on PATH."
        yield Finding("ok", "Slurm", text)
        return
    given = cores_of(machine, environment)
    left_s = seconds_left(environment)
    node = environment.get("SLURMD_NODENAME", platform.node())
    left = "no time limit is known" if left_s is None else f"{rough_duration(left_s)} left"
    text = f"job {task_of(environment)} on {node}: {count(given, 'core')}, {memory_of(machine, environment)} MiB"
    yield Finding("ok", "Slurm", f"{text}, {count(len(machine.gpus), 'GPU')}, {left}.")
    if given < machine.capacity:
        text = f"Slurm gave {count(given, 'core')}, but lets processes use {machine.capacity}: others may have these."
        yield Finding(
            "warning", "Slurm", text, f"run with --max-parallel {given}, or with --executor slurm"
        )
