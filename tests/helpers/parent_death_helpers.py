"""Processes beside a supervisor that is killed while they still import their packages."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from command_helpers import wait_until
from executor_helpers import await_gone

REPOSITORY = Path(__file__).parents[2]
HANGS = """
import os, pathlib, time
pathlib.Path(__file__).with_name(f"importing-{os.getpid()}").touch()
time.sleep(600)
"""
"""A package whose import does not end."""


def assert_all_end_with(
    supervisor: str, folder: Path, *, number: int, hanging: Sequence[str] = ("numpy",)
) -> None:
    """Run a supervisor, kill it when all of its processes import, and wait for their end.

    :param supervisor: a program that starts processes which import packages from its argument,
        ``folder``, prints their pids in one line, and does not end.
    :param number: of these processes.
    :param hanging: packages whose import does not end there.
    """
    for package in hanging:
        (folder / f"{package}.py").write_text(HANGS)
    command = [sys.executable, "-c", supervisor, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        try:
            pids = [int(pid) for pid in started.stdout.readline().split()]
            assert len(pids) == number
            for pid in pids:
                wait_until((folder / f"importing-{pid}").exists, f"process {pid} imports")
        finally:
            started.kill()
    try:
        await_gone(pids)
    finally:
        for pid in pids:
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGKILL)
