"""The ledger of an experiment: the only SQL in the program.

One SQLite file in write-ahead mode. The supervisor is its only writer but for ``requests``, which
``stop`` and ``retry`` leave there for it. The ledger is the truth; ``summary.*`` is made from it.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from orchestrator.core.errors import LedgerError
from orchestrator.core.job import Attempt, AttemptOutcome, Cause, Failed, Job, Pending, Running, State
from orchestrator.core.messages import ExitRecord
from orchestrator.ledger import database_file, rows
from orchestrator.ledger.database_file import decoding, translated
from orchestrator.ledger.rows import AttemptFacts, JobRow, SummaryRow
from orchestrator.ledger.schema import SCHEMA, SCHEMA_VERSION

__all__ = ["SCHEMA_VERSION", "AttemptFacts", "JobRow", "Ledger", "Request", "SummaryRow", "Verb"]

Verb: TypeAlias = Literal["stop", "cancel", "retry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    verb: Verb
    job_id: str | None


class Ledger:
    """Open with :meth:`create` or :meth:`open`; close when done.

    Writes go into one transaction until :meth:`commit`.

    :raises LedgerError: on damage, found at opening or later.
    :raises DiskFullError: when a write finds no space.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        self._data_version = -1

    @classmethod
    def create(cls, path: Path) -> Ledger:
        """A new, empty ledger; ``path`` must not exist."""
        database_file.create(path, SCHEMA, SCHEMA_VERSION)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> Ledger:
        """An existing ledger, checked for damage; what is not whole is not written to.

        :raises LedgerError: missing, damaged, foreign, or of another version.
        """
        return cls(path, database_file.connect(path, SCHEMA_VERSION, read_only=read_only))

    def close(self) -> None:
        """Commit and close; the file alone is then the whole ledger, readable where nothing may be written."""
        try:
            with translated(self._path):
                self._connection.commit()
                # Another reader at this moment keeps the write-ahead file alive; it is just as valid then.
                with contextlib.suppress(sqlite3.OperationalError):
                    self._connection.execute("PRAGMA busy_timeout=200")
                    self._connection.execute("PRAGMA journal_mode=DELETE")
        finally:
            self._connection.close()

    def abandon(self) -> None:
        """Close without writing; what was not committed is given up (full disk)."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()

    def commit(self) -> None:
        with translated(self._path):
            self._connection.commit()

    def _execute(self, sql: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> sqlite3.Cursor:
        with translated(self._path):
            return self._connection.execute(sql, values)

    # -- the experiment

    def put_jobs(self, jobs: Iterable[tuple[int, Job, str | None]]) -> None:
        """Insert or replace declared jobs as ``(position, job, robot hash)``: PENDING, no attempts."""
        with translated(self._path):
            for position, job, robot_hash in jobs:
                self._connection.execute(
                    "INSERT OR REPLACE INTO declared (job_id, position, where_, name, spec, resources, max_retries,"
                    " xml_source, fingerprint, robot_hash, point) VALUES (:job_id, :position, :where_, :name, :spec,"
                    " :resources, :max_retries, :xml_source, :fingerprint, :robot_hash, :point)",
                    rows.job_values(position, job, robot_hash),
                )
                self._connection.execute(
                    "INSERT OR REPLACE INTO jobs (job_id, state) VALUES (?, 'PENDING')", (job.job_id,)
                )

    def update_limits(self, position: int, job: Job) -> None:
        """Take over what does not decide the result: limits, retries, place in the file."""
        self._execute(
            "UPDATE declared SET position = :position, where_ = :where_, name = :name, spec = :spec,"
            " resources = :resources, max_retries = :max_retries, point = :point WHERE job_id = :job_id",
            rows.job_values(position, job, None),
        )

    def delete_job(self, job_id: str) -> None:
        self._execute("DELETE FROM attempts WHERE job_id = ?", (job_id,))
        self._execute("DELETE FROM jobs WHERE job_id = ?", (job_id,))
        self._execute("DELETE FROM declared WHERE job_id = ?", (job_id,))

    def jobs(self) -> list[JobRow]:
        """Every job, in the order of the job file. A RUNNING one comes with its last attempt."""
        found = []
        with translated(self._path), decoding(self._path):
            everything = "SELECT * FROM declared JOIN jobs USING (job_id) ORDER BY position, job_id"
            for row in self._connection.execute(everything):
                running = row["state"] == "RUNNING"
                found.append(rows.job_row(row, self.last_attempt(row["job_id"]) if running else None))
        return found

    def last_attempt(self, job_id: str) -> Attempt:
        """:raises LedgerError: when there is none."""
        with translated(self._path), decoding(self._path):
            row = self._connection.execute(
                "SELECT * FROM attempts WHERE job_id = ? ORDER BY number DESC LIMIT 1", (job_id,)
            ).fetchone()
            if row is not None:
                return rows.attempt_row(row)
        raise LedgerError(f"{self._path}: job {job_id} is RUNNING without an attempt; {database_file.ADVICE}")

    # -- what happens

    def set_state(self, job_id: str, state: State) -> None:
        failures = state.failures if isinstance(state, Pending | Running) else None
        cause, message = (state.cause, state.message) if isinstance(state, Failed) else (None, None)
        self._execute(
            "UPDATE jobs SET state = ?, failures = coalesce(?, failures), cause = ?, message = ? WHERE job_id = ?",
            (state.name, failures, cause, message, job_id),
        )

    def start_attempt(self, attempt: Attempt, *, queue_s: float) -> None:
        self._execute(
            "INSERT INTO attempts (job_id, number, cpus, gpus, node, pid, pid_start, queue_s, started_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                attempt.job_id,
                attempt.number,
                json.dumps(attempt.cpus),
                json.dumps(attempt.gpus),
                attempt.node,
                attempt.pid,
                attempt.pid_start,
                queue_s,
                attempt.started_at,
            ),
        )
        self._execute("UPDATE jobs SET attempts = ? WHERE job_id = ?", (attempt.number + 1, attempt.job_id))

    def place_attempt(self, attempt: Attempt) -> None:
        """Where an attempt that was started before has come to run, and since when."""
        self._execute(
            "UPDATE attempts SET cpus = ?, gpus = ?, node = ?, pid = ?, pid_start = ?, started_at = ?"
            " WHERE job_id = ? AND number = ?",
            (
                json.dumps(attempt.cpus),
                json.dumps(attempt.gpus),
                attempt.node,
                attempt.pid,
                attempt.pid_start,
                attempt.started_at,
                attempt.job_id,
                attempt.number,
            ),
        )

    def end_attempt(
        self,
        job_id: str,
        number: int,
        *,
        ended_at: float | None,
        wall_s: float | None,
        returncode: int | None,
        ending: AttemptOutcome,
        max_rss_mib: float | None,
        record: ExitRecord | None,
    ) -> None:
        self._execute(
            "UPDATE attempts SET ended_at = ?, wall_s = ?, returncode = ?, cause = ?, message = ?, max_rss_mib = ?,"
            " record = ? WHERE job_id = ? AND number = ?",
            (
                ended_at,
                wall_s,
                returncode,
                ending.cause,
                ending.message,
                max_rss_mib,
                None if record is None else record.to_json(),
                job_id,
                number,
            ),
        )
        if record is not None:
            self._execute(
                # An attempt that ended before it had read its checkpoint knows of no steps.
                "UPDATE jobs SET env_steps = coalesce(nullif(?, 0), env_steps), ep_rew_mean = coalesce(?, ep_rew_mean),"
                " ep_rew_mean_first = coalesce(?, ep_rew_mean_first), eval_mean = coalesce(?, eval_mean),"
                " learner = coalesce(?, learner), learner_reason = coalesce(?, learner_reason) WHERE job_id = ?",
                (
                    record.env_steps,
                    record.ep_rew_mean,
                    record.ep_rew_mean_first,
                    record.eval_mean,
                    record.learner,
                    record.learner_reason,
                    job_id,
                ),
            )

    def losses(self, job_id: str) -> int:
        """How many attempts of the job were lost with their node."""
        sql = "SELECT count(*) FROM attempts WHERE job_id = ? AND cause = ?"
        return int(self._execute(sql, (job_id, Cause.NODE_LOST)).fetchone()[0])

    def set_progress(self, figures: Iterable[tuple[str, int, float | None, float | None, str | None]]) -> None:
        """Latest figures of running jobs: ``(job_id, env_steps, ep_rew_mean, env_steps_per_s, learner)``."""
        with translated(self._path):
            self._connection.executemany(
                "UPDATE jobs SET env_steps = ?2, ep_rew_mean = coalesce(?3, ep_rew_mean),"
                " env_steps_per_s = coalesce(?4, env_steps_per_s), learner = coalesce(?5, learner) WHERE job_id = ?1",
                figures,
            )

    # -- requests from other processes

    def add_requests(self, requests: Iterable[Request]) -> None:
        with translated(self._path):
            self._connection.executemany(
                "INSERT INTO requests (verb, job_id) VALUES (?, ?)",
                [(request.verb, request.job_id) for request in requests],
            )
        self.commit()

    def take_requests(self) -> list[Request]:
        """Requests that came in since the last call; nearly free when nobody else has written."""
        version = self._execute("PRAGMA data_version").fetchone()[0]
        if version == self._data_version:
            return []
        self._data_version = version
        found = self._execute("SELECT id, verb, job_id FROM requests ORDER BY id").fetchall()
        if found:
            self._execute("DELETE FROM requests WHERE id <= ?", (found[-1]["id"],))
        return [Request(verb=row["verb"], job_id=row["job_id"]) for row in found]

    # -- for people

    def summary(self) -> list[SummaryRow]:
        """One row a job, with its attempts summed: what ``summary.json`` and ``status`` show."""
        return [row for page in self.summaries(page_rows=-1) for row in page]

    def summaries(self, *, page_rows: int) -> Iterator[list[SummaryRow]]:
        """:meth:`summary`, page by page, each as of the moment when it is asked for."""
        with translated(self._path), decoding(self._path):
            varied = self._varied()
        last = (-1, "")
        while True:
            with translated(self._path), decoding(self._path):
                found = self._connection.execute(
                    "SELECT d.*, j.*, a.cpus AS cpus, a.queue_s AS queue_s, a.started_at AS started_at,"
                    " a.ended_at AS ended_at, a.node AS node, a.pid AS pid, a.record AS record,"
                    " a.max_rss_mib AS max_rss_mib,"
                    " (SELECT sum(wall_s) FROM attempts WHERE job_id = j.job_id) AS wall_s"
                    " FROM declared d JOIN jobs j ON j.job_id = d.job_id"
                    " LEFT JOIN attempts a ON a.job_id = j.job_id AND a.number = j.attempts - 1"
                    " WHERE (d.position, d.job_id) > (?, ?) ORDER BY d.position, d.job_id LIMIT ?",
                    (*last, page_rows),
                ).fetchall()
                page = [rows.summary_row(row, varied) for row in found]
            if page:
                yield page
            if len(found) != page_rows:
                return
            last = found[-1]["position"], found[-1]["job_id"]

    def attempts(self) -> list[AttemptFacts]:
        """Every launch of every job, the jobs in their order, as in :func:`rows.attempt_facts`."""
        with translated(self._path), decoding(self._path):
            found = self._connection.execute(
                "SELECT a.* FROM attempts a JOIN declared d USING (job_id) ORDER BY d.position, d.job_id, a.number"
            )
            return [rows.attempt_facts(row) for row in found]

    def _varied(self) -> list[str]:
        """Every key that a matrix varies, in the order of the job file."""
        points = self._connection.execute("SELECT point FROM declared WHERE point != '{}' ORDER BY position, job_id")
        return list(dict.fromkeys(key for (point,) in points for key in json.loads(point)))
