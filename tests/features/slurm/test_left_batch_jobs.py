"""What commands say and do where a supervisor of Slurm was killed and its batch jobs may still
train."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_helpers import finish, invoke, succeed
from root_helpers import OWNER, PACKAGE_OUT_OF_REACH, states
from slurm_helpers import FakeSlurm
from supervisor_helpers import Experiment, make_job

from orchestrator.core.errors import RunDirError
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.directory import left_batch_jobs, run_directory, run_index
from orchestrator.experiment.planning import run_executor
from orchestrator.experiment.planning.run_plan import RunOptions
from orchestrator.features.slurm import handover, left_pilots
from orchestrator.features.slurm.mailbox import Outbox
from orchestrator.features.slurm.pilot_messages import PilotBeat, PilotBye
from orchestrator.features.slurm.session_file import FOLDER, Session, read_session, write_session
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
    experiment = Experiment(root, [make_job("running"), make_job("waiting")])
    experiment.begin("running")
    experiment.ledger.close()
    paths.lock.touch()
    paths.experiment.write_text(JOB_FILE)
    if executor is not None:
        paths.provenance.write_text(json.dumps([{"executor": executor}]))
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


def test_list_asks_slurm_once_for_all_experiments(
    left: RunPaths, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(left.root.parent / "state"))
    fake_slurm.enter("101_0", "other-34cd")
    other = make_run_dir(
        left.root.parent / "other", session=Session(session="first", batch_jobs="other-34cd")
    )
    for paths in (left, other):
        run_index.note(paths.root, paths.root.name)
    rows = json.loads(succeed("list", "--json", cwd=left.root.parent).stdout)
    tasks = {row["name"]: row["left_batch_jobs"]["tasks"] for row in rows}
    assert tasks == {"run": ["100_0", "100_1"], "other": ["101_0"]}
    assert len(fake_slurm.calls("squeue")) == 1


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


def test_a_run_directory_that_was_moved_keeps_its_batch_jobs(
    left: RunPaths, fake_slurm: FakeSlurm
) -> None:
    moved = left.root.rename(left.root.with_name("moved"))
    assert "100_0, 100_1" in succeed("stop", "moved", cwd=moved.parent).stdout
    assert fake_slurm.calls("scancel")


def test_without_batch_jobs_commands_say_what_they_always_say(over: RunPaths) -> None:
    assert "`run run` resumes it" in succeed("status", "run", cwd=over.root.parent).stdout
    assert "`run run` resumes it" in invoke("wait", "run", cwd=over.root.parent).stderr
    assert "nothing to stop" in succeed("stop", "run", cwd=over.root.parent).stdout
    succeed("clean", "run", cwd=over.root.parent)
    assert not (over.root / SUPERSEDED).exists()


def test_clean_is_refused_and_removes_nothing(left: RunPaths) -> None:
    for options in ([], ["--dry-run"]):
        done = invoke("clean", "run", *options, cwd=left.root.parent)
        assert done.returncode == 2
        assert "batch jobs 100_0, 100_1 may still train" in done.stderr.lower()
    assert (left.root / SUPERSEDED).exists()


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


ENDED = Session(session="first", batch_jobs=NAME, ended=True)
CUT_OFF = Session(session="first", batch_jobs=NAME)


@pytest.mark.parametrize(
    ("recorded", "session", "asked", "taken"),
    [
        (None, None, None, None),  # a run directory of a version that recorded none: as a new one
        ("local", None, None, "local"),
        ("slurm", ENDED, None, "slurm"),
        ("slurm", ENDED, "local", "local"),
        ("local", ENDED, None, "local"),  # another executor was named in the last run
        ("local", CUT_OFF, "slurm", "slurm"),
        (None, CUT_OFF, None, "slurm"),  # killed before it wrote the record
        (None, ENDED, None, "slurm"),
    ],
)
def test_the_executor_is_the_one_that_is_named_or_recorded(
    recorded: str | None,
    session: Session | None,
    asked: str | None,
    taken: str | None,
    tmp_path: Path,
    fake_slurm: FakeSlurm,
) -> None:
    paths = make_run_dir(tmp_path / "run", session=session, executor=recorded)
    assert (
        run_executor.of_unclaimed(RunOptions(run_dir=paths.root, executor=asked)).executor == taken
    )


def test_while_batch_jobs_are_left_slurm_is_the_executor_whatever_is_recorded(
    left: RunPaths,
) -> None:
    left.provenance.write_text(json.dumps([{"executor": "slurm"}, {"executor": "local"}]))
    assert run_executor.of_unclaimed(RunOptions(run_dir=left.root)).executor == "slurm"


def test_stop_ends_what_is_left_and_names_it(left: RunPaths, fake_slurm: FakeSlurm) -> None:
    done = succeed("stop", "run", cwd=left.root.parent)
    assert "cancelled the batch jobs 100_0, 100_1" in done.stdout
    assert set(fake_slurm.states().values()) == {"CANCELLED"}
    assert "nothing to stop" in succeed("stop", "run", cwd=left.root.parent).stdout


def test_stop_leaves_the_batch_jobs_of_a_supervisor_that_lives_to_itself(
    left: RunPaths, fake_slurm: FakeSlurm
) -> None:
    with run_directory.claim(left.root):
        assert "cancelled" not in succeed("stop", "run", cwd=left.root.parent).stdout
    assert set(fake_slurm.states().values()) == {"PENDING"}


def test_stop_wait_returns_when_the_last_pilot_has_ended(
    left: RunPaths, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm says COMPLETING as soon as a pilot is to end, while its jobs still save checkpoints."""
    pilot = left.root / FOLDER / "first" / "100_0.1763820000.events"
    pilot.parent.mkdir()
    Outbox(pilot).send(PilotBeat())
    ends = iter(["checkpoints are saved", "good-bye", "over"])

    def slept(_: float) -> None:
        end = next(ends)
        if end == "good-bye":
            Outbox(pilot).send(PilotBye())

    monkeypatch.setattr(left_pilots, "time", SimpleNamespace(sleep=slept, time=time.time))
    succeed("stop", "run", cwd=left.root.parent)
    fake_slurm.enter("100_0", NAME, "COMPLETING")
    assert "so have its batch jobs" in succeed("stop", "run", "--wait", cwd=left.root.parent).stdout
    assert list(ends) == ["over"], "it returns as soon as the pilot has said good-bye"


