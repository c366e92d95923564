"""Pure decisions, as tables of cases."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from supervisor_helpers import make_job

from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.job import (
    AttemptOutcome,
    Cancelled,
    Cause,
    Failed,
    Pending,
    Running,
    State,
    Succeeded,
)
from orchestrator.executors import local
from orchestrator.server import launch_order, retry_policy
from orchestrator.server.retry_policy import AttemptUsage

STOP = AttemptOutcome(cause=Cause.INTERRUPTED, message="SIGINT")
LATE = AttemptOutcome(cause=Cause.TIMEOUT, message="late")
GONE = AttemptOutcome(cause=Cause.CANCELLED, message="cancelled")


def record(code: int, message: str = "") -> ExitRecord:
    return ExitRecord(code=code, message=message)


@pytest.mark.parametrize(
    ("returncode", "record_left", "end_reason", "oom_killed", "cause", "message"),
    [
        (0, None, None, False, None, ""),
        (0, record(0), STOP, False, None, ""),
        (0, None, LATE, False, None, ""),
        (1, record(1, "ValueError: no"), None, False, Cause.ERROR, "ValueError: no"),
        (1, None, None, False, Cause.ERROR, "exit code 1; see its worker.log"),
        (1, record(1, "odd"), STOP, False, Cause.INTERRUPTED, "SIGINT"),
        (1, record(1, "odd"), GONE, False, Cause.CANCELLED, "cancelled"),
        (10, record(10, "hip: NaN"), None, False, Cause.DIVERGED, "hip: NaN"),
        (11, record(11), STOP, False, Cause.INTERRUPTED, "SIGINT"),
        (11, record(11), LATE, False, Cause.TIMEOUT, "late"),
        (
            11,
            record(11),
            None,
            False,
            Cause.SIGNAL,
            "stopped by a signal that the supervisor did not send",
        ),
        (12, record(12, "disk"), None, False, Cause.DISK_FULL, "disk"),
        (12, record(12, "disk"), GONE, False, Cause.CANCELLED, "cancelled"),
        (14, record(14, "no answer for 30 s"), None, False, Cause.RANK_LOST, "no answer for 30 s"),
        (14, record(14, "no answer for 30 s"), STOP, False, Cause.INTERRUPTED, "SIGINT"),
        (-11, None, None, False, Cause.SIGNAL, "killed by SIGSEGV"),
        (-15, None, STOP, False, Cause.INTERRUPTED, "SIGINT"),
        (
            -9,
            None,
            None,
            True,
            Cause.OUT_OF_MEMORY,
            "killed by SIGKILL: the machine ran out of memory",
        ),
        (None, None, None, False, Cause.NODE_LOST, "its node was lost"),
        (None, record(0), None, False, None, ""),
    ],
)
def test_what_an_exit_means(
    returncode: int | None,
    record_left: ExitRecord | None,
    end_reason: AttemptOutcome | None,
    oom_killed: bool,
    cause: Cause | None,
    message: str,
) -> None:
    assert retry_policy.judge(
        returncode, record_left, end_reason=end_reason, oom_killed=oom_killed
    ) == AttemptOutcome(cause=cause, message=message)


@pytest.mark.parametrize(
    ("cause", "failures", "max_retries", "new"),
    [
        (None, 3, 0, Succeeded()),
        (Cause.CANCELLED, 0, 2, Cancelled()),
        (Cause.INTERRUPTED, 1, 2, Pending(failures=1)),
        (Cause.SUPERVISOR_DIED, 2, 2, Pending(failures=2)),
        (Cause.DISK_FULL, 0, 0, Pending(failures=0)),
        (Cause.SIGNAL, 0, 2, Pending(failures=1, not_before=101.0)),
        (Cause.OUT_OF_MEMORY, 1, 2, Pending(failures=2, not_before=102.0)),
        (Cause.STALLED, 0, 1, Pending(failures=1, not_before=101.0)),
        (Cause.RANK_LOST, 0, 1, Pending(failures=1, not_before=101.0)),
        (Cause.LAUNCH, 0, 1, Pending(failures=1, not_before=101.0)),
        (Cause.SIGNAL, 2, 2, Failed(cause=Cause.SIGNAL, message="why (after 2 retries)")),
        (Cause.SIGNAL, 0, 0, Failed(cause=Cause.SIGNAL, message="why")),
        (Cause.ERROR, 0, 9, Failed(cause=Cause.ERROR, message="why")),
        (Cause.DIVERGED, 0, 9, Failed(cause=Cause.DIVERGED, message="why")),
        (Cause.TIMEOUT, 0, 9, Failed(cause=Cause.TIMEOUT, message="why")),
        (Cause.MEMORY, 0, 9, Failed(cause=Cause.MEMORY, message="why")),
    ],
)
def test_where_a_job_goes_when_its_attempt_has_ended(
    cause: Cause | None, failures: int, max_retries: int, new: State
) -> None:
    outcome = AttemptOutcome(cause=cause, message="why")
    assert (
        retry_policy.next_state(outcome, failures=failures, max_retries=max_retries, now=100.0)
        == new
    )


@pytest.mark.parametrize(
    ("losses", "max_retries", "new"),
    [
        (1, 0, Pending(failures=0, not_before=101.0)),
        (3, 0, Pending(failures=0, not_before=104.0)),
        (retry_policy.MOST_LOSSES, 2, Pending(failures=0, not_before=160.0)),
        (retry_policy.MOST_LOSSES + 1, 2, Pending(failures=1, not_before=101.0)),
        (retry_policy.MOST_LOSSES + 1, 0, Failed(cause=Cause.NODE_LOST, message="why")),
    ],
)
def test_a_lost_node_is_not_counted_against_the_job_unless_it_loses_too_many(
    losses: int, max_retries: int, new: State
) -> None:
    outcome = AttemptOutcome(cause=Cause.NODE_LOST, message="why")
    assert (
        retry_policy.next_state(
            outcome, failures=0, max_retries=max_retries, now=100.0, losses=losses
        )
        == new
    )


@given(st.sampled_from([None, *Cause]), st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_every_end_leads_somewhere_legal_and_never_to_endless_retries(
    cause: Cause | None, failures: int, max_retries: int, losses: int
) -> None:
    new = retry_policy.next_state(
        AttemptOutcome(cause=cause),
        failures=failures,
        max_retries=max_retries,
        now=0.0,
        losses=losses,
    )
    assert not isinstance(new, Running)
    if cause is Cause.NODE_LOST and losses <= retry_policy.MOST_LOSSES:
        assert isinstance(new, Pending)
    elif isinstance(new, Pending) and cause not in retry_policy.RESUMABLE:
        assert new.failures == failures + 1 <= max_retries


@pytest.mark.parametrize(
    ("failures", "seconds"),
    [(0, 1), (1, 1), (2, 2), (3, 4), (6, 32), (7, 60), (8, 60), (10_000, 60)],
)
def test_back_off_doubles_up_to_a_minute(failures: int, seconds: float) -> None:
    assert retry_policy.backoff_s(failures) == seconds


def usage(**changes: float) -> AttemptUsage:
    values = {"started": 0.0, "last_progress": 0.0, "rss_mib": 0.0} | changes
    return AttemptUsage(
        resources=make_job(memory_mib=100, timeout_s=50.0, stall_timeout_s=10.0).resources, **values
    )


@pytest.mark.parametrize(
    ("attempt", "now", "cause", "words"),
    [
        (usage(), 10.0, None, ()),
        (usage(rss_mib=100.0), 1.0, None, ()),
        (usage(rss_mib=150.4), 1.0, Cause.MEMORY, ("100 MiB", "150 MiB", "resources.memory")),
        (usage(last_progress=50.0), 50.0, None, ()),
        (usage(last_progress=50.0), 51.0, Cause.TIMEOUT, ("50 s", "51 s", "resources.timeout")),
        (usage(last_progress=20.0), 31.0, Cause.STALLED, ("11 s", "10 s")),
        (usage(rss_mib=200.0), 99.0, Cause.MEMORY, ()),
    ],
)
def test_a_limit_that_is_passed_is_named_with_what_was_reached(
    attempt: AttemptUsage, now: float, cause: Cause | None, words: tuple[str, ...]
) -> None:
    outcome = retry_policy.exceeded_limit(attempt, now)
    assert (outcome.cause if outcome else None) == cause
    assert all(word in outcome.message for word in words if outcome)


def test_ranks_share_the_memory_of_all() -> None:
    resources = make_job(memory_mib=100, ranks=3).resources
    at_limit = AttemptUsage(resources=resources, started=0, last_progress=0, rss_mib=300)
    assert retry_policy.exceeded_limit(at_limit, 0.0) is None
    outcome = retry_policy.exceeded_limit(replace(at_limit, rss_mib=301), 0.0)
    assert outcome is not None
    assert outcome.message == "memory limit 3 × 100 MiB, reached 301 MiB; raise resources.memory"


def growing(limit_mib: int, rss_mib: float, ranks: int = 1) -> int:
    return local.promised_mib(make_job(memory_mib=limit_mib, ranks=ranks).resources, rss_mib)


@pytest.mark.parametrize(
    ("wanted", "available", "running", "admitted"),
    [
        (500, 499, [], False),
        (500, 500, [growing(100, 100)], True),
        (500, 499, [growing(100, 100)], False),
        (500, 600, [growing(100, 0)], True),
        (500, 599, [growing(100, 0)], False),
        (500, 500, [growing(100, 300)], True),
        (500, 699, [growing(100, 100, ranks=3)], False),
    ],
)
def test_memory_that_running_jobs_may_still_claim_is_set_aside(
    wanted: int, available: int, running: list[int], admitted: bool
) -> None:
    assert local.memory_admits(wanted, available, sum(running)) is admitted


@given(st.lists(st.integers(1, 5)))
def test_longest_first_is_a_stable_sort(steps: list[int]) -> None:
    jobs = [
        make_job(f"j{index}", spec={"total_timesteps": count}) for index, count in enumerate(steps)
    ]
    ordered = launch_order.launch_order(jobs, "longest-first", lambda job: job.spec.total_timesteps)
    assert [(-job.spec.total_timesteps, jobs.index(job)) for job in ordered] == sorted(
        (-job.spec.total_timesteps, index) for index, job in enumerate(jobs)
    )
    assert (
        launch_order.launch_order(jobs, "as-listed", lambda job: job.spec.total_timesteps) == jobs
    )
