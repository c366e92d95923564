"""Who took the time: the thieves of an experiment, each by name, with the evidence and the cure.

:func:`find` reads a run directory; :func:`judge` decides, from witnesses alone. A thread budget larger than the job's
cores, a limit set from outside (cgroup or affinity), jobs that share cores, something else on a core, a
job slower than its like: each leaves other traces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

from orchestrator.analysis import job_metrics
from orchestrator.analysis.job_metrics import Evidence, Witness
from orchestrator.core.text import count
from orchestrator.machine.doctor_checks import cpu_text

WAITING = 0.15
"""Of its wall time that a job waits for a CPU: somebody else has it. Alone on a core it is below a hundredth."""
THROTTLED = 0.02
"""Of its wall time that a job was kept off the CPU."""
SEVERAL = 1.25
"""Threads a CPU that want it at once: from here on they are too many."""
SLOW = 1.5
"""Times the seconds an env_step of its like."""
LEAST_LIKE = 2
"""Other jobs of the same work without which nothing is called slow."""

Kind = Literal["threads", "throttled", "quota", "affinity", "shared", "hog", "slow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A thief."""

    kind: Kind
    job_id: str
    """Whom it robbed; the first of ``job_ids``, and empty when it is the experiment as a whole."""
    job_ids: Sequence[str]
    what: str
    evidence: str
    cure: str


def find(run_dir: Path) -> list[Finding]:
    """The thieves of an experiment, finished or running, those of the whole first; empty when nobody stole.

    :raises LedgerError: when the ledger is damaged.
    """
    return judge(job_metrics.gather(run_dir))


def judge(evidence: Evidence) -> list[Finding]:
    """As :func:`find`. A job robbed by a known thief is not charged to another."""
    findings: list[Finding] = [*_of_the_machine(evidence)]
    explained = {job_id for one in findings if one.kind in ("affinity", "throttled") for job_id in one.job_ids}
    for search in (_threads, _shared, _hogs, _slow):
        for one in search(evidence.jobs, frozenset(explained)):
            findings.append(one)
            explained |= set(one.job_ids)
    return findings


# -- limits set from outside


def _of_the_machine(evidence: Evidence) -> Iterator[Finding]:
    yield from _throttled(evidence)
    usable, online = evidence.usable_cpus, evidence.online_cpus
    if usable is not None and online is not None and usable < online:
        at_once = count(evidence.lanes or usable, "job")
        yield Finding(
            kind="affinity",
            job_id="",
            job_ids=(),
            what=f"the program was allowed {usable} of the machine's {online} CPUs",
            evidence=f"affinity of the supervisor when it was started: {at_once} at once",
            cure="start it without taskset or numactl, or ask the batch system or the container's cpuset for more CPUs",
        )
    confined = [job for job in evidence.jobs if _allowed(job) < len(job.cpus)]
    if confined:
        worst = min(confined, key=_allowed)
        yield _robbed(
            "affinity",
            confined,
            what="limited to fewer CPUs than its slot has, from outside",
            evidence=f"{worst.job_id}: allowed {count(_allowed(worst), 'CPU')} of its slot's {cpu_text(worst.cpus)}",
            cure="find what sets it (taskset, a cpuset, a container's limit) and lift it, or give jobs fewer cores",
        )


def _allowed(job: Witness) -> int:
    """CPUs of its slot that the job was certainly allowed."""
    known = [len(job.cpus)]
    if job.allowed is not None:
        known.append(len(job.allowed & job.cpus) if job.cpus else len(job.allowed))
    if job.fewest_cpus is not None:
        known.append(job.fewest_cpus)
    return min(known)


def _throttled(evidence: Evidence) -> Iterator[Finding]:
    robbed = [job for job in evidence.jobs if (job.share(job.throttled_s) or 0.0) > THROTTLED]
    limit = "" if evidence.quota is None else f"; the quota is {evidence.quota:g} CPUs"
    if robbed:
        worst = max(robbed, key=lambda job: job.share(job.throttled_s) or 0.0)
        yield _robbed(
            "throttled",
            robbed,
            what="kept off the CPU by a cgroup limit",
            evidence=f"{worst.job_id}: throttled {_percent(worst.share(worst.throttled_s))} of its time{limit}",
            cure="raise the quota (docker --cpus, Kubernetes limits.cpu, systemd CPUQuota=), or lower --max-parallel",
        )
    elif evidence.quota is not None and evidence.usable_cpus is not None and evidence.quota < evidence.usable_cpus:
        yield Finding(
            kind="quota",
            job_id="",
            job_ids=(),
            what=f"a cgroup limit of {evidence.quota:g} CPUs leaves some of {evidence.usable_cpus} idle",
            evidence=f"CPU quota when it was started: {count(evidence.lanes or 1, 'job')} at once, none throttled",
            cure="raise the quota (docker --cpus, Kubernetes limits.cpu, systemd CPUQuota=) to use them all",
        )


# -- of the jobs' own making


def _threads(jobs: Sequence[Witness], explained: frozenset[str]) -> Iterator[Finding]:
    for job in jobs:
        cores = len(job.cpus)
        if not cores:
            continue
        declared = job.threads is not None and job.threads > cores
        competing = (job.runnable or 0.0) > SEVERAL * cores and (job.share(job.run_delay_s) or 0.0) > WAITING
        if not declared and not (competing and job.job_id not in explained):
            continue
        parts = [f"{job.n_threads} threads were running" if job.n_threads is not None else ""]
        if job.runnable is not None:
            parts.append(f"{job.runnable:.1f} wanted a CPU at once")
            parts.append(f"together they waited {_percent(job.share(job.run_delay_s))} of the time")
        on = f"{count(cores, 'core')} ({cpu_text(job.cpus)})"
        if declared:
            what = f"threads = {job.threads} on {on}"
            cure = f"resources.threads = {cores}, or resources.cores = {job.threads}"
        elif job.ranks > 1:
            what = f"threads of the network between its ranks share its {on} with the training"
            cure = 'distributed.backend = "auto": ranks of one machine exchange over shared memory'
        else:
            what = f"more threads than its {on} can run"
            cure = "its code or a library starts threads of its own: give them the budget, or the job more cores"
        yield _robbed(
            "threads",
            [job],
            what=what,
            evidence="; ".join(filter(None, parts)) or "as declared; nothing was measured",
            cure=cure,
        )


