"""The ledger of an experiment: the only SQL in the program.

One SQLite file in write-ahead mode. The supervisor is its only writer but for ``requests``, which
``stop`` and ``retry`` leave there for it. The ledger is the truth; ``summary.*`` is made from it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from orchestrator.contract import ExitRecord, WorkerSpec
from orchestrator.errors import DiskFullError, LedgerError
from orchestrator.job import Attempt, Cancelled, Cause, Failed, Job, Pending, Resources, Running, State, Succeeded
from orchestrator.policy import Ending

APPLICATION_ID = 0x4F524348  # "ORCH"
SCHEMA_VERSION = 1

SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE jobs (
    job_id TEXT PRIMARY KEY, position INTEGER NOT NULL, where_ TEXT NOT NULL, name TEXT NOT NULL,
    spec TEXT NOT NULL, resources TEXT NOT NULL, max_retries INTEGER NOT NULL, xml_source TEXT,
    fingerprint TEXT NOT NULL, robot_hash TEXT,
    state TEXT NOT NULL, failures INTEGER NOT NULL DEFAULT 0, cause TEXT, message TEXT,
    attempts INTEGER NOT NULL DEFAULT 0,
    env_steps INTEGER NOT NULL DEFAULT 0, ep_rew_mean REAL, ep_rew_mean_first REAL, eval_mean REAL,
    env_steps_per_s REAL, learner TEXT, learner_reason TEXT
);
CREATE TABLE attempts (
    job_id TEXT NOT NULL, number INTEGER NOT NULL, cpus TEXT NOT NULL, gpus TEXT NOT NULL,
    pid INTEGER, pid_start REAL, queue_s REAL NOT NULL, started_at REAL NOT NULL, ended_at REAL, wall_s REAL,
    returncode INTEGER, cause TEXT, message TEXT, max_rss_mib REAL, record TEXT,
    PRIMARY KEY (job_id, number)
) WITHOUT ROWID;
CREATE TABLE requests (id INTEGER PRIMARY KEY, verb TEXT NOT NULL, job_id TEXT);
"""

