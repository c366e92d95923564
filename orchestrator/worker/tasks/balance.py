"""Task ``balance``: keep one or more poles upright on a driven cart or base.

As in gymnasium's InvertedPendulum-v5 the reward is 1 for every control step, and the episode ends
when a pole tips over. Joints that an actuator acts on, directly or through a tendon or site, move
the base; every other joint is the hinge of a pole.

Observation: positions of the driven joints, sine and cosine of every pole's angle, then velocities
clipped to ±10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np

from orchestrator.worker.mjmodel.joints import HINGE, SCALAR, joint_name, joint_type
from orchestrator.worker.mjmodel.structure import Bools, Floats, Numbers, driven_dofs, posed_data
from orchestrator.worker.tasks.base import RewardAndTermination, States, Task
from orchestrator.worker.tasks.task_options import CommonOptions, Positive
from orchestrator.worker.tasks.terms import ALL, Term, position_term, turns, velocity_term


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceOptions(CommonOptions):
    max_tilt: Positive = 0.2
    """Radians from the starting pose at which a pole counts as fallen."""


class Balance(Task):
    """:raises ValueError: the robot is not poles on a driven base."""

    Options = BalanceOptions
    control_period_s = 0.02

    def __init__(self, model: mujoco.MjModel, options: BalanceOptions) -> None:
        super().__init__(model, options)
        driven, poles = driven_joints_and_poles(model, self.pose)
        self._driven = model.jnt_qposadr[driven]
        self._poles = model.jnt_qposadr[poles]

    def make_observation_terms(self) -> Sequence[Term]:
        return (
            position_term(self.model, self._driven),
            *turns(self.model, self._poles),
            velocity_term(self.model, ALL),
        )

    def reward_and_terminated(
        self, before: States, action: Numbers, after: States
    ) -> RewardAndTermination:
        upright: Bools = np.all(self._are_upright(after), axis=1)
        return np.ones(len(upright)), ~upright

    def _are_upright(self, states: States) -> Bools:
        """``(n_envs, n_poles)``"""
        tilts = np.abs(states.qpos[:, self._poles] - self.pose[self._poles])
        are_upright: Bools = tilts <= self.options.max_tilt
        return are_upright


def driven_joints_and_poles(model: mujoco.MjModel, pose: Floats) -> tuple[list[int], list[int]]:
    """Numbers of the joints that an actuator acts on, and of the others.

    :param pose: ``(nq,)`` the starting pose.
    :raises ValueError: the former are not all slides and hinges, or the latter not all hinges.
    """
    dofs = driven_dofs(model, posed_data(model, pose))
    driven = np.unique(model.dof_jntid[dofs]).tolist()
    poles = [joint for joint in range(model.njnt) if joint not in driven]
    wrong = [joint for joint in driven if model.jnt_type[joint] not in SCALAR]
    wrong += [joint for joint in poles if joint_type(model, joint) != HINGE]
    if wrong or not driven or not poles:
        names = (
            ", ".join(joint_name(model, joint) for joint in wrong)
            or "none, but one of the two is missing"
        )
        raise ValueError(
            "needs a base driven by slide or hinge joints and poles on hinges without actuators; joints that are "
            f"neither: {names}"
        )
    return driven, poles
