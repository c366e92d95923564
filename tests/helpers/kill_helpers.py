"""Finds what a test may kill: the supervisor of a folder, the process of its search, and a
worker."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from orchestrator.core.errors import OrchestratorError
from orchestrator.core.paths import RunPaths
from orchestrator.experiment import run_directory


def killable(folder: Path) -> dict[str, int]:
    """Pids of the supervisor of ``folder/run``, its searcher, and a worker: those that run."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        command = command_of(pid)
        is_here = any(part.startswith(str(folder)) for part in command)
        if is_here and "orchestrator.features.search.searcher.searcher" in command:
            found["searcher"] = int(pid)
    if (holder := run_directory.holder(RunPaths(folder / "run"))) is not None:
        found["supervisor"] = holder.pid
    with (
        contextlib.suppress(OrchestratorError),
        run_directory.opened_ledger(RunPaths(folder / "run"), read_only=True) as ledger,
    ):
        for row in ledger.summary():  # the command of a forked worker is that of its template
            if row["state"] == "RUNNING" and any(
                "orchestrator.worker" in part for part in command_of(row["pid"])
            ):
                found["worker"] = row["pid"]
    return found


def command_of(pid: Any) -> list[str]:
    """The command line of a process; empty once it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    return []
