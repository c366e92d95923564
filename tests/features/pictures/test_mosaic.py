"""The video of all robots: who is in it, and what it shows. The videos of single robots are made by
the test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from orchestrator.core.files.video_file import as_video
from orchestrator.core.paths import RunPaths
from orchestrator.features.pictures import mosaic
from orchestrator.features.pictures.mosaic import PlayedRobot

COLOURS = {"red": (200, 0, 0), "green": (0, 200, 0), "blue": (0, 0, 200)}


def film(path: Path, colour: str, pictures: int) -> Path:
    path.write_bytes(as_video([Image.new("RGB", (64, 48), COLOURS[colour])] * pictures, mosaic.FPS))
    return path


def test_robots_stand_side_by_side_and_one_that_is_over_stands_still(tmp_path: Path) -> None:
    lengths = {"red": 6, "green": 3, "blue": 6}
    robots = [
        PlayedRobot(
            name=name, episode_return=1234.5, video=film(tmp_path / f"{name}.mp4", name, pictures)
        )
        for name, pictures in lengths.items()
    ]
    assert robots[0].shown_return == "1,234"
    shown = [np.asarray(picture) for picture in mosaic.pictures(robots)]
    assert [picture.shape for picture in shown] == [(720, 960, 3)] * 6
    places = {"red": (300, 240), "green": (300, 720), "blue": (660, 240)}
    for picture in (shown[0], shown[-1]):
        for name, (row, column) in places.items():
            assert np.abs(picture[row, column].astype(int) - COLOURS[name]).max() < 20
        assert (picture[660, 720] == 255).all(), "nobody is there"
    assert np.ptp(shown[0][:40, :200]) > 200, "its name is written on it"


def test_of_the_seeds_of_a_robot_the_best_with_a_policy_is_shown(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)

    def row(
        job_id: str, seed: int, value: float | None, *, has_policy: bool = True
    ) -> dict[str, object]:
        paths.job(job_id).root.mkdir(parents=True)
        if has_policy:
            paths.job(job_id).model.touch()
        return {
            "name": job_id[0],
            "job_id": job_id,
            "seed": seed,
            "eval_mean": value,
            "ep_rew_mean": None,
        }

    rows = [
        row("a-s0", 0, 1.0),
        row("a-s1", 1, 2.0),
        row("a-s2", 2, 3.0, has_policy=False),
        row("b-s0", 0, None),
    ]
    assert [one["job_id"] for one in mosaic._best_rows(rows, paths)] == ["a-s1", "b-s0"]
