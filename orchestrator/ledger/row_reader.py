"""The rows of the summary for whoever looks again and again: only what has changed is read anew."""

from __future__ import annotations

from orchestrator.ledger import Ledger, SummaryRow

JOBS = """
SELECT d.*, j.*, a.node, a.cpus, a.started_at, a.competitors,
    CASE WHEN j.state = 'PENDING' THEN (SELECT text FROM waits) END
FROM declared d JOIN jobs j USING (job_id)
LEFT JOIN attempts a ON a.job_id = j.job_id AND a.number = j.attempts - 1
ORDER BY d.position, d.job_id
"""
"""What a row of the summary changes with. An attempt may be placed, or moved, later than it was
launched."""


class RowReader:
    """The rows of one ledger. A row that has changed is another object; one that has not stays the
    same. A row that is read again lacks the keys that a matrix varies, which nobody reads here.
    """

    def __init__(self) -> None:
        self.rows: dict[str, SummaryRow] = {}
        """By ``job_id``, in the order of the job file. Not to be changed."""
        self._marks: dict[str, int] = {}
        """By ``job_id``: a hash of what :data:`JOBS` had when the row was read."""

    def update(self, ledger: Ledger) -> None:
        """Read what has changed. :raises LedgerError: a row cannot be read."""
        marks = {row["job_id"]: hash(tuple(row)) for row in ledger.select(JOBS)}
        if not self.rows:
            self.rows = {row["job_id"]: row for row in ledger.summary()}
        elif marks != self._marks:
            rows: dict[str, SummaryRow] = {}
            for job_id, mark in marks.items():
                row = self.rows.get(job_id)
                # One that waits for other jobs may wait for fewer after any change.
                if row is None or mark != self._marks.get(job_id) or row["waits_for"]:
                    row = ledger.summary_of(job_id)
                rows[job_id] = row
            self.rows = rows
        self._marks = marks