def _shared(jobs: Sequence[Witness], explained: frozenset[str]) -> Iterator[Finding]:
    """Jobs of this experiment that shared a core with each other: ``max_parallel`` was too large."""
    robbed = [job for job in _waiting(jobs, explained) if any(_together(job, other) for other in jobs)]
    if robbed:
        worst = max(robbed, key=lambda job: job.share(job.run_delay_s) or 0.0)
        other = next(other for other in jobs if _together(worst, other))
        yield _robbed(
            "shared",
            robbed,
            what="shared its core with another job of this experiment",
            evidence=f"{worst.job_id} and {other.job_id} ran at once on {cpu_text(worst.cpus & other.cpus)};"
            f" {worst.job_id} waited {_percent(worst.share(worst.run_delay_s))} of its time",
            cure='max_parallel = "auto": as many as there are cores',
        )


def _together(job: Witness, other: Witness) -> bool:
    if other is job or not job.cpus & other.cpus:
        return False
    return any(start < ended and begun < end for start, end in job.spans for begun, ended in other.spans)


# -- of others' making


def _hogs(jobs: Sequence[Witness], explained: frozenset[str]) -> Iterator[Finding]:
    """Something that is not ours on the CPUs of a slot."""
    robbed: dict[frozenset[int], list[Witness]] = {}
    for job in _waiting(jobs, explained):
        robbed.setdefault(job.cpus, []).append(job)
    for cpus, there in sorted(robbed.items(), key=lambda item: sorted(item[0])):
        elsewhere = [share for job in jobs if not job.cpus & cpus and (share := job.share(job.run_delay_s)) is not None]
        waited = median(job.share(job.run_delay_s) or 0.0 for job in there)
        on = cpu_text(cpus) if cpus else "its CPUs"
        parts = [f"{count(len(there), 'job')} there waited {_percent(waited)} of the time for a CPU"]
        if elsewhere:
            more = "as well: the whole machine is busy" if median(elsewhere) > waited / 2 else "only"
            parts.append(f"jobs on other CPUs {_percent(median(elsewhere))} {more}")
        first = min(cpus, default=0)
        yield _robbed(
            "hog",
            there,
            what=f"something else ran on {on}",
            evidence="; ".join(parts),
            cure=f"`ps -eLo psr,pcpu,pid,user,comm --sort=-pcpu | awk '$1 == {first}'` shows who; end it, move it with"
            " taskset, or leave it the core: taskset before our command, or --max-parallel",
        )


def _slow(jobs: Sequence[Witness], explained: frozenset[str]) -> Iterator[Finding]:
    groups: dict[str, list[Witness]] = {}
    for job in jobs:
        if job.work and job.env_steps > 0:
            groups.setdefault(job.work, []).append(job)
    for like in groups.values():
        for job in like:
            others = [other for other in like if other is not job and other.job_id not in explained]
            if job.job_id in explained or len(others) < LEAST_LIKE:
                continue
            usual = median(map(_wall, others))
            if _wall(job) <= SLOW * usual:
                continue
            yield _robbed(
                "slow",
                [job],
                what=f"{_wall(job) / usual:.1f}× slower than {count(len(others), 'job')} of the same work",
                evidence=f"1,000 env_steps took {_wall(job) * 1e3:.1f} s, theirs {usual * 1e3:.1f} s;"
                f" {_why_slow(job, others)}",
                cure="compare its timings.csv with theirs: which phase grew, and when",
            )


def _why_slow(job: Witness, others: Sequence[Witness]) -> str:
    mine, theirs = _cpu(job), [cpu for other in others if (cpu := _cpu(other)) is not None]
    if mine is None or not theirs:
        return "why is not known, as CPU time was not measured"
    where = f" on {cpu_text(job.cpus)}" if job.cpus else ""
    if mine > SLOW * median(theirs):
        return (
            f"it used {mine / median(theirs):.1f}× the CPU time for them{where}: a slower core (clock, SMT sibling,"
            " memory bandwidth), or episodes that cost more"
        )
    return (
        f"it used as much CPU time{where}, and the rest it neither computed nor waited for a CPU: disk, pipes or locks"
    )


def _wall(job: Witness) -> float:
    return job.wall_s / job.env_steps


def _cpu(job: Witness) -> float | None:
    return None if job.cpu_s is None else job.cpu_s / job.env_steps


# -- words


def _waiting(jobs: Sequence[Witness], explained: frozenset[str]) -> list[Witness]:
    return [job for job in jobs if (job.share(job.run_delay_s) or 0.0) > WAITING and job.job_id not in explained]


def _robbed(kind: Kind, jobs: Sequence[Witness], *, what: str, evidence: str, cure: str) -> Finding:
    more = f" (and {len(jobs) - 1} more {'jobs' if len(jobs) > 2 else 'job'})" if len(jobs) > 1 else ""
    return Finding(
        kind=kind,
        job_id=jobs[0].job_id,
        job_ids=tuple(job.job_id for job in jobs),
        what=what + more,
        evidence=evidence,
        cure=cure,
    )


def _percent(share: float | None) -> str:
    return "an unknown part" if share is None else f"{share:.0%}"
