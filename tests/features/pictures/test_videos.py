"""Videos after a run, and all robots in one: real trainings, real rendering, pixels looked at."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import command_helpers as commands
import numpy as np
import pytest
from command_helpers import HOPPER, Experiment, odd, wait_until, write_experiment
from ended_helpers import ended_jobs
from play_helpers import frames, job_dir, play_here, players_of, size

from orchestrator.core.job import Cause, Failed, State, Succeeded
from orchestrator.core.paths import RunPaths
from orchestrator.core.processes.procfs import is_running
from orchestrator.features.pictures import after_run, video_processes

COARSE = {"frame_skip": 100}
"""Half a second a control step: few frames, so that ten seconds of video are made quickly."""


OWN = """
import gymnasium, numpy as np, pathlib, time


class Own(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), 0.0, False, False, {}

    def render(self):
        if pathlib.Path("slow").exists():
            pathlib.Path("drawing").touch()
            time.sleep(600)
        return np.full((33, 47, 3), 200, np.uint8)


def make(xml=None, seed=0, render_mode=None):
    return Own(render_mode)
"""


Filmed: TypeAlias = tuple[Experiment, list[dict[str, Any]]]
"""An experiment that has been run to the end, and the events of the run."""
FILMED = (
    {"name": "own", "entry_point": "own:make", "video": True},
    odd("blind", "nothing", video=True),
)


@pytest.fixture(scope="module")
def filmed(tmp_path_factory: pytest.TempPathFactory, opengl: None) -> Filmed:
    """An environment that draws itself and one that cannot, run to the end; not to be changed."""
    cwd = tmp_path_factory.mktemp("filmed")
    (cwd / "own.py").write_text(OWN)
    return trained_and_filmed(cwd, *FILMED)


def trained_and_filmed(cwd: Path, *jobs: dict[str, Any]) -> Filmed:
    path = write_experiment(cwd, *jobs)
    with commands.Run(path, "--run-dir", "run", cwd=cwd) as run:
        assert run.end() == 0, run.stderr
    return Experiment(cwd, path, cwd / "run"), run.events


def copied(experiment: Experiment, cwd: Path) -> Experiment:
    """A copy of it to do anything with."""
    shutil.copytree(experiment.cwd, cwd)
    return Experiment(cwd, cwd / "jobs.toml", cwd / "run")


@pytest.fixture(scope="module")
def robot_filmed(filmed: Filmed, tmp_path_factory: pytest.TempPathFactory) -> Filmed:
    """The same, and a robot of two files that is added later; not to be changed."""
    cwd = copied(filmed[0], tmp_path_factory.mktemp("robot-filmed") / "again").cwd
    (cwd / "originals").mkdir()
    text = HOPPER.read_text()
    start, end = text.index("<actuator>"), text.index("</mujoco>")
    (cwd / "originals/part.xml").write_text(f"<mujoco>{text[start:end]}</mujoco>")
    (cwd / "originals/robot.xml").write_text(
        text[:start] + '<include file="part.xml"/>' + text[end:]
    )
    robot = {
        "name": "hopper",
        "xml": "originals/robot.xml",
        "task": "forward",
        "task_options": COARSE,
        "eval_episodes": 1,
        "video": True,
    }
    return trained_and_filmed(cwd, *FILMED, robot)


@pytest.mark.nightly
def test_every_job_that_asks_gets_its_video_when_all_training_is_over(
    filmed: Filmed, robot_filmed: Filmed
) -> None:
    for job_id, (experiment, events) in {"own-s0": filmed, "hopper-s0": robot_filmed}.items():
        kinds = [event["event"] for event in events]
        assert kinds.index("pictures") > max(
            index for index, kind in enumerate(kinds) if kind == "succeeded"
        )
        assert [event["job_id"] for event in events if event["event"] == "pictured"] == [job_id]
        job = job_dir(experiment, job_id)
        shown, rate = frames(job.video)
        assert len(shown) / rate == pytest.approx(10.0, abs=1 / float(rate))
        assert not list(job.root.glob(".*"))  # nothing half written
    assert job_dir(robot_filmed[0], "hopper-s0").preview.exists()


@pytest.mark.nightly
def test_the_same_command_makes_what_is_missing_or_old_and_trains_nothing(
    robot_filmed: Filmed, tmp_path: Path
) -> None:
    refilmed = copied(robot_filmed[0], tmp_path / "again")
    hopper, own = (job_dir(refilmed, job_id) for job_id in ("hopper-s0", "own-s0"))
    own.video.unlink()
    before = hopper.video.stat().st_mtime_ns
    with commands.Run(refilmed.jobs, "--run-dir", "run", cwd=refilmed.cwd) as run:
        assert run.end() == 0, run.stderr
    assert [event["job_id"] for event in run.events if event["event"] == "pictured"] == ["own-s0"]
    assert "launched" not in [event["event"] for event in run.events]
    assert own.video.exists()
    assert hopper.video.stat().st_mtime_ns == before
    assert not video_processes.is_due(hopper)
    os.utime(hopper.model)
    assert video_processes.is_due(hopper)


@pytest.fixture
def drawing(filmed: Filmed, tmp_path: Path) -> Iterator[commands.Run]:
    """A run in which nothing is left to train, and whose one missing video is never finished."""
    refilmed = copied(filmed[0], tmp_path / "again")
    (refilmed.cwd / "slow").touch()
    job_dir(refilmed, "own-s0").video.unlink()
    jobs = write_experiment(refilmed.cwd, {"name": "own", "entry_point": "own:make", "video": True})
    with commands.Run(jobs, "--run-dir", "run", cwd=refilmed.cwd) as run:
        run.until("pictures")
        wait_until((refilmed.cwd / "drawing").exists, "the environment is asked for a picture")
        assert "launched" not in [event["event"] for event in run.events]
        yield run


@pytest.mark.nightly
def test_ctrl_c_ends_videos_under_way_and_leaves_the_results(drawing: commands.Run) -> None:
    [player] = players_of(drawing.popen.pid)
    drawing.signal(signal.SIGINT)
    assert drawing.end() == 0  # every job has succeeded
    assert any(
        event["event"] == "warning" and "pictures" in event["message"] for event in drawing.events
    ), drawing.events
    assert not is_running(player)


@pytest.mark.nightly
def test_no_player_outlives_a_supervisor_that_is_killed(drawing: commands.Run) -> None:
    [player] = players_of(drawing.popen.pid)
    drawing.popen.kill()
    wait_until(lambda: not is_running(player), "the player ends with its supervisor")


@pytest.mark.parametrize(("limit_s", "why"), [(0.0, "took more than 0 s"), (600.0, "No such file")])
def test_a_player_that_fails_or_takes_too_long_is_a_warning_and_the_next_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit_s: float, why: str
) -> None:
    monkeypatch.setattr(video_processes, "TIME_LIMIT_S", limit_s)
    names = {"a-s0": True, "b-s0": True, "failed-s0": True, "not-asked-s0": False}
    paths = RunPaths(tmp_path)
    for name in names:
        paths.job(name).root.mkdir(parents=True)
        paths.job(name).model.touch()
    failed = Failed(cause=Cause.ERROR, message="")
    states: dict[str, State] = {
        name: failed if name == "failed-s0" else Succeeded() for name in names
    }
    ended, told = ended_jobs(paths, list(names), states)
    wanted = [name for name, is_wanted in names.items() if is_wanted]
    after_run.make_missing(ended, with_video=wanted, without_preview=())
    assert told.kinds() == ["pictures", "warning", "warning"]
    assert [facts.get("job_id") for _, _, facts in told.events] == [None, "a-s0", "b-s0"]
    assert told.messages().count(why) == 2


@pytest.mark.usefixtures("opengl")
@pytest.mark.nightly
def test_all_robots_are_in_one_video_and_in_a_gif(
    finished_once: Experiment, tmp_path: Path
) -> None:
    done = play_here(finished_once, "--all", "--gif", "--seconds", "0.3", "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    shown, rate = frames(tmp_path / "mosaic.mp4")
    assert len(shown) / rate == pytest.approx(0.3, abs=2 / float(rate))
    assert {picture.shape for picture in shown} == {(360, 960, 3)}
    for half in (shown[0][:, :480], shown[0][:, 480:]):
        assert np.ptp(half) > 100, "something is to be seen in each"
    assert size(tmp_path / "mosaic.gif") == (960, 360)


@pytest.mark.nightly
def test_an_environment_that_draws_itself_is_asked_to(filmed: Filmed) -> None:
    shown, rate = frames(job_dir(filmed[0], "own-s0").video)
    assert (len(shown), rate) == (300, 30)
    assert {picture.shape for picture in shown} == {(32, 46, 3)}  # H.264 takes even sizes only
    assert abs(int(shown[0].mean()) - 200) < 5