@pytest.mark.parametrize("verb", ["stop", "pause"])
def test_a_job_that_may_still_train_is_not_moved_and_others_are(verb: str, left: RunPaths) -> None:
    done = invoke(verb, "run", "running", cwd=left.root.parent)
    assert done.returncode == 2
    assert "batch jobs 100_0, 100_1 may still train" in done.stderr.lower()
    assert "1 job (waiting)" in succeed(verb, "run", "waiting", cwd=left.root.parent).stdout


def test_where_slurm_cannot_be_asked_batch_jobs_may_still_train_until_stop_has_told_them_to_end(
    left: RunPaths, fake_slurm: FakeSlurm
) -> None:
    fake_slurm.put("down")
    Path(left.root / FOLDER / "first").mkdir()
    Outbox(left.root / FOLDER / "first/100_0.1763820000.events").send(PilotBeat())
    shown = succeed("status", "run", cwd=left.root.parent).stdout
    assert "100_0 may still train" in " ".join(shown.split())
    assert "Slurm cannot be asked" in " ".join(shown.split())
    with pytest.raises(RunDirError, match=r"Slurm cannot be asked.*Unable to contact"):
        run_executor.of_unclaimed(RunOptions(run_dir=left.root, executor="local"))
    assert "end by themselves" in succeed("stop", "run", cwd=left.root.parent).stdout
    session = read_session(left.root / FOLDER)
    assert session is not None
    assert session.ended
    assert (
        run_executor.of_unclaimed(RunOptions(run_dir=left.root, executor="local")).executor
        == "local"
    )


