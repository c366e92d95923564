"""`list` shows the experiments of a user on a machine, from an index that is never in the way."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from command_helpers import invoke, succeed
from supervisor_helpers import Run, make_job

from orchestrator.core.job import Cause, Failed, Paused, State, Succeeded
from orchestrator.experiment import run_directory, run_index
from orchestrator.machine.cpu_locks import CpuLocks
from orchestrator.machine.users import user_name
from orchestrator.terminal import list_view


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state/orchestrator/runs"


def make_run_dir(root: Path, *states: State | None) -> Path:
    """A run directory that was noted, with a job in each state; None stands for PENDING."""
    root.mkdir(parents=True)
    ledger = Run(root, [make_job(f"j{number}") for number, _ in enumerate(states)]).ledger
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
    assert f"no experiment is listed in {index}" in invoke("list", cwd=tmp_path).stdout


def test_without_a_home_nothing_is_said_of_experiments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    list_view.show(run_index.listed_runs(), is_all=False)
    assert capsys.readouterr().out.startswith("experiments cannot be listed")


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


def test_all_users_are_listed_by_the_cpus_that_they_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_CPU_LOCKS", str(tmp_path / "cpus"))
    assert "no experiment" in succeed("list", "--all-users", cwd=tmp_path).stdout
    run_dir = tmp_path / "not-there"  # no run directory is looked into
    locks = CpuLocks(tmp_path / "cpus", experiment="walkers", run_dir=str(run_dir))
    held = [locks.take(cpu, (), job_id) for cpu, job_id in ((5, "a-s0"), (3, "b-s0"), (3, "a-s1"))]
    done = succeed("list", "--all-users", "--json", cwd=tmp_path)
    shown = succeed("list", "--all-users", cwd=tmp_path).stdout
    for cpu in held:
        locks.give_back(cpu)
    assert "CPUs 3 and 5" in shown
    (found,) = json.loads(done.stdout)
    assert found.pop("since") == pytest.approx(time.time(), abs=600)
    assert [found] == [
        {
            "name": "walkers",
            "user": user_name(os.getuid()),
            "uid": os.getuid(),
            "cpus": [3, 5],
            "jobs": ["a-s0", "a-s1", "b-s0"],
            "pid": os.getpid(),
            "run_dir": str(run_dir),
        }
    ]
