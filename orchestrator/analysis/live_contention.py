"""Contention as it is at this moment, from what running jobs report; the files of jobs are not
read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.analysis import contention, job_metrics
from orchestrator.analysis.contention import ContentionFinding
from orchestrator.analysis.job_metrics import CpuSpan, JobMetrics, cpus_of_rank_0
from orchestrator.core.paths import RunPaths
from orchestrator.ledger import SummaryRow
from orchestrator.ledger.live_facts import LiveFacts

NEWEST = 0.3
"""Weight of the newest report in the mean of a job's shares: a single one covers half a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shares:
    """What a job does with each second, on average."""

    cpu: float
    """CPU seconds."""
    run_delay: float
    """Seconds of waiting for a CPU."""

    def moved_to(self, newest: _Shares) -> _Shares:
        """The mean with one more report."""
        return _Shares(
            cpu=self.cpu + NEWEST * (newest.cpu - self.cpu),
            run_delay=self.run_delay + NEWEST * (newest.run_delay - self.run_delay),
        )


class LiveContention:
    """Diagnoses running jobs again and again, from the mean of what they reported last."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._competitors: dict[str, tuple[str, ...]] = {}
        """By ``job_id``."""
        self._shares: dict[str, _Shares] = {}
        """By ``job_id``."""
        self._holder = ""
        self._limits = job_metrics.of_jobs([], paths)
        """Of the machine, at the start of the run of that supervisor."""

    def update(self, rows: Sequence[SummaryRow], live: LiveFacts | None) -> None:
        """Take in one more report of every running job."""
        if live is not None and live.holder != self._holder:
            self._holder = live.holder
            self._limits = job_metrics.of_jobs([], self._paths)
        jobs = live.jobs if live else {}
        self._competitors = {job_id: job.competitors for job_id, job in jobs.items()}
        means: dict[str, _Shares] = {}
        for row in rows:
            job_id = row["job_id"]
            job = jobs.get(job_id) if row["state"] == "RUNNING" else None
            if job is None or job.cpu_share is None or job.run_delay_share is None:
                continue
            newest = _Shares(cpu=job.cpu_share, run_delay=job.run_delay_share)
            before = self._shares.get(job_id)
            means[job_id] = newest if before is None else before.moved_to(newest)
        self._shares = means

    def find(self, rows: Sequence[SummaryRow]) -> list[ContentionFinding]:
        """What takes time from the jobs, as of the last report."""
        metrics = [self._metrics(row) for row in rows if row["job_id"] in self._shares]
        if not metrics:
            return []
        return contention.diagnose(replace(self._limits, jobs=metrics))

    def _metrics(self, row: SummaryRow) -> JobMetrics:
        """The mean of what the job reported, as metrics of one second on the CPUs that it has
        now.
        """
        job_id = row["job_id"]
        shares = self._shares[job_id]
        cpus = cpus_of_rank_0(row["cpus"], row["ranks"])
        return JobMetrics(
            job_id=job_id,
            spans=[CpuSpan(begin=row["started_at"] or 0.0, end=math.inf, cpus=cpus)],
            competitors=self._competitors.get(job_id, ()),
            ranks=row["ranks"],
            wall_s=1.0,
            cpu_s=shares.cpu,
            run_delay_s=shares.run_delay,
        )
