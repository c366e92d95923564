"""Stills of robots: drawn from poses by real processes, and after real
trainings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import command_helpers as commands
import pytest
from command_helpers import HOPPER, TINY, Experiment, odd, write_experiment
from drawing_helpers import assert_still
from ended_helpers import Reported, ended_jobs
from supervisor_helpers import make_spec

from orchestrator.core.job import Cause, Failed, State, Succeeded
from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.features.pictures import after_run, previews
from orchestrator.worker.envs.poses import pose_of
from orchestrator.worker.envs.vec_env import MujocoVecEnv
from orchestrator.worker.training import evaluation

pytestmark = pytest.mark.nightly

NO_LIBRARY = "no-such-library"
EVALUATED = TINY.replace("eval_episodes = 0", "eval_episodes = 1")


def keep_pose(paths: JobPaths) -> None:
    """A job that has been evaluated."""
    paths.robot.mkdir(parents=True)
    (paths.robot / "hopper.xml").write_bytes(HOPPER.read_bytes())
    spec = make_spec(
        paths.root.name, env=None, task="forward", xml="robot/hopper.xml", preview=True
    )
    paths.spec.write_text(spec.to_json())
    venv = MujocoVecEnv(HOPPER, "forward", n_envs=1, seed=0)
    venv.reset()
    paths.moment.write_bytes(evaluation.pose_file(pose_of(venv.simulation, 0)))


def drawn(
    paths: RunPaths,
    names: Sequence[str],
    states: Mapping[str, State] | None = None,
    without_preview: Sequence[str] = (),
) -> Reported:
    """The events of drawing what waits."""
    ended, reporter = ended_jobs(paths, names, states)
    after_run.make_missing(ended, with_video=(), without_preview=without_preview)
    return reporter


def test_poses_that_wait_are_drawn_and_a_robot_that_cannot_be_is_said(
    opengl: None, tmp_path: Path
) -> None:
    paths, names = (
        RunPaths(tmp_path),
        ["a-s0", "damaged-s0", "other-s0", "b-s0", "failed-s0", "plain-s0"],
    )
    for name in names[:-1]:
        keep_pose(paths.job(name))
    paths.job("damaged-s0").moment.write_bytes(b"PK\x03\x04 and no more")
    (paths.job("other-s0").robot / "hopper.xml").write_text("<mujoco/>")
    failed = Failed(cause=Cause.ERROR, message="")
    states: dict[str, State] = {
        name: failed if name == "failed-s0" else Succeeded() for name in names
    }
    reporter = drawn(paths, names, states)
    for name in ("a-s0", "b-s0"):
        assert_still(paths.job(name))
    assert reporter.kinds() == ["pictures", "warning"]
    assert "making 4 previews" in reporter.messages()
    assert "damaged-s0, other-s0" in reporter.messages()
    assert paths.job("failed-s0").moment.exists()
    assert drawn(paths, names, states).kinds() == [], "what cannot be drawn is not tried again"


@pytest.mark.nightly
def test_without_a_gl_library_that_is_said_once_and_drawn_later(
    opengl: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(previews, "FEWEST_IN_PROCESS", 1)
    monkeypatch.setattr(previews, "MOST_IN_PROCESS", 1)
    paths, names = RunPaths(tmp_path), ["a-s0", "b-s0"]
    for name in names:
        keep_pose(paths.job(name))
    with monkeypatch.context() as patch:
        patch.setenv("MUJOCO_GL", NO_LIBRARY)
        reporter = drawn(paths, names)
    assert reporter.kinds() == ["pictures", "warning"]
    assert "no OpenGL library works here" in reporter.messages()
    assert "preview = false" in reporter.messages()
    assert all(paths.job(name).moment.exists() for name in names)
    assert drawn(paths, names).kinds() == ["pictures"]
    for name in names:
        assert_still(paths.job(name))


def test_previews_that_are_switched_off_and_processes_that_are_killed(
    opengl: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, names = RunPaths(tmp_path), ["a-s0", "b-s0"]
    for name in names:
        keep_pose(paths.job(name))
    assert drawn(paths, names, without_preview=names).kinds() == [], (
        "a pose of before waits for nothing"
    )
    monkeypatch.setattr(previews, "START_LIMIT_S", 0.0)
    monkeypatch.setattr(previews, "JOB_LIMIT_S", 0.0)
    reporter = drawn(paths, names)
    assert reporter.kinds() == ["pictures", "warning"]
    assert "a-s0, b-s0: took more than 0 s" in reporter.messages()
    assert all(paths.job(name).moment.exists() for name in names), "another time they are drawn"


# -- decisions


def waiting(tmp_path: Path, names: Sequence[str]) -> RunPaths:
    paths = RunPaths(tmp_path)
    for name in names:
        paths.job(name).root.mkdir(parents=True)
        paths.job(name).moment.touch()
    return paths


def test_a_drawing_that_crashes_costs_one_robot_its_preview(tmp_path: Path) -> None:
    names, reporter = ["a-s0", "bad-s0", "c-s0"], Reported()
    paths = waiting(tmp_path, names)
    [drawing] = previews.drawings(paths, names, 1, reporter.event)
    paths.job("a-s0").moment.unlink()  # it has been drawn
    [rest] = drawing.report_end(-11, "ended with signal 11")
    assert rest.jobs == ("c-s0",)
    assert not paths.job("bad-s0").moment.exists()
    assert reporter.messages() == "no preview of bad-s0: ended with signal 11"
    paths.job("c-s0").moment.unlink()
    assert rest.report_end(0, "") == []


# -- after trainings


def test_a_robot_that_was_evaluated_has_a_preview_without_being_asked(
    opengl: None, finished_once: Experiment
) -> None:
    jobs = RunPaths(finished_once.run_dir)
    assert_still(jobs.job("balancer-s0"))
    assert_still(jobs.job("hopper-s0"))


JOBS = (
    {"name": "hopper", "xml": str(HOPPER), "task": "forward"},
    {"name": "pendulum", "task": "gymnasium:InvertedPendulum-v5"},
    odd("blind", "nothing"),
)


@pytest.mark.nightly
def test_a_run_draws_every_robot_without_being_asked_and_trains_the_same(
    opengl: None, tmp_path: Path
) -> None:
    weights = []
    for setting in ("", "preview = false\n"):
        cwd = tmp_path / (setting[:7] or "default")
        path = write_experiment(
            cwd, *JOBS, defaults=EVALUATED.replace("n_envs", f"{setting}n_envs")
        )
        with commands.Run(path, "--run-dir", "run", cwd=cwd) as run:
            assert run.end() == 0, run.stderr
        assert not [
            event
            for event in run.events
            if "preview" in event["message"] and event["event"] == "warning"
        ]
        rows = commands.summary(cwd / "run")
        weights.append(
            {name: (row["weights_sha256"], row["eval_mean"]) for name, row in rows.items()}
        )
        jobs = RunPaths(cwd / "run")
        assert not jobs.job("blind-s0").moment.exists()
        if setting:
            assert not list(jobs.jobs.glob("*/preview.png"))
        else:
            assert_still(jobs.job("hopper-s0"))
            assert_still(jobs.job("pendulum-s0"))
    assert weights[0] == weights[1]
