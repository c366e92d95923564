"""Diagnosis of contention: what took time from the jobs of an experiment, with the evidence and the
remedy.

:func:`find` reads a run directory; :func:`diagnose` decides, from metrics alone. The causes leave
different traces: a thread budget larger than the job's cores, a limit set from outside (cgroup or
affinity), jobs that share cores, another program on a core, a job slower than others of the same
work.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Literal

from orchestrator.analysis import job_metrics
from orchestrator.analysis.job_metrics import ExperimentMetrics, JobMetrics
from orchestrator.core.front_end import option
from orchestrator.core.messages import HIGH_RUN_DELAY_SHARE
from orchestrator.core.text import count, cpu_text, listed

THROTTLED = 0.02
"""Share of its wall time that a throttled job is kept off the CPU."""
OVERSUBSCRIBED = 1.25
"""Runnable threads per CPU from which on there are too many."""
OVERSUBSCRIBED_BESIDE_OTHERS = 2.0
"""The same where others used the CPUs: a thread that has little to do waits behind them, too, each
time that it wakes up."""
SLOW = 1.5
"""A slow job takes so many times the seconds per env_step of the others."""
FEWEST_PEERS = 2
"""Other jobs of the same work that are needed to call one slow."""

MOST_NAMES = 3
"""Of other programs, in a finding."""
MOST_CPUS_IN_COMMAND = 16
"""For more CPUs, a command shows the busiest threads of the whole machine."""

RAISE_QUOTA = "raise the quota (docker --cpus, Kubernetes limits.cpu, systemd CPUQuota=)"

Kind = Literal["threads", "throttled", "quota", "affinity", "shared", "hog", "slow", "policy"]
"""``policy`` is no lost time: the evaluation shows that the policy does not do its task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentionFinding:
    """A cause of lost time, or what is wrong with a policy."""

    kind: Kind
    job_ids: Sequence[str]
    """The jobs that lost time; empty when the cause concerns the experiment as a whole."""
    what: str
    evidence: str
    cure: str


def find(run_dir: Path, among: Collection[str] | None = None) -> list[ContentionFinding]:
    """Contention in an experiment, finished or running; causes that concern all of it first.

    :param among: the jobs that are looked at; None: all.

    :raises LedgerError: when the ledger is damaged.
    """
    return diagnose(job_metrics.gather(run_dir, among))


def diagnose(experiment: ExperimentMetrics) -> list[ContentionFinding]:
    """As :func:`find`. A job whose loss has one cause is not named under another."""
    findings: list[ContentionFinding] = [*_throttling(experiment), *_affinity(experiment)]
    explained = {job_id for finding in findings for job_id in finding.job_ids}
    for search in (_threads, _core_sharing, _hogs, _slow):
        for finding in search(experiment.jobs, frozenset(explained)):
            findings.append(finding)
            explained |= set(finding.job_ids)
    return findings


# -- limits set from outside


def _throttling(experiment: ExperimentMetrics) -> Iterator[ContentionFinding]:
    """A quota of the cgroup that took CPU time from jobs; or else one that left CPUs idle."""
    quota = experiment.quota
    usable = experiment.usable_cpus
    throttled = [
        (share, job)
        for job in experiment.jobs
        if (share := job.share(job.throttled_s) or 0.0) > THROTTLED
    ]
    if throttled:
        share, worst = max(throttled, key=itemgetter(0))
        limit = "" if quota is None else f"; the quota is {quota:g} CPUs"
        yield _finding(
            "throttled",
            [job for _, job in throttled],
            what="kept off the CPU by a cgroup limit",
            evidence=f"{worst.job_id}: throttled {share:.0%} of its time{limit}",
            cure=f"{RAISE_QUOTA}, or lower {option('max_parallel')}",
        )
    elif quota is not None and usable is not None and quota < usable:
        yield _finding(
            "quota",
            [],
            what=f"a cgroup limit of {quota:g} CPUs leaves some of {usable} idle",
            evidence=f"CPU quota at the start: {count(experiment.jobs_at_once or 1, 'job')} at once, none throttled",
            cure=f"{RAISE_QUOTA} to use all CPUs",
        )


def _affinity(experiment: ExperimentMetrics) -> Iterator[ContentionFinding]:
    """CPUs of the machine that the supervisor was not allowed, or jobs those of their slots."""
    usable = experiment.usable_cpus
    online = experiment.online_cpus
    if usable is not None and online is not None and usable < online:
        jobs_at_once = experiment.jobs_at_once or usable
        yield _finding(
            "affinity",
            [],
            what=f"the program was allowed {usable} of the machine's {online} CPUs",
            evidence=f"CPU affinity of the supervisor at its start: {count(jobs_at_once, 'job')} at once",
            cure="start it without taskset or numactl, or ask the batch system or the container's cpuset for more CPUs",
        )
    confined = [
        job
        for job in experiment.jobs
        if job.fewest_cpus is not None and job.fewest_cpus < (job.cores or 0)
    ]
    if confined:
        worst = min(confined, key=lambda job: job.fewest_cpus or 0)
        yield _finding(
            "affinity",
            confined,
            what="limited to fewer CPUs than its slot has, or moved to others",
            evidence=f"{worst.job_id}: allowed {count(worst.fewest_cpus or 0, 'CPU')} of its slot's {_cpus_of(worst)}",
            cure="find what sets the limit (taskset, a cpuset, a container, the job's own code) and lift it, or give"
            " jobs fewer cores",
        )


