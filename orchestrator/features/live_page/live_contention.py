"""Contention as it is at this moment, from what running jobs report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from orchestrator.analysis import contention
from orchestrator.analysis.contention import ContentionFinding, CpuSpan, JobMetrics
from orchestrator.ledger import SummaryRow

NEWEST = 0.3
"""Weight of the newest report in the mean of a job's reports, each of half a second."""


class LiveContention:
    """Diagnoses running jobs again and again, from the mean of what they reported last. The files
    of jobs are not read.
    """

    def __init__(self) -> None:
        self._metrics: dict[str, JobMetrics] = {}
        """Job id → the mean of its reports, as metrics of one second on its present CPUs."""

    def update(self, rows: Sequence[SummaryRow]) -> None:
        """Take in one more report of every running job."""
        before = self._metrics
        self._metrics = {}
        for row in rows:
            job_id = row["job_id"]
            if row["cpu_share"] is None or row["run_delay_share"] is None:
                continue
            cpus = contention.cpus_of_rank_0(row["cpus"], row["ranks"])
            newest = JobMetrics(
                job_id=job_id,
                spans=[CpuSpan(begin=row["started_at"] or 0.0, end=math.inf, cpus=cpus)],
                competitors=row["competitors"],
                wall_s=1.0,
                cpu_s=row["cpu_share"],
                run_delay_s=row["run_delay_share"],
            )
            self._metrics[job_id] = _moved_towards(newest, before.get(job_id))

    def find(self) -> list[ContentionFinding]:
        """Return what takes time from the jobs, as of the last report."""
        return contention.diagnose(list(self._metrics.values()))


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
