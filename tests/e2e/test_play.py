"""The ``play`` command and the videos after a run: real trainings, real rendering, pixels looked
at."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias
from unittest import mock

import av
import command_helpers as commands
import numpy as np
import pytest
from command_helpers import (
    HOPPER,
    Experiment,
    environment,
    give,
    invoke,
    odd,
    wait_until,
    write_experiment,
)
from PIL import Image
from supervisor_helpers import RecordingReporter, make_job, make_machine, make_spec

from orchestrator.core.job import Cause, Failed, State, Succeeded
from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.core.procfs import is_running
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.experiment import videos
from orchestrator.machine.slots import SlotPool
from orchestrator.machine.topology import Cpu
from orchestrator.worker.envs.poses import Pose
from orchestrator.worker.rendering import offscreen, scenes, trained_policy, video_encoding
from orchestrator.worker.rendering import play as worker_play

COARSE = {"frame_skip": 100}
"""Half a second a control step: few frames, so that ten seconds of video are made quickly."""
NO_DISPLAY = {"DISPLAY": "", "WAYLAND_DISPLAY": ""}


def play(
    experiment: Experiment, *arguments: str | Path, **added: str
) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with what the player writes to its standard output."""
    return give("play", experiment.run_dir, *arguments, cwd=experiment.cwd, **NO_DISPLAY | added)


def play_here(
    experiment: Experiment, *arguments: str | Path, **added: str
) -> subprocess.CompletedProcess[str]:
    """The command in this process; only the player is one of its own."""
    with mock.patch.dict(os.environ, NO_DISPLAY | added):
        return invoke("play", experiment.run_dir, *arguments, cwd=experiment.cwd)


def job_dir(experiment: Experiment, job_id: str) -> JobPaths:
    return JobPaths(experiment.run_dir / "jobs" / job_id)


def frames(video: Path) -> tuple[list[np.ndarray], Fraction]:
    """Every picture of a video, decoded, and how many are shown a second."""
    with av.open(video) as container:
        [stream] = container.streams
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        rate = stream.average_rate
        assert rate is not None
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)], rate


def size(png: Path) -> tuple[int, int]:
    with Image.open(png) as image:
        return image.size


STRIP = (video_encoding.STRIP_FRAMES * (320 + 4) - 4, video_encoding.STRIP_HEIGHT)


# -- the play command


@pytest.fixture(scope="module")
def shown(
    opengl: None, finished_once: Experiment, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """Folder with half a second of the finished hopper, and what was said; not to be changed."""
    folder = tmp_path_factory.mktemp("shown")
    done = play(finished_once, "hop", "--seconds", "0.5", "--output", folder)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


@pytest.mark.slow
def test_play_writes_a_video_in_real_time_and_a_film_strip(
    shown: tuple[Path, str], finished_once: Experiment
) -> None:
    folder, said = shown
    assert f"wrote {folder / 'video.mp4'}" in said
    videos, rate = frames(folder / "video.mp4")
    assert 20 <= rate <= 45
    assert len(videos) / rate == pytest.approx(0.5, abs=1 / float(rate))
    assert {picture.shape for picture in videos} == {(480, 640, 3)}
    assert min(np.ptp(picture) for picture in videos) > 100  # something is to be seen in each
    assert np.abs(videos[0].astype(int) - videos[-1]).max() > 50  # and it moves
    assert size(folder / "preview.png") == STRIP
    assert not job_dir(finished_once, "hopper-s0").video.exists()  # it went where it was asked to


@pytest.mark.usefixtures("opengl")
@pytest.mark.slow
def test_the_last_checkpoint_acts_as_the_finished_policy_from_the_same_starts_and_keeps_apart(
    finished: Experiment, shown: tuple[Path, str]
) -> None:
    assert invoke("clean", finished.run_dir, cwd=finished.cwd).returncode == 0, (
        "it leaves the last checkpoint"
    )
    done = play_here(finished, "hopper", "--seconds", "0.5", "--checkpoint", "latest")
    assert done.returncode == 0, done.stderr
    job = job_dir(finished, "hopper-s0")
    written = {path.name for pattern in ("video*", "preview*") for path in job.root.glob(pattern)}
    assert written == {"preview.png", "video-512.mp4", "preview-512.png"}, (
        "preview.png is that of the evaluation"
    )
    assert pixels(job.root / "video-512.mp4") == pixels(shown[0] / "video.mp4")


def test_the_same_seed_shows_the_same_episodes_and_another_one_others(
    finished_once: Experiment,
) -> None:
    job = job_dir(finished_once, "hopper-s0")
    spec = dataclasses.replace(WorkerSpec.from_json(job.spec.read_text()), n_envs=1)

    def starts(seed: int) -> list[bytes]:
        scene = scenes.open_scene(spec, job, seed)
        states = []
        for _ in range(2):
            scene.venv.reset()
            pose = scene.content()
            assert isinstance(pose, Pose)
            states.append(pose.state.tobytes())
        return states

    assert starts(0) == starts(0)
    assert not {*starts(0)} & {*starts(1)}


@pytest.mark.usefixtures("opengl")
@pytest.mark.slow
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


def pixels(video: Path) -> bytes:
    return b"".join(picture.tobytes() for picture in frames(video)[0])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("nobody",), "nobody: no such job; jobs here: "),
        (
            ("hopper", "--checkpoint", "5"),
            "hopper-s0 has no checkpoint at 5 env_steps; existing checkpoints: 384, 512",
        ),
        (("hopper", "--seconds", "0"), "--seconds"),
        (("hopper", "--all"), "name a job, or give --all"),
        ((), "name a job, or give --all"),
        (
            ("--all", "--checkpoint", "latest"),
            "--all shows the trained policies of all robots; leave out --checkpoint",
        ),
    ],
)
def test_what_cannot_be_played_is_told(
    finished_once: Experiment, arguments: tuple[str, ...], expected: str
) -> None:
    done = play_here(finished_once, *arguments)
    assert done.returncode == 2
    assert expected in done.stderr