# -- causes within the experiment


def _threads(jobs: Sequence[JobMetrics], explained: frozenset[str]) -> Iterator[ContentionFinding]:
    """Jobs with more threads than cores: as declared, or as measured."""
    for job in jobs:
        cores = job.cores
        if cores is None:
            continue
        is_declared = job.threads is not None and job.threads > cores
        is_measured = _has_too_many_threads(job, cores) and job.job_id not in explained
        if not is_declared and not is_measured:
            continue
        evidence = [f"{job.n_threads} threads were running"] if job.n_threads is not None else []
        if job.runnable is not None:
            waited = f"together they waited {job.delay_share:.0%} of the time"
            evidence += [f"{job.runnable:.1f} were runnable at once", waited]
        slot = f"{count(cores, 'core')} ({_cpus_of(job)})"
        if is_declared:
            what = f"threads = {job.threads} on {slot}"
            cure = f"resources.threads = {cores}, or resources.cores = {job.threads}"
        elif job.ranks > 1:
            what = f"network threads of the exchange between its ranks share its {slot} with the training"
            cure = 'distributed.backend = "auto": ranks of one machine exchange over shared memory'
        else:
            what = f"more threads than its {slot} can run"
            cure = "its code or a library starts threads: limit them to the thread budget, or give the job more cores"
        yield _finding(
            "threads",
            [job],
            what=what,
            evidence="; ".join(evidence) or "as declared; nothing was measured",
            cure=cure,
        )


def _has_too_many_threads(job: JobMetrics, cores: int) -> bool:
    """Whether more of its threads are runnable than its cores can run, so that they wait."""
    most = OVERSUBSCRIBED_BESIDE_OTHERS if job.competitors else OVERSUBSCRIBED
    runnable = job.runnable or 0.0
    return runnable > most * cores and job.delay_share > HIGH_RUN_DELAY_SHARE


def _core_sharing(
    jobs: Sequence[JobMetrics], explained: frozenset[str]
) -> Iterator[ContentionFinding]:
    """Jobs of this experiment that shared a core with each other: ``max_parallel`` was too
    large.
    """
    by_cpu: dict[int, list[JobMetrics]] = {}
    for job in jobs:
        for cpu in job.cpus:
            by_cpu.setdefault(cpu, []).append(job)
    sharing = [job for job in _waiting_jobs(jobs, explained) if _sharer(job, by_cpu) is not None]
    if sharing:
        worst = max(sharing, key=lambda job: job.delay_share)
        other = _sharer(worst, by_cpu)
        assert other is not None
        yield _finding(
            "shared",
            sharing,
            what="shared its core with another job of this experiment",
            evidence=f"{worst.job_id} and {other.job_id} ran at once on {cpu_text(worst.common_cpus(other))};"
            f" {worst.job_id} waited {worst.delay_share:.0%} of its time",
            cure='max_parallel = "auto": as many jobs as there are cores',
        )


def _sharer(job: JobMetrics, by_cpu: Mapping[int, Sequence[JobMetrics]]) -> JobMetrics | None:
    """Another job that had a CPU of ``job`` at the same time. :param by_cpu: the jobs that had a
    CPU at any time.
    """
    others = (other for cpu in sorted(job.cpus) for other in by_cpu[cpu] if other is not job)
    return next((other for other in others if job.common_cpus(other)), None)


# -- causes outside of the experiment


def _hogs(jobs: Sequence[JobMetrics], explained: frozenset[str]) -> Iterator[ContentionFinding]:
    """Other runs and other programs on the CPUs of jobs: one finding, however many there are."""
    delayed = _waiting_jobs(jobs, explained)
    if not delayed:
        return
    cpus = frozenset[int]().union(*(job.cpus for job in delayed))
    names = list(dict.fromkeys(name for job in delayed for name in job.competitors))
    who = listed(names, MOST_NAMES) if names else "another program"
    where = cpu_text(cpus) if cpus else "their CPUs"
    if cpus and any(job.has_changed_cpus for job in delayed):
        where = f"some of {where}"  # which of the CPUs that a moved job had is not known
    waited = median(job.delay_share for job in delayed)
    evidence = f"{count(len(delayed), 'job')} there waited {waited:.0%} of the time for a CPU"
    if all(job.cpus for job in delayed):
        evidence += _compared_with_others(waited, cpus, jobs)
    yield ContentionFinding(
        kind="hog",
        job_ids=tuple(job.job_id for job in delayed),
        what=f"{who} used {where}, which {count(len(delayed), 'job')} of this run had",
        evidence=evidence,
        cure=f"`ps -eLo psr,pcpu,pid,user,comm --sort=-pcpu | {_of_cpus(cpus)}` shows who is there now;"
        " end it, move it with taskset, or leave it the core:"
        f" {option('max_parallel', 'idle')} runs as many jobs at once as there are idle cores",
    )


