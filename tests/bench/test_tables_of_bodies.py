"""Tables of bodies: points, bodies and files that a comparison of searches rests on."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from benchmarks import table_of_bodies
from benchmarks.bodies import __main__ as bodies_command
from benchmarks.bodies import maker, robots
from benchmarks.bodies.maker import Part
from benchmarks.bodies.sobol_from import SobolFrom
from benchmarks.table_of_bodies import MEASURES, RUNG_MEASURES, Table
from orchestrator.features.search.declaration.spec import SearchSpec
from orchestrator.features.search.search_source import SearchSource
from orchestrator.features.search.searcher.simple_samplers import SobolSampler
from orchestrator.features.search.searcher.space import Space
from orchestrator.machine import topology

pytestmark = pytest.mark.nightly


def search_of(robot: str) -> SearchSpec:
    part = Part(robot=robot, first=5, bodies=4, run_dir=Path())
    source = maker.experiment_of(part).job_source
    assert isinstance(source, SearchSource)
    return source.search


@pytest.mark.parametrize("robot", table_of_bodies.ROBOTS)
def test_later_parts_go_on_with_the_points_of_one_search(robot: str) -> None:
    spec = search_of(robot)
    assert spec.sampler_options == {"first": 5}
    assert spec.trials == 4
    space = Space(spec.space)
    later = SobolFrom(space=space, seed=spec.seed, directions=spec.directions, first=5)
    whole = SobolSampler(spec)
    assert [later.ask(number) for number in range(3)] == [whole.ask(5 + n) for n in range(3)]


@pytest.mark.parametrize("robot", table_of_bodies.ROBOTS)
def test_a_body_without_changes_is_the_robot(robot: str, tmp_path: Path) -> None:
    params = table_of_bodies.job_file(robot)["jobs"][0]["params"]
    made = mujoco.MjModel.from_xml_path(str(getattr(robots, robot)(params, tmp_path)))
    original = mujoco.MjModel.from_xml_path(str(robots.MJCF / f"{robot}.xml"))
    for name in ("body_mass", "geom_size", "actuator_forcerange", "actuator_gear", "dof_damping"):
        np.testing.assert_allclose(getattr(made, name), getattr(original, name), atol=1e-5)
    trunk = made.body("trunk").id
    others = [body for body in range(made.nbody) if body != trunk]
    np.testing.assert_allclose(made.body_pos[others], original.body_pos[others], atol=1e-5)
    assert made.body_pos[trunk][2] == pytest.approx(original.body_pos[trunk][2], abs=0.02)


@pytest.mark.parametrize("robot", table_of_bodies.ROBOTS)
def test_bodies_at_the_corners_begin_above_the_ground(robot: str, tmp_path: Path) -> None:
    space = table_of_bodies.job_file(robot)["search"]["space"]
    for bound in ("low", "high"):
        params = {key.removeprefix("params."): limits[bound] for key, limits in space.items()}
        model = mujoco.MjModel.from_xml_path(str(getattr(robots, robot)(params, tmp_path)))
        data = mujoco.MjData(model)
        mujoco.mj_forward(model, data)
        assert data.ncon == 0


def table_of(bodies: int, **changes: Any) -> Table:
    content: dict[str, Any] = {
        "keys": ("params.a", "params.b"),
        "points": np.full((bodies, 2), bodies, np.float32),
        "rungs": np.array([10, 20]),
        "returns": np.full((bodies, 4, 2), bodies, np.float32),
        "measures": np.full((bodies, 4, len(MEASURES)), np.nan, np.float32),
        "rung_measures": np.full((bodies, 4, 2, len(RUNG_MEASURES)), bodies, np.float32),
    }
    return Table(**{**content, **changes})


def test_parts_follow_each_other_and_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "table.npz"
    table_of(2).with_part(2, table_of(3)).save(path)
    found = table_of_bodies.load(path)
    assert found.bodies == 5
    assert found.seeds == 4
    assert found.keys == ("params.a", "params.b")
    np.testing.assert_array_equal(found.points[:, 0], [2, 2, 3, 3, 3])
    np.testing.assert_array_equal(found.returns[:, 3, 1], [2, 2, 3, 3, 3])
    np.testing.assert_array_equal(found.rung_measures[:, 0, 1, 2], [2, 2, 3, 3, 3])
    assert np.isnan(found.measure("eval_mean")).all()


def test_bodies_that_are_trained_again_take_the_place_of_the_earlier_ones() -> None:
    found = table_of(5).with_part(1, table_of(3))
    np.testing.assert_array_equal(found.returns[:, 0, 0], [5, 3, 3, 3, 5])
    beyond = table_of(5).with_part(4, table_of(3))
    np.testing.assert_array_equal(beyond.rung_measures[:, 0, 0, 0], [5, 5, 5, 5, 3, 3, 3])


def test_parts_of_another_job_file_are_refused() -> None:
    with pytest.raises(ValueError, match="same keys and rungs"):
        table_of(2).with_part(2, table_of(2, rungs=np.array([10, 30])))
    with pytest.raises(ValueError, match="same keys and rungs"):
        table_of(2).with_part(2, table_of(2, keys=("params.a", "params.c")))


@pytest.mark.parametrize("code", [1, 130])
def test_a_run_that_does_not_come_to_its_end_adds_nothing(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = maker._ends

    def ends_with_code(_command: object, kill_after_s: float | None) -> bool:
        return ends([sys.executable, "-c", f"raise SystemExit({code})"], kill_after_s)

    monkeypatch.setattr(maker, "_ends", ends_with_code)
    path = tmp_path / "runner.npz"
    table_of(2).save(path)
    before = path.read_bytes()
    monkeypatch.setattr(table_of_bodies, "table_file", lambda _: path)
    monkeypatch.setattr(
        sys, "argv", ["bodies", "make", "runner", "--run-dir", str(tmp_path / "run")]
    )
    assert bodies_command.main() == 1
    assert f"(exit code {code}); the same command goes on" in capsys.readouterr().out
    assert path.read_bytes() == before


def test_shares_of_the_cores_are_of_trainings_of_the_same_command() -> None:
    made = maker.Made(
        wall_s=200.0,
        launching_s=160.0,
        trained_s=160.0,
        kills=0,
        failed=0,
        is_of_one_command=True,
    )
    cores = topology.detect().capacity
    text = bodies_command._duration(made)
    assert f"a training on {0.8 / cores:.3f} of them, {1 / cores:.3f} from" in text
    text = bodies_command._duration(replace(made, is_of_one_command=False))
    assert text == f"in 200 s on {cores} cores, the others by an earlier command"


def test_bodies_are_trained_and_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    content = dict(table_of_bodies.job_file("runner"))
    ppo = {**content["defaults"]["ppo"], "n_steps": 128}
    content["defaults"] = {
        **content["defaults"],
        "ppo": ppo,
        "total_timesteps": 2048,
        "seeds": [0, 1],
        "eval_episodes": 1,
    }
    monkeypatch.setattr(table_of_bodies, "job_file", lambda _: content)
    monkeypatch.setattr(maker, "RUNGS", 2)
    part = Part(robot="runner", first=3, bodies=2, run_dir=tmp_path / "run")
    maker.train(part)
    found = maker.read(part)
    expected = [SobolSampler(search_of("runner")).ask(number) for number in (3, 4)]
    keys = list(content["search"]["space"])
    np.testing.assert_allclose(
        found.points, [[p[key] for key in keys] for p in expected], rtol=1e-6
    )
    np.testing.assert_array_equal(found.rungs, [1024, 2048])
    assert found.returns.shape == (2, 2, 2)
    assert np.isfinite(found.measure("eval_mean")).all()
    assert (found.measure("energy_j") > 0).all()
    assert (found.measure("mass_kg")[0] != found.measure("mass_kg")[1]).all()