def test_a_checkpoint_of_another_robot_and_a_file_that_is_none_are_told_apart(
    finished_once: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offscreen, "choose_gl", lambda: "none")
    hopper, balancer = (job_dir(finished_once, f"{name}-s0") for name in ("hopper", "balancer"))
    for file, why in (
        (
            balancer.checkpoints / "checkpoint-000000000512.pt",
            "belongs to another job: its network has other shapes",
        ),
        (finished_once.jobs, "is damaged or not a checkpoint"),
    ):
        asked = worker_play._parser().parse_args([str(hopper.root), f"--checkpoint={file}"])
        with pytest.raises(trained_policy.PolicyError, match=f"{re.escape(str(file))} {why}"):
            worker_play.play(asked)


def test_a_checkpoint_that_training_removes_after_it_was_chosen_still_plays(
    finished: Experiment,
) -> None:
    job = job_dir(finished, "hopper-s0")
    file = job.checkpoints / "checkpoint-000000000384.pt"
    content = file.read_bytes()
    for asked in ("384", str(file)):
        chosen = trained_policy.read_checkpoint(job, asked)
        assert chosen is not None
        assert (chosen.content, chosen.label) == (content, "384")
    shutil.rmtree(job.checkpoints)
    os.mkfifo(finished.cwd / "pipe.pt")
    for asked, why in (
        ("latest", "hopper-s0 has no checkpoint; .*none so far"),
        (
            str(finished.cwd / "pipe.pt"),
            "pipe.pt: is not a regular file; expected a file, latest or",
        ),
        ("gone.pt", "checkpoint gone.pt: no such file; expected a file, latest or the env_steps"),
    ):
        with pytest.raises(trained_policy.PolicyError, match=why):
            trained_policy.read_checkpoint(job, asked)


def test_ctrl_c_ends_the_player_with_the_command(finished_once: Experiment) -> None:
    played = commands.command(
        "play", finished_once.run_dir, "hopper", "--seconds", "600", "--output", "never"
    )
    with commands.start(played, cwd=finished_once.cwd, env=environment(**NO_DISPLAY)) as popen:
        [player] = wait_until(lambda: players_of(popen.pid), "there is a player")
        popen.send_signal(signal.SIGINT)
        _, said = popen.communicate(timeout=commands.PATIENCE_S)
    assert (popen.returncode, said) == (130, "stopped\n")
    wait_until(lambda: not is_running(player), "the player ends with its command")


