"""Find out why jobs are slow: what took time from them, with the evidence and the remedy.

:func:`find` reads a run directory. :func:`diagnose` decides from measurements alone. The causes leave
different traces: a CPU limit of a cgroup, more threads than cores, jobs that share a core, another
program on a core.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

from orchestrator.analysis import run_reader
from orchestrator.core.front_end import option
from orchestrator.core.messages import HIGH_RUN_DELAY_SHARE
from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.core.text import count, cpu_text, listed
from orchestrator.core.timing_columns import Iteration
from orchestrator.experiment import run_directory
from orchestrator.ledger import AttemptRow, JobRow

THROTTLED = 0.02
"""Share of its wall time for which a throttled job is kept off the CPU."""
OVERSUBSCRIBED = 1.25
"""More runnable threads per core are too many."""
OVERSUBSCRIBED_BESIDE_OTHERS = 2.0
"""The same where other programs use the CPUs: idle threads wait behind them each time they wake up."""
MOST_NAMES = 3
"""Other programs that a finding names."""

Kind = Literal["threads", "throttled", "shared", "hog", "policy"]
"""``policy`` is no lost time: the evaluation shows that the policy does not do its task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentionFinding:
    """A cause of lost time, or what is wrong with a policy."""

    kind: Kind
    job_ids: tuple[str, ...]
    """The jobs that lost time."""
    what: str
    evidence: str
    cure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSpan:
    """The CPUs that a job had for some time."""

    begin: float
    """Seconds since the epoch."""
    end: float
    """Infinite while it lasts."""
    cpus: frozenset[int]
    """Empty if not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMetrics:
    """Measurements of one job, or of rank 0 of a job with several ranks. Sums are over all
    iterations but the first, which warms up. None: not measured.
    """

    job_id: str
    spans: Sequence[CpuSpan]
    """One for each attempt, and one more for each move to other CPUs."""
    competitors: Sequence[str] = ()
    """Other runs and programs that were seen on these CPUs."""
    threads: int | None = None
    """As declared."""
    env_steps: float = 0.0
    wall_s: float
    cpu_s: float | None
    run_delay_s: float | None
    throttled_s: float | None = None
    n_threads: int | None = None
    """The most at once."""

    @property
    def cpus(self) -> frozenset[int]:
        """All CPUs that it had at any time."""
        return frozenset[int]().union(*(span.cpus for span in self.spans))

    @property
    def cores(self) -> int:
        """The most CPUs that it had at once; 0 if they are not known."""
        return max((len(span.cpus) for span in self.spans), default=0)

    def common_cpus(self, other: JobMetrics) -> frozenset[int]:
        """Return the CPUs that both jobs had at the same time."""
        common: set[int] = set()
        for one in self.spans:
            for two in other.spans:
                if one.begin < two.end and two.begin < one.end:
                    common |= one.cpus & two.cpus
        return frozenset(common)

    def share(self, seconds: float | None) -> float | None:
        """Return ``seconds`` as a share of ``wall_s``."""
        return None if seconds is None else seconds / self.wall_s

    @property
    def throttled_share(self) -> float:
        """Share of the time for which a limit kept it off the CPU; 0 if not measured."""
        return self.share(self.throttled_s) or 0.0

    @property
    def delay_share(self) -> float:
        """Share of the time in which it waited for a CPU; 0 if not measured."""
        return self.share(self.run_delay_s) or 0.0

    @property
    def runnable(self) -> float:
        """Threads that computed or waited for a CPU, on average; 0 if not measured."""
        if self.cpu_s is None or self.run_delay_s is None:
            return 0.0
        return (self.cpu_s + self.run_delay_s) / self.wall_s


def find(run_dir: Path, among: Collection[str] | None = None) -> list[ContentionFinding]:
    """Return what slowed down the jobs of an experiment, finished or running.

    :param among: ids of the jobs to look at; None: all.
    :raises LedgerError: the ledger is damaged.
    """
    return diagnose(measure(run_dir, among))


# -- what was measured


def measure(run_dir: Path, among: Collection[str] | None = None) -> list[JobMetrics]:
    """Read the measurements of the jobs that have finished an iteration; the arguments are those of
    :func:`find`.
    """
    paths = RunPaths(run_dir)
    if not paths.ledger.exists():
        return []
    with run_directory.reading_ledger(paths) as ledger:
        declared = {row.job_id: row for row in ledger.jobs()}
        attempts_by_job: dict[str, list[AttemptRow]] = {}
        for attempt in ledger.attempts():
            job_id = attempt["job_id"]
            if job_id in declared and (among is None or job_id in among):
                attempts_by_job.setdefault(job_id, []).append(attempt)
    jobs = [
        _job_metrics(paths.job(job_id), declared[job_id], attempts)
        for job_id, attempts in attempts_by_job.items()
    ]
    return [job for job in jobs if job is not None]


def _job_metrics(
    paths: JobPaths, declared: JobRow, attempts: Sequence[AttemptRow]
) -> JobMetrics | None:
    """Return the metrics of a job, or None if it has not finished an iteration."""
    iterations = run_reader.iterations(paths.timings_csv)
    counted = iterations[1:] or iterations
    wall_s = sum(row.wall_s for row in counted)
    if wall_s <= 0:
        return None
    ranks = declared.job.resources.ranks
    spans = []
    for attempt in attempts:
        starts = [span["since"] for span in attempt["cpu_spans"]]
        ends = [*starts[1:], attempt["ended_at"] or math.inf]
        for span, end in zip(attempt["cpu_spans"], ends, strict=True):
            cpus = cpus_of_rank_0(span["cpus"], ranks)
            spans.append(CpuSpan(begin=span["since"], end=end, cpus=cpus))
    competitors = dict.fromkeys(name for attempt in attempts for name in attempt["competitors"])
    threads = [row.n_threads for row in counted if row.n_threads is not None]
    return JobMetrics(
        job_id=declared.job_id,
        spans=spans,
        competitors=tuple(competitors),
        threads=declared.job.spec.threads,
        env_steps=iterations[-1].env_steps - (iterations[0].env_steps if iterations[1:] else 0.0),
        wall_s=wall_s,
        cpu_s=_total(counted, "cpu_s"),
        run_delay_s=_total(counted, "run_delay_s"),
        throttled_s=_total(counted, "throttled_s"),
        n_threads=int(max(threads)) if threads else None,
    )


def cpus_of_rank_0(cpus: Sequence[int] | None, ranks: int) -> frozenset[int]:
    """Return the CPUs of the first rank, out of those of all ranks; none if they are not known."""
    return frozenset(cpus[: len(cpus) // ranks] if cpus else ())


def _total(rows: Sequence[Iteration], column: str) -> float | None:
    """Return the sum of a column, or None if one value was not measured."""
    values = [getattr(row, column) for row in rows]
    return None if None in values else math.fsum(values)


# -- what it means


def diagnose(jobs: Sequence[JobMetrics]) -> list[ContentionFinding]:
    """Return the causes of lost time. A job whose loss has one cause is not named under another."""
    findings = [*_throttling(jobs)]
    findings += _threads(_unexplained(jobs, findings))
    findings += _core_sharing(_unexplained(jobs, findings), jobs)
    findings += _hogs(_unexplained(jobs, findings))
    return findings


def _unexplained(
    jobs: Sequence[JobMetrics], findings: Sequence[ContentionFinding]
) -> list[JobMetrics]:
    explained = {job_id for finding in findings for job_id in finding.job_ids}
    return [job for job in jobs if job.job_id not in explained]


def _throttling(jobs: Sequence[JobMetrics]) -> Iterator[ContentionFinding]:
    """A quota of the cgroup that took CPU time from jobs."""
    throttled = [job for job in jobs if job.throttled_share > THROTTLED]
    if throttled:
        worst = max(throttled, key=lambda job: job.throttled_share)
        yield ContentionFinding(
            kind="throttled",
            job_ids=tuple(job.job_id for job in throttled),
            what="kept off the CPU by a cgroup limit",
            evidence=f"{worst.job_id}: throttled {worst.throttled_share:.0%} of its time",
            cure="raise the quota (docker --cpus, Kubernetes limits.cpu, systemd CPUQuota=),"
            f" or lower {option('max_parallel')}",
        )


def _threads(jobs: Sequence[JobMetrics]) -> Iterator[ContentionFinding]:
    """Jobs with more threads than cores, as declared or as measured."""
    for job in jobs:
        most = OVERSUBSCRIBED_BESIDE_OTHERS if job.competitors else OVERSUBSCRIBED
        is_declared = job.threads is not None and job.threads > job.cores
        is_measured = job.runnable > most * job.cores and job.delay_share > HIGH_RUN_DELAY_SHARE
        if not job.cores or not (is_declared or is_measured):
            continue
        slot = f"{count(job.cores, 'core')} ({cpu_text(job.cpus)})"
        what = f"more threads than its {slot} can run"
        cure = "its code or a library starts threads: limit them to the thread budget, or give the job more cores"
        if is_declared:
            what = f"threads = {job.threads} on {slot}"
            cure = f"resources.threads = {job.cores}, or resources.cores = {job.threads}"
        yield ContentionFinding(
            kind="threads",
            job_ids=(job.job_id,),
            what=what,
            evidence=f"{job.n_threads or 'an unknown number of'} threads were running; {job.runnable:.1f} were"
            f" runnable at once; together they waited {job.delay_share:.0%} of the time",
            cure=cure,
        )


def _core_sharing(
    suspects: Sequence[JobMetrics], jobs: Sequence[JobMetrics]
) -> Iterator[ContentionFinding]:
    """Jobs of this experiment that shared a core with any other: ``max_parallel`` was too large."""
    sharing: list[tuple[JobMetrics, JobMetrics]] = []
    for job in _waiting_jobs(suspects):
        sharers = (other for other in jobs if other is not job and job.common_cpus(other))
        if (sharer := next(sharers, None)) is not None:
            sharing.append((job, sharer))
    if sharing:
        worst, other = max(sharing, key=lambda pair: pair[0].delay_share)
        yield ContentionFinding(
            kind="shared",
            job_ids=tuple(job.job_id for job, _ in sharing),
            what="shared its core with another job of this experiment",
            evidence=f"{worst.job_id} and {other.job_id} ran at once on {cpu_text(worst.common_cpus(other))};"
            f" {worst.job_id} waited {worst.delay_share:.0%} of its time",
            cure='max_parallel = "auto": as many jobs as there are cores',
        )


def _hogs(jobs: Sequence[JobMetrics]) -> Iterator[ContentionFinding]:
    """Other runs and programs on the CPUs of jobs: one finding, however many there are."""
    delayed = _waiting_jobs(jobs)
    if delayed:
        cpus = frozenset[int]().union(*(job.cpus for job in delayed))
        names = list(dict.fromkeys(name for job in delayed for name in job.competitors))
        who = listed(names, MOST_NAMES) if names else "another program"
        where = cpu_text(cpus) if cpus else "their CPUs"
        waited = median(job.delay_share for job in delayed)
        yield ContentionFinding(
            kind="hog",
            job_ids=tuple(job.job_id for job in delayed),
            what=f"{who} used {where}, which {count(len(delayed), 'job')} of this run had",
            evidence=f"{count(len(delayed), 'job')} there waited {waited:.0%} of the time for a CPU",
            cure="`ps -eLo psr,pcpu,pid,user,comm --sort=-pcpu | head -n 20` shows who uses which CPU now (first"
            " column); end it, move it with taskset, or leave it the core:"
            f" {option('max_parallel', 'idle')} runs as many jobs at once as there are idle cores",
        )


def _waiting_jobs(jobs: Sequence[JobMetrics]) -> list[JobMetrics]:
    """Return the jobs that often waited for a CPU."""
    return [job for job in jobs if job.delay_share > HIGH_RUN_DELAY_SHARE]
