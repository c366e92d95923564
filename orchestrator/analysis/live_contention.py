"""Contention as it is at this moment, from what running jobs report; the files of jobs are not
read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from orchestrator.analysis import contention, job_metrics
from orchestrator.analysis.contention import ContentionFinding
from orchestrator.analysis.job_metrics import CpuSpan, JobMetrics, cpus_of_rank_0
from orchestrator.core.paths import RunPaths
from orchestrator.ledger import SummaryRow
from orchestrator.ledger.live_facts import LiveFacts

NEWEST = 0.3
"""Weight of the newest report in the mean of a job's shares: a single one covers half a second."""


class LiveContention:
    """Diagnoses running jobs again and again, from the mean of what they reported last."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._competitors: dict[str, tuple[str, ...]] = {}
        """By ``job_id``."""
        self._shares: dict[str, tuple[float, float]] = {}
        """CPU seconds and seconds of waiting for a CPU per second, by ``job_id``."""
        self._holder = ""
        self._limits = job_metrics.of_jobs([], paths)
        """Of the machine, at the start of the run of that supervisor."""

    def update(self, rows: Sequence[SummaryRow], live: LiveFacts | None) -> None:
        """Take in one more report of every running job."""
        if live is not None and live.holder != self._holder:
            self._holder, self._limits = live.holder, job_metrics.of_jobs([], self._paths)
        jobs = live.jobs if live else {}
        self._competitors = {job_id: job.competitors for job_id, job in jobs.items()}
        self._shares = {
            row["job_id"]: self._mean(row["job_id"], job.cpu_share, job.run_delay_share)
            for row in rows
            if row["state"] == "RUNNING"
            and (job := jobs.get(row["job_id"])) is not None
            and job.cpu_share is not None
            and job.run_delay_share is not None
        }

    def _mean(self, job_id: str, cpu: float, delay: float) -> tuple[float, float]:
        before_cpu, before_delay = self._shares.get(job_id, (cpu, delay))
        return before_cpu + NEWEST * (cpu - before_cpu), before_delay + NEWEST * (
            delay - before_delay
        )

    def find(self, rows: Sequence[SummaryRow]) -> list[ContentionFinding]:
        metrics = [
            replace(
                _metrics(row, self._shares), competitors=self._competitors.get(row["job_id"], ())
            )
            for row in rows
            if row["job_id"] in self._shares
        ]
        return contention.diagnose(replace(self._limits, jobs=metrics)) if metrics else []


def _metrics(row: SummaryRow, shares: Mapping[str, tuple[float, float]]) -> JobMetrics:
    """As of one second, on the CPUs that the job has now."""
    cpu_share, run_delay_share = shares[row["job_id"]]
    cpus = cpus_of_rank_0(row["cpus"], row["ranks"])
    return JobMetrics(
        job_id=row["job_id"],
        spans=[CpuSpan(begin=row["started_at"] or 0.0, end=math.inf, cpus=cpus)],
        ranks=row["ranks"],
        wall_s=1.0,
        cpu_s=cpu_share,
        run_delay_s=run_delay_share,
    )
