"""What Slurm gave the job that this process belongs to, from the variables that it sets there."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping

from orchestrator.machine.topology import Machine

SLURM_PROGRAMS = ("sbatch", "squeue", "scancel")
ANSWER_S = 5.0
"""For ``squeue``."""


def task_of(variables: Mapping[str, str]) -> str:
    """The job as ``squeue`` names it; a task of an array: ``12_3``."""
    array = variables.get("SLURM_ARRAY_JOB_ID")
    task = variables.get("SLURM_ARRAY_TASK_ID")
    return variables.get("SLURM_JOB_ID", "0") if array is None else f"{array}_{task}"


def cores_of(machine: Machine, variables: Mapping[str, str]) -> int:
    """Jobs of one core at once: as ``doctor`` counts them, within what Slurm has given.

    Where Slurm was told of more CPUs than there are, they are shared as it says.
    """
    given = number_of(variables.get("SLURM_CPUS_ON_NODE")) or machine.capacity
    return given if given > len(machine.cpus) else min(machine.capacity, given)


def memory_of(machine: Machine, variables: Mapping[str, str]) -> int:
    """MiB."""
    of_node = number_of(variables.get("SLURM_MEM_PER_NODE"))
    of_cpus = number_of(variables.get("SLURM_MEM_PER_CPU")) * number_of(
        variables.get("SLURM_CPUS_ON_NODE")
    )
    return min(machine.memory_total_mib, of_node or of_cpus or machine.memory_total_mib)


def seconds_left(variables: Mapping[str, str]) -> float | None:
    """Until the time limit of the job; None without one, or where Slurm does not say."""
    if end := number_of(variables.get("SLURM_JOB_END_TIME")):
        return max(0.0, end - time.time())
    command = [
        "squeue",
        "--noheader",
        f"--jobs={variables.get('SLURM_JOB_ID', '0')}",
        "--format=%L",
    ]
    try:
        answer = subprocess.check_output(
            command,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=ANSWER_S,
        )
    except (OSError, subprocess.SubprocessError):  # no squeue here, or it does not answer
        return None
    return seconds_of(answer.strip())


def seconds_of(text: str) -> float | None:
    """A duration as Slurm writes it, ``1-02:03:04`` or ``03:04.567``; None for anything else."""
    match = re.fullmatch(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+(?:\.\d+)?)", text)
    if match is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def number_of(text: str | None) -> int:
    """A count as Slurm writes it; 0 for anything else."""
    return int(text) if text is not None and text.isdecimal() else 0
