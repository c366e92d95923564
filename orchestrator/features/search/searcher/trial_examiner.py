"""Whether new trials can start from the policies of another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.core.files.temporary_folder import TemporaryFolder
from orchestrator.core.job import Job
from orchestrator.core.paths import RunPaths
from orchestrator.examination import examining_process, preflight
from orchestrator.features.search.history import Trial
from orchestrator.features.search.searcher.watchdog import Watchdog


@dataclass(slots=True, kw_only=True)
class TrialExaminer:
    """Its process goes on from trial to trial, until :meth:`close`."""

    paths: RunPaths
    watchdog: Watchdog
    _children: list[examining_process.Child] = field(default_factory=list, init=False)

    def close(self) -> None:
        for child in self._children:
            child.close()

    def with_parent(self, jobs: Sequence[Job], parent: Trial) -> Sequence[Job] | None:
        """Return the jobs of a trial as they start from the policies of ``parent``, or None if one
        of these does not fit. Jobs that the policy of the start of all trials does not fit are
        invalid.
        """
        sources = [str(self.paths.job(job_id).root) for job_id in parent.jobs]
        if parent.role == "start":  # one policy for all seeds
            sources *= len(jobs)
        children = [job.with_spec(init=source) for job, source in zip(jobs, sources, strict=True)]
        if parent.role == "start":
            return children
        with TemporaryFolder() as staging:
            verdicts = preflight.examine(
                children,
                staging=Path(staging),
                processes=1,
                kept=self._children,
                watch=lambda *_: self.watchdog.begin_step(),
            )
        is_unfit = any(verdict.has_unfit_init for verdict in verdicts.values())
        return None if is_unfit else children
