"""Contention as it is at this moment, from what running jobs report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from orchestrator.analysis import contention
from orchestrator.analysis.contention import ContentionFinding, CpuSpan, JobMetrics
from orchestrator.core.paths import RunPaths
from orchestrator.ledger import SummaryRow
from orchestrator.ledger.live_facts import LiveFacts

NEWEST = 0.3
"""Weight of the newest report in the mean of a job's reports, each of half a second."""


class LiveContention:
    """Diagnoses running jobs again and again, from the mean of what they reported last. The files
    of jobs are not read.
    """

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._holder = ""
        """The supervisor whose limits are known."""
        self._limits = contention.with_limits([], paths)
        self._metrics: dict[str, JobMetrics] = {}
        """Job id → the mean of its reports, as metrics of one second on its present CPUs."""

    def update(self, rows: Sequence[SummaryRow], live: LiveFacts | None) -> None:
        """Take in one more report of every running job."""
        if live is not None and live.holder != self._holder:
            self._holder = live.holder
            self._limits = contention.with_limits([], self._paths)
        before = self._metrics
        self._metrics = {}
        for row in rows:
            job_id = row["job_id"]
            reported = live.jobs.get(job_id) if live and row["state"] == "RUNNING" else None
            if reported is None or reported.cpu_share is None or reported.run_delay_share is None:
                continue
            cpus = contention.cpus_of_rank_0(row["cpus"], row["ranks"])
            newest = JobMetrics(
                job_id=job_id,
                spans=[CpuSpan(begin=row["started_at"] or 0.0, end=math.inf, cpus=cpus)],
                competitors=reported.competitors,
                ranks=row["ranks"],
                wall_s=1.0,
                cpu_s=reported.cpu_share,
                run_delay_s=reported.run_delay_share,
            )
            self._metrics[job_id] = _moved_towards(newest, before.get(job_id))

    def find(self) -> list[ContentionFinding]:
        """Return what takes time from the jobs, as of the last report."""
        if not self._metrics:
            return []
        return contention.diagnose(replace(self._limits, jobs=list(self._metrics.values())))


def _moved_towards(newest: JobMetrics, before: JobMetrics | None) -> JobMetrics:
    """Return ``newest`` with the moving average of both."""
    if before is None:
        return newest

    def mean(new: float | None, old: float | None) -> float:
        return NEWEST * (new or 0.0) + (1 - NEWEST) * (old or 0.0)

    return replace(
        newest,
        cpu_s=mean(newest.cpu_s, before.cpu_s),
        run_delay_s=mean(newest.run_delay_s, before.run_delay_s),
    )
