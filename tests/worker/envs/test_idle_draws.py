"""Frictions that are drawn and that no contact has are told before the launch."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from orchestrator.core.messages import ExaminationRequest
from orchestrator.worker.envs.model_loading import load_model
from orchestrator.worker.envs.randomization.randomized_fields import (
    randomized_keys,
)
from orchestrator.worker.robots.idle_draws import draws_without_effect, frictions_without_effect
from orchestrator.worker.robots.preflight_child import check

MJCF = Path(__file__).parents[3] / "mjcf"
QUADRUPED = MJCF / "quadruped.xml"


def warnings(
    randomize: dict[str, Any], evaluate: dict[str, Any] | None = None, xml: Path = QUADRUPED
) -> list[str]:
    return list(draws_without_effect(xml, load_model(xml), randomize, evaluate or {}))


BALL = '<geom name="{0}" size="0.1" friction="{1} 0.005 0.0001" {2}/>'.format


def touching(folder: Path, drawn: str, others: str, contact: str = "") -> Path:
    """A robot all of whose geoms lie in one place, so that whatever may touch does."""
    path = folder / "robot.xml"
    path.write_text(f"""<mujoco><worldbody>
        <body name="drawn"><freejoint/>{drawn}</body>
        <body name="other"><freejoint/>{others}</body></worldbody>
        <contact>{contact}</contact></mujoco>""")
    return path


FLOOR = "geom.floor.friction"


@pytest.mark.parametrize(
    "randomize",
    [
        {FLOOR: "uniform(1, 2)"},
        {FLOOR: "scale(1, 2)"},
        {"geom.*.friction": "uniform(0.4, 1.2)"},
        {"geom.*.friction": "scale(0.4, 0.9)"},
        {"body.trunk.mass": "scale(0.9, 1.1)"},
        {},
    ],
)
def test_draws_that_count_are_not_told(randomize: dict[str, Any]) -> None:
    assert warnings(randomize) == []


@pytest.mark.parametrize(
    ("randomize", "told"),
    [
        ({FLOOR: "uniform(0.4, 0.8)"}, "whose friction is larger, and counts"),
        ({FLOOR: "scale(0.5, 0.9)"}, "whose friction is larger, and counts"),
        ({FLOOR: "uniform(0.4, 1.2)"}, "at frictions from 0.4 to 1: the larger one"),
        ({f"{FLOOR}[2]": "scale(2, 3)"}, "condim without this friction"),
    ],
)
def test_a_floor_with_less_friction_than_what_it_touches_is_told(
    randomize: dict[str, Any], told: str
) -> None:
    (warning,) = warnings(randomize)
    assert warning.startswith(f"randomize.{next(iter(randomize))} has no effect")
    assert told in warning
    if "contacts with" in warning:
        assert 'draw both by one key, such as "geom.*.friction"' in warning


def test_the_examination_before_the_launch_tells_it() -> None:
    request = ExaminationRequest(
        xml=str(QUADRUPED), task="auto", randomize={FLOOR: "uniform(0.4, 0.8)"}, simulate_s=0.02
    )
    answer = check(request)
    assert answer.problem is None
    assert any("has no effect on contacts with" in one for one in answer.warnings)


def frictions(model: mujoco.MjModel, friction: float) -> list[list[float]]:
    """Of every contact that there is, with this friction of the geom ``drawn``."""
    model.geom("drawn").friction[0] = friction
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    found = zip(data.contact.dim.tolist(), data.contact.friction.tolist(), strict=True)
    return [numbers[: max(0, dim - 1)] for dim, numbers in found]


@pytest.mark.parametrize("ends", [(0.4, 0.8), (0.4, 1.2), (1.1, 1.5)])
@pytest.mark.parametrize(
    ("of_drawn", "of_other", "contact"),
    [
        ("", "", ""),
        ('priority="1"', "", ""),
        ("", 'priority="1"', ""),
        ('condim="1"', 'condim="1"', ""),
        ('condim="1"', "", ""),
        ('condim="1" priority="1"', 'condim="6"', ""),
        ("", 'contype="0" conaffinity="0"', ""),
        ("", "", '<exclude body1="drawn" body2="other"/>'),
        ("", "", '<pair geom1="other" geom2="drawn"/>'),
    ],
)
def test_what_is_told_is_what_mujoco_does(
    tmp_path: Path, of_drawn: str, of_other: str, contact: str, ends: tuple[float, float]
) -> None:
    xml = touching(tmp_path, BALL("drawn", 1, of_drawn), BALL("other", 1, of_other), contact)
    model = load_model(xml)
    low, high = ends
    keys = randomized_keys(xml, model, {"geom.drawn.friction": f"uniform({low}, {high})"})
    told = list(frictions_without_effect(model, keys))
    at = [frictions(load_model(xml), friction) for friction in (low, (low + high) / 2, high)]
    differs = [not np.array_equal(one, other) for one, other in itertools.pairwise(at)]
    assert bool(told) == (not all(differs)), (told, at)
    if told:
        (warning,) = told
        assert ("at frictions from" in warning) == any(differs)
        assert ("<pair>" in warning) == contact.startswith("<pair")
