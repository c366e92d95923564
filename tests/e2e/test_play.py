"""The ``play`` command: real trainings, real rendering, pixels looked at."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import command_helpers as commands
import numpy as np
import pytest
from command_helpers import (
    Experiment,
    environment,
    give,
    invoke,
    wait_until,
    write_experiment,
)
from play_helpers import NO_DISPLAY, frames, job_dir, play_here, players_of
from supervisor_helpers import make_spec

from orchestrator.core.processes.procfs import is_running
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.envs.poses import Pose
from orchestrator.worker.rendering import scenes


def play(
    experiment: Experiment, *arguments: str | Path, **added: str
) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with what the player writes to its standard output."""
    return give("play", experiment.run_dir, *arguments, cwd=experiment.cwd, **NO_DISPLAY | added)


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


@pytest.mark.nightly
def test_play_writes_a_video_in_real_time(
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
    assert not job_dir(finished_once, "hopper-s0").video.exists()  # it went where it was asked to


@pytest.mark.usefixtures("opengl")
@pytest.mark.nightly
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
    assert written == {"preview.png", "video-512.mp4"}
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


def pixels(video: Path) -> bytes:
    return b"".join(picture.tobytes() for picture in frames(video)[0])


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("nobody",), "nobody: no such job; jobs here: "),
        (
            ("hopper", "--checkpoint", "5"),
            "hopper-s0 has no checkpoint 5; expected a file, latest or env_steps; existing checkpoints: 384, 512",
        ),
        (("hopper", "--seconds", "0"), "--seconds"),
        (
            ("hopper", "--xml", "gone.xml"),
            "hopper-s0: xml = gone.xml: expected the file of an MJCF",
        ),
        (("--all", "--xml", "any.xml"), "leave out --checkpoint, --policy, --xml"),
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


@pytest.mark.nightly
def test_a_policy_is_shown_with_the_robot_of_another_file(
    shown: tuple[Path, str], finished_once: Experiment, tmp_path: Path
) -> None:
    own = commands.HOPPER.read_text()
    lean = own.replace('density="900"', 'density="300"')
    assert lean != own
    videos = {}
    for name, text in (("same", own), ("lean", lean)):
        (tmp_path / f"{name}.xml").write_text(text)
        arguments = ("--seconds", "0.5", "--xml", tmp_path / f"{name}.xml")
        done = play_here(finished_once, "hopper", *arguments, "--output", tmp_path / name)
        assert done.returncode == 0, done.stderr
        videos[name] = pixels(tmp_path / name / "video.mp4")
    assert videos["same"] == pixels(shown[0] / "video.mp4")
    assert videos["lean"] != videos["same"]
    done = play_here(finished_once, "hopper", "--xml", commands.BALANCER)
    assert done.returncode == 2
    assert "expected the robot of the job" in done.stderr


@pytest.mark.usefixtures("opengl")
@pytest.mark.nightly
def test_the_nominal_robot_is_shown_as_if_the_job_drew_nothing(tmp_path: Path) -> None:
    hopper = {
        "name": "hopper",
        "xml": commands.HOPPER,
        "randomize": {"body.*.mass": "scale(0.3, 0.5)", "start.joints": "uniform(0.2, 0.3)"},
    }
    jobs = write_experiment(tmp_path, hopper)
    assert invoke("run", jobs, "--run-dir", "run", cwd=tmp_path).returncode == 0
    randomized = Experiment(tmp_path, jobs, tmp_path / "run")

    def video(name: str, *arguments: str) -> bytes:
        told = ("--seconds", "0.3", "--output", tmp_path / name)
        done = play_here(randomized, "hopper", *told, *arguments)
        assert done.returncode == 0, done.stderr
        return pixels(tmp_path / name / "video.mp4")

    nominal = video("nominal", "--nominal")
    assert video("drawn") != nominal
    spec = job_dir(randomized, "hopper-s0").spec
    spec.write_text(json.dumps(json.loads(spec.read_text()) | {"randomize": {}}))
    assert video("plain") == nominal


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


# -- without a screen


@pytest.mark.nightly
def test_a_display_that_cannot_be_used_is_told_and_pictures_are_made_instead(
    finished: Experiment,
) -> None:
    done = play(finished, "hopper", DISPLAY=":4711", MUJOCO_GL="off")
    assert "display :4711 cannot be used" in done.stdout
    assert "writing a video instead" in done.stdout
    assert "cannot render pictures" in done.stderr  # so it went on to them


@pytest.mark.skipif(shutil.which("Xvfb") is None, reason="needs Xvfb, a display without a screen")
@pytest.mark.nightly
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


def test_video_does_not_belong_to_what_decides_a_training() -> None:
    plain = make_spec("a-s0")
    values = json.loads(plain.to_json())
    assert (
        WorkerSpec.from_json(json.dumps(values | {"video": True})).fingerprint()
        == plain.fingerprint()
    )


# -- other environments


@pytest.mark.nightly
def test_gymnasiums_mujoco_environments_are_drawn_by_us(tmp_path: Path, opengl: None) -> None:
    jobs = write_experiment(tmp_path, {"name": "swimmer", "env": "Swimmer-v5"})
    assert invoke("run", jobs, "--run-dir", "run", cwd=tmp_path).returncode == 0
    swimmer = Experiment(tmp_path, jobs, tmp_path / "run")
    assert not job_dir(swimmer, "swimmer-s0").preview.exists()  # the job did not ask for a video
    done = play_here(swimmer, "swimmer", "--seconds", "0.2")
    assert done.returncode == 0, done.stderr
    shown, rate = frames(job_dir(swimmer, "swimmer-s0").video)
    assert len(shown) / rate == pytest.approx(0.2, abs=1 / float(rate))
