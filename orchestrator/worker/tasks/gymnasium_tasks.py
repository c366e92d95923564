"""Gymnasium's MuJoCo v5 environments as tasks: ``gymnasium:Ant-v5`` and seven others.

Over the batched simulation each gives the same observations, rewards, terminations and truncations
as gymnasium's own environment and, from a random generator in the same state, the same starting
states. ``tests/worker/tasks/test_gymnasium_tasks.py`` compares them. The formulas are those of
gymnasium's documentation (https://gymnasium.farama.org/environments/mujoco/).
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import mujoco
import numpy as np

from orchestrator.core.task_names import GYMNASIUM_TASKS
from orchestrator.worker.mjmodel.joints import FREE, HINGE, SLIDE, joint_type, type_name
from orchestrator.worker.mjmodel.structure import Bools, Floats, Numbers
from orchestrator.worker.tasks import input_names
from orchestrator.worker.tasks.actions import Direct
from orchestrator.worker.tasks.base import (
    RewardAndTermination,
    States,
    Task,
    load_built_in,
)
from orchestrator.worker.tasks.task_options import EpisodeOptions, NotNegative, PositiveInt, Range
from orchestrator.worker.tasks.terms import (
    ALL,
    UNLIMITED,
    Term,
    labelled,
    position_term,
    turns,
    velocity_term,
)

MAX_ANGLE = 0.2
MIN_TIP_HEIGHT = 1.0
BODY_FIELDS = {"cinert": 10, "cvel": 6, "cfrc_ext": 6}
"""Fields of ``MjData`` with so many numbers for each body."""


def default_xml(name: str) -> Path:
    """Return the robot that gymnasium itself uses, in the installed package, which is not imported."""
    package = importlib.util.find_spec("gymnasium")
    assert package is not None, "Stable-Baselines3 requires it"
    asset: str = load_built_in(name).asset
    return Path(str(package.origin)).parent / "envs" / "mujoco" / "assets" / asset


@dataclass(frozen=True, slots=True, kw_only=True)
class GymnasiumOptions(EpisodeOptions):
    """Gymnasium's keyword arguments that matter to training, with its names and defaults."""

    frame_skip: PositiveInt = 5


class GymnasiumTask(Task):
    """Starts from the model's default pose (keyframes are ignored); actions are controls.

    Derived fields of ``MjData`` are one physics step behind, as ``mj_step`` leaves them and
    gymnasium reads them.

    :raises ValueError: the robot does not have the structure that the formulas assume.
    """

    Options = GymnasiumOptions
    fields_lag = True
    observation_dtype = np.float64
    asset: ClassVar[str]
    """File name of gymnasium's robot."""
    joints: ClassVar[tuple[mujoco.mjtJoint, ...]]
    """Types of the robot's first joints."""
    horizontal_entries: ClassVar[int] = 1
    """Number of leading entries of ``qpos`` that are the horizontal position."""
    velocity_limit: ClassVar[float] = UNLIMITED
    """Of what is observed."""
    normal_velocities: ClassVar[bool] = False
    """Whether the noise on starting velocities is normal instead of uniform."""

    # Not that of Task: keyframes, mapped actions and noise by kinds of joints are not gymnasium's.
    def __init__(self, model: mujoco.MjModel, options: GymnasiumOptions) -> None:
        self.model = model
        self.options = options
        self.key = -1
        self.pose = np.array(model.qpos0)
        low, high = model.actuator_ctrlrange.astype(np.float32).T
        self.actions = Direct(low, high)
        self.frame_skip = options.frame_skip
        self.max_episode_steps = options.max_episode_steps
        kinds = [joint_type(model, joint) for joint in range(model.njnt)][: len(self.joints)]
        if kinds != [*self.joints] or (low == high).any():
            raise ValueError(
                f"needs a robot whose joints begin with {', '.join(map(type_name, self.joints))}, with a ctrlrange for "
                "every actuator, since actions are controls"
            )

    def initial_state(self, rng: np.random.Generator) -> tuple[Floats, Floats]:
        model = self.model
        scale = self.options.reset_noise_scale
        qpos = self.pose + rng.uniform(-scale, scale, model.nq)
        if self.normal_velocities:
            return qpos, scale * rng.standard_normal(model.nv)
        return qpos, rng.uniform(-scale, scale, model.nv)

    def make_observation_terms(self) -> Sequence[Term]:
        is_hidden = getattr(self.options, "exclude_current_positions_from_observation", False)
        first = self.horizontal_entries if is_hidden else 0
        return [
            position_term(self.model, slice(first, None)),
            velocity_term(self.model, ALL, self.velocity_limit),
        ]


