"""Advice on physics: what is offered, what it is measured by, and that a job file takes it as it
is."""

from __future__ import annotations

import copy
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from orchestrator.core.decoding import from_values
from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest, MeasurementRequest
from orchestrator.features.advice import physics_advice
from orchestrator.features.advice.measuring import ADVISOR
from orchestrator.features.advice.physics_advice import PhysicsAdvice, PhysicsChange
from orchestrator.features.advice.worker import (
    collision_census,
    physics_advisor,
    physics_candidates,
    trajectory_deviation,
)
from orchestrator.features.advice.worker.collision_census import CollisionCensus
from orchestrator.features.advice.worker.interleaved_speed import random_actions, state_rows
from orchestrator.features.advice.worker.median_estimates import median_estimate
from orchestrator.features.advice.worker.physics_candidates import PhysicsUse
from orchestrator.features.advice.worker.policy_effects import RANDOM, TRAINED
from orchestrator.features.advice.worker.trajectory_deviation import MotionTest
from orchestrator.worker.envs.model_loading import load_model
from orchestrator.worker.envs.simulation import Simulation
from orchestrator.worker.mjmodel import contacts
from orchestrator.worker.robots.bundle import collect
from orchestrator.worker.robots.model_edits import RobotVariants
from orchestrator.worker.robots.preflight_child import check

ROOT = Path(__file__).parents[3]
ROBOTS = sorted((ROOT / "mjcf").glob("*.xml"))
HOPPER = ROOT / "mjcf" / "hopper.xml"
ROVER = ROOT / "mjcf" / "rover.xml"
LIES = {"terminate_when_unhealthy": False}
"""The crawler's episodes go on when it lies on the floor."""
CRAWLER = """<mujoco><option timestep="0.01" integrator="RK4" cone="elliptic" noslip_iterations="3"/>
<asset><mesh name="rock" vertex="0 0 0  .2 0 0  0 .2 0  0 0 .2"/></asset><worldbody>
<geom name="floor" type="plane" size="9 9 1"/>
<body name="trunk" pos="0 0 0.3"><freejoint/><geom name="trunk" type="mesh" mesh="rock" condim="6"/>
  <site name="nose"/><geom name="look" size="0.05" contype="0" conaffinity="0"/>
  <body name="arm" pos="0.1 0 0"><joint name="arm" axis="0 1 0" range="-90 90"/>
    <geom name="upper" type="capsule" fromto="0 0 0 0.3 0 0" size="0.04"/>
    <body name="hand" pos="0.3 0 0"><joint name="hand" axis="0 1 0" range="-90 90"/>
      <geom name="hand" size="0.06"/></body></body>
  <body name="tail" pos="0.1 0 0"><joint name="tail" axis="0 1 0" {spring}/>
    <geom {tail} pos="0 0 0.3" size="0.04"/><geom name="inside" size="0.045"/></body></body></worldbody>
<actuator><motor joint="arm" ctrlrange="-1 1"/><motor joint="hand" ctrlrange="-1 1"/></actuator>
<sensor><gyro name="gyro" site="nose"/></sensor></mujoco>"""


def crawler(
    folder: Path,
    *,
    tail: str = 'name="tail"',
    spring: str = 'stiffness="9" damping="0.9" armature="0.01"',
) -> Path:
    text = CRAWLER.format(tail=tail, spring=spring)
    (folder / "crawler.xml").write_text(text)
    return folder / "crawler.xml"


def census_of(model: mujoco.MjModel, *, seconds: float = 1.0) -> CollisionCensus:
    data, census = mujoco.MjData(model), CollisionCensus(model)
    for _ in range(round(seconds / model.opt.timestep)):
        mujoco.mj_step(model, data)
        mujoco.mj_forward(model, data)
        census.add(data)
    return census