def test_on_a_machine_without_slurm_that_is_said(
    left: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(left.root))
    assert "squeue not found" in " ".join(
        succeed("status", "run", cwd=left.root.parent).stdout.split()
    )
    done = invoke("run", "run", cwd=left.root.parent)
    assert done.returncode == 2
    assert "login node" in done.stderr


def test_pages_look_at_files_alone(left: RunPaths, fake_slurm: FakeSlurm) -> None:
    assert left_batch_jobs.by_files(left) is not None, "none has joined yet"
    pilot = left.root / FOLDER / "first" / "100_0.1763820000.events"
    pilot.parent.mkdir()
    Outbox(pilot).send(PilotBeat())
    assert left_batch_jobs.by_files(left) is not None
    Outbox(pilot).send(PilotBye())
    assert left_batch_jobs.by_files(left) is None
    shutil.rmtree(left.root / FOLDER)
    assert left_batch_jobs.by_files(left) is None
    assert not fake_slurm.calls("squeue")


COLLEAGUE = 65534
"""A user who is not the one who runs the tests."""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_root_sees_and_ends_the_batch_jobs_of_the_user_to_whom_the_run_belongs(
    left: RunPaths, fake_slurm: FakeSlurm
) -> None:
    for task in ("100_0", "100_1"):
        fake_slurm.enter(task, NAME, uid=COLLEAGUE)
    os.chown(left.root / FOLDER / "session.json", COLLEAGUE, -1)
    done = invoke("clean", "run", cwd=left.root.parent)
    assert done.returncode == 2
    assert "batch jobs 100_0, 100_1 may still train" in done.stderr.lower()
    assert (left.root / SUPERSEDED).exists()
    assert (
        "cancelled the batch jobs 100_0, 100_1"
        in succeed("stop", "run", cwd=left.root.parent).stdout
    )
    assert set(fake_slurm.states().values()) == {"CANCELLED"}


def test_batch_jobs_that_slurm_may_hide_from_this_user_may_still_train(
    over: RunPaths, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(fake_slurm.root / "100_0")
    assert left_pilots.left_pilots([over.root / FOLDER]) == {}
    monkeypatch.setattr(left_pilots, "os", SimpleNamespace(geteuid=lambda: COLLEAGUE))
    config = fake_slurm.commands / "scontrol"
    for private, are_hidden in (("jobs,users", True), ("none", False), ("accounts,jobs", True)):
        config.write_text(
            f"#!/bin/sh\necho 'Configuration data'\necho 'PrivateData             = {private}'\n"
        )
        config.chmod(0o755)
        (found,) = left_pilots.left_pilots([over.root / FOLDER]).values() or [None]
        assert (
            found is not None and "it may hide the batch jobs of" in found.problem
        ) == are_hidden


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_slurm_is_asked_before_root_acts_as_a_user_who_cannot_read_the_package(
    run_dir_of_user: Path, fake_slurm: FakeSlurm
) -> None:
    slurm = run_dir_of_user / FOLDER
    slurm.mkdir()
    write_session(slurm, Session(session="first", batch_jobs="tiny-12ab"))
    os.chown(slurm / "session.json", OWNER, OWNER)
    fake_slurm.enter("100_0", "tiny-12ab", uid=OWNER)
    command = [sys.executable, "-c", PACKAGE_OUT_OF_REACH, str(run_dir_of_user)]
    done = finish(command, cwd=run_dir_of_user.parent)
    assert "batch job 100_0 may still train" in done.stderr.lower()
    assert states(run_dir_of_user)["runs"] == "PENDING"
    fake_slurm.enter("100_0", "tiny-12ab", "COMPLETED")
    done = finish(command, cwd=run_dir_of_user.parent)
    assert "paused 1 job (runs)" in done.stdout, done.stderr
    assert states(run_dir_of_user)["runs"] == "PAUSED"
