"""Whatever lies in a run directory: who reads it gets rows or an error that says what to do, never
a traceback."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fuzz_helpers import (
    DEEP,
    NUMBERS,
    SCALARS,
    TEXT,
    VALUES,
    as_bytes,
    changed,
    contents,
    each_special,
    fuzz,
    mutated,
    of_feature,
)
from hypothesis import example, given
from hypothesis import strategies as st
from report_helpers import Trained, make_run_dir
from supervisor_helpers import Run, ledgers_closed, make_job, make_spec  # noqa: F401

from orchestrator.analysis import contention, run_reader
from orchestrator.client import recorded_run, run_snapshot, worker_logs
from orchestrator.core.errors import OrchestratorError
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.paths import RunPaths
from orchestrator.core.timing_columns import COLUMNS
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.experiment import run_directory
from orchestrator.machine import provenance
from orchestrator.report import compose
from orchestrator.server.ledger import ServerLedger
from orchestrator.server.leftovers import settle_left_attempts
from orchestrator.terminal import status_view

pytestmark = pytest.mark.nightly

TABLES = {
    "declared": [
        *("position", "where_", "name", "spec", "resources", "max_retries", "xml_source"),
        *("fingerprint", "robot_hash", "point"),
    ],
    "jobs": [
        *(
            "state",
            "failures",
            "cause",
            "message",
            "attempts",
            "env_steps",
            "ep_rew_mean",
            "ep_rew_mean_first",
        ),
        *("eval_mean", "env_steps_per_s", "learner", "learner_reason"),
    ],
    "attempts": [
        *(
            "number",
            "cpus",
            "gpus",
            "node",
            "pid",
            "pid_start",
            "queue_s",
            "started_at",
            "ended_at",
            "wall_s",
        ),
        *("returncode", "cause", "message", "max_rss_mib", "record"),
    ],
}
STATES = st.sampled_from(
    ["PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED", "PAUSED", "DONE"]
)
SQL_VALUES = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-2, 5),
    st.floats(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=10),
    st.binary(max_size=10),
    STATES,
    VALUES.map(json.dumps),
    contents(WorkerSpec, make_spec("a-s0")).map(lambda content: content.decode("utf-8", "replace")),
    contents(ExitRecord, ExitRecord(code=0, message="")).map(
        lambda content: content.decode("utf-8", "replace")
    ),
)
CELLS = st.sampled_from(
    [(table, column) for table, columns in TABLES.items() for column in columns]
)


EVALUATION = {
    "episodes": 2,
    "deterministic": {"mean": 1.0, "std": 0.5, "measures": {"speed": {"mean": 2.0}}},
}
SESSION = {
    **{
        "host": "a",
        "platform": "b",
        "versions": {"python": "3.11"},
        "git": {"commit": "1"},
        "cpus": [{"index": 0}],
    },
    **{
        "online_cpus": 2,
        "physical_cores": 2,
        "cpu_quota": 1.5,
        "jobs_at_once": 2,
        "user_code": {"/a": "b"},
    },
    **{
        "cpu_model": "c",
        "gpus": [],
        "nodes": [{"name": "n", "cores": 2, "cpu_model": "d"}],
        "executor": "local",
    },
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with a job that has succeeded, one that has failed and one that is
    running."""
    root = tmp_path_factory.mktemp("finished") / "run"
    trained = [
        Trained(),
        Trained(seed=1, state="FAILED"),
        Trained(name="c", state="RUNNING", ranks=2, attempts=2),
    ]
    paths = make_run_dir(root, [Trained(), *trained[1:]])
    paths.lock.touch()
    paths.experiment.write_text('name = "x"')
    paths.provenance.write_text(json.dumps([SESSION]))
    for row in run_snapshot.status(root).rows:
        job = paths.job(row["job_id"])
        job.spec.write_text(make_spec(row["job_id"]).to_json())
        job.robot_hash.write_text("")
        job.eval.write_text(json.dumps(EVALUATION))
        job.attempt(0).root.mkdir(parents=True, exist_ok=True)
        job.attempt(0).exit.write_text(ExitRecord(code=0, message="").to_json())
        job.attempt(0).worker_log.write_text("line\n")
    return root


