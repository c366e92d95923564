"""The video of all robots: who is in it, and what it shows. The videos of single robots are made by the test."""

from __future__ import annotations

import io
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest
from PIL import Image

from orchestrator.core.paths import RunPaths
from orchestrator.executors.process import end_group
from orchestrator.experiment import mosaic
from orchestrator.experiment.mosaic import PlayedRobot
from orchestrator.experiment.policy_process import PlayRequest, PolicyProcess
from orchestrator.experiment.video_file import encoded, frames, video_as_gif

COLOURS = {"red": (200, 0, 0), "green": (0, 200, 0), "blue": (0, 0, 200)}


def film(path: Path, colour: str, pictures: int) -> Path:
    path.write_bytes(encoded([Image.new("RGB", (64, 48), COLOURS[colour])] * pictures, mosaic.FPS))
    return path


def test_robots_stand_side_by_side_and_one_that_is_over_stands_still(tmp_path: Path) -> None:
    lengths = {"red": 6, "green": 3, "blue": 6}
    robots = [
        PlayedRobot(name=name, episode_return=1234.5, video=film(tmp_path / f"{name}.mp4", name, pictures))
        for name, pictures in lengths.items()
    ]
    assert robots[0].label == "red   1,234"
    shown = [np.asarray(picture) for picture in mosaic.pictures(robots)]
    assert [picture.shape for picture in shown] == [(720, 960, 3)] * 6
    places = {"red": (300, 240), "green": (300, 720), "blue": (660, 240)}
    for picture in (shown[0], shown[-1]):
        for name, (row, column) in places.items():
            assert np.abs(picture[row, column].astype(int) - COLOURS[name]).max() < 20
        assert (picture[660, 720] == 255).all(), "nobody is there"
    assert np.ptp(shown[0][:40, :200]) > 200, "its name is written on it"


def test_a_gif_lasts_as_long_as_the_video(tmp_path: Path) -> None:
    content = video_as_gif(film(tmp_path / "a.mp4", "red", 30), width=32, fps=10)
    with Image.open(io.BytesIO(content)) as image:
        assert (image.size, image.info["loop"]) == ((32, 24), 0)
        image.seek(image.n_frames - 1)  # type: ignore[attr-defined]
    with pytest.raises(OSError, match=r"a\.gif"):
        next(frames(tmp_path / "a.gif", 10))


def test_of_the_seeds_of_a_robot_the_best_with_a_policy_is_shown(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)

    def row(job_id: str, seed: int, value: float | None, *, has_policy: bool = True) -> dict[str, object]:
        paths.job(job_id).root.mkdir(parents=True)
        if has_policy:
            paths.job(job_id).model.touch()
        return {"name": job_id[0], "job_id": job_id, "seed": seed, "eval_mean": value, "ep_rew_mean": None}

    rows = [row("a-s0", 0, 1.0), row("a-s1", 1, 2.0), row("a-s2", 2, 3.0, has_policy=False), row("b-s0", 0, None)]
    assert [one["job_id"] for one in mosaic._chosen(rows, paths)] == ["a-s1", "b-s0"]


class SleepingPlayer(PolicyProcess):
    """A player that never ends by itself."""

    def __init__(self, *_: object, **__: object) -> None:
        self._popen = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        self.pid = self._popen.pid
        PLAYERS.append(self)

    def end(self) -> tuple[int, str]:
        return end_group(self._popen), "killed"


PLAYERS: list[SleepingPlayer] = []


def test_an_interrupt_ends_the_players_and_robots_without_a_policy_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: ThreadPoolExecutor, function: Callable[[Any], object], rows: Sequence[Any]) -> NoReturn:
        for row in rows:
            self.submit(function, row)
        while not PLAYERS:
            time.sleep(0.01)
        raise KeyboardInterrupt

    paths, reports = RunPaths(tmp_path), list[str]()
    paths.job("a-s0").root.mkdir(parents=True)
    paths.job("a-s0").model.touch()
    rows = [{"name": id_, "job_id": f"{id_}-s0", "seed": 0, "eval_mean": None, "ep_rew_mean": None} for id_ in "ab"]
    monkeypatch.setattr(mosaic.control, "status", lambda run_dir: SimpleNamespace(rows=rows, paths=paths))
    monkeypatch.setattr(mosaic, "PolicyProcess", SleepingPlayer)
    monkeypatch.setattr(ThreadPoolExecutor, "map", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mosaic.make(tmp_path, PlayRequest(), as_gif=False, report=reports.append)
    assert [player._popen.returncode for player in PLAYERS] == [-signal.SIGKILL]
    assert reports == ["left out, as they have no model.zip yet: b"]
