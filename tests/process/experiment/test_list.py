"""`list` shows the experiments of a user on a machine, from an index that is never in the way."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from command_helpers import invoke, succeed
from supervisor_helpers import Experiment, make_job

from orchestrator.core.job import Cause, Failed, Paused, State, Succeeded
from orchestrator.experiment.directory import run_directory, run_index


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state/orchestrator/runs"


def make_run_dir(root: Path, *states: State | None) -> Path:
    """A run directory that was noted, with a job in each state; None stands for PENDING."""
    root.mkdir(parents=True)
    ledger = Experiment(root, [make_job(f"j{number}") for number, _ in enumerate(states)]).ledger
    for number, state in enumerate(states):
        if state is not None:
            ledger.set_state(f"j{number}", state)
    ledger.close()
    (root / "supervisor.lock").touch()
    run_index.note(root, f"the {root.name}")
    return root


def listed(*options: str, cwd: Path) -> dict[str, dict[str, Any]]:
    done = succeed("list", "--json", *options, cwd=cwd)
    return {row["name"]: row for row in json.loads(done.stdout)}


FAILED = Failed(cause=Cause.ERROR, message="the knee fell off")


def test_states_and_counts_are_those_of_the_run_directories(tmp_path: Path) -> None:
    make_run_dir(tmp_path / "broken", None, Succeeded())
    make_run_dir(tmp_path / "waiting", Succeeded(), Paused())
    make_run_dir(tmp_path / "done", Succeeded(), Succeeded(), FAILED)
    held = make_run_dir(tmp_path / "busy", None)
    with run_directory.claim(held):
        rows = listed(cwd=tmp_path)
    assert {name: row["state"] for name, row in rows.items()} == {
        "the busy": "running",
        "the waiting": "paused",
        "the broken": "interrupted",
    }
    assert next(iter(rows)) == "the busy"
    assert rows["the busy"]["pid"] == os.getpid()
    assert rows["the broken"] | {"since": None} == {
        **{
            "run_dir": str(tmp_path / "broken"),
            "name": "the broken",
            "state": "interrupted",
            "problem": None,
        },
        **{"pid": None, "host": None, "since": None, "jobs": {"PENDING": 1, "SUCCEEDED": 1}},
        "left_batch_jobs": None,
    }
    everything = listed("--all", cwd=tmp_path)
    assert everything["the done"]["jobs"] == {"SUCCEEDED": 2, "FAILED": 1}
    assert everything["the done"]["state"] == "finished"
    shown = invoke("list", cwd=tmp_path).stdout
    assert "the broken" in shown
    assert "the done" not in shown
    assert "1 experiment more" in shown


def test_an_experiment_has_the_name_that_was_recorded_last_or_that_of_its_folder(
    tmp_path: Path,
) -> None:
    sessions = [
        {"experiment": "before"},
        {"experiment": "the robots"},
        {"note": "an earlier provenance.json could not be read"},
    ]
    root = make_run_dir(tmp_path / "robots", None)
    (root / "provenance.json").write_text(json.dumps(sessions))
    make_run_dir(tmp_path / "earlier", None)
    names = {Path(row["run_dir"]).name: name for name, row in listed(cwd=tmp_path).items()}
    assert names["robots"] == "the robots"


def test_entries_of_what_is_gone_are_removed_and_those_of_other_machines_are_left(
    tmp_path: Path, index: Path
) -> None:
    shutil.rmtree(make_run_dir(tmp_path / "gone", None))
    elsewhere = run_index.RunEntry(
        run_dir="/nowhere", name="elsewhere", host="another-host", noted_at=1.0
    )
    (index / "elsewhere.json").write_bytes(elsewhere.to_line())
    (index / "damaged.json").write_text("{")
    assert listed("--all", cwd=tmp_path) == {}
    assert {path.name for path in index.iterdir()} == {"elsewhere.json", "damaged.json"}
    assert "no experiment" in invoke("list", cwd=tmp_path).stdout


def test_an_entry_stays_while_the_disk_of_its_run_directory_may_not_be_mounted(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run_dir(tmp_path / "disk/runs/robots", None)
    (tmp_path / "disk").rename(tmp_path / "unmounted")
    assert listed("--all", cwd=tmp_path) == {}
    (tmp_path / "unmounted").rename(tmp_path / "disk")
    assert listed("--all", cwd=tmp_path).keys() == {"the robots"}
    shutil.rmtree(tmp_path / "disk")
    monkeypatch.setattr(run_index, "MISSING_S", -1.0)
    assert listed("--all", cwd=tmp_path) == {}
    assert list(index.iterdir()) == []


def test_a_run_directory_is_listed_once_and_a_damaged_one_with_its_problem(
    tmp_path: Path, index: Path
) -> None:
    root = make_run_dir(tmp_path / os.fsdecode(b"M\xfcll"), None)
    run_index.note(root, "again")
    (row,) = listed(cwd=tmp_path).values()
    assert (row["name"], row["run_dir"]) == ("again", str(root))
    (root / "ledger.sqlite3").write_bytes(b"")
    (row,) = listed(cwd=tmp_path).values()
    assert (row["state"], "is empty" in row["problem"]) == ("unreadable", True)
    assert "is empty" in invoke("list", cwd=tmp_path).stdout


def test_a_run_directory_that_cannot_be_looked_at_hides_no_other(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        make_run_dir(tmp_path / name, None)
    exists = Path.exists

    def refused(path: Path) -> bool:
        if path.is_relative_to(tmp_path / "two"):
            raise PermissionError(13, "Permission denied", str(path))
        return exists(path)

    monkeypatch.setattr(Path, "exists", refused)
    states = {run.entry.name: run.state for run in run_index.listed_runs()}
    assert states == {"the one": "interrupted", "the two": "unreadable"}
    assert len(list(index.iterdir())) == 2


@pytest.mark.parametrize("state", ["/proc/nowhere", "relative"])
def test_an_index_that_cannot_be_written_or_read_is_no_error(
    state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", state)
    monkeypatch.setenv("HOME", "/proc/nowhere")
    make_run_dir(tmp_path / "one", None)
    assert listed(cwd=tmp_path) == {}


def test_the_tests_do_not_write_into_the_home_of_their_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    assert not run_index.folder().is_relative_to(Path.home()), sys.argv