def within(values: Floats, limits: Range) -> Floats:
    """Return ``values`` clipped, in a new array; for small arrays several times faster than
    ``np.clip``.
    """
    low, high = limits
    clipped = np.maximum(values, low)
    return np.minimum(clipped, high, out=clipped)


def sum_of_squares(values: Numbers) -> Numbers:
    """``(n, …)`` → ``(n,)``, with the precision and order of ``np.sum(np.square(row))``: float32
    stays float32.
    """
    sums: Numbers = np.add.reduce(np.square(values.reshape(len(values), -1)), axis=1)
    return sums


def strictly_within(values: Floats, limits: Range) -> Bools:
    """Return where values lie strictly between the limits; False for NaN."""
    low, high = limits
    return (low < values) & (values < high)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocomotionOptions(GymnasiumOptions):
    forward_reward_weight: float = 1.0
    ctrl_cost_weight: float = 0.1
    reset_noise_scale: NotNegative = 0.1
    exclude_current_positions_from_observation: bool = True


class Locomotion(GymnasiumTask):
    """Robots that move along x: ``reward = forward_reward_weight · Δx / Δt + healthy_reward · healthy
    − costs``; episodes end when unhealthy, if the robot can be that.

    Observation: positions without the first :attr:`horizontal_entries` (unless an option includes
    them), then velocities.
    """

    Options = LocomotionOptions
    measures = GYMNASIUM_TASKS["gymnasium:Ant-v5"].measures

    def field_term(self, field: str, limit: float | Range = UNLIMITED) -> Term:
        """Return the term of a field of ``MjData``: of every body but the world, or of every velocity
        but those of the free joint.
        """
        if field in BODY_FIELDS:
            first = 1
            labels = input_names.of_bodies(self.model, field, BODY_FIELDS[field])
        else:
            first = 6
            labels = input_names.velocities(self.model).take(slice(first, None))
            units = [input_names.FORCE_UNITS[unit] for unit in labels.units]
            labels = input_names.Labels(labels.prefixed("force for").names, units)

        def values(states: States) -> Floats:
            of_parts = states.fields[field][:, first:]
            return of_parts.reshape(len(of_parts), -1)

        return labelled(labels, values, limit, fields=(field,))

    def reward_and_terminated(
        self, before: States, action: Numbers, after: States
    ) -> RewardAndTermination:
        options = self.options
        rewards = self.distance_travelled(before, after)
        rewards *= options.forward_reward_weight / self.step_s
        healthy = self.healthy(after)
        terminated = np.zeros(len(rewards), bool)
        if healthy is not None:
            rewards += options.healthy_reward * healthy
            if options.terminate_when_unhealthy:
                terminated = ~healthy
        rewards -= self.costs(action, after)
        return rewards, terminated

    def measure(self, before: States, action: Numbers, after: States) -> Floats:
        return self.distance_travelled(before, after)[:, None]

    def distance_travelled(self, before: States, after: States) -> Floats:
        return self.x(after) - self.x(before)

    def x(self, states: States) -> Floats:
        """``(n_envs,)`` position along x in metres that the reward uses."""
        return states.qpos[:, 0]

    def healthy(self, states: States) -> Bools | None:
        """``(n_envs,)`` whether the robot is healthy; None: it always is."""
        return None

    def costs(self, action: Numbers, after: States) -> Numbers:
        """``(n_envs,)`` costs of one control step."""
        costs = sum_of_squares(action)
        costs *= self.options.ctrl_cost_weight
        return costs


class HalfCheetah(Locomotion):
    asset = "half_cheetah.xml"
    joints = (SLIDE,)
    normal_velocities = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SwimmerOptions(LocomotionOptions):
    frame_skip: PositiveInt = 4
    ctrl_cost_weight: float = 1e-4


