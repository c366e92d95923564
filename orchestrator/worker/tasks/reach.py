"""Task ``reach``: bring the end of a fixed-base arm to a target, and keep it there.

Targets are computed by the robot's own forward kinematics from random positions of the driven
joints, within the limits of joints and servos; positions with the robot in the ground or in itself
are rejected. The reward is that of gymnasium's Reacher-v5 (minus distance, minus effort), with the
distance d in units of ``span``, the mean distance of targets from the start, and with a term that
grows steeply close to the target, where the distance hardly changes:

    reward = −d / span + precision_weight · exp(−(d / (0.1 · span))²) − ctrl_cost_weight · mean(action²)

Observation: positions and velocities of the arm's joints (sine and cosine of hinges without limits;
velocities within ±10), the effector's position, the target minus that, and activations of muscles.
No termination. A body or site named "target" in the model has no effect: the environment has its
own target, which pictures show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np

from orchestrator.core.task_names import TASKS
from orchestrator.worker.mjmodel.joints import HINGE, joint_type
from orchestrator.worker.mjmodel.robot import joints_of_tree
from orchestrator.worker.mjmodel.structure import Floats, Numbers, addresses
from orchestrator.worker.tasks import input_names
from orchestrator.worker.tasks.base import (
    RewardAndTermination,
    States,
    Task,
)
from orchestrator.worker.tasks.effector import Workspace, find_effector
from orchestrator.worker.tasks.input_names import Labels
from orchestrator.worker.tasks.task_options import CommonOptions, Positive, PositiveInt
from orchestrator.worker.tasks.terms import (
    UNLIMITED,
    Term,
    activation_terms,
    labelled,
    position_term,
    turns,
    velocity_term,
)

PRECISION_WIDTH = 0.1
LEAST_SPAN_M = 1e-4
_TRIALS = 100
"""Targets that :attr:`Reach.span_m` is the mean of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachOptions(CommonOptions):
    max_episode_steps: PositiveInt = 100
    site: str | None = None
    """The site that must reach; None: the last one named like an end (tip, grip, hand …), else the
    end of the chain."""
    target_range: Positive = 0.6
    """Share of the way from the starting pose to the joints' limits within which targets are
    drawn."""
    precision_weight: float = 1.0
    ctrl_cost_weight: float = 0.01


class Reach(Task):
    """:raises ValueError: no such site, no driven chain on a fixed base, or a chain whose end
    cannot move.
    """

    Options = ReachOptions
    goal_size = 3
    measures = TASKS["reach"].measures

    def __init__(self, model: mujoco.MjModel, options: ReachOptions) -> None:
        super().__init__(model, options)
        if options.target_range > 1:
            raise ValueError(f"target_range = {options.target_range}: expected at most 1")
        self.effector = find_effector(model, self.pose, options.site)
        self.workspace = Workspace(
            model, self.effector, self.pose, self.actions, options.target_range
        )
        self.fields = (self.effector.field,)
        rng = np.random.default_rng(0)
        targets = np.array([self.workspace.sample(rng) for _ in range(_TRIALS)])
        self.span_m = float(np.linalg.norm(targets - self.workspace.start, axis=1).mean())
        """Mean distance of targets from the effector's starting position."""
        if self.span_m < LEAST_SPAN_M:
            raise ValueError(
                f"{self.effector.name} stays where it is, however the actuators move the joints (or every other "
                'position is in the ground or in the robot itself); name another one: site = "…"'
            )

    def sample_goal(self, rng: np.random.Generator) -> Floats:
        """``(x, y, z)`` in metres, world axes."""
        return self.workspace.sample(rng)

    def goal_labels(self) -> Labels:
        return input_names.vector("position of target", "m")

    def make_observation_terms(self) -> Sequence[Term]:
        model = self.model
        joints = joints_of_tree(model, self.effector.body)  # without loose objects
        turning_joints = [
            joint
            for joint in joints
            if joint_type(model, joint) == HINGE and not model.jnt_limited[joint]
        ]
        positions, dofs = addresses(model, joints)
        turning, _ = addresses(model, turning_joints)
        return (
            position_term(model, np.setdiff1d(positions, turning)),
            *turns(model, turning),
            velocity_term(model, dofs),
            labelled(input_names.vector("end", "m"), self._place, UNLIMITED),
            labelled(
                input_names.vector("target", "m"),
                lambda states: states.goals - self._place(states),
                UNLIMITED,
            ),
            *activation_terms(model, UNLIMITED),
        )

    def reward_and_terminated(
        self, before: States, action: Numbers, after: States
    ) -> RewardAndTermination:
        options = self.options
        distances = self._distances(after) / self.span_m
        closeness = np.exp(-np.square(distances / PRECISION_WIDTH))
        rewards = options.precision_weight * closeness - distances
        rewards -= options.ctrl_cost_weight * np.square(action).sum(axis=1) / action.shape[1]
        return rewards, np.zeros(len(rewards), bool)

    def measure(self, before: States, action: Numbers, after: States) -> Floats:
        return self._distances(after)[:, None]

    def goal_marker(self, goal: Floats) -> Floats | None:
        return goal

    def _distances(self, states: States) -> Floats:
        """``(n,)`` metres from the effector to the target."""
        away = states.goals - self._place(states)
        distances: Floats = np.sqrt(np.square(away).sum(axis=1))
        return distances

    def _place(self, states: States) -> Floats:
        """``(n, 3)`` position of the effector in metres, world axes."""
        place: Floats = states.fields[self.effector.field][:, self.effector.number]
        return place
