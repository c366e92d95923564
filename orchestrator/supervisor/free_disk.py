"""Holds launches back while the file system of the run directory has less free space than a job asks for."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.core.job import Job
from orchestrator.supervisor.events import Reporter

MEASURED_EVERY_S = 1.0


@dataclass(slots=True, kw_only=True)
class FreeDisk:
    """Admits jobs by the free space, which is measured when one is launched, and at most once a second."""

    root: Path
    reporter: Reporter
    now: Callable[[], float]
    _free_mib: int | None = field(default=None, init=False)
    _measure_at: float = field(default=0.0, init=False)
    _awaited: set[int] = field(default_factory=set, init=False)
    """How much the jobs ask for that were refused, and of which that was reported."""

    @property
    def is_awaited(self) -> bool:
        """Whether jobs wait for space that others may free."""
        return bool(self._awaited)

    @property
    def reason(self) -> str | None:
        """Why jobs wait for space; None: none does."""
        if not self._awaited or self._free_mib is None:
            return None
        jobs = f"Jobs with resources.min_free_disk from {min(self._awaited):,} MiB on wait for free disk space"
        return f"{jobs}: {self._free_mib:,} MiB are free on the file system of {self.root}"

    def admits(self, job: Job) -> bool:
        """Whether ``job`` may be launched. If it may not, this is reported, once for all that ask for as much."""
        asked_mib = job.resources.min_free_disk_mib
        if not asked_mib:
            return True
        if self.now() >= self._measure_at:
            self._free_mib, self._measure_at = free_mib(self.root), self.now() + MEASURED_EVERY_S
        if self._free_mib is None or self._free_mib >= asked_mib:
            self._awaited.discard(asked_mib)
            return True
        if asked_mib not in self._awaited:
            self._awaited.add(asked_mib)
            text = (
                f"{job.job_id} waits for disk space, as do all jobs that need as much: "
                f"{shortage(self.root, self._free_mib, asked_mib)}. It is launched as soon as there is room; Ctrl-C "
                "or `stop` ends the run"
            )
            self.reporter.event("waiting", text, job_id=job.job_id, free_mib=self._free_mib, asked_mib=asked_mib)
        return False


def free_mib(path: Path) -> int | None:
    """MiB that may be written where ``path`` is, or will be; None where that is not known."""
    for folder in (path, *path.parents):
        try:
            file_system = os.statvfs(folder)
        except FileNotFoundError:
            continue
        except OSError:
            return None
        return file_system.f_bavail * file_system.f_frsize // 2**20 if file_system.f_blocks else None
    return None


def shortage(path: Path, free_mib: int, asked_mib: int) -> str:
    """A clause that says what is missing, and a sentence on what to do, without its full stop."""
    free = f"{free_mib:,} MiB are free on the file system of {path}"
    advice = "Free some space, or lower that key (0: no limit)"
    return f"{free}, and resources.min_free_disk asks for {asked_mib:,} MiB. {advice}"