def advice_on(
    xml: Path,
    *,
    task: str = "forward",
    cpu_s: float = 0.5,
    limit_s: float = 600.0,
    **request: Any,
) -> PhysicsAdvice:
    """Through the examination, as its answer is read by the process that asked."""
    cpu = min(os.sched_getaffinity(0))
    settings = {"cpu_s": cpu_s, "cpu": cpu, "limit_s": limit_s}
    measurement = MeasurementRequest(module=ADVISOR, settings=settings)
    answer = check(
        ExaminationRequest(
            xml=str(xml), task=task, measurement=measurement, simulate_s=0.005, **request
        )
    )
    assert answer.measured, answer.problem
    return from_values(PhysicsAdvice, ExaminationAnswer.from_line(answer.to_line()).measured)


@pytest.mark.nightly
def test_a_urdf_is_measured_as_the_robot_that_is_made_of_it(tmp_path: Path) -> None:
    urdf_helpers = pytest.importorskip("urdf_helpers", reason="there is no feature of URDFs")
    (tmp_path / "r.urdf").write_text(urdf_helpers.GOOD)
    advice = advice_on(
        tmp_path / "r.urdf", task="auto", cpu_s=0.2, robot_settings={"base": "floating"}
    )
    assert advice.changes


def edited_masks(xml: Path, edits: Mapping[str, Any]) -> contacts.Masks:
    with RobotVariants(collect(xml)) as variants:
        return contacts.masks(variants.edited_robot(edits).model)


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [(1, 0, 0), (5, 0, 4), (6, 0, 5), (8, 0, 7), (9, 1, 7), (20, 5, 14), (40, 13, 26)],
)
def test_the_interval_of_a_median_is_that_of_the_binomial_table(
    count: int, low: int, high: int
) -> None:
    estimate = median_estimate(range(count)[::-1])
    assert (estimate.median, estimate.low, estimate.high) == ((count - 1) / 2, low, high)


def test_intervals_cover_the_true_median_as_often_as_promised() -> None:
    rng = np.random.default_rng(0)
    estimates = [median_estimate(rng.exponential(size=11).tolist()) for _ in range(1000)]
    covered = np.mean([(e.low or 0) <= math.log(2) <= (e.high or 0) for e in estimates])
    assert covered > 0.94


def test_a_measurement_without_a_finite_value_has_no_number() -> None:
    estimate = median_estimate([1.0, 2.0, 3.0, math.inf, math.inf, math.inf])
    assert (estimate.median, estimate.low, estimate.high) == (None, 1.0, None)


@pytest.mark.parametrize("xml", ROBOTS, ids=lambda xml: xml.stem)
def test_whatever_touches_was_possible(xml: Path) -> None:
    model = load_model(xml)
    possible = contacts.possible_pairs(model, contacts.masks(model))
    assert census_of(model, seconds=0.5).touching.keys() <= set(possible)


def test_possible_pairs_are_those_that_mujoco_tests() -> None:
    """All geoms lie in one place, so every pair that MuJoCo does not filter touches."""
    ball = '<geom name="{0}" size="0.1" {1}/>'.format
    model = mujoco.MjModel.from_xml_string(f"""<mujoco><worldbody>{ball("fixed", "")}
        <body name="b"><freejoint/>{ball("b", "")}{ball("b2", "")}
          <body name="c"><joint/>{ball("c", "")}<body name="welded">{ball("welded", "")}</body>
            <body name="d"><joint/>{ball("d", 'contype="2" conaffinity="4"')}</body></body></body>
        <body name="e"><freejoint/>{ball("e", 'contype="1" conaffinity="2"')}</body>
        <body name="f"><freejoint/>{ball("f", "")}</body></worldbody>
        <contact><exclude body1="f" body2="b"/></contact></mujoco>""")
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    touching = {tuple(sorted(pair)) for pair in data.contact.geom.tolist()}
    assert set(contacts.possible_pairs(model, contacts.masks(model))) == touching


def test_collisions_that_never_happen_are_taken_away_and_no_other(tmp_path: Path) -> None:
    xml = crawler(tmp_path)
    model = load_model(xml)
    census, now = census_of(model), contacts.masks(model)
    touched = set(census.touching)
    assert touched
    assert census.tested >= touched
    for spare in (collision_census.without_idle_geoms, collision_census.without_self_collisions):
        masks = spare(model, now, touched)
        left = set(contacts.possible_pairs(model, masks))
        assert touched <= left < set(contacts.possible_pairs(model, now))
        edits = collision_census.mask_edits(model, masks)
        assert edits
        assert (edited_masks(xml, edits) == masks).all()