class Swimmer(Locomotion):
    Options = SwimmerOptions
    asset = "swimmer.xml"
    joints = (SLIDE, SLIDE)
    horizontal_entries = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LeggedOptions(LocomotionOptions):
    healthy_reward: float = 1.0
    terminate_when_unhealthy: bool = True
    healthy_z_range: Range = (0.2, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Walker2dOptions(LeggedOptions):
    frame_skip: PositiveInt = 4
    ctrl_cost_weight: float = 1e-3
    healthy_z_range: Range = (0.8, 2.0)
    healthy_angle_range: Range = (-1.0, 1.0)
    reset_noise_scale: NotNegative = 5e-3


class Walker2d(Locomotion):
    """Healthy: height and pitch, the second and third position, in their ranges. Observed
    velocities are clipped to ±10.
    """

    Options = Walker2dOptions
    asset = "walker2d_v5.xml"
    joints = (SLIDE, SLIDE, HINGE)
    velocity_limit = 10.0

    def healthy(self, states: States) -> Bools:
        upright = strictly_within(states.qpos[:, 2], self.options.healthy_angle_range)
        return strictly_within(states.qpos[:, 1], self.options.healthy_z_range) & upright


@dataclass(frozen=True, slots=True, kw_only=True)
class HopperOptions(Walker2dOptions):
    healthy_z_range: Range = (0.7, math.inf)
    healthy_angle_range: Range = (-0.2, 0.2)
    healthy_state_range: Range = (-100.0, 100.0)


class Hopper(Walker2d):
    """Healthy: as Walker2d, and all positions but x and height and all velocities are in
    ``healthy_state_range``.
    """

    Options = HopperOptions
    asset = "hopper.xml"

    def healthy(self, states: States) -> Bools:
        limits = self.options.healthy_state_range
        positions = strictly_within(states.qpos[:, 2:], limits).all(axis=1)
        velocities = strictly_within(states.qvel, limits).all(axis=1)
        return super().healthy(states) & positions & velocities


class FreeLegged(Locomotion):
    """Healthy: the height, the third position, is in its range."""

    joints = (FREE,)
    horizontal_entries = 2

    def healthy(self, states: States) -> Bools:
        return strictly_within(states.qpos[:, 2], self.options.healthy_z_range)


@dataclass(frozen=True, slots=True, kw_only=True)
class AntOptions(LeggedOptions):
    ctrl_cost_weight: float = 0.5
    contact_cost_weight: float = 5e-4
    main_body: int | str = 1
    """Number or name of the body whose motion along x is rewarded."""
    contact_force_range: Range = (-1.0, 1.0)
    include_cfrc_ext_in_observation: bool = True


class Ant(FreeLegged):
    """Costs: controls, and contact forces clipped to ``contact_force_range``.

    Observation: positions, velocities, clipped contact forces on every body but the world.
    """

    Options = AntOptions
    asset = "ant.xml"
    normal_velocities = True
    fields = ("xpos", "cfrc_ext")

    def __init__(self, model: mujoco.MjModel, options: AntOptions) -> None:
        super().__init__(model, options)
        self._main_body = model.body(options.main_body).id

    def make_observation_terms(self) -> Sequence[Term]:
        terms = [*super().make_observation_terms()]
        if self.options.include_cfrc_ext_in_observation:
            terms.append(self.field_term("cfrc_ext", self.options.contact_force_range))
        return terms

    def x(self, states: States) -> Floats:
        x: Floats = states.fields["xpos"][:, self._main_body, 0]
        return x

    def costs(self, action: Numbers, after: States) -> Numbers:
        forces = within(after.fields["cfrc_ext"], self.options.contact_force_range)
        contacts = sum_of_squares(forces)
        contacts *= self.options.contact_cost_weight
        contacts += super().costs(action, after)
        return contacts


@dataclass(frozen=True, slots=True, kw_only=True)
class HumanoidOptions(LeggedOptions):
    forward_reward_weight: float = 1.25
    contact_cost_weight: float = 5e-7
    contact_cost_range: Range = (-math.inf, 10.0)
    healthy_reward: float = 5.0
    healthy_z_range: Range = (1.0, 2.0)
    reset_noise_scale: NotNegative = 1e-2
    include_cinert_in_observation: bool = True
    include_cvel_in_observation: bool = True
    include_qfrc_actuator_in_observation: bool = True
    include_cfrc_ext_in_observation: bool = True


class Humanoid(FreeLegged):
    """The centre of mass's motion is rewarded. Costs: controls, and contact forces clipped to
    ``contact_cost_range``.

    Observation: positions, velocities, then inertia and velocity of every body but the world,
    actuator forces on the joints, and contact forces on every body but the world, all in the frame
    of the centre of mass.
    """

    Options = HumanoidOptions
    asset = "humanoid.xml"
    fields = ("xipos", "cfrc_ext")

    def __init__(self, model: mujoco.MjModel, options: HumanoidOptions) -> None:
        super().__init__(model, options)
        self._shares = model.body_mass / model.body_mass.sum()
        """``(nbody,)`` of the robot's mass."""

    def make_observation_terms(self) -> Sequence[Term]:
        fields = [
            field
            for field in ("cinert", "cvel", "qfrc_actuator", "cfrc_ext")
            if getattr(self.options, f"include_{field}_in_observation")
        ]
        return [*super().make_observation_terms(), *map(self.field_term, fields)]

    def x(self, states: States) -> Floats:
        x: Floats = (states.fields["xipos"][..., 0] * self._shares).sum(axis=1)
        return x

    def costs(self, action: Numbers, after: States) -> Numbers:
        contacts = self.options.contact_cost_weight * sum_of_squares(after.fields["cfrc_ext"])
        return super().costs(action.astype(np.float64), after) + within(
            contacts, self.options.contact_cost_range
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InvertedPendulumOptions(GymnasiumOptions):
    frame_skip: PositiveInt = 2


class InvertedPendulum(GymnasiumTask):
    """Reward 1 while the pole's angle, the second position, is within ±0.2; the episode ends
    beyond.

    Observation: positions and velocities.
    """

    Options = InvertedPendulumOptions
    asset = "inverted_pendulum.xml"
    joints = (SLIDE, HINGE)

    def reward_and_terminated(
        self, before: States, action: Numbers, after: States
    ) -> RewardAndTermination:
        upright = np.abs(after.qpos[:, 1]) <= MAX_ANGLE
        return upright.astype(np.float64), ~upright


@dataclass(frozen=True, slots=True, kw_only=True)
class InvertedDoublePendulumOptions(GymnasiumOptions):
    healthy_reward: float = 10.0
    reset_noise_scale: NotNegative = 0.1


class InvertedDoublePendulum(GymnasiumTask):
    """Rewards a tip, the first site, at rest two metres over the cart's rail; the episode ends when it
    is at most one metre high.

    ``reward = healthy_reward · alive − 0.01 x² − (z − 2)² − 0.001 ω₁² − 0.005 ω₂²`` with x and z of
    the tip, and ω the poles' velocities.

    Observation: position of the cart, sine and cosine of the angles, velocities and the constraint
    force on the cart, both clipped to ±10.
    """

    Options = InvertedDoublePendulumOptions
    asset = "inverted_double_pendulum.xml"
    joints = (SLIDE, HINGE, HINGE)
    normal_velocities = True
    fields = ("site_xpos",)

    def make_observation_terms(self) -> Sequence[Term]:
        return [
            position_term(self.model, slice(1)),
            *turns(self.model, np.arange(1, self.model.nq)),
            velocity_term(self.model, ALL),
            Term(
                names=["constraint force"],
                units=["N"],
                values=lambda states: states.fields["qfrc_constraint"][:, :1],
                fields=("qfrc_constraint",),
            ),
        ]

    def reward_and_terminated(
        self, before: States, action: Numbers, after: States
    ) -> RewardAndTermination:
        x, _, z = after.fields["site_xpos"][:, 0].T
        first = after.qvel[:, 1]
        second = after.qvel[:, 2]
        alive = z > MIN_TIP_HEIGHT
        distance = 0.01 * x**2 + (z - 2.0) ** 2
        restlessness = 1e-3 * first**2 + 5e-3 * second**2
        return self.options.healthy_reward * alive - distance - restlessness, ~alive
