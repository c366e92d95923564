"""Stills of robots, drawn by child processes from poses that evaluations have
kept.

A pose waits in the directory of its job until it is drawn, so that a later run makes up for what
was missing.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from orchestrator.core.exit_codes import CANNOT_RENDER
from orchestrator.core.job import Succeeded
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import listed
from orchestrator.experiment.policy_process import PolicyProcess
from orchestrator.features.pictures.ended_jobs import EndedJobs, Report

MOST_DRAWN = 500
"""Of one run: whoever trains more jobs does not look at each of them."""
FEWEST_IN_PROCESS = 8
"""Jobs that one process draws: its start costs as much as drawing a few of them."""
MOST_IN_PROCESS = 64
START_LIMIT_S = 120.0
"""Patience with a process."""
JOB_LIMIT_S = 5.0
"""Added to it for each of its jobs."""
CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})
SHOWN = 3
OFF = "`preview = false` in the job file switches previews off"


@dataclass(frozen=True, slots=True, kw_only=True)
class StillsRequest:
    """Stills of a job and of others."""

    module: ClassVar[str] = "orchestrator.worker.rendering.stills"
    others: tuple[Path, ...] = ()
    """Directories of the other jobs."""

    def arguments(self) -> list[str]:
        """The command line arguments of :attr:`module`."""
        return list(map(str, self.others))


def jobs_to_draw(ended: EndedJobs, without: Collection[str]) -> list[str]:
    """Ids of the jobs to draw, in their order: of those that pages show by themselves.

    :param without: jobs that get none.
    """
    ids = list(ended.states) if ended.shown is None else ended.shown
    chosen = [
        id_
        for id_ in ids
        if id_ not in without and isinstance(ended.states.get(id_, Succeeded()), Succeeded)
    ]
    return [job_id for job_id in chosen if ended.paths.job(job_id).moment.exists()]


def drawings(
    paths: RunPaths, job_ids: Sequence[str], jobs_at_once: int, report: Report
) -> list[StillsDrawing]:
    """The processes that draw ``job_ids``: as many at once as jobs would run."""
    size = min(
        MOST_IN_PROCESS, max(FEWEST_IN_PROCESS, math.ceil(len(job_ids) / max(1, jobs_at_once)))
    )
    groups = [tuple(job_ids[first : first + size]) for first in range(0, len(job_ids), size)]
    outcome = StillsOutcome(report)
    return [StillsDrawing(paths=paths, jobs=group, outcome=outcome) for group in groups]


@dataclass(slots=True)
class StillsOutcome:
    """What all processes of a run have in common."""

    report: Report
    is_impossible: bool = False
    """Whether nothing can be drawn here: that is said once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StillsDrawing:
    """A process that draws some jobs, one after another."""

    paths: RunPaths
    jobs: tuple[str, ...]
    outcome: StillsOutcome

    @property
    def left(self) -> tuple[str, ...]:
        """A job that has been drawn has no pose any more, nor has one that cannot be drawn."""
        return tuple(job_id for job_id in self.jobs if self.paths.job(job_id).moment.exists())

    @property
    def time_limit_s(self) -> float:
        return START_LIMIT_S + JOB_LIMIT_S * len(self.jobs)

    def begin(self, cpus: tuple[int, ...]) -> PolicyProcess | None:
        """None: it is known that nothing can be drawn. :raises OSError: it cannot be started."""
        if self.outcome.is_impossible:
            return None
        first, *others = (self.paths.job(job_id) for job_id in self.jobs)
        request = StillsRequest(others=tuple(job.root for job in others))
        return PolicyProcess(first, request, cpus=cpus)

    def report_end(self, code: int, message: str) -> Sequence[StillsDrawing]:
        """Report how it has ended. Returns those that are to be begun in its place."""
        if code == 0:
            return []
        if code == CANNOT_RENDER:
            if not self.outcome.is_impossible:
                self._warn(f"no previews: {message}. The same command draws them later; {OFF}")
            self.outcome.is_impossible = True
            return []
        if code > 0:
            self._warn(f"no preview of {message}")
            return []
        left = self.left
        if not left:
            return []
        if -code not in CRASHES:  # it took too long, or somebody has killed it
            self._warn(
                f"no previews of {listed(left, SHOWN)}: {message}. The same command draws them later; {OFF}"
            )
            return []
        # The drawing of the first one has crashed, and would again.
        crashed, *others = left
        self.paths.job(crashed).moment.unlink(missing_ok=True)
        self._warn(f"no preview of {crashed}: {message}")
        return [replace(self, jobs=tuple(others))] if others else []

    def not_begun(self, why: str) -> None:
        """Report that its process cannot be started."""
        self._warn(f"no previews of {listed(self.jobs, SHOWN)}: {why}")

    def _warn(self, text: str) -> None:
        self.outcome.report("warning", text, jobs=list(self.jobs))
