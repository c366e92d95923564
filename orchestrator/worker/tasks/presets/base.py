"""What gymnasium's environments share, and what those that move along x share."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import mujoco
import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.tasks.actions import Direct, Floats
from orchestrator.worker.tasks.base import (
    Measure,
    RewardAndTermination,
    States,
    Task,
    control_name,
    joint_name,
    joint_type,
    type_name,
)
from orchestrator.worker.tasks.task_options import EpisodeOptions, Range


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetOptions(EpisodeOptions):
    """Gymnasium's keyword arguments that matter to training, with its names and defaults."""

    frame_skip: int = 5

    def __post_init__(self) -> None:
        EpisodeOptions.__post_init__(self)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple) and value[0] > value[1]:
                raise ValueError(f"{field.name} = {list(value)}: expected the lower number first")


class Preset(Task):
    """Starts from the model's default pose (keyframes are ignored); actions are controls.

    Derived fields of ``MjData`` are one physics step behind, as ``mj_step`` leaves them and gymnasium reads them.

    :raises ValueError: the robot does not have the structure that the formulas assume.
    """

    Options: ClassVar[type[PresetOptions]] = PresetOptions
    fields_lag = True
    asset: ClassVar[str]
    """File name of gymnasium's robot."""
    normal_velocities: ClassVar[bool] = False
    """Whether the noise on starting velocities is normal instead of uniform."""

    def __init__(self, model: mujoco.MjModel, options: PresetOptions) -> None:
        self.model = model
        self.options = options
        self.key = -1
        self.pose = np.array(model.qpos0)
        self.actions = Direct.of(model)
        self.frame_skip = options.frame_skip
        self.max_episode_steps = options.max_episode_steps
        free = [number for number in range(model.nu) if not np.ptp(model.actuator_ctrlrange[number])]
        if free:
            names = ", ".join(control_name(model, number) for number in free)
            raise misfit("a ctrlrange for every actuator, since actions are controls", f"none for {names}")

    def initial_state(self, rng: np.random.Generator) -> tuple[Floats, Floats]:
        model, scale = self.model, self.options.reset_noise_scale
        qpos = self.pose + rng.uniform(-scale, scale, model.nq)
        if self.normal_velocities:
            return qpos, scale * rng.standard_normal(model.nv)
        return qpos, rng.uniform(-scale, scale, model.nv)


def misfit(needed: str, existing: str) -> ValueError:
    return ValueError(f"needs {needed}; this robot has {existing}")


def within(values: Floats, limits: Range) -> Floats:
    """``values`` clipped, in a new array; for small arrays several times faster than ``np.clip``."""
    low, high = limits
    clipped = np.maximum(values, low)
    return np.minimum(clipped, high, out=clipped)


def sum_of_squares(values: NDArray[Any]) -> NDArray[Any]:
    """``(n, …)`` → ``(n,)``, with the precision and order of ``np.sum(np.square(row))``: float32 stays float32."""
    sums: NDArray[Any] = np.add.reduce(np.square(values.reshape(len(values), -1)), axis=1)
    return sums


@dataclass(frozen=True, slots=True, kw_only=True)
class LocomotionOptions(PresetOptions):
    forward_reward_weight: float = 1.0
    ctrl_cost_weight: float = 0.1
    reset_noise_scale: float = 0.1
    exclude_current_positions_from_observation: bool = True


class Locomotion(Preset):
    """``reward = forward_reward_weight · Δx / Δt − costs``; episodes end at the step limit only.

    Observation: positions without the first :attr:`places` (unless an option includes them), then velocities.
    """

    Options: ClassVar[type[LocomotionOptions]] = LocomotionOptions
    measures = (Measure(name="distance_m", over_episode="sum"),)
    joints: ClassVar[tuple[mujoco.mjtJoint, ...]]
    """Types of the robot's first joints."""
    places: ClassVar[int] = 1
    """Number of leading entries of ``qpos`` that are the horizontal position."""

    def __init__(self, model: mujoco.MjModel, options: LocomotionOptions) -> None:
        super().__init__(model, options)
        self._never = np.zeros(0, bool)
        self._per_metre = options.forward_reward_weight / self.step_s
        self._first = self.places if options.exclude_current_positions_from_observation else 0
        joints = range(min(len(self.joints), model.njnt))
        if tuple(joint_type(model, joint) for joint in joints) != self.joints:
            existing = [f"{type_name(joint_type(model, joint))} {joint_name(model, joint)}" for joint in joints]
            needed = ", ".join(map(type_name, self.joints))
            raise misfit(f"a robot whose joints begin with {needed}", ", ".join(existing) or "no joint")

    def observe(self, states: States) -> Floats:
        return np.concatenate((states.qpos[:, self._first :], states.qvel), axis=1)

    def reward_and_terminated(self, before: States, action: NDArray[Any], after: States) -> RewardAndTermination:
        rewards = self.forward_reward(before, after)
        rewards -= self.costs(action, after)
        if len(self._never) != len(rewards):
            self._never = np.zeros(len(rewards), bool)
            self._never.flags.writeable = False
        return rewards, self._never

    def measure(self, before: States, action: NDArray[Any], after: States) -> Floats:
        return (self.x(after) - self.x(before))[:, None]

    def x(self, states: States) -> Floats:
        """``(n_envs,)`` position along x in metres that the reward uses."""
        return states.qpos[:, 0]

    def forward_reward(self, before: States, after: States) -> Floats:
        moved: Floats = self.x(after) - self.x(before)
        moved *= self._per_metre
        return moved

    def costs(self, action: NDArray[Any], after: States) -> NDArray[Any]:
        """``(n_envs,)`` costs of one control step."""
        costs = sum_of_squares(action)
        costs *= self.options.ctrl_cost_weight
        return costs


@dataclass(frozen=True, slots=True, kw_only=True)
class LeggedOptions(LocomotionOptions):
    healthy_reward: float = 1.0
    terminate_when_unhealthy: bool = True
    healthy_z_range: Range = (0.2, 1.0)


class Legged(Locomotion):
    """``reward = forward_reward_weight · Δx / Δt + healthy_reward · healthy − costs``; ends when unhealthy."""

    Options: ClassVar[type[LeggedOptions]] = LeggedOptions

    def reward_and_terminated(self, before: States, action: NDArray[Any], after: States) -> RewardAndTermination:
        options, healthy = self.options, self.healthy(after)
        rewards = self.forward_reward(before, after)
        rewards += options.healthy_reward * healthy
        rewards -= self.costs(action, after)
        return rewards, ~healthy if options.terminate_when_unhealthy else np.zeros(len(rewards), bool)

    def healthy(self, states: States) -> NDArray[np.bool_]:
        """``(n_envs,)`` whether the robot is healthy."""
        raise NotImplementedError


def strictly_within(values: Floats, limits: Range) -> NDArray[np.bool_]:
    """Whether values lie strictly between the limits; False for NaN."""
    low, high = limits
    return (low < values) & (values < high)