def read_everything(root: Path) -> None:
    """Every reader of a run directory; each ends in an error of ours at worst."""
    for reader in (
        lambda: status_view.show([run_snapshot.status(root)], in_place=False),
        lambda: list(worker_logs.log(root, "j0-s0", follow=False, lines=5, attempt=1)),
        lambda: compose(root),
        lambda: contention.find(root),
        *of_feature("compare.comparison", lambda module: module.compare_with_first([root, root])),
        lambda: recorded_run.load(root),
        lambda: run_directory.existing_run(root),
    ):
        with contextlib.suppress(OrchestratorError):
            reader()


@contextlib.contextmanager
def changed_rows(root: Path, cells: list[tuple[str, str]], values: list[Any]) -> Iterator[None]:
    """The ledger of ``root`` with other values in columns of all rows, for the block."""
    ledger = root / "ledger.sqlite3"
    before = ledger.read_bytes()
    try:
        with contextlib.closing(sqlite3.connect(ledger)) as connection:
            connection.execute("PRAGMA ignore_check_constraints=1")
            for (table, column), value in zip(cells, values, strict=False):
                with contextlib.suppress(sqlite3.Error, OverflowError, UnicodeEncodeError):
                    connection.execute(f"UPDATE OR REPLACE {table} SET {column} = ?", (value,))
            connection.commit()
        yield
    finally:
        for name in ("ledger.sqlite3-wal", "ledger.sqlite3-shm"):
            (root / name).unlink(missing_ok=True)
        ledger.write_bytes(before)


def test_any_row_of_the_ledger_is_read_or_called_damaged(finished: Path) -> None:
    @fuzz(3)
    @example([("declared", "position")], [-5])
    @example([("jobs", "env_steps")], ["many"])
    @example([("jobs", "eval_mean")], [float("inf")])
    @example([("attempts", "pid")], ["one"])
    @example([("attempts", "cpus")], ['["x"]'])
    @example([("declared", "point")], ["[" * 100_000])
    @example([("declared", "spec")], [make_spec("j0-s0", total_timesteps=0).to_json()])
    @given(
        cells=st.lists(CELLS, min_size=1, max_size=2),
        values=st.lists(SQL_VALUES, min_size=2, max_size=2),
    )
    def check(cells: list[tuple[str, str]], values: list[Any]) -> None:
        with changed_rows(finished, cells, values):
            read_everything(finished)
            with contextlib.suppress(OrchestratorError):
                ledger = ServerLedger.open(finished / "ledger.sqlite3")
                try:
                    settle_left_attempts(
                        RunPaths(finished),
                        ledger,
                        lambda kind, text, **facts: ledger.record_event(kind, text, facts),
                    )
                    rows = ledger.jobs()
                    ledger.losses()
                    ledger.summary()
                    assert len(rows) == len({row.job.job_id for row in rows})
                finally:
                    ledger.abandon()

    check()


