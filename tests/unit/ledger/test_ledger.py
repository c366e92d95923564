"""The ledger: what goes in comes out, whatever is done to the file and whoever is killed."""

from __future__ import annotations

import contextlib
import csv
import errno
import json
import math
import os
import random
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from supervisor_helpers import filled, ledgers_closed, make_job, make_spec  # noqa: F401 - a fixture

from orchestrator.core.errors import (
    DiskFullError,
    LedgerBusyError,
    LedgerDamagedError,
    LedgerError,
    LedgerFailingError,
    OrchestratorError,
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
from orchestrator.ledger import Ledger, job_figures, summary
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


# -- round trips


def test_a_job_that_is_gone_is_no_damage_of_the_file(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger.sqlite3")
    ledger.put_jobs([DeclaredJob(position=0, job=make_job("a"))])
    with pytest.raises(LedgerError, match=r"there is no job b in the ledger$"):
        ledger.summary_of("b")


def test_a_page_that_is_not_full_is_the_last_although_jobs_are_added_meanwhile(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger.sqlite3"
    with contextlib.closing(Ledger.create(path)) as ledger:
        ledger.put_jobs(
            [DeclaredJob(position=number, job=make_job(name)) for number, name in enumerate("abc")]
        )
        ledger.commit()
        full, not_full, of_all = ledger.pages(3), ledger.pages(4), ledger.pages(-1)
        for pages in (full, not_full, of_all):
            job_ids, _ = next(pages)
            assert job_ids == ["a", "b", "c"]
        with contextlib.closing(Ledger.open(path)) as program:
            program.put_jobs([DeclaredJob(position=3, job=make_job("d"))])
        assert [job_ids for job_ids, _ in full] == [["d"]]
        assert not list(not_full)
        assert not list(of_all)


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


def test_a_moment_of_the_monotonic_clock_is_not_kept_for_another_process(tmp_path: Path) -> None:
    ledger = filled(tmp_path / "l", 1)
    ledger.set_state("j0", Pending(failures=1, not_before=123.0))
    assert ledger.jobs()[0].state == Pending(failures=1)


def test_jobs_come_in_the_order_of_the_job_file(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "l")
    ledger.put_jobs(
        [
            DeclaredJob(position=2, job=make_job("a")),
            DeclaredJob(position=0, job=make_job("c")),
            DeclaredJob(position=1, job=make_job("b")),
        ]
    )
    assert [row.job.job_id for row in ledger.jobs()] == ["c", "b", "a"]


@pytest.mark.parametrize(("code", "left"), [(0, None), (10, 5.0)])
def test_a_training_without_evaluation_has_none_of_a_shorter_training(
    code: int, left: float | None, tmp_path: Path
) -> None:
    ledger = filled(tmp_path / "l", 1)
    outcome = AttemptOutcome(cause=Cause.SIGNAL, message="")
    records = ExitRecord(code=0, message="", eval_mean=5.0), ExitRecord(code=code, message="")
    for number, record in enumerate(records):
        ledger.start_attempt(attempt("j0", number), queue_s=0.0)
        ledger.end_attempt(
            "j0", number, ended_at=2e9, wall_s=1.0, returncode=code, outcome=outcome, record=record
        )
    assert ledger.summary()[0]["eval_mean"] == left


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


def test_an_attempt_that_never_began_to_train_does_not_hide_the_steps_of_an_earlier_one(
    tmp_path: Path,
) -> None:
    ledger = filled(tmp_path / "l", 1)
    ledger.set_progress([("j0", 500, 1.0, 10.0, "sb3")])
    ledger.start_attempt(attempt("j0"), queue_s=0.0)
    ledger.end_attempt(
        "j0",
        0,
        ended_at=0.0,
        wall_s=1.0,
        returncode=1,
        outcome=AttemptOutcome(cause=Cause.ERROR),
        max_rss_mib=None,
        record=ExitRecord(code=1, message="ImportError"),
    )
    (row,) = ledger.summary()
    assert (row["env_steps"], row["ep_rew_mean"], row["learner"]) == (500, 1.0, "sb3")


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


def test_the_columns_follow_declarations_that_change_and_jobs_of_other_processes(
    tmp_path: Path,
) -> None:
    ledger = Ledger.create(tmp_path / "l")
    job = replace(make_job("j0"), point={"ppo.gamma": 0.9})
    ledger.put_jobs([DeclaredJob(position=0, job=job)])
    ledger.commit()
    assert list(ledger.varied_keys()) == ["ppo.gamma"]
    with contextlib.closing(Ledger.open(tmp_path / "l")) as other:
        other.put_jobs([DeclaredJob(position=1, job=replace(make_job("j1"), point={"n_envs": 4}))])
    assert [row["n_envs"] for row in ledger.summary()] == [None, 4]
    ledger.update_declaration(0, replace(job, point={"ppo.lr": 1e-3}))
    assert list(ledger.varied_keys()) == ["ppo.lr", "n_envs"]
    ledger.delete_job("j1")
    assert list(ledger.varied_keys()) == ["ppo.lr"]


def test_progress_that_lacks_a_figure_keeps_the_last_one(tmp_path: Path) -> None:
    ledger = filled(tmp_path / "l", 2)
    ledger.set_progress([("j0", 10, 1.5, 20.0, "sb3"), ("j1", 1, None, None, None)])
    ledger.set_progress([("j0", 20, None, None, None)])
    first, second = ledger.summary()
    assert (first["env_steps"], first["ep_rew_mean"], first["env_steps_per_s"]) == (20, 1.5, 20.0)
    assert (second["env_steps"], second["ep_rew_mean"]) == (1, None)


def test_an_attempt_that_trains_nothing_leaves_the_speed_of_the_one_before(tmp_path: Path) -> None:
    ledger = filled(tmp_path / "l", 1)
    ledger.set_progress([("j0", 10, 1.5, 20.0, "sb3")])
    ledger.start_attempt(attempt("j0", 1), queue_s=0.0)
    assert ledger.summary()[0]["env_steps_per_s"] == 20.0


def test_limits_can_change_and_what_was_experienced_stays(tmp_path: Path) -> None:
    ledger = filled(tmp_path / "l", 1)
    ledger.set_state("j0", Pending(failures=2))
    moved = replace(
        make_job("j0", max_retries=9, memory_mib=5), xml_source=Path("/elsewhere/a.xml")
    )
    ledger.update_declaration(7, moved)
    (row,) = ledger.jobs()
    assert row.job.xml_source == moved.xml_source
    assert (row.job.max_retries, row.job.resources.memory_mib, row.state) == (
        9,
        5,
        Pending(failures=2),
    )
    assert row.robot_hash == "hash0"


def test_a_deleted_job_takes_its_attempts_along(tmp_path: Path) -> None:
    ledger = filled(tmp_path / "l", 2)
    ledger.start_attempt(attempt("j0"), queue_s=0.0)
    ledger.delete_job("j0")
    ledger.put_jobs([DeclaredJob(position=0, job=make_job("j0"))])
    assert [row["wall_s"] for row in ledger.summary()] == [None, None]
    with pytest.raises(LedgerError, match="without an attempt"):
        ledger.last_attempt("j0")


def test_the_summary_names_what_a_robot_did(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "l")
    job = make_job("a", spec={"env": None, "task": "forward", "seed": 4})
    ledger.put_jobs([DeclaredJob(position=0, job=job)])
    (row,) = ledger.summary()
    assert (row["task"], row["seed"], row["state"], row["pid"]) == ("forward", 4, "PENDING", None)
    assert make_spec("a") == replace(job.spec, env="CartPole-v1", task=None, seed=0)


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


# -- several connections


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


def test_jobs_are_found_by_a_fact_however_their_specs_are_written(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    facts: dict[str, dict[str, Any]] = {
        "with": {"video": True},
        "without": {},
        "packed": {"video": True},
        "infinite": {"video": True, "env_kwargs": {"limit": math.inf}},
        "nested": {},
        "before": {},
        "damaged": {"video": True},
    }
    ledger = Ledger.create(path)
    ledger.put_jobs(
        DeclaredJob(position=number, job=make_job(name, spec=fact))
        for number, (name, fact) in enumerate(facts.items())
    )
    ledger.close()
    texts = {
        "packed": json.dumps(json.loads(make_spec("packed", video=True).to_json())),
        "nested": make_spec("nested", env_kwargs={"video": True}).to_json(),
        "before": make_spec("before").to_json().replace('  "video": false,\n', ""),
        "damaged": "{",
    }
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for name, text in texts.items():
            connection.execute("UPDATE declared SET spec = ? WHERE job_id = ?", (text, name))
        connection.execute("UPDATE jobs SET state = 'SUCCEEDED'")
        connection.commit()
    with contextlib.closing(Ledger.open(path, read_only=True)) as ledger:
        assert ledger.jobs_with("video", is_set=True) == {"with", "packed", "infinite"}
        assert ledger.jobs_with("video", is_set=False) == {"without", "nested"}


def test_normalisation_is_read_however_a_spec_is_written(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    infinite = {"limit": math.inf}
    ledger = Ledger.create(path)
    jobs = [
        make_job("with", spec={"normalize": True}),
        make_job("without", spec={"normalize": False}),
        make_job("packed", spec={"normalize": True}),
        make_job("infinite", spec={"normalize": True, "env_kwargs": infinite}),
        make_job("infinite-without", spec={"normalize": False, "env_kwargs": infinite}),
        make_job("nested", spec={"normalize": False, "env_kwargs": {"normalize": True}}),
        make_job("damaged", spec={"normalize": True}),
    ]
    ledger.put_jobs(DeclaredJob(position=number, job=job) for number, job in enumerate(jobs))
    ledger.close()
    packed = json.dumps(json.loads(jobs[2].spec.to_json()))
    with contextlib.closing(sqlite3.connect(path)) as connection:
        change = "UPDATE declared SET spec = ? WHERE job_id = ?"
        connection.execute(change, (packed, "packed"))
        connection.execute(change, ('{\n  "normalize": true', "damaged"))
        connection.execute("UPDATE jobs SET state = 'SUCCEEDED'")
        connection.commit()
    with contextlib.closing(Ledger.open(path, read_only=True)) as ledger:
        rows = ledger.jobs(decoded=False)
    assert [row.job_id for row in rows if row.normalize] == ["with", "packed", "infinite"]


def test_a_job_that_waits_is_shown_also_where_sqlite_cannot_read_its_spec(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger.sqlite3")
    jobs = [
        make_job("parent"),
        make_job("child", spec={"after": ("parent",)}),
        make_job("infinite", spec={"after": ("parent",), "env_kwargs": {"limit": math.inf}}),
    ]
    ledger.put_jobs(DeclaredJob(position=number, job=job) for number, job in enumerate(jobs))
    assert [row["waits_for"] for row in ledger.summary()] == [None, "parent", None]


def test_env_steps_of_rungs_are_read_also_where_sqlite_cannot_read_a_spec(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger.sqlite3")
    infinite = {"env_kwargs": {"limit": math.inf}}
    jobs = [
        make_job("plain", spec={"pause_at": 512}),
        make_job("infinite", spec={"pause_at": 1024, "total_timesteps": 4096, **infinite}),
        make_job("endless", spec=infinite),
    ]
    ledger.put_jobs(DeclaredJob(position=number, job=job) for number, job in enumerate(jobs))
    assert job_figures.pauses(ledger) == {"plain": 512, "infinite": 1024, "endless": None}
    assert job_figures.goals(ledger) == {"plain": 512, "infinite": 1024}
    assert job_figures.totals(ledger, ["infinite"]) == {"infinite": 4096}
    ledger.change("UPDATE declared SET spec = '{' WHERE job_id = 'plain'")
    with pytest.raises(LedgerDamagedError, match="a row cannot be read"):
        job_figures.pauses(ledger)


@pytest.mark.parametrize(
    "record",
    [
        '{"code":0,"measures":{"speed":1.5}}',
        '{"measures" : {"speed": Infinity}, "code": 0}',
        '{"code": 0, "measures": {"speed": 1.5}}',
    ],
)
def test_names_of_measures_are_found_however_their_records_are_spelled(
    record: str, tmp_path: Path
) -> None:
    ledger = filled(tmp_path / "ledger.sqlite3")
    for number, text in enumerate([record, '{"message": "\\"measures\\": {"}', "{", "null"]):
        ledger.start_attempt(attempt("j0", number), queue_s=0.0)
        ledger.change("UPDATE attempts SET record = ? WHERE number = ?", (text, number))
    ledger.start_attempt(attempt("j0", 9), queue_s=0.0)
    assert list(ledger.measure_names()) == ["speed"]


# -- damage


def io_error(path: Path) -> OrchestratorError:
    """What is told where SQLite reports an I/O error of the ledger."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_WRITE
    with pytest.raises(OrchestratorError) as caught, translate_errors(path):
        raise error
    return caught.value


def test_an_exhausted_quota_is_told_as_a_full_disk(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(os, "fsync", refuse)
    assert isinstance(io_error(whole), DiskFullError)


def test_an_error_of_the_file_system_is_no_reason_to_give_the_ledger_up(whole: Path) -> None:
    error = io_error(whole)
    assert isinstance(error, LedgerError)
    assert "disk I/O error" in str(error)
    assert "--rebuild-ledger" not in str(error)
    assert "--fresh" not in str(error)
    assert os.listdir(whole.parent) == [whole.name], "what was tried leaves nothing"


def refused(path: Path, *words: str) -> None:
    """Neither reading nor writing is possible, the message helps, and the file is as it was."""
    before = path.read_bytes()
    for read_only in (True, False):
        with pytest.raises(LedgerError) as caught:
            Ledger.open(path, read_only=read_only)
        message = str(caught.value)
        assert str(path) in message
        assert "left as it is" in message or "left as it was" in message
        for word in words:
            assert word in message
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
    some = random.sample(range(101, len(content) - 1), 40)
    for length in [
        1,
        15,
        16,
        99,
        100,
        101,
        page - 1,
        page,
        page + 1,
        2 * page,
        len(content) - page,
        *some,
    ]:
        whole.write_bytes(content[:length])
        refused(whole, "--rebuild-ledger")


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 8192, b"not a database at all\n" * 500], ids=["empty", "zeros", "text"]
)
def test_garbage_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger.sqlite3"
    path.write_bytes(content)
    refused(path, "--rebuild-ledger")


def test_random_bytes_written_into_a_ledger_are_refused_or_harmless(whole: Path) -> None:
    """No check finds every changed letter; but whatever happens is a LedgerError or works."""
    content = whole.read_bytes()
    for _ in range(25):
        damaged = bytearray(content)
        at = random.randrange(len(damaged))
        noise = random.randbytes(random.choice([1, 16, 512, 4096]))[: len(damaged) - at]
        damaged[at : at + len(noise)] = noise
        whole.write_bytes(damaged)
        with contextlib.suppress(LedgerError):
            ledger = Ledger.open(whole, read_only=True)
            try:
                ledger.jobs()
                ledger.summary()
            finally:
                ledger.abandon()


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
        with pytest.raises(LedgerError, match="rebuild-ledger"):
            Ledger.open(Path(copy)).jobs()
        Path(copy).unlink()


def test_a_database_of_another_program_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE jobs (a)")
        connection.commit()
    refused(path, "another program")
    assert os.listdir(tmp_path) == ["ledger.sqlite3"]


@pytest.mark.parametrize("number", [1, 99])
def test_a_run_directory_of_another_format_is_refused_with_the_version_that_wrote_it(
    number: int, whole: Path
) -> None:
    with contextlib.closing(sqlite3.connect(whole)) as connection, connection:
        connection.execute(f"PRAGMA user_version = {number}")
        connection.execute("UPDATE program SET version = '0.7.3'")
    refused(whole, f"format {number}", "version 0.7.3", f"format {FORMAT}", "run --fresh")


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
        ledger.set_state("j0", Cancelled())
        with pytest.raises(LedgerError, match="locked by another process"):
            ledger.commit()
        ledger.abandon()


@pytest.mark.parametrize("read_only", [True, False])
def test_what_another_process_has_for_itself_is_not_read_without_its_log(
    whole: Path, monkeypatch: pytest.MonkeyPatch, *, read_only: bool
) -> None:
    """What is committed is in the log: without it, a reader would see what was before."""
    monkeypatch.setattr("orchestrator.ledger.database_file.BUSY_S", 0.05)
    with contextlib.closing(sqlite3.connect(whole, isolation_level=None)) as holder:
        holder.execute("PRAGMA journal_mode=WAL")
        holder.execute("PRAGMA locking_mode=EXCLUSIVE")
        holder.execute("UPDATE jobs SET state = 'CANCELLED'")
        with pytest.raises(LedgerBusyError, match="locked by another process"):
            Ledger.open(whole, read_only=read_only)
    with contextlib.closing(Ledger.open(whole, read_only=read_only)) as ledger:
        assert {row.state for row in ledger.jobs()} == {Cancelled()}


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_IOERR_READ, LedgerFailingError),
        (sqlite3.SQLITE_CANTOPEN, LedgerFailingError),
        (sqlite3.SQLITE_READONLY_DBMOVED, LedgerFailingError),
        (sqlite3.SQLITE_BUSY_RECOVERY, LedgerBusyError),
        (sqlite3.SQLITE_CORRUPT_INDEX, LedgerError),
        (sqlite3.SQLITE_NOTADB, LedgerError),
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


def test_what_is_kept_is_written_though_sqlite_has_ended_the_transaction(whole: Path) -> None:
    """As it may where the disk fails while something is read."""
    with contextlib.closing(Ledger.open(whole)) as ledger:
        (job_id,) = [row.job_id for row in ledger.jobs()][:1]
        ledger.set_state(job_id, Cancelled())
        assert ledger.counts()
        ledger._connection.rollback()
        ledger.commit()
    with contextlib.closing(Ledger.open(whole, read_only=True)) as ledger:
        row = ledger.job_row(job_id)
        assert row is not None
        assert row.state == Cancelled()
