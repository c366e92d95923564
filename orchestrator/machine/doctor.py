"""What this machine offers, what an experiment will use of it, and what would slow jobs down.

:func:`examine` returns findings; :func:`to_json` formats them for programs.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path

from orchestrator.core.feature import answers
from orchestrator.machine import doctor_checks
from orchestrator.machine.cgroup import ROOT, oom_kills, throttled_s
from orchestrator.machine.doctor_checks import Finding, Level
from orchestrator.machine.topology import Machine, available_memory_mib, detect, online_cpus

__all__ = ["Finding", "Level", "examine", "to_json"]


def examine() -> tuple[Finding, ...]:
    """Run every check; takes about two seconds."""
    machine = detect(with_gpus=True)
    load = tuple(doctor_checks.load(machine))
    is_busy = any(finding.level == "warning" for finding in load)
    return (
        *doctor_checks.use(machine),
        *doctor_checks.cores(machine),
        *doctor_checks.affinity(machine, online_cpus()),
        *doctor_checks.niceness(os.getpriority(os.PRIO_PROCESS, 0)),
        *doctor_checks.quota(machine, throttled_s()),
        *doctor_checks.governor(machine, ROOT),
        *load,
        *doctor_checks.holders(),
        *doctor_checks.memory(machine, available_memory_mib(), oom_kills()),
        *doctor_checks.swap(),
        *doctor_checks.disk(Path()),
        *doctor_checks.gpus(machine),
        *_of_features(machine),
        *doctor_checks.rendering(os.environ),
        *doctor_checks.thread_variables(os.environ),
        *doctor_checks.worker_threads(1, os.environ, is_busy=is_busy),
        *doctor_checks.versions(),
        *doctor_checks.kernel(ROOT),
    )


def _of_features(machine: Machine) -> list[Finding]:
    return [finding for _, findings in answers("doctor", machine) for finding in findings]


def to_json(findings: Sequence[Finding]) -> str:
    """A JSON array of ``{"level", "title", "detail", "cure"}``."""
    return (
        json.dumps(
            [dataclasses.asdict(finding) for finding in findings], indent=2, ensure_ascii=False
        )
        + "\n"
    )
