"""Diagnosis of contention: what took time from the jobs of an experiment, with the evidence and the remedy.

:func:`find` reads a run directory; :func:`diagnose` decides, from metrics alone. The causes leave different traces: a
thread budget larger than the job's cores, a limit set from outside (cgroup or affinity), jobs that share cores,
another program on a core, a job slower than others of the same work.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Literal

from orchestrator.analysis import job_metrics
from orchestrator.analysis.job_metrics import ExperimentMetrics, JobMetrics
from orchestrator.core.messages import HIGH_RUN_DELAY_SHARE
from orchestrator.core.text import count, cpu_text, listed

THROTTLED = 0.02
"""Share of its wall time that a throttled job is kept off the CPU."""
OVERSUBSCRIBED = 1.25
"""Runnable threads per CPU from which on there are too many."""
SLOW = 1.5
"""A slow job takes so many times the seconds per env_step of the others."""
FEWEST_PEERS = 2
"""Other jobs of the same work that are needed to call one slow."""

MOST_NAMES = 3
"""Of other programs, in a finding."""

RAISE_QUOTA = "raise the quota (docker --cpus, Kubernetes limits.cpu, systemd CPUQuota=)"

Kind = Literal["threads", "throttled", "quota", "affinity", "shared", "hog", "slow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentionFinding:
    """A cause of lost time."""

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
    findings: list[ContentionFinding] = [*_throttled(experiment), *_affinity(experiment)]
    explained = {job_id for finding in findings for job_id in finding.job_ids}
    for search in (_threads, _shared, _hogs, _slow):
        for finding in search(experiment.jobs, frozenset(explained)):
            findings.append(finding)
            explained |= set(finding.job_ids)
    return findings


# -- limits set from outside


def _throttled(experiment: ExperimentMetrics) -> Iterator[ContentionFinding]:
    quota, usable = experiment.quota, experiment.usable_cpus
    throttled = [(share, job) for job in experiment.jobs if (share := job.share(job.throttled_s) or 0.0) > THROTTLED]
    if throttled:
        share, worst = max(throttled, key=itemgetter(0))
        limit = "" if quota is None else f"; the quota is {quota:g} CPUs"
        yield _finding(
            "throttled",
            [job for _, job in throttled],
            what="kept off the CPU by a cgroup limit",
            evidence=f"{worst.job_id}: throttled {share:.0%} of its time{limit}",
            cure=f"{RAISE_QUOTA}, or lower --max-parallel",
        )
    elif quota is not None and usable is not None and quota < usable:
        yield _finding(
            "quota",
            [],
            what=f"a cgroup limit of {quota:g} CPUs leaves some of {usable} idle",
            evidence=f"CPU quota at the start: {count(experiment.lanes or 1, 'job')} at once, none throttled",
            cure=f"{RAISE_QUOTA} to use all CPUs",
        )


def _affinity(experiment: ExperimentMetrics) -> Iterator[ContentionFinding]:
    usable, online = experiment.usable_cpus, experiment.online_cpus
    if usable is not None and online is not None and usable < online:
        yield _finding(
            "affinity",
            [],
            what=f"the program was allowed {usable} of the machine's {online} CPUs",
            evidence=f"CPU affinity of the supervisor at its start: {count(experiment.lanes or usable, 'job')} at once",
            cure="start it without taskset or numactl, or ask the batch system or the container's cpuset for more CPUs",
        )
    confined = [job for job in experiment.jobs if job.fewest_cpus is not None and job.fewest_cpus < len(job.cpus)]
    if confined:
        worst = min(confined, key=lambda job: job.fewest_cpus or 0)
        yield _finding(
            "affinity",
            confined,
            what="limited to fewer CPUs than its slot has, or moved to others",
            evidence=f"{worst.job_id}: allowed {count(worst.fewest_cpus or 0, 'CPU')} of its slot's"
            f" {cpu_text(worst.cpus)}",
            cure="find what sets the limit (taskset, a cpuset, a container, the job's own code) and lift it, or give"
            " jobs fewer cores",
        )


# -- causes within the experiment


def _threads(jobs: Sequence[JobMetrics], explained: frozenset[str]) -> Iterator[ContentionFinding]:
    for job in jobs:
        cores = len(job.cpus)
        if not cores:
            continue
        declared = job.threads is not None and job.threads > cores
        competing = (job.runnable or 0.0) > OVERSUBSCRIBED * cores and job.delay_share > HIGH_RUN_DELAY_SHARE
        if not declared and not (competing and job.job_id not in explained):
            continue
        evidence = [f"{job.n_threads} threads were running"] if job.n_threads is not None else []
        if job.runnable is not None:
            waited = f"together they waited {job.delay_share:.0%} of the time"
            evidence += [f"{job.runnable:.1f} were runnable at once", waited]
        slot = f"{count(cores, 'core')} ({cpu_text(job.cpus)})"
        if declared:
            what = f"threads = {job.threads} on {slot}"
            cure = f"resources.threads = {cores}, or resources.cores = {job.threads}"
        elif job.ranks > 1:
            what = f"network threads of the exchange between its ranks share its {slot} with the training"
            cure = 'distributed.backend = "auto": ranks of one machine exchange over shared memory'
        else:
            what = f"more threads than its {slot} can run"
            cure = "its code or a library starts threads: limit them to the thread budget, or give the job more cores"
        yield _finding(
            "threads", [job], what=what, evidence="; ".join(evidence) or "as declared; nothing was measured", cure=cure
        )


def _shared(jobs: Sequence[JobMetrics], explained: frozenset[str]) -> Iterator[ContentionFinding]:
    """Jobs of this experiment that shared a core with each other: ``max_parallel`` was too large."""
    sharing = [job for job in _waiting(jobs, explained) if any(_overlap(job, other) for other in jobs)]
    if sharing:
        worst = max(sharing, key=lambda job: job.delay_share)
        other = next(other for other in jobs if _overlap(worst, other))
        yield _finding(
            "shared",
            sharing,
            what="shared its core with another job of this experiment",
            evidence=f"{worst.job_id} and {other.job_id} ran at once on {cpu_text(worst.cpus & other.cpus)};"
            f" {worst.job_id} waited {worst.delay_share:.0%} of its time",
            cure='max_parallel = "auto": as many jobs as there are cores',
        )


def _overlap(job: JobMetrics, other: JobMetrics) -> bool:
    if other is job or not job.cpus & other.cpus:
        return False
    return any(start < ended and begun < end for start, end in job.spans for begun, ended in other.spans)


# -- causes outside of the experiment


def _hogs(jobs: Sequence[JobMetrics], explained: frozenset[str]) -> Iterator[ContentionFinding]:
    """Other runs and other programs on the CPUs of jobs: one finding, however many there are."""
    delayed = _waiting(jobs, explained)
    if not delayed:
        return
    cpus = frozenset(cpu for job in delayed for cpu in job.cpus)
    names = list(dict.fromkeys(name for job in delayed for name in job.competitors))
    who = listed(names, MOST_NAMES) if names else "another program"
    where = cpu_text(cpus) if cpus else "their CPUs"
    waited = median(job.delay_share for job in delayed)
    elsewhere = [share for job in jobs if not job.cpus & cpus and (share := job.share(job.run_delay_s)) is not None]
    evidence = f"{count(len(delayed), 'job')} there waited {waited:.0%} of the time for a CPU"
    if elsewhere:
        evidence += f"; jobs on other CPUs {median(elsewhere):.0%} only"
    elif len(cpus) > 1:
        evidence += "; there were no jobs on other CPUs: the whole machine is busy"
    yield ContentionFinding(
        kind="hog",
        job_ids=tuple(job.job_id for job in delayed),
        what=f"{who} used {where}, which {count(len(delayed), 'job')} of this run had",
        evidence=evidence,
        cure=f"`ps -eLo psr,pcpu,pid,user,comm --sort=-pcpu | awk '$1 == {min(cpus, default=0)}'` shows who is there"
        " now; end it, move it with taskset, or leave it the core: --max-parallel idle runs as many jobs at once as"
        " there are idle cores",
    )


def _slow(jobs: Sequence[JobMetrics], explained: frozenset[str]) -> Iterator[ContentionFinding]:
    groups: dict[str, list[JobMetrics]] = {}
    for job in jobs:
        if job.work and job.env_steps > 0:
            groups.setdefault(job.work, []).append(job)
    for group in groups.values():
        for job in group:
            peers = [other for other in group if other is not job and other.job_id not in explained]
            if job.job_id in explained or len(peers) < FEWEST_PEERS:
                continue
            own, usual = job.wall_s / job.env_steps, median(peer.wall_s / peer.env_steps for peer in peers)
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
    usual = [peer.cpu_s / peer.env_steps for peer in peers if peer.cpu_s is not None]
    if job.cpu_s is None or not usual:
        return "the reason is not known, since CPU time was not measured"
    where = f" on {cpu_text(job.cpus)}" if job.cpus else ""
    own, typical = job.cpu_s / job.env_steps, median(usual)
    if own <= SLOW * typical:
        return f"it used as much CPU time{where}; otherwise it did not wait for a CPU, but for a disk, pipe or lock"
    return (
        f"it used {own / typical:.1f}× the CPU time for them{where}: a slower core (clock, SMT sibling, memory"
        " bandwidth), or episodes that cost more"
    )


def _waiting(jobs: Sequence[JobMetrics], explained: frozenset[str]) -> list[JobMetrics]:
    return [job for job in jobs if job.delay_share > HIGH_RUN_DELAY_SHARE and job.job_id not in explained]


def _finding(kind: Kind, jobs: Sequence[JobMetrics], *, what: str, evidence: str, cure: str) -> ContentionFinding:
    """:param jobs: those that lost time; none for a cause that concerns the whole experiment."""
    more = f" (and {count(len(jobs) - 1, 'more job')})" if len(jobs) > 1 else ""
    job_ids = tuple(job.job_id for job in jobs)
    return ContentionFinding(kind=kind, job_ids=job_ids, what=what + more, evidence=evidence, cure=cure)
