"""Task ``balance``: keep one or more poles upright on a driven cart or base.

In the manner of gymnasium's InvertedPendulum-v5: reward 1 for every control step, and the episode ends
when a pole tips over. The joints tell what is what: those that an actuator drives move the base, and
every other one is a pole's hinge.

Observation: positions of the driven joints, sine and cosine of every pole's angle, then velocities
clipped to ±10.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.tasks.base import (
    CommonOptions,
    Floats,
    States,
    joint_name,
    joint_type,
    noisy_start,
    read_options,
    start_pose,
)

HINGE, SLIDE = mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE

CONTROL_PERIOD_S = 0.02
MAX_OBSERVED_VELOCITY = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceOptions(CommonOptions):
    max_tilt: float = 0.2
    """Radians from the starting pose at which a pole counts as fallen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    model: mujoco.MjModel
    options: BalanceOptions
    frame_skip: int
    pose: Floats
    driven: NDArray[np.intp]
    """Addresses in ``qpos`` of the driven joints."""
    poles: NDArray[np.intp]
    """Addresses in ``qpos`` of the poles' hinges."""

    @property
    def max_episode_steps(self) -> int:
        return self.options.max_episode_steps

    @property
    def observation_size(self) -> int:
        return len(self.driven) + 2 * len(self.poles) + int(self.model.nv)

    def initial_state(self, rng: np.random.Generator) -> tuple[Floats, Floats]:
        return noisy_start(self.model, self.pose, self.options.reset_noise_scale, rng)

    def observe(self, states: States) -> NDArray[np.float32]:
        angles = states.qpos[:, self.poles]
        velocities = np.clip(states.qvel, -MAX_OBSERVED_VELOCITY, MAX_OBSERVED_VELOCITY)
        parts = (states.qpos[:, self.driven], np.sin(angles), np.cos(angles), velocities)
        return np.concatenate(parts, axis=1, dtype=np.float32)

    def reward_and_terminated(
        self,
        before: States,
        action: Floats,
        after: States,
    ) -> tuple[Floats, NDArray[np.bool_]]:
        tilts = np.abs(after.qpos[:, self.poles] - self.pose[self.poles])
        upright: NDArray[np.bool_] = np.all(tilts <= self.options.max_tilt, axis=1)
        return np.ones(len(tilts)), ~upright


def load(model: mujoco.MjModel, options: Mapping[str, Any]) -> Balance:
    """:raises ValueError: unknown or wrong option, or a robot that is not poles on a driven base."""
    chosen = read_options("balance", BalanceOptions, options)
    on_joint = model.actuator_trntype == int(mujoco.mjtTrn.mjTRN_JOINT)
    driven = sorted(set(model.actuator_trnid[on_joint, 0].tolist()))
    poles = [joint for joint in range(model.njnt) if joint not in driven]
    wrong = [
        *(joint for joint in driven if joint_type(model, joint) not in (SLIDE, HINGE)),
        *(joint for joint in poles if joint_type(model, joint) != HINGE),
    ]
    if wrong or not driven or not poles:
        if wrong:
            has = "also " + ", ".join(f"joint {joint_name(model, joint)}" for joint in wrong)
        else:
            has = "no driven joint" if not driven else "no joint without an actuator"
        raise ValueError(
            'task "balance" needs a base driven by slide or hinge joints and poles on hinges without actuators; '
            f"this robot has {has}"
        )
    return Balance(
        model=model,
        options=chosen,
        frame_skip=chosen.frame_skip_for(model, CONTROL_PERIOD_S),
        pose=start_pose(model),
        driven=model.jnt_qposadr[driven],
        poles=model.jnt_qposadr[poles],
    )