TABLE = "\n".join(
    [",".join(COLUMNS), ",".join("1" for _ in COLUMNS), ",".join("2.5" for _ in COLUMNS), ""]
).encode()
CSV_CELLS = st.one_of(
    NUMBERS.map(str), TEXT, st.sampled_from(["1e400", '"', "inf", "-inf", "nan", "1_0", "٣", "0x5"])
)
TABLES_OF_CELLS = st.lists(
    st.lists(CSV_CELLS, min_size=len(COLUMNS), max_size=len(COLUMNS)), max_size=3
).map(
    lambda lines: "\n".join([",".join(COLUMNS), *map(",".join, lines), ""]).encode(
        "utf-8", "surrogatepass"
    )
)
FACT_NAMES = (
    *(
        "mean",
        "std",
        "measures",
        "deterministic",
        "episodes",
        "versions",
        "git",
        "ranks",
        "cpus",
    ),
    *(
        "threads",
        "learner",
    ),
    *("processes", "message", "env_steps", "wall_s", "kind", "baselines"),
)
JSON_FACTS = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(FACT_NAMES), inner, max_size=5)
    ),
    max_leaves=12,
)
ANY = st.one_of(
    st.binary(max_size=40),
    JSON_FACTS.map(as_bytes),
    changed(TABLE),
    TABLES_OF_CELLS,
    VALUES.map(as_bytes),
    DEEP,
)
FILES: dict[str, st.SearchStrategy[bytes]] = {
    "jobs/j0-s0/timings.csv": TABLES_OF_CELLS,
    "jobs/j1-s0/timings.csv": TABLES_OF_CELLS,
    "jobs/j0-s0/progress.csv": st.lists(st.tuples(CSV_CELLS, CSV_CELLS)).map(
        lambda rows: "\n".join(
            ["time/total_timesteps,rollout/ep_rew_mean", *map(",".join, rows), ""]
        ).encode("utf-8", "surrogatepass")
    ),
    "jobs/j0-s0/eval.json": mutated(EVALUATION),
    "jobs/j0-s0/spec.json": mutated(json.loads(make_spec("j0-s0").to_json())),
    "jobs/j0-s0/attempts/0/exit.json": contents(ExitRecord, ExitRecord(code=0, message="")),
    "jobs/j0-s0/attempts/7/exit.json": contents(ExitRecord, ExitRecord(code=0, message="")),
    "jobs/j0-s0/robot.sha256": st.binary(max_size=80),
    "jobs/j0-s0/attempts/0/worker.log": st.binary(max_size=80),
    "jobs/j0-s0/preview.png": st.binary(max_size=80),
    "provenance.json": mutated([SESSION]),
    "experiment.toml": st.sampled_from(
        [b"name = 3", b"", b"name = 'a'\nmax_parallel = 'x'", b"x" * 300, b"[" * 9999]
    ),
    "supervisor.lock": ANY,
    "summary.json": ANY,
    "certificate.json": ANY,
}


@contextlib.contextmanager
def replaced(path: Path, make: Callable[[Path], object]) -> Iterator[None]:
    """``path`` made by ``make`` for the block, and then as it was."""
    aside, made_folder = path.with_name(f"{path.name}.aside"), not path.parent.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    was_there = path.exists()
    if was_there:
        path.rename(aside)
    try:
        make(path)
        yield
    finally:
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
        if was_there:
            aside.rename(path)
        if made_folder:
            path.parent.rmdir()


def test_any_file_in_a_run_directory_is_read_or_left_out(finished: Path) -> None:
    @fuzz(4)
    @given(
        file=st.sampled_from(sorted(FILES)).flatmap(
            lambda name: st.tuples(st.just(name), FILES[name] | ANY)
        )
    )
    @example(("experiment.toml", b""))
    @example(("jobs/j0-s0/spec.json", make_spec("j0-s0", ranks=2**62).to_json().encode()))
    @example(("jobs/j0-s0/spec.json", b'{"ranks": 0}'))
    @example(
        (
            "provenance.json",
            b'[{"nodes": [{}], "online_cpus": "many", "physical_cores": 1' + b"0" * 400 + b"}]",
        )
    )
    @example(("provenance.json", b'[{"versions": {"python": 1, "torch": [2]}}]'))
    @example(("jobs/j0-s0/eval.json", b'{"deterministic": {"mean": 1' + b"0" * 400 + b"}}"))
    def check(file: tuple[str, bytes]) -> None:
        name, content = file
        with replaced(finished / name, lambda path: path.write_bytes(content)):
            read_everything(finished)
            if name == "provenance.json":
                provenance._changes(run_reader.last_session(finished / name), SESSION)

    check()


@each_special
def test_something_else_in_the_place_of_a_file_is_not_waited_for(
    finished: Path, make: Callable[[Path], object]
) -> None:
    with contextlib.ExitStack() as stack:
        for name in FILES:
            stack.enter_context(replaced(finished / name, make))
        read_everything(finished)
