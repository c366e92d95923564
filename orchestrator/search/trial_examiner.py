"""Examines the robots of new trials, and refuses those of another robot than that with which the search began."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from orchestrator.core.errors import UsageError
from orchestrator.core.job import Job
from orchestrator.core.paths import RunPaths
from orchestrator.core.urdf_settings import is_urdf
from orchestrator.experiment import additions, preflight, search_process, search_robots
from orchestrator.experiment.preflight import JobVerdict


@dataclass(slots=True, kw_only=True)
class TrialExaminer:
    """Its processes go on from trial to trial, until :meth:`close`."""

    paths: RunPaths
    _robots: Collection[str] = field(init=False)
    """What the robot may contain, if it is a file; empty if that is not known."""
    _children: list[preflight.Child] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._robots = search_robots.recorded(search_process.begun(self.paths)).values()

    def close(self) -> None:
        for child in self._children:
            child.__exit__()

    def examine(self, jobs: Sequence[Job]) -> dict[str, JobVerdict]:
        """A verdict for each of the jobs of a trial, by ``job_id``.

        :raises UsageError: their robot has been edited since the search began.
        """
        verdicts = additions.examine(self.paths, jobs, self._children)
        for job in jobs:
            content, source = verdicts[job.job_id].source_hash, job.xml_source
            is_same_file = source is not None and not is_urdf(str(source))  # the space may vary what is added to a URDF
            if is_same_file and content is not None and self._robots and content not in self._robots:
                what = search_robots.changed(source)
                raise UsageError(f"{what} since the search began, and trials of both are not comparable; put it back")
        return verdicts
