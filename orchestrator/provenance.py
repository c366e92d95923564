"""Where results come from: versions, code, machine, settings — and no secrets.

Of the environment only the variables that decide how many threads libraries start are recorded.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from orchestrator.contract import THREAD_VARIABLES, RunPaths, write_whole
from orchestrator.machine import Machine

PACKAGES = ("mujoco-orchestrator", "torch", "stable-baselines3", "gymnasium", "mujoco", "numpy", "psutil")


def versions() -> dict[str, str | None]:
    """Installed versions, without importing anything."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def record(paths: RunPaths, *, machine: Machine, lanes: int, base: Path) -> None:
    """Add this session to ``provenance.json``: a list, the newest last."""
    sessions: list[dict[str, Any]] = []
    if paths.provenance.exists():
        try:
            sessions = json.loads(paths.provenance.read_text())
        except ValueError:
            sessions = [{"note": "an earlier provenance.json could not be read"}]
    sessions.append(
        {
            "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "command": sys.argv,
            "host": socket.gethostname(),
            "platform": platform.platform(),
            "versions": versions(),
            "git": _git(base),
            "cpus": [asdict(cpu) for cpu in machine.cpus],
            "physical_cores": machine.physical_cores,
            "cpu_quota": machine.quota,
            "memory_total_mib": machine.memory_total_mib,
            "gpus": [asdict(gpu) for gpu in machine.gpus],
            "jobs_at_once": lanes,
            "thread_variables": {name: os.environ.get(name) for name in THREAD_VARIABLES},
        }
    )
    write_whole(paths.provenance, json.dumps(sessions, indent=1) + "\n")


def _git(base: Path) -> dict[str, Any] | None:
    """Commit and dirtiness of the repository that holds the job file; None outside of one."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(base), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return None
