"""Pure decisions: limits, the outcome of an attempt, when to retry, and the exit code.

No I/O and no clock: everything comes in as values and goes out as values.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.job import (
    TERMINAL,
    AttemptOutcome,
    Cancelled,
    Cause,
    Failed,
    Paused,
    Pending,
    Resources,
    State,
    Succeeded,
)
from orchestrator.core.text import count

RETRYABLE = (
    Cause.SIGNAL,
    Cause.OUT_OF_MEMORY,
    Cause.STALLED,
    Cause.NODE_LOST,
    Cause.RANK_LOST,
    Cause.LAUNCH,
)
"""Causes that may not recur in another attempt; they count against ``max_retries``."""

MOST_LOSSES = 10
"""Attempts lost with their node that count as no failure. After these, the job itself may be what
ends its nodes."""

RESUMABLE = (Cause.INTERRUPTED, Cause.SUPERVISOR_DIED, Cause.DISK_FULL)
"""Causes that are not the job's fault: it waits for the next supervisor, and nothing is counted."""

EARLY_SUCCESS = (
    "ended with exit code 0 before the training was done; "
    "code of its environment may have called sys.exit"
)

BACKOFF_FIRST_S = 1.0
BACKOFF_LIMIT_S = 60.0


def backoff_s(failures: int) -> float:
    """Seconds to wait after the ``failures``-th failure: 1, 2, 4 … 60."""
    doublings = min(max(failures - 1, 0), 10)  # a thousand retries would overflow a float
    return min(BACKOFF_FIRST_S * 2.0**doublings, BACKOFF_LIMIT_S)


def judge(
    returncode: int | None,
    record: ExitRecord | None,
    *,
    end_reason: AttemptOutcome | None,
    oom_killed: bool,
    silent: bool = False,
    rank: int | None = None,
    lost: str | None = None,
    rung: int | None = None,
) -> AttemptOutcome:
    """The outcome of an attempt that has ended.

    :param returncode: as in :mod:`subprocess`; None where it is not known (node lost).
    :param end_reason: why the supervisor asked it to end; None where it did not.
    :param silent: whether a record was expected and is missing: exit code 0 is then not the
        worker's own.
    :param rank: the rank that ``returncode`` and ``record`` belong to; None with one rank only.
    :param lost: why the exit code is not known, where that is known; another attempt may succeed,
        whatever the record. With ``ExitCode.INTERRUPTED``: why the attempt was handed back.
    :param rung: env_steps at which the attempt was to pause.
    """
    if returncode is None and record is not None and lost is None:
        returncode = record.code
    if returncode == ExitCode.SUCCEEDED and not silent:
        return AttemptOutcome(cause=None)
    reason = record.message if record is not None else ""
    if returncode == ExitCode.PAUSED and rung is not None and not silent:
        message = reason or f"paused at {rung:,} env_steps to be compared"
        return AttemptOutcome(cause=Cause.RUNG, message=message)
    is_to_resume = end_reason is None or end_reason.cause in (Cause.INTERRUPTED, Cause.PAUSED)
    if returncode == ExitCode.DISK_FULL and is_to_resume:
        message = reason or "no space left on the disk of the run directory"
        return AttemptOutcome(cause=Cause.DISK_FULL, message=message)
    if end_reason is not None:
        return end_reason
    if returncode == ExitCode.INTERRUPTED and lost is not None:
        return AttemptOutcome(cause=Cause.INTERRUPTED, message=lost)
    if returncode is not None and returncode < 0:
        return _outcome_of_signal(-returncode, rank, oom_killed=oom_killed)
    return _outcome_of_failure(returncode, reason, rank, lost)


def _outcome_of_signal(signal_number: int, rank: int | None, *, oom_killed: bool) -> AttemptOutcome:
    """The outcome of an attempt that a signal has ended, which nobody here has sent."""
    names = {number.value: number.name for number in signal.Signals}
    name = names.get(signal_number, f"signal {signal_number}")
    killed = f"killed by {name}" if rank is None else f"rank {rank} was killed by {name}"
    if oom_killed:
        message = f"{killed}: the machine ran out of memory"
        return AttemptOutcome(cause=Cause.OUT_OF_MEMORY, message=message)
    return AttemptOutcome(cause=Cause.SIGNAL, message=killed)


