"""Pictures of robots: all of it is seen, with a camera of ours where the file has none."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import picture_helpers
import pytest
from command_helpers import (
    REPOSITORY,
    finish,
)
from PIL import Image

from orchestrator.worker.rendering import film_strip, offscreen

pytestmark = pytest.mark.nightly

ROBOTS = sorted(REPOSITORY.glob("mjcf/*.xml"))
UNFILMED = ["arm", "hopper", "quadruped"]
"""Robots that are also looked at without their own cameras: bolted, planar, free."""
Looks: TypeAlias = dict[str, dict[str, Any]]


def looked_at(files: dict[str, Path]) -> Looks:
    """Where robots are in their pictures, by the names of ``files``."""
    done = finish([sys.executable, picture_helpers.__file__, *files.values()], cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    return dict(zip(files, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[pytest.mark.nightly] * (name != "hopper")) for name in UNFILMED
    ],
)
def looks(
    request: pytest.FixtureRequest, opengl: None, tmp_path_factory: pytest.TempPathFactory
) -> Looks:
    """A robot with its cameras, without them, and with one that looks away."""
    files = {"as it is": REPOSITORY / f"mjcf/{request.param}.xml"}
    plain = re.sub(r"<camera [^>]*/>", "", files["as it is"].read_text())
    assert plain.count("<worldbody>") == 1
    away = '<worldbody><camera mode="trackcom" pos="0 -3 0" xyaxes="-1 0 0 0 0 1"/>'
    folder = tmp_path_factory.mktemp(request.param)
    for kind, text in (
        ("without cameras", plain),
        ("filmed elsewhere", plain.replace("<worldbody>", away)),
    ):
        files[kind] = folder / f"{kind}.xml"
        files[kind].write_text(text)
    return looked_at(files)


def assert_in_frame(look: dict[str, Any]) -> None:
    for moment in look["moments"]:
        assert not moment["touches_border"]
        assert 0.003 < moment["share"] < 0.5


@pytest.mark.nightly
def test_the_whole_robot_is_in_every_picture(looks: Looks) -> None:
    assert_in_frame(looks["as it is"])


@pytest.mark.nightly
@pytest.mark.usefixtures("opengl")
def test_each_of_our_robots_is_in_every_picture() -> None:
    for look in looked_at(
        {robot.stem: robot for robot in ROBOTS if robot.stem not in UNFILMED}
    ).values():
        assert_in_frame(look)


def test_a_goal_is_drawn_where_the_task_has_a_place_for_it(looks: Looks) -> None:
    without, with_goal = looks["as it is"]["green"]
    assert without < 15
    assert with_goal > without + 15


def test_a_strip_shows_the_longest_episode_from_its_first_to_its_last_frame() -> None:
    blank = np.zeros((48, 64, 3), np.uint8)
    episodes = [0] * 3 + [1] * 20 + [2] * 5
    shown = film_strip.strip_indices([offscreen.Frame(episode, 0.0, blank) for episode in episodes])
    assert (shown[0], shown[-1], len(shown)) == (3, 22, film_strip.STRIP_FRAMES)
    assert film_strip.strip_indices([offscreen.Frame(0, 0.0, blank)]) == [0]
    png = film_strip.film_strip([(0.0, blank), (1.5, blank)])
    with Image.open(io.BytesIO(png)) as image:
        assert image.size == (2 * 320 + 4, film_strip.STRIP_HEIGHT)
        assert np.ptp(np.asarray(image)) == 255  # the times are written on it