def test_a_geom_without_a_name_is_reached_by_a_pattern_or_not_at_all(tmp_path: Path) -> None:
    model = load_model(crawler(tmp_path, tail=""))
    now = contacts.masks(model)
    unnamed = next(geom for geom in range(model.ngeom) if not model.geom(geom).name)
    alone = now.copy()
    alone[:, unnamed] = 0
    assert collision_census.mask_edits(model, alone) is None
    robot = now.copy()
    robot[1, 1:] = 0
    edits = collision_census.mask_edits(model, robot)
    assert edits == {"geom.*.conaffinity": 0, "geom.floor.conaffinity": 1}
    assert collision_census.mask_edits(model, now) == {}


def test_parts_that_always_touch_are_found_but_not_what_stands_on_the_floor(tmp_path: Path) -> None:
    model = load_model(crawler(tmp_path))
    census = census_of(model)
    assert collision_census.labels(model, census.always_touching()) == ["upper–inside"]
    assert [pair for pair in collision_census.labels(model, census.touching) if "floor" in pair]


def test_a_motion_deviates_from_itself_by_nothing_and_from_a_finer_one_by_less() -> None:
    model = load_model(HOPPER)
    simulation = Simulation.from_xml(HOPPER, "forward", n_envs=4, seed=0)
    simulation.reset()
    state, task = state_rows([simulation.get_state()], [(0, 3), (0, 1)]), simulation.task
    assert (state["physics"] == simulation.get_state()["physics"][[3, 1]]).all()
    actions = random_actions(simulation, np.random.default_rng(0), 10)[:, :2]
    controls = np.stack([task.actions.ctrl(task.actions.taken(one)) for one in actions])
    test = MotionTest(
        starts=state["physics"],
        controls=controls,
        centres=trajectory_deviation.centres(model),
        is_compared=np.ones((10, 2), bool),
    )
    motions = {}
    for divisor in (1, 2, 16):
        finer = copy.copy(model)
        finer.opt.timestep /= divisor
        motions[divisor] = test.motion(finer, divisor * task.frame_skip)
    size_m = trajectory_deviation.size(model, task.pose)
    assert 0.5 < size_m < 3

    def deviation(divisor: int, is_compared: Any = test.is_compared) -> Any:
        return trajectory_deviation.deviations(motions[divisor], motions[16], is_compared, size_m)

    assert (deviation(16) == 0).all()
    assert (deviation(2) < deviation(1)).all()
    assert (deviation(1) < 0.1).all()
    first = test.is_compared.copy()
    first[1:] = False
    assert (deviation(1, first) < deviation(1)).all()
    motions[1][5:, 0] = np.nan
    assert deviation(1)[0] == np.inf
    assert np.isfinite(deviation(1, first)).all()
    motions[16][5:, 1] = np.nan
    assert np.isnan(deviation(2)[1])
    unknown = np.array([np.nan])
    assert trajectory_deviation.estimate(unknown) is None
    assert trajectory_deviation.relative_estimate(unknown, unknown) is None


def test_states_with_the_latest_observations_are_put_together() -> None:
    simulation, two = (
        Simulation.from_xml(HOPPER, "forward", {"history": 2}, n_envs=n_envs, seed=0)
        for n_envs in (4, 2)
    )
    simulation.reset()
    for actions in random_actions(simulation, np.random.default_rng(0), 3):
        observations = simulation.step(actions).observations
    rows = [(0, 3), (0, 1)]
    assert np.array_equal(
        two.set_state(state_rows([simulation.get_state()], rows)), observations[[3, 1]]
    )


@pytest.mark.nightly
def test_a_policy_that_observes_the_latest_steps_together_gets_advice() -> None:
    advice = advice_on(HOPPER, task_options={"observe": "proprioception", "history": 2})
    assert advice.problem is None
    assert advice.deviation is not None
    assert any(change.speedup is not None for change in advice.changes)


