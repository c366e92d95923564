"""Readers that follow a run directory read what is new, and nothing twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from report_helpers import Trained, make_run_dir
from supervisor_helpers import make_job

from orchestrator.client.run_follower import RunFollower
from orchestrator.core.errors import LedgerError, LedgerFailingError
from orchestrator.core.job import Cancelled, Paused, Succeeded
from orchestrator.core.paths import RunPaths
from orchestrator.experiment import run_directory
from orchestrator.features.live_page.curve_reader import CurveReader
from orchestrator.ledger import Ledger
from orchestrator.ledger.row_reader import RowReader
from orchestrator.ledger.rows import DeclaredJob


def curve_file(folder: Path, *rows: tuple[int, float]) -> Path:
    path = folder / "progress.csv"
    lines = [
        "time/total_timesteps,rollout/ep_rew_mean",
        *(f"{steps},{value}" for steps, value in rows),
    ]
    path.with_suffix(".new").write_text("\n".join(lines) + "\n")
    return path.with_suffix(".new").rename(path)


def test_a_curve_is_read_on_from_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "progress.csv"
    reader = CurveReader(path, total=12_000)
    assert reader.read() == ([], False)
    curve_file(tmp_path, (100, 1.0), (150, 1.5))
    assert reader.read() == ([(100.0, 1.0)], False), "thinned to a point every 100 env_steps"
    with path.open("a") as file:
        file.write("200,2.0\n300,3")
        file.flush()
        assert reader.read() == ([(200.0, 2.0)], False), "a line is taken in when it is whole"
        file.write(".5\n")
    assert reader.read() == ([(300.0, 3.5)], False)
    assert not reader.is_due(350)
    assert reader.is_due(400)
    assert reader.is_due(100), "training has gone back"


def test_a_curve_that_was_cut_back_starts_over(tmp_path: Path) -> None:
    path = curve_file(tmp_path, (100, 1.0), (200, 2.0), (300, 3.0))
    reader = CurveReader(path, total=12_000)
    reader.read()
    curve_file(tmp_path, (100, 1.0), (200, 2.0), (300, 3.0), (400, 4.0))
    assert reader.read() == ([(400.0, 4.0)], False), "rewritten with a column more"
    curve_file(tmp_path, (100, 1.0), (200, 9.0))
    assert reader.read() == ([(100.0, 1.0), (200.0, 9.0)], True)


def test_rows_that_are_read_again_are_those_of_the_summary(tmp_path: Path) -> None:
    paths = make_run_dir(
        tmp_path / "run", [Trained(name=f"r{number}", state="PENDING") for number in range(4)]
    )
    ledger, reader = Ledger.open(paths.ledger), RowReader()
    try:
        reader.update(ledger)
        before = dict(reader.rows)
        assert list(before.values()) == ledger.summary()
        ledger.set_progress([("j1-s0", 300, 2.0, 5.0, "fast")])
        ledger.set_state("j2-s0", Paused())
        reader.update(ledger)
        assert list(reader.rows.values()) == ledger.summary()
        assert [job_id for job_id, row in reader.rows.items() if row is not before[job_id]] == [
            "j1-s0",
            "j2-s0",
        ]
        ledger.delete_job("j0-s0")
        ledger.put_jobs([DeclaredJob(position=9, job=make_job("new-s0"))])
        ledger.set_state("j3-s0", Cancelled())
        reader.update(ledger)
        assert list(reader.rows.values()) == ledger.summary()
    finally:
        ledger.abandon()


def test_a_follower_reads_only_what_has_changed(tmp_path: Path) -> None:
    paths = make_run_dir(
        tmp_path / "run", [Trained(state="RUNNING"), Trained(name="other", state="PENDING")]
    )
    follower = RunFollower(paths.root)
    first = follower.look()
    assert first is not None
    assert first.snapshot is not None
    assert (first.condition, [row["state"] for row in first.snapshot.rows]) == (
        "killed",
        ["PENDING", "PENDING"],
    )
    assert follower.look() is None
    with run_directory.opened_ledger(paths) as ledger:
        ledger.set_state("j1-s0", Succeeded())
        ledger.commit()
    second = follower.look()
    assert second is not None
    assert second.snapshot is not None
    assert [row["state"] for row in second.snapshot.rows] == ["PENDING", "SUCCEEDED"]
    assert second.snapshot.rows[0] == first.snapshot.rows[0]


@pytest.mark.parametrize(
    ("error", "is_read_again"),
    [
        (LedgerFailingError("disk I/O error"), True),
        (LedgerError("the ledger is damaged"), False),
    ],
)
def test_what_may_pass_is_read_again_though_nothing_has_changed(
    error: Exception, is_read_again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = make_run_dir(tmp_path / "run", [Trained()])
    follower = RunFollower(paths.root)

    def fails(*_: Any, **__: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "open", fails)
        seen = follower.look()
    assert seen is not None
    assert (seen.condition, seen.problem) == ("unreadable", str(error))
    again = follower.look()
    assert (again is not None) == is_read_again
    if again is not None:
        assert (again.condition, again.problem) == ("ended", "")


def test_a_follower_of_a_ledger_that_is_replaced_reads_the_new_one(tmp_path: Path) -> None:
    first = make_run_dir(tmp_path / "run", [Trained(), Trained(name="other")])
    follower = RunFollower(first.root)
    follower.look()
    make_run_dir(tmp_path / "another", [Trained(seed=7)])
    RunPaths(tmp_path / "another").ledger.replace(first.ledger)
    seen = follower.look()
    assert seen is not None
    assert seen.snapshot is not None
    assert [row["job_id"] for row in seen.snapshot.rows] == ["j0-s7"]
