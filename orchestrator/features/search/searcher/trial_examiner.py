"""Examines the robots of new trials: another robot than that with which the search began is
refused, and a trial that the policy of its parent does not fit has no parent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.core.errors import UsageError
from orchestrator.core.job import Job
from orchestrator.core.paths import RunPaths
from orchestrator.core.robot_sources import converter_of
from orchestrator.experiment.examination import examining_process
from orchestrator.experiment.examination.preflight import JobVerdict
from orchestrator.experiment.from_outside import additions
from orchestrator.features.search import search_robots
from orchestrator.features.search.declaration import written
from orchestrator.features.search.history import Trial
from orchestrator.features.search.searcher.watchdog import Watchdog


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedTrial:
    """The jobs of a new trial, as they can be entered."""

    jobs: Sequence[Job]
    verdicts: Mapping[str, JobVerdict]
    """Of each of them, by ``job_id``."""
    parent: Trial | None
    """The trial whose policies they start from."""


@dataclass(slots=True, kw_only=True)
class TrialExaminer:
    """Its processes go on from trial to trial, until :meth:`close`."""

    paths: RunPaths
    watchdog: Watchdog
    _robots: Collection[str] = field(init=False)
    """What the robot may contain, if it is a file; empty if that is not known."""
    _children: list[examining_process.Child] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._robots = search_robots.recorded_robots(written.read_declaration(self.paths)).values()

    def close(self) -> None:
        for child in self._children:
            child.__exit__()

    def examine(self, jobs: Sequence[Job], parent: Trial | None = None) -> ExaminedTrial:
        """Examine the robots of the jobs of a trial.

        :param parent: the trial whose policies they start from, unless one of its policies does not
            fit its job. Jobs that the policy of the start of all trials does not fit are invalid.
        :raises UsageError: their robot has been edited since the search began.
        """
        if parent is not None:
            sources = [str(self.paths.job(job_id).root) for job_id in parent.jobs]
            is_start = parent.role == "start"
            if is_start:  # one policy for all seeds
                sources *= len(jobs)
            children = [
                job.with_spec(init=source) for job, source in zip(jobs, sources, strict=True)
            ]
            verdicts = self._verdicts(children)
            is_unfit = any(verdict.has_unfit_init for verdict in verdicts.values())
            if is_start or not is_unfit:
                return ExaminedTrial(jobs=children, verdicts=verdicts, parent=parent)
        return ExaminedTrial(jobs=jobs, verdicts=self._verdicts(jobs), parent=None)

    def _verdicts(self, jobs: Sequence[Job]) -> dict[str, JobVerdict]:
        # An examination has limits of its own, for each robot.
        step = self.watchdog.begin_step
        verdicts = additions.examine(self.paths, jobs, self._children, watch=lambda *_: step())
        for job in jobs:
            content = verdicts[job.job_id].source_hash
            source = job.xml_source
            # The space may vary what makes MJCF of another file.
            is_mjcf = source is not None and converter_of(source.name, job.robot_settings) is None
            is_known = bool(self._robots) and content is not None
            if is_mjcf and is_known and content not in self._robots:
                what = search_robots.change_text(source)
                raise UsageError(
                    f"{what} since the search began, and trials of both are not comparable; put it back"
                )
        return verdicts
