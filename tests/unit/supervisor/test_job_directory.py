"""What the supervisor does in a job's directory: each attempt finds it as it must be, and what
nobody needs goes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_launcher import Behaviour
from supervisor_helpers import (
    Run,
    behaviours,
    edit_robot,
    ledgers_closed,  # noqa: F401 - a fixture
    make_job,
    make_spec,
    rows,
    staged_robot,
    with_robots,
)

from orchestrator.core import robot_hash
from orchestrator.core.files import atomic_files
from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.core.robot_hash import hash_of_copy
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.examination.preflight import JobVerdict
from orchestrator.executors.launcher import Launch
from orchestrator.experiment import run_directory
from orchestrator.server import job_directory


def test_what_an_earlier_launch_of_the_same_number_left_is_gone(tmp_path: Path) -> None:
    paths, spec = JobPaths(tmp_path), make_spec("a-s0", ranks=2)
    attempt = paths.attempt(3)
    attempt.root.mkdir(parents=True)
    for left in (attempt.rendezvous, attempt.exit_of(0), attempt.exit_of(1), attempt.worker_log):
        left.write_text("left")
    job_directory.prepare(paths, 3, spec)
    assert [path.name for path in attempt.root.iterdir()] == ["worker.log"]
    assert WorkerSpec.from_json(paths.spec.read_text()) == spec


def test_what_was_being_written_when_a_process_was_killed_is_removed(tmp_path: Path) -> None:
    paths = JobPaths(tmp_path / "run/jobs/a-s0")
    paths.attempt(0).root.mkdir(parents=True)
    for file in (
        tmp_path / "run/summary.json",
        paths.spec,
        paths.robot_hash,
        paths.attempt(0).exit,
    ):
        (file.parent / f".{file.name}.123.tmp").write_text("half")
    (tmp_path / "run/supervisor.lock").touch()
    with run_directory.claim(tmp_path / "run"):
        job_directory.prepare(paths, 1, make_spec("a-s0"))
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize(
    ("folders", "number"), [((), 1), ((0, 1), 1), ((0, 1, 2), 2), ((0, 1, 2, 3), 3), ((0, 3), 1)]
)
def test_no_attempt_begins_beside_the_folder_of_the_next(
    tmp_path: Path, folders: tuple[int, ...], number: int
) -> None:
    paths = JobPaths(tmp_path)
    for folder in folders:
        paths.attempt(folder).root.mkdir(parents=True)
    assert job_directory.free_number(paths, 1) == number


def test_replay_buffers_of_ranks_that_ran_elsewhere_are_removed_when_the_training_is_done(
    tmp_path: Path,
) -> None:
    experiment = Run(
        tmp_path,
        [
            make_job("done", ranks=2),
            make_job("failed", ranks=2),
            make_job("kept", ranks=2, spec={"keep_replay_buffer": True}),
        ],
        behaviours({"failed": Behaviour(returncode=1)}),
        cpus=4,
    )
    for job_id in ("done", "failed", "kept"):
        rows = experiment.paths.job(job_id).replay(1) / "rows-000000000000-000000000008.npz"
        rows.parent.mkdir(parents=True)
        rows.write_bytes(b"rows")
    assert experiment.go() == {"done": "SUCCEEDED", "failed": "FAILED", "kept": "SUCCEEDED"}
    assert not experiment.paths.job("done").replay(1).exists()
    assert experiment.paths.job("kept").replay(1).exists(), "for training further"
    assert experiment.paths.job("failed").replay(1).exists(), "`retry` goes on with it"


# -- the robot in the job directory


def truncate(robot: Path) -> None:
    (robot / "meshes/.leg.stl").write_text("")


def lose(robot: Path) -> None:
    (robot / "hopper.xml").unlink()


def add(robot: Path) -> None:
    (robot / "meshes/hopper.stl").write_text("MuJoCo may find this one first")


@pytest.mark.parametrize(
    "alter",
    [
        edit_robot,
        add,
    ],
)
def test_an_altered_robot_is_replaced_by_the_one_that_was_examined_and_kept(
    alter: Callable[[Path], None], tmp_path: Path
) -> None:
    staged = staged_robot(tmp_path / "staged")
    directory = JobPaths(tmp_path / "job")
    directory.root.mkdir()
    shutil.copytree(staged, directory.robot)
    expected = hash_of_copy(staged, "hopper.xml")
    assert not job_directory.put_back(directory, "robot/hopper.xml", expected, staged)
    alter(directory.robot)
    altered = hash_of_copy(directory.robot, "hopper.xml")
    assert job_directory.put_back(directory, "robot/hopper.xml", expected, staged)
    assert hash_of_copy(directory.robot, "hopper.xml") == expected
    assert hash_of_copy(directory.robot_altered, "hopper.xml") == altered


@pytest.mark.parametrize(
    "alter",
    [
        edit_robot,
        lose,
    ],
)
def test_a_job_with_an_altered_robot_fails_and_the_others_train(
    alter: Callable[[Path], None], tmp_path: Path
) -> None:
    staged = staged_robot(tmp_path / "staged")
    experiment = with_robots(tmp_path / "run", staged, "a", "b")
    alter(experiment.paths.job("a").robot)
    assert experiment.go() == {"a": "FAILED", "b": "SUCCEEDED"}
    assert experiment.order == ["b"]
    row = rows(experiment.paths.root)["a"]
    assert row["cause"] == "error"
    assert str(experiment.paths.job("a").robot / "hopper.xml") in row["message"]
    assert "`retry`" in row["message"]


def test_the_robot_is_compared_before_the_first_attempt_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[Path] = []

    def noted(folder: Path, main: str) -> str | None:
        compared.append(folder)
        return hash_of_copy(folder, main)

    monkeypatch.setattr(robot_hash, "hash_of_copy", noted)

    def killed_first(launch: Launch) -> Behaviour:
        return Behaviour(returncode=0 if launch.number else -9)

    experiment = with_robots(
        tmp_path / "run", staged_robot(tmp_path / "staged"), "a", behave=killed_first
    )
    assert experiment.go() == {"a": "SUCCEEDED"}
    assert experiment.order == ["a", "a"]
    assert compared == [experiment.paths.job("a").robot]


def test_the_copies_of_robots_survive_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[Path] = set()
    monkeypatch.setattr(
        atomic_files.os, "fsync", lambda file: synced.add(Path(f"/proc/self/fd/{file}").readlink())
    )
    staged, paths = staged_robot(tmp_path / "staged"), RunPaths(tmp_path / "run")
    jobs = [make_job(job_id, spec={"xml": "robot/hopper.xml"}) for job_id in ("a", "b")]
    verdict = JobVerdict(
        bundle=staged, xml="hopper.xml", robot_hash=hash_of_copy(staged, "hopper.xml")
    )
    paths.root.mkdir()
    Run(paths.root, []).enter(jobs, {"a": verdict, "b": verdict})
    for path in (paths.jobs, *paths.jobs.rglob("*")):
        assert path in synced
    assert paths.job("b").robot_hash in synced