def test_only_what_can_apply_is_offered(tmp_path: Path) -> None:
    def offered(xml: Path, **use: Any) -> set[str]:
        model = load_model(xml)
        facts = {
            "most_iterations": 5,
            "reads_sensors": False,
            "frame_skip": 4,
            "disabled": 0,
            **use,
        }
        return {
            c.group
            for c in physics_candidates.candidates(
                model, PhysicsUse(census=census_of(model), **facts)
            )
        }

    everything = offered(crawler(tmp_path))
    assert everything >= {
        "integration",
        "solver",
        "tolerance",
        "cone",
        "condim",
        "meshes",
        "sensors",
        "noslip",
    }
    assert "sensors" not in offered(crawler(tmp_path), reads_sensors=True)
    hopper = offered(HOPPER, most_iterations=0)
    assert not hopper & {"solver", "meshes", "condim", "sensors", "noslip", "static", "energy"}


@pytest.mark.parametrize("frame_skip", [1, 2, 5, 8])
def test_a_longer_timestep_keeps_the_control_period(frame_skip: int) -> None:
    model = load_model(HOPPER)
    use = PhysicsUse(
        census=CollisionCensus(model),
        most_iterations=0,
        reads_sensors=False,
        frame_skip=frame_skip,
        disabled=0,
    )
    for candidate in physics_candidates.candidates(model, use):
        if candidate.frame_skip is not None:
            period = candidate.frame_skip * candidate.edits["option.timestep"]
            assert period == pytest.approx(frame_skip * model.opt.timestep, rel=1e-4)
            assert 0 < candidate.frame_skip < frame_skip


@pytest.mark.nightly
def test_every_change_of_a_robot_with_everything_is_measured(tmp_path: Path) -> None:
    advice = advice_on(crawler(tmp_path), task_options=LIES)
    assert (advice.problem, advice.env_steps_per_s > 0 if advice.env_steps_per_s else False) == (
        None,
        True,
    )
    measured = {change.name: change for change in advice.changes if change.speedup is not None}
    names = {
        "integrator implicitfast",
        "cone pyramidal",
        "condim 3",
        "noslip_iterations 0",
        "box in place of mesh",
    }
    assert names | {"sensors off", "capsule in place of mesh", "timestep 0.02"} <= measured.keys()
    (excluded,) = (change for change in measured.values() if change.mjcf)
    assert excluded.mjcf == 'add <contact><exclude body1="arm" body2="tail"/></contact>'
    assert not excluded.is_usable
    assert not excluded.is_advised or excluded.effects
    sensors = measured["sensors off"]
    assert sensors.deviation == advice.deviation
    assert sensors.relative is not None
    assert sensors.relative.median == 1
    speeds = [
        change.speedup.median
        for change in measured.values()
        if change.speedup and change.speedup.median
    ]
    assert speeds == sorted(speeds, reverse=True)
    assert advice.contact_pairs[0].rows_share >= advice.contact_pairs[-1].rows_share > 0


@pytest.mark.nightly
def test_the_jobs_own_changes_stay_and_are_part_of_the_original(tmp_path: Path) -> None:
    edits = {
        "option.timestep": 0.02,
        "option.integrator": "implicitfast",
        "option.cone": "pyramidal",
    }
    advice = advice_on(crawler(tmp_path), model_edits=edits, task_options=LIES)
    names = {change.name for change in advice.changes}
    assert "cone elliptic" in names
    assert "integrator implicitfast" not in names
    assert not [name for name in names if name == "timestep 0.02"]


@pytest.mark.nightly
def test_an_option_of_the_task_follows_the_timestep() -> None:
    advice = advice_on(HOPPER, task_options={"frame_skip": 8})
    halved = next(change for change in advice.changes if change.name == "timestep 0.01")
    assert (halved.problem, halved.task_options) == (None, {"frame_skip": 4})


@pytest.mark.nightly
def test_a_change_that_makes_physics_diverge_says_so(tmp_path: Path) -> None:
    spring = 'stiffness="120" armature="0.0001"'  # stable with RK4 and this timestep only
    advice = advice_on(
        crawler(tmp_path, tail='name="tail" mass="0.02"', spring=spring), task_options=LIES
    )
    diverging = [
        change
        for change in advice.changes
        if change.problem and "physics diverges in" in change.problem
    ]
    assert diverging
    assert not any(change.is_usable for change in diverging)


