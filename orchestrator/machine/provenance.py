"""``provenance.json``: versions, git commit, machine and settings that results come from.

Of the environment only the variables that decide thread counts are recorded, because others may hold secrets.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from orchestrator.core.atomic_files import write_whole
from orchestrator.core.environment import THREAD_VARIABLES
from orchestrator.core.paths import RunPaths
from orchestrator.machine.topology import Machine, online_cpus

GIT_PATIENCE_S = 2.0
OURS = "mujoco-orchestrator"
PACKAGES = (OURS, "torch", "stable-baselines3", "gymnasium", "mujoco", "numpy", "psutil")


def version(name: str) -> str | None:
    """Version of an installed distribution, from its metadata; None when it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, str | None]:
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


class Repository:
    """Asks git for the commit of the job file, in the background because git is slow in large repositories."""

    def __init__(self, base: Path) -> None:
        questions = (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        self._children: list[subprocess.Popen[str]] = []
        with contextlib.suppress(OSError):  # git is not installed
            for question in questions:
                # With optional locks git could make a command of the user fail.
                command = ["git", "--no-optional-locks", *question]
                nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
                popen = subprocess.Popen(
                    command,
                    cwd=base,
                    stdin=nothing,
                    stdout=pipe,
                    stderr=nothing,
                    errors="replace",
                    start_new_session=True,
                )
                self._children.append(popen)

    def facts(self) -> dict[str, Any] | None:
        """Commit, and whether files were changed since; None outside of a repository, or when git does not answer."""
        try:
            answers = [child.communicate(timeout=GIT_PATIENCE_S)[0] for child in self._children]
        except subprocess.TimeoutExpired:
            return None
        if len(answers) < 2 or any(child.returncode for child in self._children):
            return None
        return {"commit": answers[0].strip(), "dirty": bool(answers[1].strip())}

    def close(self) -> None:
        for child in self._children:
            if child.returncode is None:
                child.kill()
                child.communicate()


def record(
    paths: RunPaths, *, machine: Machine, lanes: int, repository: Repository, backend: Mapping[str, Any]
) -> None:
    """Append this session, with facts about its ``backend``, to the list in ``provenance.json``."""
    sessions: list[dict[str, Any]] = []
    if paths.provenance.exists():
        try:
            sessions = list(json.loads(paths.provenance.read_text()))
        except (ValueError, TypeError):
            sessions = [{"note": "an earlier provenance.json could not be read"}]
    sessions.append(
        {
            "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "command": sys.argv,
            "host": socket.gethostname(),
            "platform": platform.platform(),
            "versions": versions(),
            "git": repository.facts(),
            "cpus": [asdict(cpu) for cpu in machine.cpus],
            "online_cpus": len(online_cpus()) or None,
            "physical_cores": machine.physical_cores,
            "cpu_quota": machine.quota,
            "memory_total_mib": machine.memory_total_mib,
            "gpus": [asdict(gpu) for gpu in machine.gpus],
            "jobs_at_once": lanes,
            **backend,
            "thread_variables": {name: os.environ.get(name) for name in THREAD_VARIABLES},
        }
    )
    write_whole(paths.provenance, json.dumps(sessions, indent=1) + "\n")
