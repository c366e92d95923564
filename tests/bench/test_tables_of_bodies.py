"""Bodies of the tables, and how they are trained."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest

from benchmarks.bodies import maker, robots, table
from benchmarks.bodies.maker import Part

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("robot", table.SPACES)
def test_a_body_without_changes_is_the_robot(robot: str, tmp_path: Path) -> None:
    params = table.job_file(robot)["jobs"][0]["params"]
    made = mujoco.MjModel.from_xml_path(str(getattr(robots, robot)(params, tmp_path)))
    original = mujoco.MjModel.from_xml_path(str(robots.MJCF / f"{robot}.xml"))
    for name in ("body_mass", "geom_size", "actuator_forcerange", "actuator_gear", "dof_damping"):
        np.testing.assert_allclose(getattr(made, name), getattr(original, name), atol=1e-5)


@pytest.mark.parametrize("robot", table.SPACES)
def test_bodies_at_the_corners_begin_above_the_ground(robot: str, tmp_path: Path) -> None:
    for unit in (0.0, 1.0):
        params = {key: limits.value(unit) for key, limits in table.SPACES[robot].items()}
        model = mujoco.MjModel.from_xml_path(str(getattr(robots, robot)(params, tmp_path)))
        data = mujoco.MjData(model)
        mujoco.mj_forward(model, data)
        assert data.ncon == 0


def test_bodies_are_trained_and_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    content = table.job_file("runner")
    content["defaults"] |= {"total_timesteps": 2048, "seeds": [0, 1], "eval_episodes": 1}
    content["defaults"]["ppo"]["n_steps"] = 128
    monkeypatch.setattr(table, "job_file", lambda _: {**content})
    monkeypatch.setattr(maker, "RUNGS", 2)
    found = maker.make(Part(robot="runner", first=3, bodies=2), tmp_path / "run")
    assert found is not None
    expected = [list(point.values()) for point in table.points("runner", 3, 2)]
    np.testing.assert_allclose(found.points, expected, rtol=1e-6)
    np.testing.assert_array_equal(found.rungs, [1024, 2048])
    assert found.returns.shape == (2, 2, 2)
    assert np.isfinite(found.measure("eval_mean")).all()
    assert (found.measure("energy_j") > 0).all()
    assert (found.measure("mass_kg")[0] != found.measure("mass_kg")[1]).all()
