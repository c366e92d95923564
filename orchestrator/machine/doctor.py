"""What this machine offers, what will be used of it, and what would make jobs slow each other down.

:func:`examine` looks and returns findings; :func:`render` shows them to people, :func:`to_json` to programs.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.machine import doctor_checks
from orchestrator.machine.cgroup import ROOT, oom_kills, throttled_s
from orchestrator.machine.doctor_checks import Finding, Level
from orchestrator.machine.topology import Machine, available_memory_mib, detect, online_cpus

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Finding", "Level", "examine", "render", "to_json"]


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
    """Look at everything that decides how well jobs run side by side; about two seconds, 0.5 s unless ``deep``.

    :param max_parallel: as in the job file; None is ``"auto"``.
    :param threads: thread budget of a worker, for the count that ``deep`` makes in a child process.
    :param directory: where run directories will lie.
    :param machine: examined in place of this one.
    """
    machine = machine or detect(root, with_gpus=True)
    return tuple(
        finding
        for findings in (
            doctor_checks.use(machine, max_parallel),
            doctor_checks.cores(machine),
            doctor_checks.affinity(machine, online_cpus(root)),
            doctor_checks.quota(machine, throttled_s(root)),
            doctor_checks.governor(machine, root),
            doctor_checks.load(machine),
            doctor_checks.memory(machine, max_parallel, available_memory_mib(root), oom_kills(root)),
            doctor_checks.swap(),
            doctor_checks.disk(directory),
            doctor_checks.gpus(machine),
            doctor_checks.rendering(environment),
            doctor_checks.thread_variables(environment),
            doctor_checks.worker_threads(threads, environment) if deep else (),
            doctor_checks.versions(),
            doctor_checks.kernel(root),
        )
        for finding in findings
    )


def render(findings: Sequence[Finding], console: Console | None = None) -> None:
    """Print for people; colours only in a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    marks: dict[Level, tuple[str, str]] = {
        "ok": ("ok", "green"),
        "note": ("note", "cyan"),
        "warning": ("warning", "yellow"),
    }
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for finding in findings:
        word, style = marks[finding.level]
        body = Text(finding.detail)
        if finding.cure:
            body.append(f"\n→ {finding.cure}", style="bold")
        table.add_row(Text(word, style=style), Text(finding.title, style="bold"), body)
    (console or Console()).print(table)


def to_json(findings: Sequence[Finding]) -> str:
    """A JSON array of ``{"level", "title", "detail", "cure"}``."""
    return json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2, ensure_ascii=False) + "\n"