Verb: TypeAlias = Literal["stop", "cancel", "retry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job as the ledger holds it."""

    job: Job
    fingerprint: str
    robot_hash: str | None
    state: State
    attempts: int
    """How many were launched; the next one's number."""


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
        if path.exists():
            raise LedgerError(f"{path}: exists already")
        with _translated(path):
            ledger = cls(path, _connect(path))
            ledger._connection.executescript(
                f"PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={SCHEMA_VERSION}; BEGIN; {SCHEMA} COMMIT;"
            )
        return ledger

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> Ledger:
        """An existing ledger, checked for damage.

        :raises LedgerError: missing, damaged, foreign, or of another version.
        """
        if not path.is_file():
            raise LedgerError(f"{path}: no ledger here; is this a run directory?")
        advice = "it was left as it is; `run --rebuild-ledger` sets it aside and makes a new one from the job directories"
        with _translated(path):
            connection = _connect(path, read_only=read_only)
            try:
                application = connection.execute("PRAGMA application_id").fetchone()[0]
                version = connection.execute("PRAGMA user_version").fetchone()[0]
                damage = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
                if application != APPLICATION_ID or damage != "ok":
                    raise LedgerError(f"{path}: the ledger is damaged ({damage}); {advice}")
                if version != SCHEMA_VERSION:
                    raise LedgerError(f"{path}: ledger of version {version}; this program writes {SCHEMA_VERSION}")
            except BaseException:
                connection.close()
                raise
        return cls(path, connection)

    def close(self) -> None:
        """Commit and close; the file alone is then the whole ledger, readable where nothing may be written."""
        with _translated(self._path):
            self._connection.commit()
            # Another reader at this moment keeps the write-ahead file alive; it is just as valid then.
            with contextlib.suppress(sqlite3.OperationalError):
                self._connection.execute("PRAGMA journal_mode=DELETE")
            self._connection.close()

    def abandon(self) -> None:
        """Close without writing; what was not committed is given up (full disk)."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()

    def commit(self) -> None:
        with _translated(self._path):
            self._connection.commit()

    def _execute(self, sql: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> sqlite3.Cursor:
        with _translated(self._path):
            return self._connection.execute(sql, values)

    # -- the experiment

    def set_meta(self, key: str, value: object) -> None:
        self._execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, json.dumps(value)))

    def meta(self, key: str) -> Any:
        row = self._execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else json.loads(row[0])

    def put_jobs(self, jobs: Iterable[tuple[int, Job, str | None]]) -> None:
        """Insert or replace declared jobs as ``(position, job, robot hash)``: PENDING, no attempts."""
        with _translated(self._path):
            self._connection.executemany(
                "INSERT OR REPLACE INTO jobs (job_id, position, where_, name, spec, resources, max_retries, xml_source,"
                " fingerprint, robot_hash, state) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'PENDING')",
                (
                    (
                        job.job_id,
                        position,
                        job.where,
                        job.spec.name,
                        job.spec.to_json(),
                        json.dumps(asdict(job.resources)),
                        job.max_retries,
                        None if job.xml_source is None else str(job.xml_source),
                        job.spec.fingerprint(),
                        robot_hash,
                    )
                    for position, job, robot_hash in jobs
                ),
            )

    def update_limits(self, position: int, job: Job) -> None:
        """Take over what does not decide the result: limits, retries, place in the file."""
        self._execute(
            "UPDATE jobs SET position = ?, where_ = ?, name = ?, spec = ?, resources = ?, max_retries = ?"
            " WHERE job_id = ?",
            (
                position,
                job.where,
                job.spec.name,
                job.spec.to_json(),
                json.dumps(asdict(job.resources)),
                job.max_retries,
                job.job_id,
            ),
        )

    def delete_job(self, job_id: str) -> None:
        self._execute("DELETE FROM attempts WHERE job_id = ?", (job_id,))
        self._execute("DELETE FROM jobs WHERE job_id = ?", (job_id,))

    def jobs(self) -> list[JobRow]:
        """Every job, in the order of the job file. A RUNNING one comes with its last attempt."""
        cursor = self._execute("SELECT * FROM jobs ORDER BY position, job_id")
        return [self._job_row(row) for row in cursor]

    def _job_row(self, row: sqlite3.Row) -> JobRow:
        job = Job(
            job_id=row["job_id"],
            where=row["where_"],
            spec=WorkerSpec.from_json(row["spec"]),
            resources=Resources(**json.loads(row["resources"])),
            max_retries=row["max_retries"],
            xml_source=None if row["xml_source"] is None else Path(row["xml_source"]),
        )
        state: State
        match row["state"]:
            case "PENDING":
                state = Pending(failures=row["failures"])
            case "RUNNING":
                state = Running(attempt=self.last_attempt(job.job_id), failures=row["failures"])
            case "SUCCEEDED":
                state = Succeeded()
            case "FAILED":
                state = Failed(cause=Cause(row["cause"]), message=row["message"])
            case _:
                state = Cancelled()
        return JobRow(
            job=job,
            fingerprint=row["fingerprint"],
            robot_hash=row["robot_hash"],
            state=state,
            attempts=row["attempts"],
        )

    def last_attempt(self, job_id: str) -> Attempt:
        row = self._execute(
            "SELECT * FROM attempts WHERE job_id = ? ORDER BY number DESC LIMIT 1", (job_id,)
        ).fetchone()
        if row is None:
            raise LedgerError(f"{self._path}: job {job_id} is RUNNING without an attempt; use `run --rebuild-ledger`")
        return Attempt(
            job_id=job_id,
            number=row["number"],
            cpus=tuple(json.loads(row["cpus"])),
            gpus=tuple(json.loads(row["gpus"])),
            pid=row["pid"],
            pid_start=row["pid_start"],
            started_at=row["started_at"],
        )

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
            "INSERT INTO attempts (job_id, number, cpus, gpus, pid, pid_start, queue_s, started_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                attempt.job_id,
                attempt.number,
                json.dumps(attempt.cpus),
                json.dumps(attempt.gpus),
                attempt.pid,
                attempt.pid_start,
                queue_s,
                attempt.started_at,
            ),
        )
        self._execute("UPDATE jobs SET attempts = ? WHERE job_id = ?", (attempt.number + 1, attempt.job_id))

    def end_attempt(
        self,
        job_id: str,
        number: int,
        *,
        ended_at: float | None,
        wall_s: float | None,
        returncode: int | None,
        ending: Ending,
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
                "UPDATE jobs SET env_steps = ?, ep_rew_mean = coalesce(?, ep_rew_mean),"
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

    def set_progress(self, rows: Iterable[tuple[str, int, float | None, float | None, str | None]]) -> None:
        """Latest figures of running jobs: ``(job_id, env_steps, ep_rew_mean, env_steps_per_s, learner)``."""
        with _translated(self._path):
            self._connection.executemany(
                "UPDATE jobs SET env_steps = ?2, ep_rew_mean = coalesce(?3, ep_rew_mean),"
                " env_steps_per_s = coalesce(?4, env_steps_per_s), learner = coalesce(?5, learner) WHERE job_id = ?1",
                rows,
            )

    # -- requests from other processes

    def add_requests(self, requests: Iterable[Request]) -> None:
        with _translated(self._path):
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
        rows = self._execute("SELECT id, verb, job_id FROM requests ORDER BY id").fetchall()
        if rows:
            self._execute("DELETE FROM requests WHERE id <= ?", (rows[-1]["id"],))
        return [Request(verb=row["verb"], job_id=row["job_id"]) for row in rows]

    # -- for people

    def summary(self) -> list[dict[str, Any]]:
        """One row a job, with its attempts summed: what ``summary.json`` and ``status`` show."""
        rows = self._execute(
            "SELECT j.*, a.cpus AS cpus, a.queue_s AS queue_s, a.started_at AS started_at, a.ended_at AS ended_at,"
            " a.pid AS pid, a.record AS record, a.max_rss_mib AS max_rss_mib,"
            " (SELECT sum(wall_s) FROM attempts WHERE job_id = j.job_id) AS wall_s"
            " FROM jobs j LEFT JOIN attempts a ON a.job_id = j.job_id AND a.number = j.attempts - 1"
            " ORDER BY j.position, j.job_id"
        )
        return [_summary_row(row) for row in rows]


def _summary_row(row: sqlite3.Row) -> dict[str, Any]:
    spec = json.loads(row["spec"])
    record = json.loads(row["record"]) if row["record"] else {}
    running = row["state"] == "RUNNING"
    return {
        "job_id": row["job_id"],
        "name": row["name"],
        "state": row["state"],
        "cause": row["cause"],
        "message": row["message"],
        "xml": row["xml_source"],
        "task": spec["task"] or spec["env"] or spec["entry_point"],
        "algo": spec["algo"],
        "seed": spec["seed"],
        "learner": row["learner"],
        "learner_reason": row["learner_reason"],
        "attempts": row["attempts"],
        "env_steps": row["env_steps"],
        "total_timesteps": spec["total_timesteps"],
        "ep_rew_mean_first": row["ep_rew_mean_first"],
        "ep_rew_mean": row["ep_rew_mean"],
        "eval_mean": row["eval_mean"],
        "env_steps_per_s": row["env_steps_per_s"],
        "queue_s": row["queue_s"],
        "wall_s": row["wall_s"],
        "cpu_s": record.get("cpu_s"),
        "import_s": record.get("import_s"),
        "first_step_s": record.get("first_step_s"),
        "checkpoint_s": record.get("checkpoint_s"),
        "eval_s": record.get("eval_s"),
        "max_rss_mib": row["max_rss_mib"],
        "started_at": row["started_at"],
        "ended_at": row["ended_at"],
        "cpus": json.loads(row["cpus"]) if row["cpus"] else None,
        "pid": row["pid"] if running else None,
        "robot_hash": row["robot_hash"],
    }


def _connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    if not read_only:
        connection = sqlite3.connect(path, timeout=10)
        connection.execute("PRAGMA journal_mode=WAL")
        # A killed process loses nothing committed; only a power cut may lose the last moments, never the file.
        connection.execute("PRAGMA synchronous=NORMAL")
    else:
        try:
            connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=10)
            connection.execute("PRAGMA schema_version").fetchone()
        except sqlite3.OperationalError:
            # Where nothing may be written there is no shared-memory file, and no writer to share with.
            connection = sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)
    connection.row_factory = sqlite3.Row
    return connection


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    """SQLite's errors in the program's own tree."""
    try:
        yield
    except sqlite3.Error as error:
        code = error.sqlite_errorcode if hasattr(error, "sqlite_errorcode") else None
        if code is not None and code & 0xFF == sqlite3.SQLITE_FULL or getattr(error, "errno", None) == errno.ENOSPC:
            raise DiskFullError(f"{path}: no space left on the disk") from error
        raise LedgerError(
            f"{path}: the ledger cannot be used ({error}); if it is damaged, `run --rebuild-ledger` sets it aside and"
            " makes a new one from the job directories"
        ) from error
