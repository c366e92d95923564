"""What a request makes of a job that no worker trains. With a supervisor or without one, it is the
same.
"""

from __future__ import annotations

from orchestrator.core.job import Cancelled, Failed, Job, Paused, Pending, State, Succeeded
from orchestrator.ledger import Verb


def requested_state(verb: Verb, state: State) -> State | None:
    """The state that a request of the user makes of that of a job which no worker trains.

    None if it has no effect.
    """
    match verb, state:
        case "retry", Failed() | Cancelled():
            return Pending()
        case "cancel", Pending() | Paused():
            return Cancelled()
        case "pause", Pending(failures=failures) | Paused(failures=failures, at_rung=True):
            return Paused(failures=failures)
        case "resume", Paused(failures=failures, at_rung=False):
            return Pending(failures=failures)
        case _:
            return None


def promoted_job(job: Job, state: State, pause_at: int | None) -> tuple[Job, State] | None:
    """The job that is promoted: it trains on to ``pause_at`` env_steps, or to its end (None), and its
    state then.

    None if the request has no effect: the job has succeeded, or already trains as far. One that has
    failed or is cancelled trains as far when it is retried.
    """
    before = job.spec.pause_at
    if isinstance(state, Succeeded) or before is None:
        return None
    if pause_at is not None and pause_at <= before:
        return None
    if isinstance(state, Paused) and state.at_rung:
        state = Pending(failures=state.failures)
    return job.with_spec(pause_at=pause_at), state
