"""Pure decisions: in what order, who may start, what an end means, when to try again.

No I/O and no clock: everything comes in as values, everything goes out as values, and the tests
are tables of cases.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.job import AttemptOutcome, Cancelled, Cause, Failed, Job, Pending, Resources, State, Succeeded
from orchestrator.core.messages import ExitRecord

RETRYABLE = frozenset(
    {Cause.SIGNAL, Cause.OUT_OF_MEMORY, Cause.STALLED, Cause.NODE_LOST, Cause.RANK_LOST, Cause.LAUNCH}
)
"""Ends that another attempt may not meet; they count against ``max_retries``."""

MOST_LOSSES = 10
"""Lost nodes are not the job's fault and are not counted, but for those after so many: it may be what ends them."""

RESUMABLE = frozenset({Cause.INTERRUPTED, Cause.SUPERVISOR_DIED, Cause.DISK_FULL})
"""Ends that are nobody's fault; the job waits for the next supervisor and nothing is counted."""

BACKOFF_FIRST_S = 1.0
BACKOFF_LIMIT_S = 60.0


def launch_order(jobs: Iterable[Job], order: Literal["longest-first", "as-listed"]) -> list[Job]:
    """The order of launch.

    ``longest-first`` is the LPT rule (Graham, 1969): its makespan is at most 4/3 of the best
    possible. Length is estimated by ``total_timesteps``; equals stay as listed.
    """
    listed = list(jobs)
    if order == "as-listed":
        return listed
    return sorted(listed, key=lambda job: -job.spec.total_timesteps)


def backoff_s(failures: int) -> float:
    """Seconds to wait after the ``failures``-th failure: 1, 2, 4 … 60."""
    doublings = min(max(failures - 1, 0), 10)  # whoever allows a thousand retries would overflow a float
    return min(BACKOFF_FIRST_S * 2.0**doublings, BACKOFF_LIMIT_S)