def test_a_job_without_a_policy_says_so_and_what_could_be_played(finished: Experiment) -> None:
    job_dir(finished, "hopper-s0").model.unlink()
    done = play_here(finished, "hopper")
    assert done.returncode == 2
    assert "hopper-s0 has no model.zip" in done.stderr
    assert "--checkpoint latest" in done.stderr
    assert "env_steps: 384, 512" in done.stderr


# -- without a screen


def test_without_opengl_play_says_what_to_do_and_nothing_else_breaks(finished: Experiment) -> None:
    done = play_here(finished, "hopper", MUJOCO_GL="off")
    assert done.returncode == 1
    assert "MUJOCO_GL does not work here (off: " in done.stderr
    with mock.patch.dict(os.environ, MUJOCO_GL="off"):
        assert invoke("status", finished.run_dir, cwd=finished.cwd).returncode == 0


def test_every_library_that_was_tried_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MUJOCO_GL", "")
    monkeypatch.setattr(offscreen, "GL_LIBRARIES", ("off", "nonsense"))
    with pytest.raises(offscreen.CannotRender) as caught:
        offscreen.choose_gl()
    for expected in (
        "off: AttributeError",
        "nonsense: RuntimeError",
        "libegl1",
        "libosmesa6",
        "Training",
    ):
        assert expected in str(caught.value)


def test_a_display_that_cannot_be_used_is_told_and_pictures_are_made_instead(
    finished: Experiment,
) -> None:
    done = play(finished, "hopper", DISPLAY=":4711", MUJOCO_GL="off")
    assert "display :4711 cannot be used" in done.stdout
    assert "writing video and film strip instead" in done.stdout
    assert "cannot render pictures" in done.stderr  # so it went on to them


@pytest.mark.skipif(shutil.which("Xvfb") is None, reason="needs Xvfb, a display without a screen")
@pytest.mark.slow
def test_with_a_display_a_window_opens_and_ends_when_the_time_is_over(finished: Experiment) -> None:
    reader, writer = os.pipe()
    with subprocess.Popen(
        ["Xvfb", "-displayfd", str(writer)],
        pass_fds=[writer],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as screen:
        os.close(writer)
        try:
            with open(reader) as file:  # noqa: PTH123 - a descriptor
                display = f":{int(file.readline())}"
            done = play(finished, "hopper", "--seconds", "0.3", DISPLAY=display)
        finally:
            screen.kill()
    assert done.returncode == 0, done.stderr
    assert "playing; close the window to end" in done.stdout
    assert not job_dir(finished, "hopper-s0").video.exists()


# -- after a run


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
        "video": True,
    }
    return trained_and_filmed(cwd, *FILMED, robot)


@pytest.mark.slow
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
        assert size(job.preview)[1] == video_encoding.STRIP_HEIGHT
        assert not list(job.root.glob(".*"))  # nothing half written


@pytest.mark.slow
def test_a_video_that_fails_is_a_warning_and_changes_nothing_else(filmed: Filmed) -> None:
    experiment, events = filmed
    [warning] = [
        event
        for event in events
        if event["event"] == "warning" and event.get("job_id") == "blind-s0"
    ]
    assert "odd:make cannot render itself" in warning["message"]
    assert {row["state"] for row in commands.summary(experiment.run_dir).values()} == {"SUCCEEDED"}


@pytest.mark.slow
def test_the_same_command_makes_what_is_missing_or_old_and_trains_nothing(
    robot_filmed: Filmed, tmp_path: Path
) -> None:
    refilmed = copied(robot_filmed[0], tmp_path / "again")
    hopper, own = (job_dir(refilmed, job_id) for job_id in ("hopper-s0", "own-s0"))
    own.preview.unlink()
    before = hopper.video.stat().st_mtime_ns
    with commands.Run(refilmed.jobs, "--run-dir", "run", cwd=refilmed.cwd) as run:
        assert run.end() == 0, run.stderr
    assert [event["job_id"] for event in run.events if event["event"] == "pictured"] == ["own-s0"]
    assert "launched" not in [event["event"] for event in run.events]
    assert own.preview.exists()
    assert hopper.video.stat().st_mtime_ns == before
    assert not videos.is_due(hopper)
    os.utime(hopper.model)
    assert videos.is_due(hopper)


