"""Find out why jobs are slow: what took time from them, with the evidence and the remedy.

:func:`find` reads a run directory. :func:`diagnose` decides from measurements alone. The causes leave
different traces: more threads than cores, a limit set from outside (cgroup or affinity), jobs that
share a core, another program on a core, a job slower than others that do the same work.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

from orchestrator.analysis import run_reader
from orchestrator.analysis.equal_trainings import training_but_for_seed
from orchestrator.core.exit_record import read_exit_record
from orchestrator.core.front_end import option
from orchestrator.core.messages import HIGH_RUN_DELAY_SHARE
from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.core.text import count, cpu_text, listed
from orchestrator.core.timing_columns import Iteration
from orchestrator.experiment.directory import run_directory
from orchestrator.ledger import AttemptRow, JobRow

THROTTLED = 0.02
"""Share of its wall time for which a throttled job is kept off the CPU."""
OVERSUBSCRIBED = 1.25
"""More runnable threads per core are too many."""
OVERSUBSCRIBED_BESIDE_OTHERS = 2.0
"""The same where other programs use the CPUs: idle threads wait behind them each time they wake up."""
SLOW = 1.5
"""A slow job takes so many times the seconds per env_step of the others."""
FEWEST_PEERS = 2
"""Other jobs of the same work that are needed to call one slow."""
MOST_NAMES = 3
"""Other programs that a finding names."""
RAISE_QUOTA = "raise the quota (docker --cpus, Kubernetes limits.cpu, systemd CPUQuota=)"

Kind = Literal["threads", "throttled", "quota", "affinity", "shared", "hog", "slow", "policy"]
"""``policy`` is no lost time: the evaluation shows that the policy does not do its task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentionFinding:
    """A cause of lost time, or what is wrong with a policy."""

    kind: Kind
    job_ids: Sequence[str]
    """The jobs that lost time; empty if the cause concerns the whole experiment."""
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
    fewest_cpus: int | None = None
    """The fewest CPUs of its slot that it was allowed to use."""
    threads: int | None = None
    """As declared."""
    ranks: int = 1
    work: str = ""
    """Equal for jobs that differ in their seed alone; empty if not known."""
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
    def has_changed_cpus(self) -> bool:
        return len({span.cpus for span in self.spans}) > 1

    @property
    def cores(self) -> int | None:
        """How many CPUs it had at once. None if that is not known, or has changed."""
        numbers = {len(span.cpus) for span in self.spans}
        return (numbers.pop() or None) if len(numbers) == 1 else None

    @property
    def cpus_text(self) -> str:
        return cpu_text(self.cpus) + (", not all at once" if self.has_changed_cpus else "")

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
    def delay_share(self) -> float:
        """Share of the time in which it waited for a CPU; 0 if not measured."""
        return self.share(self.run_delay_s) or 0.0

    @property
    def runnable(self) -> float | None:
        """Threads that computed or waited for a CPU, on average."""
        if self.cpu_s is None or self.run_delay_s is None:
            return None
        return self.share(self.cpu_s + self.run_delay_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentMetrics:
    """Measurements of all jobs, and the limits of the machine when the supervisor started."""

    jobs: Sequence[JobMetrics]
    """The jobs that have finished an iteration."""
    usable_cpus: int | None
    """CPUs that the supervisor was allowed to use."""
    online_cpus: int | None
    quota: float | None
    """Of the cgroup, in CPUs."""


def find(run_dir: Path, among: Collection[str] | None = None) -> list[ContentionFinding]:
    """Return what slowed down the jobs of an experiment, finished or running.

    :param among: ids of the jobs to look at; None: all.
    :raises LedgerError: the ledger is damaged.
    """
    return diagnose(measure(run_dir, among))


# -- what was measured


def measure(run_dir: Path, among: Collection[str] | None = None) -> ExperimentMetrics:
    """Read the measurements of an experiment; the arguments are those of :func:`find`."""
    paths = RunPaths(run_dir)
    if not paths.ledger.exists():
        return with_limits([], paths)
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
    return with_limits([job for job in jobs if job is not None], paths)


def with_limits(jobs: Sequence[JobMetrics], paths: RunPaths) -> ExperimentMetrics:
    """Return the metrics of jobs with the limits of the machine at the start of the last run."""
    session = run_reader.last_session(paths.provenance)
    usable = session.get("cpus")
    online = run_reader.finite(session.get("online_cpus"))
    return ExperimentMetrics(
        jobs=jobs,
        usable_cpus=len(usable) if isinstance(usable, list) else None,
        online_cpus=None if online is None else int(online),
        quota=run_reader.finite(session.get("cpu_quota")),
    )


def _job_metrics(
    paths: JobPaths, declared: JobRow, attempts: Sequence[AttemptRow]
) -> JobMetrics | None:
    """Return the metrics of a job, or None if it has not finished an iteration."""
    iterations = run_reader.iterations(paths.timings_csv)
    counted = iterations[1:] or iterations
    wall_s = sum(row.wall_s for row in counted)
    if wall_s <= 0:
        return None
    spec = declared.job.spec
    ranks = declared.job.resources.ranks
    allowed_cpus = [row.n_cpus for row in counted]
    spans = []
    for attempt in attempts:
        starts = [span["since"] for span in attempt["cpu_spans"]]
        ends = [*starts[1:], attempt["ended_at"] or math.inf]
        for span, end in zip(attempt["cpu_spans"], ends, strict=True):
            cpus = cpus_of_rank_0(span["cpus"], ranks)
            spans.append(CpuSpan(begin=span["since"], end=end, cpus=cpus))
        record = read_exit_record(paths.attempt(attempt["number"]).exit)
        cpus = cpus_of_rank_0(attempt["cpus"], ranks)
        if cpus and record is not None and record.cpus is not None:
            allowed_cpus.append(len(cpus.intersection(record.cpus)))
    competitors = dict.fromkeys(name for attempt in attempts for name in attempt["competitors"])
    known_cpus = [number for number in allowed_cpus if number is not None]
    threads = [row.n_threads for row in counted if row.n_threads is not None]
    return JobMetrics(
        job_id=declared.job_id,
        spans=spans,
        competitors=tuple(competitors),
        fewest_cpus=int(min(known_cpus)) if known_cpus else None,
        threads=spec.threads,
        ranks=ranks,
        work=f"{training_but_for_seed(spec, None)} {declared.robot_hash}",
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


def diagnose(experiment: ExperimentMetrics) -> list[ContentionFinding]:
    """Return the causes of lost time. A job whose loss has one cause is not named under another."""
    findings = [*_throttling(experiment), *_affinity(experiment)]
    for search in (_threads, _core_sharing, _hogs, _slow):
        explained = frozenset(job_id for finding in findings for job_id in finding.job_ids)
        findings += search(experiment.jobs, explained)
    return findings


def _finding(
    kind: Kind, jobs: Sequence[JobMetrics], *, what: str, evidence: str, cure: str
) -> ContentionFinding:
    """:param jobs: those that lost time; none for a cause that concerns the whole experiment."""
    if len(jobs) > 1:
        what += f" (and {count(len(jobs) - 1, 'more job')})"
    job_ids = tuple(job.job_id for job in jobs)
    return ContentionFinding(kind=kind, job_ids=job_ids, what=what, evidence=evidence, cure=cure)


def _throttling(experiment: ExperimentMetrics) -> Iterator[ContentionFinding]:
    """A quota of the cgroup that took CPU time from jobs, or one that leaves CPUs idle."""
    quota = experiment.quota
    usable = experiment.usable_cpus
    throttled = [job for job in experiment.jobs if (job.share(job.throttled_s) or 0) > THROTTLED]
    if throttled:
        worst = max(throttled, key=lambda job: job.share(job.throttled_s) or 0)
        limit = "" if quota is None else f"; the quota is {quota:g} CPUs"
        yield _finding(
            "throttled",
            throttled,
            what="kept off the CPU by a cgroup limit",
            evidence=f"{worst.job_id}: throttled {worst.share(worst.throttled_s):.0%} of its time{limit}",
            cure=f"{RAISE_QUOTA}, or lower {option('max_parallel')}",
        )
    elif quota is not None and usable is not None and quota < usable:
        yield _finding(
            "quota",
            [],
            what=f"a cgroup limit of {quota:g} CPUs leaves some of {usable} idle",
            evidence="CPU quota at the start; no job was throttled",
            cure=f"{RAISE_QUOTA} to use all CPUs",
        )


def _affinity(experiment: ExperimentMetrics) -> Iterator[ContentionFinding]:
    """CPUs of the machine that the supervisor was not allowed, or jobs those of their slots."""
    usable = experiment.usable_cpus
    online = experiment.online_cpus
    if usable is not None and online is not None and usable < online:
        yield _finding(
            "affinity",
            [],
            what=f"the program was allowed {usable} of the machine's {online} CPUs",
            evidence="CPU affinity of the supervisor at its start",
            cure="start it without taskset or numactl, or ask the batch system or the container's cpuset for more CPUs",
        )
    confined = [
        job
        for job in experiment.jobs
        if job.fewest_cpus is not None and job.fewest_cpus < (job.cores or 0)
    ]
    if confined:
        worst = min(confined, key=lambda job: job.fewest_cpus or 0)
        allowed = count(worst.fewest_cpus or 0, "CPU")
        yield _finding(
            "affinity",
            confined,
            what="limited to fewer CPUs than its slot has, or moved to others",
            evidence=f"{worst.job_id}: allowed {allowed} of its slot's {worst.cpus_text}",
            cure="find what sets the limit (taskset, a cpuset, a container, the job's own code) and lift it, or give"
            " jobs fewer cores",
        )


def _threads(jobs: Sequence[JobMetrics], explained: frozenset[str]) -> Iterator[ContentionFinding]:
    """Jobs with more threads than cores, as declared or as measured."""
    for job in jobs:
        cores = job.cores
        if cores is None:
            continue
        most = OVERSUBSCRIBED_BESIDE_OTHERS if job.competitors else OVERSUBSCRIBED
        is_declared = job.threads is not None and job.threads > cores
        is_measured = (
            (job.runnable or 0.0) > most * cores
            and job.delay_share > HIGH_RUN_DELAY_SHARE
            and job.job_id not in explained
        )
        if not is_declared and not is_measured:
            continue
        evidence = [] if job.n_threads is None else [f"{job.n_threads} threads were running"]
        if job.runnable is not None:
            evidence += [
                f"{job.runnable:.1f} were runnable at once",
                f"together they waited {job.delay_share:.0%} of the time",
            ]
        slot = f"{count(cores, 'core')} ({job.cpus_text})"
        what = f"more threads than its {slot} can run"
        cure = "its code or a library starts threads: limit them to the thread budget, or give the job more cores"
        if is_declared:
            what = f"threads = {job.threads} on {slot}"
            cure = f"resources.threads = {cores}, or resources.cores = {job.threads}"
        elif job.ranks > 1:
            what = f"network threads of the exchange between its ranks share its {slot} with the training"
            cure = 'distributed.backend = "auto": ranks of one machine exchange over shared memory'
        yield _finding(
            "threads",
            [job],
            what=what,
            evidence="; ".join(evidence) or "as declared; nothing was measured",
            cure=cure,
        )


def _waiting_jobs(jobs: Sequence[JobMetrics], explained: frozenset[str]) -> list[JobMetrics]:
    """Return the jobs that often waited for a CPU, for no cause that is known already."""
    return [
        job
        for job in jobs
        if job.delay_share > HIGH_RUN_DELAY_SHARE and job.job_id not in explained
    ]


def _core_sharing(
    jobs: Sequence[JobMetrics], explained: frozenset[str]
) -> Iterator[ContentionFinding]:
    """Jobs of this experiment that shared a core: ``max_parallel`` was too large."""
    sharing: list[tuple[JobMetrics, JobMetrics]] = []
    for job in _waiting_jobs(jobs, explained):
        sharers = (other for other in jobs if other is not job and job.common_cpus(other))
        if (sharer := next(sharers, None)) is not None:
            sharing.append((job, sharer))
    if sharing:
        worst, other = max(sharing, key=lambda pair: pair[0].delay_share)
        yield _finding(
            "shared",
            [job for job, _ in sharing],
            what="shared its core with another job of this experiment",
            evidence=f"{worst.job_id} and {other.job_id} ran at once on {cpu_text(worst.common_cpus(other))};"
            f" {worst.job_id} waited {worst.delay_share:.0%} of its time",
            cure='max_parallel = "auto": as many jobs as there are cores',
        )


def _hogs(jobs: Sequence[JobMetrics], explained: frozenset[str]) -> Iterator[ContentionFinding]:
    """Other runs and programs on the CPUs of jobs: one finding, however many there are."""
    delayed = _waiting_jobs(jobs, explained)
    if not delayed:
        return
    cpus = frozenset[int]().union(*(job.cpus for job in delayed))
    names = list(dict.fromkeys(name for job in delayed for name in job.competitors))
    who = listed(names, MOST_NAMES) if names else "another program"
    where = cpu_text(cpus) if cpus else "their CPUs"
    if any(job.has_changed_cpus for job in delayed):
        where = f"some of {where}"  # it is not known on which of them a moved job has waited
    waited = median(job.delay_share for job in delayed)
    evidence = f"{count(len(delayed), 'job')} there waited {waited:.0%} of the time for a CPU"
    elsewhere = [
        job.delay_share
        for job in jobs
        if job.run_delay_s is not None and job.cpus and not job.cpus & cpus
    ]
    if elsewhere and max(elsewhere) < waited:
        evidence += f"; jobs on other CPUs {median(elsewhere):.0%} only"
    yield ContentionFinding(
        kind="hog",
        job_ids=tuple(job.job_id for job in delayed),
        what=f"{who} used {where}, which {count(len(delayed), 'job')} of this run had",
        evidence=evidence,
        cure="`ps -eLo psr,pcpu,pid,user,comm --sort=-pcpu | head -n 20` shows who uses which CPU now (first column);"
        " end it, move it with taskset, or leave it the core:"
        f" {option('max_parallel', 'idle')} runs as many jobs at once as there are idle cores",
    )


def _slow(jobs: Sequence[JobMetrics], explained: frozenset[str]) -> Iterator[ContentionFinding]:
    """Jobs that are slower than others of the same work, for no other cause."""
    groups: dict[str, list[JobMetrics]] = {}
    for job in jobs:
        if job.work and job.env_steps > 0 and job.job_id not in explained:
            groups.setdefault(job.work, []).append(job)
    for group in groups.values():
        for job in group:
            peers = [other for other in group if other is not job]
            if len(peers) < FEWEST_PEERS:
                continue
            own = job.wall_s / job.env_steps
            usual = median(peer.wall_s / peer.env_steps for peer in peers)
            if own <= SLOW * usual:
                continue
            evidence = f"1,000 env_steps took {own * 1e3:.1f} s, in the others {usual * 1e3:.1f} s"
            cpu_s = [peer.cpu_s / peer.env_steps for peer in peers if peer.cpu_s is not None]
            if job.cpu_s is not None and cpu_s:
                times_cpu = job.cpu_s / job.env_steps / median(cpu_s)
                evidence += f"; it used {times_cpu:.1f}× their CPU time"
            yield _finding(
                "slow",
                [job],
                what=f"{own / usual:.1f}× slower than {count(len(peers), 'job')} of the same work",
                evidence=evidence,
                cure="more CPU time than the others: a slower core (clock, SMT sibling, memory bandwidth), or episodes"
                " that cost more; as much: it waits for a disk, pipe or lock. Its timings.csv shows which phase grew",
            )
