"""The ledger of an experiment: one SQLite file. All SQL of the program is in this package, but for
that of the search, which has a file of its own.

The supervisor is its only writer. The ledger is the truth; ``summary.json`` and ``summary.csv`` are
made from it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence

from orchestrator.core.decoding import field_values
from orchestrator.core.errors import LedgerDamagedError
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.job import Attempt, AttemptOutcome, Cause, Job, State
from orchestrator.ledger import database_file, rows
from orchestrator.ledger.database import Database
from orchestrator.ledger.database_file import decoding, translate_errors
from orchestrator.ledger.rows import (
    AttemptRow,
    DeclaredJob,
    JobRow,
    LatestFigures,
    LiveReport,
    SummaryRow,
)
from orchestrator.ledger.schema import FORMAT, SCHEMA

__all__ = ["AttemptRow", "JobRow", "Ledger", "SummaryRow"]


class Ledger(Database):
    """The jobs of an experiment, their attempts, and the stream of events."""

    schema = SCHEMA
    format = FORMAT

    # -- the experiment

    def put_jobs(self, jobs: Iterable[DeclaredJob]) -> None:
        """Insert or replace jobs: PENDING, without attempts."""
        for declared in jobs:
            self._execute(
                "INSERT OR REPLACE INTO declared (job_id, position, where_, name, spec, resources, max_retries,"
                " xml_source, fingerprint, robot_hash, point) VALUES (:job_id, :position, :where_, :name, :spec,"
                " :resources, :max_retries, :xml_source, :fingerprint, :robot_hash, :point)",
                rows.job_values(declared),
            )
            self._execute(
                "INSERT OR REPLACE INTO jobs (job_id, state) VALUES (?, 'PENDING')",
                (declared.job.job_id,),
            )

    def update_declaration(self, position: int, job: Job) -> None:
        """Update the job of that id, but for its robot: limits, retries, position in the job file,
        env_steps, and where the file of the robot is.
        """
        self._execute(
            "UPDATE declared SET position = :position, where_ = :where_, name = :name, spec = :spec, point = :point,"
            " resources = :resources, max_retries = :max_retries, xml_source = :xml_source, fingerprint = :fingerprint"
            " WHERE job_id = :job_id",
            rows.job_values(DeclaredJob(position=position, job=job)),
        )

    def update_spec(self, job: Job) -> None:
        """Update values of the job of that id that are no part of its fingerprint."""
        self._execute(
            "UPDATE declared SET spec = ? WHERE job_id = ?", (job.spec.to_json(), job.job_id)
        )

    def delete_job(self, job_id: str) -> None:
        """Remove a job with its attempts."""
        for name in ("attempts", "jobs", "declared"):
            self._execute(f"DELETE FROM {name} WHERE job_id = ?", (job_id,))  # noqa: S608 - our own tables

    def jobs(self) -> list[JobRow]:
        """Every job in the order of the job file, a RUNNING one with its last attempt."""
        with translate_errors(self.path), decoding(self.path):
            selected = self._execute(f"{rows.JOBS} {rows.IN_ORDER}").fetchall()
            return [self._job_row(row) for row in selected]

    def job_row(self, job_id: str) -> JobRow | None:
        """The job of that id; None where there is none."""
        with translate_errors(self.path), decoding(self.path):
            row = self._execute(f"{rows.JOBS} WHERE d.job_id = ?", (job_id,)).fetchone()
            return None if row is None else self._job_row(row)

    def jobs_with(self, fact: str, *, is_set: bool) -> set[str]:
        """Ids of the jobs whose spec has True or False in a field."""
        sql = "SELECT job_id FROM declared WHERE json_extract(spec, '$.' || ?) IS ?"
        return {row["job_id"] for row in self.select(sql, (fact, int(is_set)))}

    def _job_row(self, row: sqlite3.Row) -> JobRow:
        is_running = row["state"] == "RUNNING"
        return rows.job_row(row, self.last_attempt(row["job_id"]) if is_running else None)

    def last_attempt(self, job_id: str) -> Attempt:
        """:raises LedgerDamagedError: when there is none."""
        with translate_errors(self.path), decoding(self.path):
            sql = "SELECT * FROM attempts WHERE job_id = ? ORDER BY number DESC LIMIT 1"
            if (row := self._execute(sql, (job_id,)).fetchone()) is not None:
                return rows.attempt_of(row)
        raise LedgerDamagedError(
            f"{self.path}: job {job_id} is RUNNING without an attempt; {database_file.ADVICE}"
        )

    # -- attempts and states

    def set_state(self, job_id: str, state: State) -> None:
        """Set the state of a job."""
        sql = "UPDATE jobs SET state = ?, failures = coalesce(?, failures), cause = ?, message = ? WHERE job_id = ?"
        self._execute(sql, (*rows.state_values(state), job_id))

    def start_attempt(self, attempt: Attempt, *, queue_s: float) -> None:
        """:param queue_s: how long the job was queued before it."""
        self._execute(
            "INSERT INTO attempts (job_id, number, cpus, gpus, node, pid, pid_start, queue_s, started_at)"
            " VALUES (:job_id, :number, :cpus, :gpus, :node, :pid, :pid_start, :queue_s, :started_at)",
            {**rows.attempt_values(attempt), "queue_s": queue_s},
        )
        self._execute(
            "UPDATE jobs SET attempts = ?, phase = 'starting', cpu_share = NULL, run_delay_share = NULL, parts = NULL,"
            " reported_at = ? WHERE job_id = ?",
            (attempt.number + 1, attempt.started_at, attempt.job_id),
        )

    def place_attempt(self, attempt: Attempt) -> None:
        """Where and when an attempt that :meth:`start_attempt` recorded was started."""
        self._execute(
            "UPDATE attempts SET cpus = :cpus, gpus = :gpus, node = :node, pid = :pid, pid_start = :pid_start,"
            " started_at = :started_at WHERE job_id = :job_id AND number = :number",
            rows.attempt_values(attempt),
        )

    def move_attempt(
        self, job_id: str, number: int, before: Sequence[int], after: Sequence[int], *, at: float
    ) -> None:
        """The attempt left the CPUs ``before`` for ``after``. :param at: seconds since the
        epoch.
        """
        self._execute(
            "UPDATE attempts SET cpus = ?, moves = json_insert(moves, '$[#]', json(?)) WHERE job_id = ? AND number = ?",
            (json.dumps(list(after)), json.dumps([at, list(before)]), job_id, number),
        )

    def note_competitors(self, job_id: str, number: int, names: Iterable[str]) -> None:
        """Others used the CPUs of an attempt. :param names: who, for people; none of them is known
        yet.
        """
        sql = "UPDATE attempts SET competitors = json_insert(competitors, '$[#]', ?) WHERE job_id = ? AND number = ?"
        for name in names:
            self._execute(sql, (name, job_id, number))

    def end_attempt(
        self,
        job_id: str,
        number: int,
        *,
        ended_at: float | None,
        wall_s: float | None,
        returncode: int | None,
        outcome: AttemptOutcome,
        record: ExitRecord | None,
        max_rss_mib: float | None = None,
    ) -> None:
        """How an attempt ended, and what its exit record says of the job.

        :param returncode: of its worker; None: not known, as are times that are None.
        :param record: None where the worker left none.
        """
        text = None if record is None else record.to_json()
        self._execute(
            "UPDATE attempts SET ended_at = ?, wall_s = ?, returncode = ?, cause = ?, message = ?, max_rss_mib = ?,"
            " record = ? WHERE job_id = ? AND number = ?",
            (
                ended_at,
                wall_s,
                returncode,
                outcome.cause,
                outcome.message,
                max_rss_mib,
                text,
                job_id,
                number,
            ),
        )
        if record is not None:
            self._execute(
                # An attempt that ended before it read its checkpoint reports no steps.
                "UPDATE jobs SET env_steps = coalesce(nullif(:env_steps, 0), env_steps),"
                " ep_rew_mean = coalesce(:ep_rew_mean, ep_rew_mean),"
                " ep_rew_mean_first = coalesce(:ep_rew_mean_first, ep_rew_mean_first),"
                " eval_mean = CASE WHEN :code = 0 THEN :eval_mean ELSE coalesce(:eval_mean, eval_mean) END,"
                " learner = coalesce(:learner, learner),"
                " env_steps_per_s = coalesce(:env_steps_per_s, env_steps_per_s),"
                " learner_reason = coalesce(:learner_reason, learner_reason) WHERE job_id = :job_id",
                {
                    **field_values(record),
                    "env_steps_per_s": record.env_steps_per_s,
                    "job_id": job_id,
                },
            )

    def losses(self) -> dict[str, int]:
        """Number of attempts that were lost with their node, of every job that has some."""
        sql = "SELECT job_id, count(*) FROM attempts WHERE cause = ? GROUP BY job_id"
        return {row[0]: row[1] for row in self.select(sql, (Cause.NODE_LOST,))}

    def set_progress(self, figures: Iterable[LatestFigures]) -> None:
        """Latest progress of running jobs."""
        sql = (
            "UPDATE jobs SET env_steps = ?2, ep_rew_mean = coalesce(?3, ep_rew_mean),"
            " env_steps_per_s = coalesce(?4, env_steps_per_s), learner = coalesce(?5, learner) WHERE job_id = ?1"
        )
        with translate_errors(self.path):
            self._connection.executemany(sql, list(figures))

    def set_reports(self, reports: Iterable[LiveReport]) -> None:
        """What workers of running jobs have reported beside their progress."""
        sql = (
            "UPDATE jobs SET phase = ?2, cpu_share = ?3, run_delay_share = ?4, parts = ?5, reported_at = ?6"
            " WHERE job_id = ?1"
        )
        with translate_errors(self.path):
            self._connection.executemany(sql, list(reports))

    def set_waiting(self, text: str, least_mib: int) -> None:
        """Why PENDING jobs that ask for so much free disk space wait; empty if none does."""
        self._execute("DELETE FROM waits")
        if text:
            self._execute("INSERT INTO waits VALUES (?, ?)", (text, least_mib))

    # -- for reports

    def summary(self) -> list[SummaryRow]:
        """One row per job, in the order of the job file: the rows of ``summary.json`` and
        ``status``.
        """
        with translate_errors(self.path), decoding(self.path):
            found = self._execute(f"{rows.SUMMARY} {rows.IN_ORDER}").fetchall()
            # Keys that a matrix varies, in the order of the job file.
            varied = dict.fromkeys(key for row in found for key in rows.parsed_object(row["point"]))
            return [rows.summary_row(row, varied, self.path.parent) for row in found]

    def summary_of(self, job_id: str) -> SummaryRow:
        """The row of one job, without the keys that a matrix varies.

        :raises LedgerDamagedError: there is no such job.
        """
        with translate_errors(self.path), decoding(self.path):
            row = self._execute(f"{rows.SUMMARY} WHERE d.job_id = ?", (job_id,)).fetchone()
            if row is None:
                raise LedgerDamagedError(f"{self.path}: there is no job {job_id} in the ledger")
            return rows.summary_row(row, (), self.path.parent)

    def counts(self) -> dict[str, int]:
        """Number of jobs by the name of their state."""
        found = self.select("SELECT state, count(*) FROM jobs GROUP BY state")
        return {row[0]: row[1] for row in found}

    def attempts(self, job_id: str | None = None) -> list[AttemptRow]:
        """The attempts of one job, or of all in the order of the job file; of each job the first
        one first.
        """
        condition = "" if job_id is None else "WHERE d.job_id = ?"
        values = () if job_id is None else (job_id,)
        with translate_errors(self.path), decoding(self.path):
            sql = f"SELECT a.* FROM attempts a JOIN declared d USING (job_id) {condition} {rows.IN_ORDER}, a.number"  # noqa: S608
            return [rows.attempt_row(row) for row in self._execute(sql, values)]
