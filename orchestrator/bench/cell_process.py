"""The processes of a cell: how they are started, what they tell, why they end, and that they do."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.core.messages import ExitRecord
from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.core.procfs import is_running
from orchestrator.executors.process import end_group, with_descendants

GRACE_S = 5.0
"""What supervised workers have to leave in; then they are killed."""
GONE_S = 5.0
"""What killed processes have to be gone in; what is left then is the kernel's affair."""


@dataclass(slots=True, kw_only=True)
class Running:
    """The processes of a cell."""

    popens: Sequence[subprocess.Popen[bytes]]
    jobs: Mapping[str, JobPaths]
    run_dir: Path | None
    """Of the supervised arm."""
    log: Path
    launched_at: float

    def why_ended(self) -> str:
        """Why the cell cannot go on, in one line; empty as long as it can."""
        for job_id, paths in self.jobs.items():
            is_gone = not _is_alive(facts(paths).get("pid"))
            with contextlib.suppress(OSError, ValueError):
                return f"{job_id}: {ExitRecord.from_json(paths.attempt(0).exit.read_text()).message or 'it ended'}"
            if is_gone:  # a Pool puts another process in its place, and waits for ever
                return f"{job_id}: its process was killed, perhaps for want of memory"
        for row in self.rows():
            if row["state"] == "FAILED":
                return f"{row['job_id']}: {row['message']}"
        codes = [code for popen in self.popens if (code := popen.poll()) is not None]
        if codes:
            lines = self.log.read_text(errors="replace").strip().splitlines()
            return lines[-1] if lines else f"a process ended with exit code {codes[0]}"
        return ""

    def rows(self) -> list[dict[str, Any]]:
        """What the supervisor tells of its jobs; empty in the other arms, and until it has told something."""
        if self.run_dir is not None:
            with contextlib.suppress(OSError, ValueError):
                return list(json.loads(RunPaths(self.run_dir).summary_json.read_text(encoding="utf-8")))
        return []

    def affinities(self) -> dict[str, list[int]]:
        """The CPUs that each process may run on, asked of the kernel."""
        pids: dict[str, int | None] = {job_id: facts(paths).get("pid") for job_id, paths in self.jobs.items()}
        pids |= {row["job_id"]: row["pid"] for row in self.rows()}
        found = {}
        for job_id, pid in pids.items():
            if pid:
                with contextlib.suppress(OSError):
                    found[job_id] = sorted(os.sched_getaffinity(pid))
        return found

    def pids(self) -> list[int]:
        """Of everything that was started, and what that has started."""
        return [pid for popen in self.popens for pid in with_descendants(popen.pid)]

    def stop(self) -> None:
        """End them all. Supervised workers may finish their iteration, and leave their last word."""
        if self.run_dir is not None and self.popens[0].poll() is None:
            self.popens[0].terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popens[0].wait(GRACE_S * 2)
        self.kill()

    def kill(self) -> None:
        for popen in self.popens:
            end_group(popen)


def start(
    command: Sequence[str], log: Path, environment: Mapping[str, str], cpus: Collection[int] | None = None
) -> subprocess.Popen[bytes]:
    """A process in a session of its own, its output in ``log``.

    :param cpus: that it, and what it starts, is confined to; None: all that we may use.
    """
    with log.open("ab") as out:
        popen = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
    if cpus is not None:
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(popen.pid, cpus)
    return popen


def await_end(pids: Iterable[int]) -> None:
    """Wait until processes that were killed are gone: those that give back much memory would disturb what follows."""
    left = list(pids)
    deadline = time.monotonic() + GONE_S
    while (left := [pid for pid in left if is_running(pid)]) and time.monotonic() < deadline:
        time.sleep(0.01)


def facts(paths: JobPaths) -> dict[str, Any]:
    """What the process has told of its start: in ``begun.json``, or, when a supervisor started it, at its end."""
    for path in (paths.begun, paths.attempt(0).exit):
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads(path.read_text()))
    return {}


def _is_alive(pid: int | None) -> bool:
    """Also where nothing is known of it."""
    try:
        if pid is not None:
            os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
