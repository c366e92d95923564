"""Poles on a cart: ``InvertedPendulum-v5`` and ``InvertedDoublePendulum-v5``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.mjmodel.structure import Floats
from orchestrator.worker.tasks import input_names
from orchestrator.worker.tasks.base import RewardAndTermination, States
from orchestrator.worker.tasks.gymnasium_tasks.base import (
    OBSERVED,
    GymnasiumOptions,
    GymnasiumTask,
    misfit,
    within,
)
from orchestrator.worker.tasks.observation_limits import limits

MAX_ANGLE = 0.2
MIN_TIP_HEIGHT = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InvertedPendulumOptions(GymnasiumOptions):
    frame_skip: int = 2


class InvertedPendulum(GymnasiumTask):
    """Reward 1 while the pole's angle, the second position, is within ±0.2; the episode ends
    beyond.

    Observation: positions and velocities.
    """

    Options = InvertedPendulumOptions
    asset = "inverted_pendulum.xml"

    def __init__(self, model: mujoco.MjModel, options: InvertedPendulumOptions) -> None:
        super().__init__(model, options)
        _require_joints(model, 2, "cart and pole")

    def observe(self, states: States) -> Floats:
        return np.concatenate((states.qpos, states.qvel), axis=1)

    def observation_names(self) -> list[str]:
        return [*input_names.positions(self.model), *input_names.velocities(self.model)]

    def reward_and_terminated(
        self, before: States, action: NDArray[Any], after: States
    ) -> RewardAndTermination:
        upright = np.abs(after.qpos[:, 1]) <= MAX_ANGLE
        return upright.astype(np.float64), ~upright


@dataclass(frozen=True, slots=True, kw_only=True)
class InvertedDoublePendulumOptions(GymnasiumOptions):
    healthy_reward: float = 10.0
    reset_noise_scale: float = 0.1


class InvertedDoublePendulum(GymnasiumTask):
    """Rewards a tip at rest two metres over the cart's rail; the episode ends when it is at most
    one metre high.

    ``reward = healthy_reward · alive − 0.01 x² − (z − 2)² − 0.001 ω₁² − 0.005 ω₂²`` with x and z of
    the first site, and ω the poles' velocities.

    Observation: position of the cart, sine and cosine of the angles, velocities and the constraint
    force on the cart, both clipped to ±10.
    """

    Options = InvertedDoublePendulumOptions
    asset = "inverted_double_pendulum.xml"
    normal_velocities = True
    fields = ("site_xpos", "qfrc_constraint")

    def __init__(self, model: mujoco.MjModel, options: InvertedDoublePendulumOptions) -> None:
        super().__init__(model, options)
        _require_joints(model, 3, "cart and two poles")
        if model.nsite == 0:
            raise misfit("a site at the tip of the second pole", "no site")

    def observe(self, states: States) -> Floats:
        angles = states.qpos[:, 1:]
        force = within(states.fields["qfrc_constraint"][:, :1], OBSERVED)
        parts = (
            states.qpos[:, :1],
            np.sin(angles),
            np.cos(angles),
            within(states.qvel, OBSERVED),
            force,
        )
        return np.concatenate(parts, axis=1)

    def observation_names(self) -> list[str]:
        positions = input_names.positions(self.model)
        turns = [
            f"{function} {position}" for function in ("sin", "cos") for position in positions[1:]
        ]
        return [positions[0], *turns, *input_names.velocities(self.model), "constraint force"]

    def observation_limits(self) -> Floats:
        size = len(self.observation_names())
        return limits(size, slice(size - self.model.nv - 1, None), OBSERVED)

    def reward_and_terminated(
        self, before: States, action: NDArray[Any], after: States
    ) -> RewardAndTermination:
        x, _, z = after.fields["site_xpos"][:, 0].T
        _, first, second = after.qvel.T
        alive = z > MIN_TIP_HEIGHT
        distance = 0.01 * x**2 + (z - 2.0) ** 2
        restlessness = 1e-3 * first**2 + 5e-3 * second**2
        return self.options.healthy_reward * alive - distance - restlessness, ~alive


def _require_joints(model: mujoco.MjModel, count: int, what: str) -> None:
    """:raises ValueError: the robot has not exactly ``count`` slides and hinges."""
    if (model.nq, model.nv) != (count, count):
        existing = f"{model.nq} positions and {model.nv} velocities in its joints"
        raise misfit(f"{count} slide or hinge joints, {what}", existing)
