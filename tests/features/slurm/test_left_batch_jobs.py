"""What commands say and do where a supervisor of Slurm was killed and its batch jobs may still
train."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command_helpers import invoke, succeed
from slurm_helpers import FakeSlurm
from supervisor_helpers import Run, make_job

from orchestrator.core.paths import RunPaths
from orchestrator.experiment import run_index
from orchestrator.features.slurm import handover
from orchestrator.features.slurm.session_file import FOLDER, Session, write_session
from orchestrator.features.slurm.submission import BatchQueue

NAME = "tiny-12ab"


JOB_FILE = 'name = "tiny"\n[slurm]\narray = 2\ncpus_per_task = 1\n'


SUPERSEDED = "replaced/running.20260101T000000"


def make_run_dir(
    root: Path, *, session: Session | None, executor: str | None = "slurm"
) -> RunPaths:
    """As a supervisor has left it that was killed: one job trains, one waits; and something that
    `clean` removes.

    :param executor: as recorded; None: not yet.
    """
    paths = RunPaths(root)
    (root / SUPERSEDED).mkdir(parents=True)
    experiment = Run(root, [make_job("running"), make_job("waiting")])
    experiment.begin("running")
    experiment.ledger.close()
    paths.lock.touch()
    paths.experiment.write_text(JOB_FILE)
    if executor is not None:
        paths.provenance.write_text(json.dumps([{"launcher": executor}]))
    if session is not None:
        (paths.root / FOLDER).mkdir()
        write_session(paths.root / FOLDER, session)
    return paths


@pytest.fixture
def left(tmp_path: Path, fake_slurm: FakeSlurm) -> RunPaths:
    """A run directory of which two batch jobs are left."""
    for task in ("100_0", "100_1"):
        fake_slurm.enter(task, NAME)
    return make_run_dir(tmp_path / "run", session=Session(session="first", batch_jobs=NAME))


@pytest.fixture
def over(tmp_path: Path, fake_slurm: FakeSlurm) -> RunPaths:
    """The same when its batch jobs have ended."""
    fake_slurm.enter("100_0", NAME, "COMPLETED")
    return make_run_dir(tmp_path / "run", session=Session(session="first", batch_jobs=NAME))


@pytest.mark.parametrize(
    ("command", "returncode"), [("status", 0), ("wait", 1), ("attach", 1), ("list", 0)]
)
def test_commands_name_the_batch_jobs_and_what_takes_them_over_and_ends_them(
    command: str, returncode: int, left: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(left.root.parent / "state"))
    monkeypatch.setenv("COLUMNS", "400")
    run_index.note(left.root, "tiny")
    done = invoke(command, *([] if command == "list" else ["run"]), cwd=left.root.parent)
    shown, run_dir = done.stdout + done.stderr, left.root if command == "list" else "run"
    assert done.returncode == returncode, shown
    assert "supervisor" in shown
    assert "atch jobs 100_0, 100_1 may still train" in shown
    assert f"`run {run_dir}` takes over" in shown
    assert f"`stop {run_dir}` ends" in shown


def test_a_copy_of_a_run_directory_leaves_the_batch_jobs_of_the_original_alone(
    left: RunPaths, fake_slurm: FakeSlurm
) -> None:
    there = left.root.parent
    shutil.copytree(left.root, there / "copy")
    assert "nothing to stop" in succeed("stop", "copy", cwd=there).stdout
    assert "batch jobs" not in succeed("status", "copy", cwd=there).stdout
    assert not fake_slurm.calls("scancel")
    queue = BatchQueue(name="copy-56ef", folder=there / "copy" / FOLDER, pilots=1, script=str)
    assert handover.begin_session(there / "copy" / FOLDER, "second", queue) == []
    assert queue.name == "copy-56ef"


@pytest.mark.parametrize(
    "options", [["--executor", "local"], ["--executor", "local", "--dry-run"], ["--fresh"]]
)
def test_no_other_executor_trains_beside_batch_jobs_and_nothing_starts_over(
    options: list[str], left: RunPaths
) -> None:
    jobs = left.root.parent / "jobs.toml"
    jobs.write_text(f'{JOB_FILE}[[jobs]]\nname = "cart"\nenv = "CartPole-v1"\n')
    before = left.ledger.read_bytes()
    done = invoke("run", jobs, "--run-dir", "run", *options, cwd=left.root.parent)
    assert done.returncode == 2
    assert "batch jobs 100_0, 100_1 may still train" in done.stderr
    assert "`stop --wait run` ends" in done.stderr
    assert left.ledger.read_bytes() == before
    assert sorted(path.name for path in left.root.parent.iterdir()) == [
        "fake-slurm",
        "jobs.toml",
        "run",
    ]


def test_a_run_directory_is_resumed_by_the_executor_of_its_record(
    left: RunPaths, fake_slurm: FakeSlurm
) -> None:
    shown = succeed("run", "run", "--dry-run", cwd=left.root.parent).stdout
    assert "2 at once on 2 pilots" in shown
    for task in ("100_0", "100_1"):
        fake_slurm.enter(task, NAME, "COMPLETED")
    assert (
        "2 at once on 2 pilots" in succeed("run", "run", "--dry-run", cwd=left.root.parent).stdout
    )
    shown = succeed("run", "run", "--dry-run", "--executor", "local", cwd=left.root.parent).stdout
    assert "pilots" not in shown


def test_stop_ends_what_is_left_and_names_it(left: RunPaths, fake_slurm: FakeSlurm) -> None:
    done = succeed("stop", "run", cwd=left.root.parent)
    assert "cancelled the batch jobs 100_0, 100_1" in done.stdout
    assert set(fake_slurm.states().values()) == {"CANCELLED"}
    assert "nothing to stop" in succeed("stop", "run", cwd=left.root.parent).stdout
