"""Real searches among bodies that had no part in the choice of a sampler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from benchmarks import table_of_bodies
from benchmarks.bodies import confirmation, robots
from benchmarks.bodies.confirmation import Arm

pytestmark = pytest.mark.nightly

UNCHANGED = dict.fromkeys(table_of_bodies.job_file("eel")["jobs"][0]["params"], 1.0)
SEEN, ESTIMATED = confirmation.CHOICES
RANDOM_SEEN = Arm(sampler="random", choice=SEEN)
RANDOM_ESTIMATED = Arm(sampler="random", choice=ESTIMATED)
AUTO_SEEN = Arm(sampler="auto", choice=SEEN)
AUTO_ESTIMATED = Arm(sampler="auto", choice=ESTIMATED)


def model(folder: Path, **params: float) -> mujoco.MjModel:
    folder.mkdir()
    return mujoco.MjModel.from_xml_path(str(robots.eel({**UNCHANGED, **params}, folder)))


def test_factors_of_one_are_the_eel_as_it_is(tmp_path: Path) -> None:
    original = mujoco.MjModel.from_xml_path(str(robots.MJCF / "eel.xml"))
    same = model(tmp_path / "same")
    for field in ("body_mass", "body_pos", "geom_size", "jnt_stiffness", "actuator_gear"):
        np.testing.assert_allclose(getattr(same, field), getattr(original, field), rtol=1e-5)


def test_each_factor_changes_what_it_is_named_after(tmp_path: Path) -> None:
    original = model(tmp_path / "original")
    changed = model(tmp_path / "changed", length=1.5, height=1.2, stiffness=3.0, gear=2.0, rear=0.5)
    tail = original.body("tail").id
    assert changed.body_pos[tail][0] == pytest.approx(1.5 * original.body_pos[tail][0])
    head = original.geom("head").id
    sizes = changed.geom_size[head] / original.geom_size[head]
    np.testing.assert_allclose(sizes, [1.5, 1.0, 1.2])
    assert changed.joint("bend_1").stiffness == pytest.approx(
        3 * original.joint("bend_1").stiffness
    )
    gears = changed.actuator_gear[:, 0] / original.actuator_gear[:, 0]
    np.testing.assert_allclose(gears, 2 * 0.5 ** np.linspace(0, 1, 6), rtol=1e-5)
    fin = original.geom("fin").id
    longer = model(tmp_path / "longer", fin=2.0)
    np.testing.assert_allclose(longer.geom_size[fin] / original.geom_size[fin], [2.0, 1.0, 2.0])


def test_the_question_is_met_by_better_bodies_only() -> None:
    """Ten against ten that are all worse: of 184,756 assignments two are as far apart."""
    low = [float(value) for value in range(10)]
    high = [value + 20 for value in low]
    worth = {RANDOM_SEEN: low, RANDOM_ESTIMATED: low, AUTO_SEEN: low, AUTO_ESTIMATED: high}
    *_, question, seen, estimated = confirmation.lines(10, worth)
    assert question.good
    assert question.values[0] == pytest.approx(2 / 184_756)
    assert question.measured.startswith("p < 0.001, +6.61 (")
    assert (seen.values[0], seen.target) == (1.0, "")
    assert estimated.target == ""
    worse = {**worth, RANDOM_SEEN: high, AUTO_ESTIMATED: low}
    assert not confirmation.lines(10, worse)[4].good
    assert len(confirmation.lines(1, {arm: [1.0] for arm in worth})) == 4


def test_bodies_are_chosen_in_two_ways_and_trained_again_with_fresh_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content: dict[str, Any] = dict(table_of_bodies.job_file("eel"))
    content["defaults"] |= {"total_timesteps": 512, "eval_episodes": 1}
    content["defaults"] |= {"task_options": {"max_episode_steps": 32}}
    content["defaults"]["ppo"] |= {"n_steps": 64}
    content["search"] |= {"trials": 8}
    monkeypatch.setattr(table_of_bodies, "job_file", lambda _: content)
    monkeypatch.setattr(confirmation, "FRESH_SEEDS", (1_000, 1_001))
    lines = confirmation.confirmation(2, run_dir=tmp_path)
    assert [len(line.values) for line in lines] == [2, 2, 2, 2, 4, 4, 4]
    assert {path.name for path in tmp_path.iterdir()} == {
        *("random-000", "auto-000", "random-001", "auto-001", "chosen")
    }
    jobs = [path.name for path in (tmp_path / "chosen" / "jobs").iterdir()]
    assert len(jobs) == 2 * 2 * 2 * 2
    again = confirmation.confirmation(2, run_dir=tmp_path)
    assert [line.values for line in again] == [line.values for line in lines]
