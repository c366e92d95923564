"""The rows of the summary for whoever looks again and again: only what has changed is read anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from orchestrator.core.decoding import checked_values
from orchestrator.core.errors import LedgerError
from orchestrator.ledger import Ledger, SummaryRow
from orchestrator.ledger.job_figures import earlier_env_steps
from orchestrator.ledger.lineage import env_steps_before

PROGRESS = ("env_steps", "ep_rew_mean", "env_steps_per_s", "learner")
"""Columns that a running job changes all the time."""
MOVES = (
    "state",
    "attempts",
    "cause",
    "message",
    "ep_rew_mean_first",
    "eval_mean",
    "learner_reason",
)
"""Columns that change together with others of the row, which is read whole then."""
PLACE = ("node", "cpus", "started_at")
"""Columns of the attempt of a running job: it may be placed, or moved, later than it was launched."""
COLUMNS = ", ".join([*(f"j.{name}" for name in PROGRESS + MOVES), *(f"a.{name}" for name in PLACE)])
JOBS = f"""
SELECT j.job_id, {COLUMNS} FROM jobs j
LEFT JOIN attempts a ON j.state = 'RUNNING' AND a.job_id = j.job_id AND a.number = j.attempts - 1
"""  # noqa: S608 - our own columns


class RowReader:
    """The rows of one ledger. A row that has changed is another object; one that has not stays the
    same. A row that is read again lacks the keys that a matrix varies, which nobody reads here.
    """

    def __init__(self) -> None:
        self.rows: dict[str, SummaryRow] = {}
        """By ``job_id``, in the order of the job file. Not to be changed."""
        self._moves: dict[str, tuple[Any, ...]] = {}
        """By ``job_id``: what :data:`MOVES` and :data:`PLACE` were when the row was read."""
        self._progress: dict[str, tuple[Any, ...]] = {}
        """The same of :data:`PROGRESS`."""
        self._attempt: tuple[str, int, float] | None = None
        """An attempt by which the ledger is known again: job, number, and how long it was queued.
        That never changes: a cluster reports later when the attempt was started."""

    def is_of(self, ledger: Ledger) -> bool:
        """Whether these are the rows of ``ledger``, and not of one that was removed and whose inode
        number it has.
        """
        if self._attempt is None:
            return True
        job_id, number, queue_s = self._attempt
        found = ledger.select(
            "SELECT queue_s FROM attempts WHERE job_id = ? AND number = ?", (job_id, number)
        )
        return [row[0] for row in found] == [queue_s]

    def update(self, ledger: Ledger) -> None:
        """Read what has changed. :raises LedgerError: a row cannot be read."""
        first = len(PROGRESS) + 1
        found = [tuple(row) for row in ledger.select(JOBS)]
        moves = {row[0]: row[first:] for row in found}
        progress = {row[0]: row[1:first] for row in found}
        if self.rows:
            rows = self._updated_rows(ledger, moves, progress)
        else:
            rows = {row["job_id"]: row for row in ledger.summary()}
        if self._attempt is None:
            for attempt in ledger.select("SELECT job_id, number, queue_s FROM attempts LIMIT 1"):
                self._attempt = attempt["job_id"], attempt["number"], attempt["queue_s"]
        self.rows = rows
        self._moves = moves
        self._progress = progress

    def _updated_rows(
        self,
        ledger: Ledger,
        moves: Mapping[str, tuple[Any, ...]],
        progress: Mapping[str, tuple[Any, ...]],
    ) -> dict[str, SummaryRow]:
        """All rows, of which those that have not changed are the same objects as before.

        :param moves: by job, what the columns :data:`MOVES` and :data:`PLACE` have now.
        :param progress: the same for :data:`PROGRESS`.
        """
        moved = {job_id for job_id, values in moves.items() if values != self._moves.get(job_id)}
        moved |= self._known_by_now(ledger)
        rows: dict[str, SummaryRow] = {}
        for job_id in self._job_ids(ledger, moves):
            row = self.rows.get(job_id)
            has_progressed = progress.get(job_id) != self._progress.get(job_id)
            # One that waits for other jobs may wait for fewer after any move.
            if row is None or job_id in moved or (moved and row["waits_for"]):
                rows[job_id] = ledger.summary_of(job_id)
            elif has_progressed:
                rows[job_id] = _progressed_row(row, progress[job_id])
            else:
                rows[job_id] = row
        return rows

    def _known_by_now(self, ledger: Ledger) -> set[str]:
        """Waiting jobs of which it was not known how far the policy that they start from had been
        trained, and is now: it was fetched, which happens when they wait for no other job.
        """
        unknown = [
            job_id
            for job_id, row in self.rows.items()
            if row["lineage_env_steps"] is None and not row["waits_for"]
        ]
        found = earlier_env_steps(ledger, unknown)
        return {job_id for job_id, env_steps in found.items() if env_steps is not None}

    def _job_ids(self, ledger: Ledger, moves: Mapping[str, tuple[Any, ...]]) -> list[str]:
        """All jobs in the order of the job file."""
        if moves.keys() == self._moves.keys():
            return list(self.rows)
        ordered = ledger.select("SELECT job_id FROM declared ORDER BY position, job_id")
        return [job_id for (job_id,) in ordered if job_id in moves]


def _progressed_row(row: SummaryRow, values: tuple[Any, ...]) -> SummaryRow:
    """``row`` after its job has trained on. :param values: of :data:`PROGRESS`."""
    try:
        changed = checked_values(SummaryRow, dict(zip(PROGRESS, values, strict=True)))
    except ValueError as error:
        raise LedgerError(
            f"{row['job_id']}: its row in the ledger cannot be read ({error})"
        ) from error
    earlier = env_steps_before(row["env_steps"], row["lineage_env_steps"])
    if earlier is not None:
        changed["lineage_env_steps"] = earlier + changed["env_steps"]
    return cast(SummaryRow, {**row, **changed})
