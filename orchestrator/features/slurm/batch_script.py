"""The batch script of the pilots, from ``[slurm]`` of the job file."""

from __future__ import annotations

import hashlib
import math
import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.core.processes.child_process import package_path

if TYPE_CHECKING:
    from orchestrator.features.slurm.slurm_settings import SlurmSettings

WARNING_S = 120
"""How long before its time limit a pilot is told of it; with a limit below 8 minutes, a quarter of
that."""
SCRIPT = "pilots.sh"
LOG = "pilot-%A_%a.log"


def job_name(experiment: str, run_dir: Path) -> str:
    """As ``squeue`` shows it: the experiment's name, and four digits of the run directory's."""
    return f"{experiment}-{hashlib.sha256(os.fsencode(run_dir)).hexdigest()[:4]}"


def batch_script(settings: SlurmSettings, *, name: str, folder: Path, pilots: int) -> str:
    """:param folder: ``slurm`` in the run directory, absolute.
    :param pilots: number of tasks of the array.
    """
    warning_s = WARNING_S if settings.time_s is None else min(WARNING_S, int(settings.time_s / 4))
    # Slurm puts in numbers for %A and %a, and takes other % of the path for such signs.
    logs = str(folder).replace("%", "%%")
    options: dict[str, str | None] = {
        "job-name": name,
        "array": f"0-{pilots - 1}" if pilots > 1 else "0",
        "output": f"{logs}/{LOG}",
        "open-mode": "append",
        "ntasks": "1",
        "signal": f"B:USR1@{warning_s}",
        **_own(settings),
        **settings.options,
    }
    lines = [
        f"#SBATCH --{option}{'' if value is None else f'={_quote(value)}'}"
        for option, value in options.items()
    ]
    exports = [
        f"export {variable}={shlex.quote(value)}" for variable, value in package_path().items()
    ]
    command = shlex.join([sys.executable, "-m", "orchestrator.features.slurm.pilot", str(folder)])
    return "\n".join(["#!/bin/bash", *lines, *settings.setup, *exports, f"exec {command}", ""])


def _own(settings: SlurmSettings) -> Mapping[str, str]:
    values = {
        "partition": settings.partition,
        "account": settings.account,
        "qos": settings.qos,
        "constraint": settings.constraint,
        "time": None if settings.time_s is None else _time(settings.time_s),
        "cpus-per-task": settings.cpus_per_task,
        "mem": None if settings.mem_mib is None else f"{settings.mem_mib}M",
        "gres": f"gpu:{settings.gpus}" if settings.gpus else None,
    }
    return {option: str(value) for option, value in values.items() if value is not None}


def _time(seconds: float) -> str:
    """``days-hours:minutes:seconds``; Slurm rounds up to minutes."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours // 24}-{hours % 24:02}:{minutes:02}:{rest:02}"


def _quote(value: str) -> str:
    """As sbatch reads it: within quotes, a backslash escapes the next sign."""
    if re.fullmatch(r"[\w.,:;@%+=/*()&|-]+", value):
        return value
    escaped = re.sub(r'(["\\])', r"\\\1", value)
    return f'"{escaped}"'
