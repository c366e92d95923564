"""Questions about the jobs of a ledger that are asked often, or of many jobs: each is one
statement.

Processes beside the supervisor ask them, which make jobs or wait for what becomes of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from orchestrator.core.job import Cause
from orchestrator.ledger import Ledger, lineage, rows

PAUSES = "SELECT job_id, json_extract(spec, '$.pause_at') FROM declared"
MOST_MARKS = 500
"""Values of one statement; SQLite limits their number."""


class Figures(NamedTuple):
    """What the ledger knows of a job at this moment."""

    state: str
    env_steps: int
    ep_rew_mean: float | None
    message: str | None
    cause: str | None = None


def figures(ledger: Ledger, job_ids: Collection[str]) -> dict[str, Figures]:
    """Of each of these jobs, by ``job_id``."""
    sql = "SELECT job_id, state, env_steps, ep_rew_mean, message, cause FROM jobs"
    return {row[0]: Figures(*row[1:]) for row in _rows_of_jobs(ledger, sql, list(job_ids))}


def training_measures(
    ledger: Ledger, job_ids: Sequence[str]
) -> dict[str, Mapping[str, float | None]]:
    """Means of measures over the last episodes of training, by ``job_id``, for jobs whose training
    is measured. Of each job they are those of the last attempt that has an exit record.
    """
    found: dict[str, Mapping[str, float | None]] = {}
    # Beside max(), SQLite gives the other columns of that row (lang_select, 2.4).
    last = "SELECT job_id, record, max(number) FROM attempts"
    with_record = "record IS NOT NULL GROUP BY job_id"
    for job_id, record, _ in _rows_of_jobs(ledger, last, job_ids, with_record):
        found[job_id] = rows.training_measures(record)
    return found


def totals(ledger: Ledger, job_ids: Sequence[str]) -> dict[str, int]:
    """``total_timesteps`` of each of these jobs that there is, by ``job_id``."""
    sql = "SELECT job_id, json_extract(spec, '$.total_timesteps') FROM declared"
    return dict(_rows_of_jobs(ledger, sql, job_ids))


def _rows_of_jobs(
    ledger: Ledger, sql: str, job_ids: Sequence[str], others: str = "true"
) -> Iterator[Any]:
    """The rows that ``sql``, which has no condition yet, selects of these jobs.

    :param others: further conditions, and what follows them.
    """
    for first in range(0, len(job_ids), MOST_MARKS):
        some = job_ids[first : first + MOST_MARKS]
        marks = ", ".join("?" * len(some))
        yield from ledger.select(f"{sql} WHERE job_id IN ({marks}) AND {others}", some)


def env_steps(ledger: Ledger) -> int:
    """env_steps of all jobs together."""
    return int(ledger.select("SELECT coalesce(sum(env_steps), 0) FROM jobs")[0][0])


def earlier_env_steps(ledger: Ledger, job_ids: Sequence[str]) -> dict[str, int | None]:
    """env_steps of the policies that each of these jobs started from one after another, by
    ``job_id``: 0 for random weights; None: not known.
    """
    sql = "SELECT job_id, json_extract(spec, '$.init'), json_extract(spec, '$.init_env_steps') FROM declared"
    return {
        job_id: lineage.earlier_env_steps(init, init_env_steps)
        for job_id, init, init_env_steps in _rows_of_jobs(ledger, sql, job_ids)
    }


def at_rungs(ledger: Ledger) -> int:
    """Number of jobs that wait at a rung."""
    sql = "SELECT count(*) FROM jobs WHERE state = 'PAUSED' AND cause = ?"
    return int(ledger.select(sql, (Cause.RUNG,))[0][0])


def goals(ledger: Ledger) -> dict[str, int]:
    """env_steps at which jobs pause at a rung, by ``job_id``: of those that run or are queued."""
    is_queued = "job_id IN (SELECT job_id FROM jobs WHERE state IN ('PENDING', 'RUNNING'))"
    found = ledger.select(f"{PAUSES} WHERE {is_queued}")
    return {job_id: env_steps for job_id, env_steps in found if env_steps is not None}


def pauses(ledger: Ledger) -> dict[str, int | None]:
    """env_steps up to which jobs are trained before they are compared, by ``job_id``; None: they
    train to their end.
    """
    return dict(map(tuple, ledger.select(PAUSES)))


def version(ledger: Ledger) -> int:
    """A number that changes whenever another process has written into the ledger."""
    return int(ledger.select("PRAGMA data_version")[0][0])
