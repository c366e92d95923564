"""Holds launches back while the file system of the run directory has less free space than a job
asks for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.core.job import Job
from orchestrator.core.pacer import Pace, Pacer
from orchestrator.machine.topology import MIB
from orchestrator.supervisor.events import DiskShortage, Reporter

MEASURING = Pace(every_s=1.0)


@dataclass(slots=True, kw_only=True)
class DiskAdmission:
    """Admits jobs by the free space. That is measured when a job is to be launched, and while one
    that was refused waits; at most once a second.
    """

    root: Path
    reporter: Reporter
    now: Callable[[], float]
    asked: Collection[int]
    """How many MiB the waiting jobs ask for, always as of now."""
    _free_mib: int | None = field(default=None, init=False)
    _measuring: Pacer = field(default_factory=lambda: Pacer(MEASURING), init=False)
    _refused: set[int] = field(default_factory=set, init=False)
    """How many MiB jobs asked for that were refused; for each number that was reported once."""

    @property
    def awaited_shortage(self) -> DiskShortage | None:
        """What jobs wait for that others may free; None: none does."""
        free_mib = self._free_mib
        if free_mib is None:
            return None
        waiting = {mib for mib in self._refused_still_asked() if mib > free_mib}
        if not waiting:
            return None
        jobs = f"Jobs with resources.min_free_disk from {min(waiting):,} MiB on wait for free disk space"
        text = f"{jobs}: {free_mib:,} MiB are free on the file system of {self.root}"
        return DiskShortage(text=text, least_mib=min(waiting))

    def admit(self, job: Job) -> bool:
        """Admit ``job``, or report that it waits, once for all that ask for as much. Returns
        whether it may be launched.
        """
        asked_mib = job.resources.min_free_disk_mib
        if not asked_mib:
            return True
        self._measure()
        if self._free_mib is None or self._free_mib >= asked_mib:
            self._refused.discard(asked_mib)
            return True
        self._refused = self._refused_still_asked()
        if asked_mib not in self._refused:
            self._refused.add(asked_mib)
            text = (
                f"{job.job_id} waits for disk space, as do all jobs that need as much: "
                f"{shortage(self.root, self._free_mib, asked_mib)}. It is launched as soon as there is room; Ctrl-C "
                "or `stop` ends the run"
            )
            self.reporter.event(
                "waiting", text, job_id=job.job_id, free_mib=self._free_mib, asked_mib=asked_mib
            )
        return False

    def tick(self) -> None:
        """Measure while a job that was refused waits, also where no room is offered to it, such as
        while all slots are taken.
        """
        if self._refused_still_asked():
            self._measure()

    def _measure(self) -> None:
        if self._measuring.is_due(self.now()):
            self._free_mib = free_mib(self.root)
            self._measuring.wait(now=self.now())

    def _refused_still_asked(self) -> set[int]:
        """What was refused, without that for which no job waits any more: it may have been
        cancelled.
        """
        return {mib for mib in self._refused if mib in self.asked}


def free_mib(path: Path) -> int | None:
    """MiB that may be written where ``path`` is, or will be; None where that is not known."""
    for folder in (path, *path.parents):
        try:
            file_system = os.statvfs(folder)
        except FileNotFoundError:
            continue
        except OSError:  # the file system is away
            return None
        if not file_system.f_blocks:  # a file system that counts nothing
            return None
        return file_system.f_bavail * file_system.f_frsize // MIB
    return None


def shortage(path: Path, free_mib: int, asked_mib: int) -> str:
    """A clause that says what is missing, and a sentence on what to do, without its full stop."""
    free = f"{free_mib:,} MiB are free on the file system of {path}"
    advice = "Free some space, or lower that key (0: no limit)"
    return f"{free}, and resources.min_free_disk asks for {asked_mib:,} MiB. {advice}"