def _compared_with_others(waited: float, cpus: frozenset[int], jobs: Sequence[JobMetrics]) -> str:
    """How long jobs elsewhere waited, as a clause; empty where that tells nothing.

    :param waited: share of their time that jobs on ``cpus`` waited.
    """
    elsewhere = [job for job in jobs if job.cpus and not job.cpus & cpus]
    shares = [share for job in elsewhere if (share := job.share(job.run_delay_s)) is not None]
    if shares:
        return f"; jobs on other CPUs {median(shares):.0%} only" if max(shares) < waited else ""
    is_everywhere = len(cpus) > 1 and not any(job.has_changed_cpus for job in jobs)
    return "; there were no jobs on other CPUs: the whole machine is busy" if is_everywhere else ""


def _of_cpus(cpus: frozenset[int]) -> str:
    """The command that picks lines about ``cpus`` from those of ``ps``, which begin with the
    CPU.
    """
    if not cpus or len(cpus) > MOST_CPUS_IN_COMMAND:
        return "head -n 20"
    if len(cpus) == 1:
        return f"awk '$1 == {min(cpus)}'"
    return f"awk '$1 ~ /^({'|'.join(map(str, sorted(cpus)))})$/'"


def _slow(jobs: Sequence[JobMetrics], explained: frozenset[str]) -> Iterator[ContentionFinding]:
    """Jobs that are slower than others of the same work, for no other cause."""
    groups: dict[str, list[JobMetrics]] = {}
    for job in jobs:
        if job.work and job.env_steps > 0:
            groups.setdefault(job.work, []).append(job)
    for group in groups.values():
        for job in group:
            peers = [other for other in group if other is not job and other.job_id not in explained]
            if job.job_id in explained or len(peers) < FEWEST_PEERS:
                continue
            own = job.wall_s / job.env_steps
            usual = median(peer.wall_s / peer.env_steps for peer in peers)
            if own <= SLOW * usual:
                continue
            yield _finding(
                "slow",
                [job],
                what=f"{own / usual:.1f}× slower than {count(len(peers), 'job')} of the same work",
                evidence=f"1,000 env_steps took {own * 1e3:.1f} s, in the others {usual * 1e3:.1f} s;"
                f" {_why_slow(job, peers)}",
                cure="compare its timings.csv with theirs: which phase grew, and when",
            )


def _why_slow(job: JobMetrics, peers: Sequence[JobMetrics]) -> str:
    """What its CPU time per env_step, compared with theirs, says of the cause, as a clause."""
    of_peers = [peer.cpu_s / peer.env_steps for peer in peers if peer.cpu_s is not None]
    if job.cpu_s is None or not of_peers:
        return "the reason is not known, since CPU time was not measured"
    where = f" on {_cpus_of(job)}" if job.cpus else ""
    own = job.cpu_s / job.env_steps
    usual = median(of_peers)
    if own <= SLOW * usual:
        return f"it used as much CPU time{where}; otherwise it did not wait for a CPU, but for a disk, pipe or lock"
    return (
        f"it used {own / usual:.1f}× the CPU time for them{where}: a slower core (clock, SMT sibling, memory"
        " bandwidth), or episodes that cost more"
    )


def _cpus_of(job: JobMetrics) -> str:
    """The CPUs that it had, for people."""
    return cpu_text(job.cpus) + (", not all at once" if job.has_changed_cpus else "")


def _waiting_jobs(jobs: Sequence[JobMetrics], explained: frozenset[str]) -> list[JobMetrics]:
    """Those that waited for a CPU much of their time, for no cause that is known already."""
    return [
        job
        for job in jobs
        if job.delay_share > HIGH_RUN_DELAY_SHARE and job.job_id not in explained
    ]


def _finding(
    kind: Kind, jobs: Sequence[JobMetrics], *, what: str, evidence: str, cure: str
) -> ContentionFinding:
    """:param jobs: those that lost time; none for a cause that concerns the whole experiment."""
    more = f" (and {count(len(jobs) - 1, 'more job')})" if len(jobs) > 1 else ""
    job_ids = tuple(job.job_id for job in jobs)
    return ContentionFinding(
        kind=kind, job_ids=job_ids, what=what + more, evidence=evidence, cure=cure
    )