def _outcome_of_failure(
    returncode: int | None, reason: str, rank: int | None, lost: str | None
) -> AttemptOutcome:
    """The outcome of an attempt that has ended by itself, and not with its training.

    :param reason: what its record says; empty for nothing.
    """
    who = "" if rank is None else f"rank {rank} "
    whose = "" if rank is None else f"rank {rank}: "
    match returncode:
        case None:
            cause = Cause.NODE_LOST
            message = lost or "its node was lost"
        case ExitCode.DIVERGED:
            cause = Cause.DIVERGED
            message = whose + (reason or "values became non-finite")
        case ExitCode.RANK_LOST:
            cause = Cause.RANK_LOST
            message = reason or f"{who}lost the other ranks"
        # The supervisor did not ask for the next two. They count as a signal does, or retries would
        # never end.
        case ExitCode.INTERRUPTED:
            cause = Cause.SIGNAL
            was = "" if rank is None else "was "
            message = f"{who}{was}stopped by a signal that the supervisor did not send"
        case ExitCode.ORPHANED:
            cause = Cause.SIGNAL
            message = f"{who}lost the connection to its supervisor"
        case ExitCode.SUCCEEDED:
            cause = Cause.ERROR
            message = EARLY_SUCCESS
        case _:
            cause = Cause.ERROR
            log = f"rank-{rank}.log" if rank else "worker.log"
            message = whose + (reason or f"exit code {returncode}; see its {log}")
    return AttemptOutcome(cause=cause, message=message)


def next_state(
    outcome: AttemptOutcome,
    *,
    failures: int,
    max_retries: int,
    now: float,
    losses: int = 0,
    is_promoted: bool = False,
) -> State:
    """The state of a running job when its attempt has ended, after ``failures`` counted ones.

    :param losses: attempts of the job that were lost with their node, including this one.
    :param is_promoted: whether the job goes on from the rung that it has reached: it was promoted
        while it ran.
    """
    match outcome.cause:
        case None:
            return Succeeded()
        case Cause.CANCELLED:
            return Cancelled()
        case Cause.PAUSED:
            return Paused(failures=failures)
        case Cause.RUNG:
            if is_promoted:
                return Pending(failures=failures)
            return Paused(failures=failures, at_rung=True)
        case cause if cause in RESUMABLE:
            return Pending(failures=failures)
        case Cause.NODE_LOST if losses <= MOST_LOSSES:
            return Pending(failures=failures, not_before=now + backoff_s(losses))
        case cause if cause in RETRYABLE and failures < max_retries:
            return Pending(failures=failures + 1, not_before=now + backoff_s(failures + 1))
        case cause if cause in RETRYABLE and max_retries > 0:
            return Failed(
                cause=cause,
                message=f"{outcome.message} (after {count(failures, 'retry', 'retries')})",
            )
        case cause:
            return Failed(cause=cause, message=outcome.message)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptUsage:
    """What a running attempt has used of its limits. Times are monotonic seconds."""

    resources: Resources
    started: float
    last_progress: float
    rss_mib: float
    """Summed over all ranks."""


def exceeded_limit(usage: AttemptUsage, now: float) -> AttemptOutcome | None:
    """The limit that an attempt has exceeded, or None.

    Ranks share the memory limit: rank 0, which gathers checkpoints and evaluates, holds more than
    the others.
    """
    limits = usage.resources
    if usage.rss_mib > limits.all_memory_mib:
        ranks = f"{limits.ranks} × " if limits.ranks > 1 else ""
        limit = f"{ranks}{limits.memory_mib}"
        text = f"memory limit {limit} MiB, reached {usage.rss_mib:.0f} MiB; raise resources.memory"
        return AttemptOutcome(cause=Cause.MEMORY, message=text)
    if (age_s := now - usage.started) > limits.timeout_s:
        text = f"timeout {limits.timeout_s:g} s, reached {age_s:.0f} s; raise resources.timeout"
        return AttemptOutcome(cause=Cause.TIMEOUT, message=text)
    if (silent_s := now - usage.last_progress) > limits.stall_timeout_s:
        text = f"no progress for {silent_s:.0f} s (stall_timeout {limits.stall_timeout_s:g} s)"
        return AttemptOutcome(cause=Cause.STALLED, message=text)
    return None


def exit_code(states: Mapping[str, State], *, interrupted: bool) -> int:
    """The command's exit code: 0 all succeeded, 1 some did not, 130 stopped or paused, and
    resumable.

    Jobs that are left at a rung count as done.
    """
    if interrupted and any(state.name not in TERMINAL for state in states.values()):
        return 130
    names = {
        state.name for state in states.values() if not (isinstance(state, Paused) and state.at_rung)
    }
    # What is PENDING waits for what is paused.
    if "PAUSED" in names and names <= {"PAUSED", "PENDING", "SUCCEEDED"}:
        return 130
    return 0 if names <= {"SUCCEEDED"} else 1