def test_video_does_not_belong_to_what_decides_a_training() -> None:
    plain = make_spec("a-s0")
    values = json.loads(plain.to_json())
    assert (
        WorkerSpec.from_json(json.dumps(values | {"video": True})).fingerprint()
        == plain.fingerprint()
    )
    del values["video"]  # as written by earlier versions
    assert WorkerSpec.from_json(json.dumps(values)) == plain


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


def players_of(pid: int) -> list[int]:
    """Children of ``pid`` that play a policy."""
    players = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if b"orchestrator.worker.rendering.play" in Path(f"/proc/{child}/cmdline").read_bytes():
                players.append(int(child))
    return players


@pytest.mark.slow
def test_ctrl_c_ends_videos_under_way_and_leaves_the_results(drawing: commands.Run) -> None:
    [player] = players_of(drawing.popen.pid)
    drawing.signal(signal.SIGINT)
    assert drawing.end() == 0  # every job has succeeded
    assert any("before 1 video could be made" in event["message"] for event in drawing.events), (
        drawing.events
    )
    assert not is_running(player)


@pytest.mark.slow
def test_a_stop_from_elsewhere_ends_videos_too(drawing: commands.Run) -> None:
    assert invoke("stop", "run", cwd=drawing.cwd).returncode == 0
    assert drawing.end() == 0
    assert any("before 1 video could be made" in event["message"] for event in drawing.events), (
        drawing.events
    )


@pytest.mark.slow
def test_no_player_outlives_a_supervisor_that_is_killed(drawing: commands.Run) -> None:
    [player] = players_of(drawing.popen.pid)
    drawing.popen.kill()
    wait_until(lambda: not is_running(player), "the player ends with its supervisor")


@pytest.mark.parametrize(
    ("limit_s", "why"), [(0.0, "took more than 0 s"), (600.0, "spec.json: No such file")]
)
def test_a_player_that_fails_or_takes_too_long_is_a_warning_and_the_next_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit_s: float, why: str
) -> None:
    monkeypatch.setattr(videos, "TIME_LIMIT_S", limit_s)
    names = {"a-s0": True, "b-s0": True, "failed-s0": True, "not-asked-s0": False}
    jobs = [make_job(job_id, spec={"video": video}) for job_id, video in names.items()]
    paths, told = RunPaths(tmp_path), RecordingReporter()
    for job in jobs:
        paths.job(job.job_id).root.mkdir(parents=True)
        paths.job(job.job_id).model.touch()
    failed = Failed(cause=Cause.ERROR, message="")
    states: dict[str, State] = {
        name: failed if name == "failed-s0" else Succeeded() for name in names
    }
    [cpu, *_] = os.sched_getaffinity(0)
    machine = dataclasses.replace(
        make_machine(1), cpus=(Cpu(index=cpu, core=0, package=0, numa_node=0),)
    )
    videos.make_missing(
        paths,
        [name for name in names if names[name]],
        states,
        SlotPool(machine),
        told,
        lambda: False,
    )
    assert told.kinds() == ["pictures", "warning", "warning"]
    assert [facts.get("job_id") for _, _, facts in told.events] == [None, "a-s0", "b-s0"]
    assert told.messages().count(why) == 2


# -- other environments


@pytest.mark.slow
def test_gymnasiums_mujoco_environments_are_drawn_by_us(tmp_path: Path, opengl: None) -> None:
    jobs = write_experiment(tmp_path, {"name": "swimmer", "env": "Swimmer-v5"})
    assert invoke("run", jobs, "--run-dir", "run", cwd=tmp_path).returncode == 0
    swimmer = Experiment(tmp_path, jobs, tmp_path / "run")
    assert not job_dir(swimmer, "swimmer-s0").preview.exists()  # the job did not ask for a video
    done = play_here(swimmer, "swimmer", "--seconds", "0.2")
    assert done.returncode == 0, done.stderr
    shown, rate = frames(job_dir(swimmer, "swimmer-s0").video)
    assert len(shown) / rate == pytest.approx(0.2, abs=1 / float(rate))


@pytest.mark.slow
def test_an_environment_that_draws_itself_is_asked_to(filmed: Filmed) -> None:
    shown, rate = frames(job_dir(filmed[0], "own-s0").video)
    assert (len(shown), rate) == (300, 30)
    assert {picture.shape for picture in shown} == {(32, 46, 3)}  # H.264 takes even sizes only
    assert abs(int(shown[0].mean()) - 200) < 5