@pytest.mark.nightly
def test_what_was_measured_is_told_when_there_is_no_more_time() -> None:
    advice = advice_on(HOPPER, limit_s=0.0)
    assert (advice.problem, list(advice.changes)) == (None, [])
    assert "timestep 0.01" in advice.unmeasured
    assert advice.deviation is not None


@pytest.mark.nightly
def test_only_what_policies_do_not_notice_is_offered() -> None:
    advice = advice_on(HOPPER, cpu_s=6.0)
    played = [change for change in advice.changes if change.effects]
    for change in played:
        assert [effect.policy for effect in change.effects] == [RANDOM, TRAINED]
        assert not change.is_offered or all(effect.is_small for effect in change.effects)
    assert [change for change in advice.changes if change.is_offered and change not in played] == []
    refused = [change for change in advice.changes if change.is_faster and change.objection]
    assert any(change.name == "timestep 0.02" for change in refused), "four times as long"


def faster_usable_changes(advice: PhysicsAdvice) -> list[PhysicsChange]:
    found = [change for change in advice.changes if change.is_faster and change.is_usable]
    assert found
    return found


def motion_is_no_objection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Policies judge all changes then, whichever are measured to be faster."""
    for limit in ("NO_WORSE", "CERTAINLY_NO_WORSE"):
        monkeypatch.setattr(physics_advice, limit, math.inf)


@pytest.mark.nightly
def test_nothing_is_offered_that_there_was_no_time_to_play(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_time(*_: object, **__: object) -> physics_advisor.NotPlayed:
        return physics_advisor.NO_TIME

    monkeypatch.setattr(physics_advisor._Advisor, "_policy_effects", no_time)
    advice = advice_on(HOPPER, cpu_s=6.0)
    faster = faster_usable_changes(advice)
    assert all(change.objection for change in faster)
    without_time = [change for change in faster if change.objection == physics_advisor.NO_TIME.why]
    assert {change.name for change in without_time} == set(advice.unmeasured)


@pytest.mark.nightly
def test_episodes_that_are_cut_off_early_judge_no_other_motion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(physics_advisor, "PLAYING_SHARE", 0.0001)
    monkeypatch.setattr(physics_advisor, "LEAST_PLAYED_STEPS", 20)
    motion_is_no_objection(monkeypatch)
    advice = advice_on(ROVER, cpu_s=6.0)
    assert advice.played_steps == physics_advisor.LEAST_PLAYED_STEPS
    for change in faster_usable_changes(advice):
        assert not change.is_offered or change.deviation == advice.deviation
    cut_off = [change for change in advice.changes if "--time" in (change.objection or "")]
    assert cut_off
    assert all(change.effects for change in cut_off)


@pytest.mark.parametrize("enough_s", [0.2, 3599.5, 3600.5, 1e6])
def test_no_time_is_proposed_that_the_option_does_not_take(enough_s: float) -> None:
    proposed = re.findall(r"--time (\d+)", physics_advisor._longer(enough_s))
    assert [int(time_s) <= physics_advice.MOST_CPU_S for time_s in proposed] == (
        [True] if enough_s < physics_advice.MOST_CPU_S else []
    )


@pytest.mark.nightly
@pytest.mark.parametrize("where", ["ShortTrainedPolicy", "PolicyEffects.on"])
def test_an_error_while_policies_are_played_loses_no_measurement(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ArithmeticError("the policy is not finite")

    monkeypatch.setattr(f"{physics_advisor.__name__}.{where}", fail)
    motion_is_no_objection(monkeypatch)
    advice = advice_on(ROVER, cpu_s=6.0)
    assert (advice.problem, list(advice.unmeasured)) == (None, [])
    faster = faster_usable_changes(advice)
    assert not any(change.is_offered for change in faster)
    assert any("the policy is not finite" in (change.objection or "") for change in faster)
