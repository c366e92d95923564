"""Jobs of an earlier pool that the program has not submitted to the present one."""

from __future__ import annotations

from orchestrator.core.job import Cancelled, Paused, Pending, lacked_room, move
from orchestrator.ledger import Ledger


def cancel(ledger: Ledger) -> list[str]:
    """End the jobs that nobody has claimed, at the normal end of a pool. Returns their ids.

    They are those that are paused: a job that the program waits for has ended by then.
    """
    found = [row for row in ledger.jobs(decoded=False) if isinstance(row.state, Paused)]
    for row in found:
        new = move(row.job_id, row.state, Cancelled(is_undeclared=True))
        ledger.set_state(row.job_id, new)
    ledger.commit()
    return [row.job_id for row in found]


def take_back(ledger: Ledger) -> None:
    """Queue jobs again that :func:`cancel` has ended, or that were too large for the machine of an
    earlier pool: a new pool may claim them.
    """
    for row in ledger.jobs(decoded=False):
        was_too_large = row.attempts > 0 and lacked_room(row.state)
        if was_too_large or row.state == Cancelled(is_undeclared=True):
            ledger.set_state(row.job_id, move(row.job_id, row.state, Pending()))
    ledger.commit()
