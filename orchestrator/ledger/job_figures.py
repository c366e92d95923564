"""Questions about the jobs of a ledger that are asked often, or of many jobs: each is one
statement.

Processes beside the supervisor ask them, which make jobs or wait for what becomes of them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from orchestrator.core.job import Cause
from orchestrator.ledger import Ledger, lineage, rows
from orchestrator.ledger.database_file import decoding

STARTS = """
SELECT job_id, CASE WHEN json_valid(spec) THEN
    json_array(json_extract(spec, '$.init'), json_extract(spec, '$.init_env_steps')) END
FROM declared
"""
"""``init`` and ``init_env_steps`` of the declarations of jobs, as one array; NULL of one that is no
strict JSON."""
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
    sql = f"SELECT job_id, {_number('total_timesteps')} FROM declared"  # noqa: S608
    found = _read_numbers(ledger, _rows_of_jobs(ledger, sql, job_ids), "total_timesteps")
    return {job_id: steps or 0 for job_id, steps in found.items()}


def _number(field: str) -> str:
    """Two columns: the whole number in a field of the spec, NULL without one; and the whole spec
    where SQLite cannot read it, such as one with an infinite value, which is none in strict JSON.
    """
    return (
        f"CASE WHEN json_valid(spec) THEN CAST(json_extract(spec, '$.{field}') AS INTEGER) END,"
        " CASE WHEN NOT json_valid(spec) THEN spec END"
    )


def _read_numbers(
    ledger: Ledger, found: Iterable[sqlite3.Row], field: str
) -> dict[str, int | None]:
    """By ``job_id``. :param found: rows of a ``job_id`` and what :func:`_number` selects."""
    with decoding(ledger.path):
        return {
            job_id: number if unread is None else rows.parsed_object(unread).get(field)
            for job_id, number, unread in found
        }


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
    return {
        job_id: None if start is None else lineage.earlier_env_steps(*json.loads(start))
        for job_id, start in _rows_of_jobs(ledger, STARTS, job_ids)
    }


def at_rungs(ledger: Ledger) -> int:
    """Number of jobs that wait at a rung."""
    sql = "SELECT count(*) FROM jobs WHERE state = 'PAUSED' AND cause = ?"
    return int(ledger.select(sql, (Cause.RUNG,))[0][0])


def goals(ledger: Ledger) -> dict[str, int]:
    """env_steps at which jobs pause at a rung, by ``job_id``: of those that run or are queued."""
    sql = f"SELECT job_id, {_number('pause_at')} FROM declared JOIN jobs USING (job_id)"  # noqa: S608
    found = ledger.select(f"{sql} WHERE state IN ('PENDING', 'RUNNING')")
    numbers = _read_numbers(ledger, found, "pause_at")
    return {job_id: number for job_id, number in numbers.items() if number is not None}


def pauses(ledger: Ledger) -> dict[str, int | None]:
    """env_steps up to which jobs are trained before they are compared, by ``job_id``; None: they
    train to their end.
    """
    found = ledger.select(f"SELECT job_id, {_number('pause_at')} FROM declared")  # noqa: S608
    return _read_numbers(ledger, found, "pause_at")


def version(ledger: Ledger) -> int:
    """A number that changes whenever another process has written into the ledger."""
    return int(ledger.select("PRAGMA data_version")[0][0])
