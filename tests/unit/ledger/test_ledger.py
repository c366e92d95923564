"""The ledger: what goes in comes out, whatever is done to the file and whoever is killed."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from supervisor_helpers import filled, make_job

from orchestrator.core.errors import (
    LedgerBusyError,
    LedgerError,
    LedgerFailingError,
    UsageError,
)
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.job import (
    Attempt,
    AttemptOutcome,
    Cancelled,
    Cause,
    Failed,
    Pending,
    Running,
    State,
    Succeeded,
)
from orchestrator.core.paths import RunPaths
from orchestrator.ledger import Ledger, summary
from orchestrator.ledger.database_file import translate_errors
from orchestrator.ledger.rows import DeclaredJob
from orchestrator.ledger.schema import FORMAT


def attempt(job_id: str = "a-s0", number: int = 0, **changes: Any) -> Attempt:
    values: dict[str, Any] = {
        "cpus": (0, 3),
        "gpus": ("GPU-1",),
        "pid": 17,
        "pid_start": 4.5,
        "started_at": 1e9,
    }
    return Attempt(job_id=job_id, number=number, **values | changes)


@pytest.mark.parametrize(
    "state",
    [
        Pending(),
        Pending(failures=2),
        Running(attempt=attempt(number=0), failures=1),
        Running(attempt=attempt(number=0, pid=None, pid_start=None, cpus=(), gpus=())),
        Succeeded(),
        *(Failed(cause=cause, message="grüße\nsecond line 'quoted' \x00") for cause in Cause),
        Cancelled(),
    ],
    ids=str,
)
def test_every_state_comes_back_as_it_went_in(tmp_path: Path, state: State) -> None:
    path = tmp_path / "ledger.sqlite3"
    job = replace(
        make_job("a-s0", max_retries=3, cores=2, gpus=0.5 if isinstance(state, Running) else 1),
        xml_source=Path("/röbots/a b.xml"),
    )
    ledger = Ledger.create(path)
    ledger.put_jobs([DeclaredJob(position=0, job=job, robot_hash="hash")])
    if isinstance(state, Running):
        ledger.start_attempt(state.attempt, queue_s=1.5)
    ledger.set_state("a-s0", state)
    ledger.close()
    (row,) = Ledger.open(path, read_only=True).jobs()
    assert row.state == state
    assert row.job == job
    assert (row.robot_hash, row.fingerprint) == ("hash", job.spec.fingerprint())
    assert row.attempts == (1 if isinstance(state, Running) else 0)


def test_attempts_are_kept_and_summed(tmp_path: Path) -> None:
    ledger = filled(tmp_path / "l", 1)
    outcome = AttemptOutcome(cause=Cause.SIGNAL, message="killed")
    for number in range(3):
        ledger.start_attempt(attempt("j0", number), queue_s=float(number))
        record = (
            ExitRecord(code=0, message="", env_steps=100 * number, eval_mean=5.0)
            if number == 2
            else None
        )
        ledger.end_attempt(
            "j0",
            number,
            ended_at=2e9,
            wall_s=10.0,
            returncode=-9,
            outcome=outcome,
            max_rss_mib=3.0,
            record=record,
        )
    (row,) = ledger.summary()
    assert (row["attempts"], row["wall_s"], row["queue_s"], row["env_steps"], row["eval_mean"]) == (
        3,
        30.0,
        2.0,
        200,
        5,
    )
    assert ledger.jobs()[0].attempts == 3
    assert ledger.last_attempt("j0") == attempt("j0", 2)


def test_what_a_matrix_varies_is_a_column_of_every_row(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "l")
    points: list[dict[str, Any]] = [{"model.geom.a.size": [1, 2], "n_envs": 4}, {"seed": 9}, {}]
    jobs = [replace(make_job(f"j{number}"), point=point) for number, point in enumerate(points)]
    ledger.put_jobs(DeclaredJob(position=number, job=job) for number, job in enumerate(jobs))
    assert [dict(row.job.point) for row in ledger.jobs()] == points
    rows = ledger.summary()
    assert [(row["model.geom.a.size"], row["n_envs"]) for row in rows] == [
        ([1, 2], 4),
        (None, None),
        (None, None),
    ]
    assert [row["seed"] for row in rows] == [
        0,
        0,
        0,
    ]  # a column of its own: what the job really has
    assert len({tuple(row) for row in rows}) == 1
    paths = RunPaths(tmp_path)
    summary.write(paths, ledger)
    with paths.summary_csv.open(newline="") as file:
        assert [row["model.geom.a.size"] for row in csv.DictReader(file)] == ["1 2", "", ""]


def test_progress_that_lacks_a_figure_keeps_the_last_one(tmp_path: Path) -> None:
    ledger = filled(tmp_path / "l", 2)
    ledger.set_progress([("j0", 10, 1.5, 20.0, "sb3"), ("j1", 1, None, None, None)])
    ledger.set_progress([("j0", 20, None, None, None)])
    first, second = ledger.summary()
    assert (first["env_steps"], first["ep_rew_mean"], first["env_steps_per_s"]) == (20, 1.5, 20.0)
    assert (second["env_steps"], second["ep_rew_mean"]) == (1, None)


def test_a_deleted_job_takes_its_attempts_along(tmp_path: Path) -> None:
    ledger = filled(tmp_path / "l", 2)
    ledger.start_attempt(attempt("j0"), queue_s=0.0)
    ledger.delete_job("j0")
    ledger.put_jobs([DeclaredJob(position=0, job=make_job("j0"))])
    assert [row["wall_s"] for row in ledger.summary()] == [None, None]
    with pytest.raises(LedgerError):
        ledger.last_attempt("j0")


def test_text_that_is_not_utf_8_is_stored_as_escapes(tmp_path: Path) -> None:
    latin_1 = os.fsdecode(b"/dM\xfcl")
    job = make_job("a", spec={"search_path": latin_1, "env_kwargs": {"folder": latin_1}})
    with contextlib.closing(Ledger.create(tmp_path / "l")) as ledger:
        ledger.put_jobs([DeclaredJob(position=0, job=job)])
        ledger.start_attempt(attempt("a", node=latin_1), queue_s=0.0)
        outcome, record = (
            AttemptOutcome(cause=Cause.LAUNCH, message=latin_1),
            ExitRecord(code=1, message=""),
        )
        ended: dict[str, Any] = {"ended_at": 1.0, "wall_s": 1.0, "returncode": 1}
        ledger.end_attempt("a", 0, **ended, outcome=outcome, record=record)
        ledger.set_state("a", Failed(cause=Cause.LAUNCH, message=latin_1))
        (row,) = ledger.jobs()
        assert row.job == job
        assert row.state == Failed(cause=Cause.LAUNCH, message=r"/dM\udcfcl")
        assert ledger.attempts()[0]["message"] == r"/dM\udcfcl"


def test_no_cell_of_the_table_is_a_formula_or_more_than_a_line(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    jobs = {
        "=cmd|'/c calc'!A0": "'=cmd|'/c calc'!A0",
        "-3": "-3",
        "+a": "'+a",
        "@a": "'@a",
        "a=b": "a=b",
        "\t=x": r"\u0009=x",
    }
    ledger = Ledger.create(tmp_path / "l")
    ledger.put_jobs(
        DeclaredJob(position=number, job=make_job(f"j{number}", spec={"name": name}))
        for number, name in enumerate(jobs)
    )
    ledger.set_progress([("j0", 1, -2.5, None, None)])
    ledger.set_state("j1", Failed(cause=Cause.ERROR, message="-1+cmd\nnext line\x1b[2J"))
    summary.write(paths, ledger)
    with paths.summary_csv.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == list(jobs.values())
    assert rows[0]["ep_rew_mean"] == "-2.5"
    assert rows[1]["message"] == r"'-1+cmd\u000anext line\u001b[2J"
    assert [row["name"] for row in json.loads(paths.summary_json.read_text())] == list(jobs)


def test_a_reader_sees_what_is_committed_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    ledger = filled(path)
    reader = Ledger.open(path, read_only=True)
    ledger.set_state("j0", Cancelled())
    assert reader.jobs()[0].state == Pending()
    ledger.commit()
    assert reader.jobs()[0].state == Cancelled()


def test_closing_beside_a_reader_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    ledger = filled(path)
    reader = Ledger.open(path, read_only=True)
    ledger.set_state("j0", Cancelled())
    ledger.close()
    assert reader.jobs()[0].state == Cancelled()
    reader.abandon()
    assert Ledger.open(path).jobs()[0].state == Cancelled()


def test_a_closed_ledger_is_one_file(tmp_path: Path) -> None:
    filled(tmp_path / "ledger.sqlite3").close()
    assert os.listdir(tmp_path) == ["ledger.sqlite3"]


def test_what_is_abandoned_was_never_there(tmp_path: Path) -> None:
    ledger = filled(tmp_path / "l")
    ledger.set_state("j0", Cancelled())
    ledger.abandon()
    assert Ledger.open(tmp_path / "l").jobs()[0].state == Pending()


def refused(path: Path) -> None:
    """Neither reading nor writing is possible, the path is named, and the file is as it was."""
    before = path.read_bytes()
    for read_only in (True, False):
        with pytest.raises(LedgerError) as caught:
            Ledger.open(path, read_only=read_only)
        assert str(path) in str(caught.value)
    assert path.read_bytes() == before


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.sqlite3"
    ledger = filled(path, 200)
    ledger.close()
    return path


def test_a_truncated_ledger_is_refused_whatever_its_length(whole: Path) -> None:
    content = whole.read_bytes()
    page = 4096
    assert len(content) > 10 * page
    for length in (1, 16, 100, page - 1, page, page + 1, 5 * page + 7, len(content) - page):
        whole.write_bytes(content[:length])
        refused(whole)


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 8192, b"not a database at all\n" * 500], ids=["empty", "zeros", "text"]
)
def test_garbage_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger.sqlite3"
    path.write_bytes(content)
    refused(path)


def test_a_row_that_is_none_of_ours_is_damage(whole: Path) -> None:
    for change in (
        "declared SET spec = '{'",
        "declared SET spec = '[]'",
        "declared SET resources = '{\"cores\": 1}'",
        "jobs SET state = 'HAPPY'",
        "jobs SET state = 'RUNNING'",
    ):
        copy = shutil.copy(whole, whole.with_name("copy"))
        with contextlib.closing(sqlite3.connect(copy)) as connection:
            connection.execute(f"UPDATE {change} WHERE job_id = 'j7'")
            connection.commit()
        with pytest.raises(LedgerError, match="takes the jobs over"):
            Ledger.open(Path(copy)).jobs()
        Path(copy).unlink()


def test_a_database_of_another_program_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE jobs (a)")
        connection.commit()
    refused(path)
    assert os.listdir(tmp_path) == ["ledger.sqlite3"]


@pytest.mark.parametrize("number", [0, 99])
def test_a_run_directory_of_another_format_is_refused_with_the_version_that_wrote_it(
    number: int, whole: Path
) -> None:
    with contextlib.closing(sqlite3.connect(whole)) as connection, connection:
        connection.execute(f"PRAGMA user_version = {number}")
        connection.execute("UPDATE program SET version = '0.7.3'")
    refused(whole)
    with pytest.raises(LedgerError, match=f"format {number}.*0.7.3.*format {FORMAT}"):
        Ledger.open(whole)
    with contextlib.closing(sqlite3.connect(whole)) as connection, connection:
        connection.execute("DROP TABLE program")
    with pytest.raises(LedgerError, match=f"format {number}, written by another version"):
        Ledger.open(whole)


def test_a_missing_ledger_and_one_in_the_way_are_told(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="no ledger"):
        Ledger.open(tmp_path / "none")
    (tmp_path / "some").write_text("")
    with pytest.raises(LedgerError, match="already exists"):
        Ledger.create(tmp_path / "some")


def test_a_locked_ledger_is_told_as_such(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.ledger.database_file.BUSY_S", 0.05)
    holder = sqlite3.connect(whole, isolation_level=None)
    with contextlib.closing(holder), contextlib.closing(sqlite3.connect(whole)):
        ledger = Ledger.open(whole)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError):
            ledger.set_state("j0", Cancelled())
        ledger.abandon()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_IOERR_READ, LedgerFailingError),
        (sqlite3.SQLITE_BUSY_RECOVERY, LedgerBusyError),
        (sqlite3.SQLITE_CORRUPT_INDEX, LedgerError),
        (None, LedgerError),
    ],
)
def test_locks_and_file_systems_that_fail_are_told_from_damage(
    tmp_path: Path, code: int | None, kind: type[LedgerError]
) -> None:
    """The last one is of Python's own, of text that is no UTF-8."""
    error = sqlite3.OperationalError("Could not decode to UTF-8")
    if code is not None:
        error.sqlite_errorcode = code
    with pytest.raises(LedgerError) as told, translate_errors(tmp_path / "ledger.sqlite3"):
        raise error
    assert type(told.value) is kind
    assert isinstance(told.value, UsageError), "with exit code 2"