def judge(
    returncode: int | None,
    record: ExitRecord | None,
    *,
    asked: AttemptOutcome | None,
    oom_killed: bool,
    silent: bool = False,
    rank: int | None = None,
    lost: str | None = None,
) -> AttemptOutcome:
    """What an exit means.

    :param returncode: as in :mod:`subprocess`; None where it could not be had (node lost).
    :param record: the worker's own last word, when it had time for one.
    :param asked: why we ended it ourselves, if we did.
    :param silent: whether it should have left a record and did not: then exit code 0 is not its own.
    :param rank: of several, the one that ``returncode`` and ``record`` are of; None: there was but one.
    :param lost: why no exit code can be had, where that is known: whatever the record says, another attempt may do.
    """
    if returncode is None and record is not None and lost is None:
        returncode = record.code  # nobody saw it end, but it had its say
    if returncode == ExitCode.SUCCEEDED and not silent:
        return AttemptOutcome(cause=None)
    said = record.message if record is not None else ""
    who, whose = ("", "") if rank is None else (f"rank {rank} ", f"rank {rank}: ")
    if returncode == ExitCode.DISK_FULL and (asked is None or asked.cause is Cause.INTERRUPTED):
        return AttemptOutcome(cause=Cause.DISK_FULL, message=said or "no space left on the disk of the run directory")
    if asked is not None:
        return asked
    if returncode is None:
        return AttemptOutcome(cause=Cause.NODE_LOST, message=lost or "the node it ran on was lost")
    if returncode == ExitCode.DIVERGED:
        return AttemptOutcome(cause=Cause.DIVERGED, message=whose + (said or "values became non-finite"))
    if returncode == ExitCode.RANK_LOST:
        return AttemptOutcome(cause=Cause.RANK_LOST, message=said or f"{who}lost the other ranks")
    # The next two are not ours, or there would be no end to trying again: they count as a signal does.
    if returncode == ExitCode.INTERRUPTED:
        return AttemptOutcome(cause=Cause.SIGNAL, message=f"{who}left at a signal that somebody else sent")
    if returncode == ExitCode.ORPHANED:
        return AttemptOutcome(cause=Cause.SIGNAL, message=f"{who}lost the connection to its supervisor")
    if returncode < 0:
        killed = f"{who}{'was ' if who else ''}killed by {_signal_name(-returncode)}"
        if oom_killed:
            return AttemptOutcome(cause=Cause.OUT_OF_MEMORY, message=f"{killed}: the machine ran out of memory")
        return AttemptOutcome(cause=Cause.SIGNAL, message=killed)
    if returncode == ExitCode.SUCCEEDED:
        text = "ended with exit code 0 before the training was done: something in its environment leaves the process"
        return AttemptOutcome(cause=Cause.ERROR, message=text)
    log = f"rank-{rank}.log" if rank else "worker.log"
    return AttemptOutcome(cause=Cause.ERROR, message=whose + (said or f"exit code {returncode}; see its {log}"))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def next_state(ending: AttemptOutcome, *, failures: int, max_retries: int, now: float, losses: int = 0) -> State:
    """Where a running job goes when its attempt has ended.

    :param failures: counted failures before this one.
    :param now: monotonic seconds, for the back-off.
    :param losses: attempts of the job that were lost with their node, this one included.
    """
    match ending.cause:
        case None:
            return Succeeded()
        case Cause.CANCELLED:
            return Cancelled()
        case cause if cause in RESUMABLE:
            return Pending(failures=failures)
        case Cause.NODE_LOST if losses <= MOST_LOSSES:
            return Pending(failures=failures, not_before=now + backoff_s(losses))
        case cause if cause in RETRYABLE and failures < max_retries:
            return Pending(failures=failures + 1, not_before=now + backoff_s(failures + 1))
        case cause if cause in RETRYABLE and max_retries > 0:
            return Failed(cause=cause, message=f"{ending.message} (attempt {failures + 1} of {max_retries + 1})")
        case cause:
            return Failed(cause=cause, message=ending.message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A running attempt, as the police sees it. Times are monotonic seconds."""

    resources: Resources
    started: float
    last_progress: float
    rss_mib: float
    """Of all ranks together."""


def overstepped(watched: Watched, now: float) -> AttemptOutcome | None:
    """The limit an attempt has passed, or None.

    Ranks share what they may take: rank 0, which gathers checkpoints and evaluates, holds more than the others.
    """
    limits = watched.resources
    if watched.rss_mib > limits.all_memory_mib:
        limit = f"{limits.ranks} × {limits.memory_mib}" if limits.ranks > 1 else f"{limits.memory_mib}"
        return AttemptOutcome(
            cause=Cause.MEMORY,
            message=f"memory limit {limit} MiB, reached {watched.rss_mib:.0f} MiB; raise resources.memory",
        )
    if now - watched.started > limits.timeout_s:
        return AttemptOutcome(
            cause=Cause.TIMEOUT,
            message=f"timeout {limits.timeout_s:g} s, reached {now - watched.started:.0f} s; raise resources.timeout",
        )
    if now - watched.last_progress > limits.stall_timeout_s:
        return AttemptOutcome(
            cause=Cause.STALLED,
            message=f"no progress for {now - watched.last_progress:.0f} s (stall_timeout {limits.stall_timeout_s:g} s)",
        )
    return None


def next_look(watched: Watched) -> float:
    """The moment before which time alone brings it past no limit: when to ask :func:`overstepped`."""
    limits = watched.resources
    return min(watched.started + limits.timeout_s, watched.last_progress + limits.stall_timeout_s)


def promised_mib(resources: Resources, rss_mib: float) -> int:
    """What a running attempt may still claim of the memory that it asked for."""
    return max(0, resources.all_memory_mib - int(rss_mib))


def memory_admits(wanted_mib: int, available_mib: int, promised_mib: int) -> bool:
    """Whether a job that may grow to ``wanted_mib`` may start beside others now.

    What these may still claim is set aside. (With nothing running it may always start: waiting would not make room.)
    """
    return available_mib - promised_mib >= wanted_mib
