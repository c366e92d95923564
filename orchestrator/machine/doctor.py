"""What this machine offers, what an experiment will use of it, and what would slow jobs down.

:func:`examine` returns findings; :func:`to_json` formats them for programs.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.machine import doctor_checks
from orchestrator.machine.cgroup import ROOT, oom_kills, throttled_s
from orchestrator.machine.doctor_checks import Finding, Level
from orchestrator.machine.topology import Machine, available_memory_mib, detect, online_cpus

__all__ = ["Finding", "Level", "examine", "to_json"]


def examine(
    *,
    max_parallel: int | None = None,
    threads: int = 1,
    deep: bool = True,
    directory: Path = Path(),
    environment: Mapping[str, str] = os.environ,
    root: Path = ROOT,
    machine: Machine | None = None,
) -> tuple[Finding, ...]:
    """Run every check; takes about two seconds, or 0.5 s when not ``deep``.

    :param threads: threads of a worker, for the check in a child process that ``deep`` adds.
    :param machine: the machine to examine; None: this one.
    """
    machine = machine or detect(root, with_gpus=True)
    load = tuple(doctor_checks.load(machine))
    is_busy = any(finding.level == "warning" for finding in load)
    return (
        *doctor_checks.use(machine, max_parallel),
        *doctor_checks.cores(machine),
        *doctor_checks.affinity(machine, online_cpus(root)),
        *doctor_checks.niceness(os.getpriority(os.PRIO_PROCESS, 0)),
        *doctor_checks.quota(machine, throttled_s(root)),
        *doctor_checks.governor(machine, root),
        *load,
        *doctor_checks.memory(machine, max_parallel, available_memory_mib(root), oom_kills(root)),
        *doctor_checks.swap(),
        *doctor_checks.disk(directory),
        *doctor_checks.gpus(machine),
        *doctor_checks.slurm(machine, environment),
        *doctor_checks.rendering(environment),
        *doctor_checks.thread_variables(environment),
        *(doctor_checks.worker_threads(threads, environment, is_busy=is_busy) if deep else ()),
        *doctor_checks.versions(),
        *doctor_checks.kernel(root),
    )


def to_json(findings: Sequence[Finding]) -> str:
    """A JSON array of ``{"level", "title", "detail", "cure"}``."""
    return json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2, ensure_ascii=False) + "\n"
