"""The base class of tasks, and what tasks share.

A task holds no state of a running episode, so one task serves all environments. What an episode
aims at (a target, a commanded velocity) is its goal, which the simulation stores.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

import mujoco
import numpy as np

from orchestrator.core.task_names import BUILT_IN, OverEpisode
from orchestrator.worker.mjmodel.joints import BALL, FREE
from orchestrator.worker.mjmodel.structure import Bools, Floats, Numbers
from orchestrator.worker.tasks import input_names
from orchestrator.worker.tasks.actions import ActionMap, scaled_actions
from orchestrator.worker.tasks.input_names import SENSOR_UNITS, UNKNOWN, Labels, numbered, vector
from orchestrator.worker.tasks.task_options import CommonOptions, EpisodeOptions
from orchestrator.worker.tasks.terms import UNLIMITED, Term, Terms, labelled

HOME = "home"
"""Name of the keyframe that episodes start from; without it, the first keyframe."""

RewardAndTermination = tuple[Floats, Bools]
"""Rewards, and whether the episode terminates; ``(n_envs,)`` each."""

SMALL_PART_M = 0.05
"""Mean size of a robot's parts below which the noise on positions in metres is scaled down."""


@dataclass(frozen=True, slots=True)
class States:
    """Physical states of a batch of environments of one robot."""

    qpos: Floats
    """``(n_envs, nq)``, MuJoCo's own units and order."""
    qvel: Floats
    """``(n_envs, nv)``"""
    goals: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """``(n_envs, goal_size)``, as :meth:`Task.sample_goal` gave them."""
    fields: Mapping[str, Numbers] = field(default_factory=dict)
    """Arrays of ``MjData`` named in :attr:`Task.fields`: name → ``(n_envs, …)``."""


class Task:
    """What a robot must do; your own task derives from this class.

    Implement :meth:`reward_and_terminated`, and :meth:`make_observation_terms` or :meth:`observe`;
    everything else has a default.
    ``__init__`` raises :class:`ValueError` for a robot or options that do not fit.
    """

    Options: ClassVar[type[EpisodeOptions]] = CommonOptions
    """Its fields are the keys of ``[jobs.task_options]``."""
    control_period_s: ClassVar[float] = 0.04
    fields: tuple[str, ...] = ()
    """Fields of ``MjData`` that :attr:`States.fields` provides (``"site_xpos"``, ``"sensordata"``
    …, or :data:`LAST_ACTION`), beside those that the class it is derived from needs. Those that
    depend on accelerations or forces (an accelerometer, ``qfrc_actuator``) belong to the last
    physics step."""
    fields_lag: ClassVar[bool] = False
    """Whether ``fields`` are as ``mj_step`` leaves them, one physics step behind, instead of
    current."""
    goal_size: int = 0
    """Numbers of a goal."""
    goal_period: int | None = None
    """Control steps after which an episode gets a new goal; None: it keeps its first goal."""
    push_period: int | None = None
    """Control steps after which the robot is pushed; None: never."""
    measures: Mapping[str, OverEpisode] = MappingProxyType({})
    """The columns of :meth:`measure`: the name, which ends with the unit as in ``distance_m``, and how
    the values of the control steps are combined. Beside them every task has those of the actuators
    (``energy_j`` …, :mod:`orchestrator.worker.envs.effort`), unless one here has the same name."""
    observation_dtype: ClassVar[type[np.floating[Any]]] = np.float32
    """Of an observation that consists of terms."""
    actions: ActionMap
    observed_by: Terms | None = None
    """What the policy observes in place of what the task gives: the option ``observe``."""
    observed_steps: int = 1
    """So many of the latest observations are given together: the option ``history``."""

    def __init__(self, model: mujoco.MjModel, options: Any) -> None:
        """:param options: an instance of the class's ``Options``, which must include
        :class:`CommonOptions`.
        """
        self.model = model
        self.options = options
        self.key = find_keyframe(model, options.keyframe)
        """Number of the keyframe that episodes start from; -1 for the model's own pose."""
        self.pose: Floats = keyframe_pose(model, self.key)
        """``(nq,)`` the starting pose, without noise."""
        self._lowest, self._highest = start_limits(model, self.pose)
        self._noise, self._speed_noise = start_noise(model, options.reset_noise_scale)
        self.actions = scaled_actions(model, self.key, options.action_scale)
        self.frame_skip = options.frame_skip or control_steps(
            self.control_period_s, model.opt.timestep
        )
        """Physics steps of a control step."""
        self.max_episode_steps = options.max_episode_steps

    @functools.cached_property
    def step_s(self) -> float:
        """Simulated seconds per control step."""
        return float(self.frame_skip * self.model.opt.timestep)

    @property
    def all_fields(self) -> tuple[str, ...]:
        """Return :attr:`fields` of the task and of the classes that it is derived from, and those
        that what is observed needs.
        """
        names = [*self.fields, *self.observation_terms.fields]
        names += self.observed_by.fields if self.observed_by is not None else ()
        for kind in type(self).__mro__:
            names += vars(kind).get("fields", ())
        return tuple(dict.fromkeys(names))

    def initial_state(self, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """``(qpos (nq,), qvel (nv,))`` of a new episode; ``rng`` is the only source of randomness.

        By default the starting pose with noise, within the joints' limits and with unit
        quaternions.
        """
        model = self.model
        noise = 2 * self._noise * rng.random(model.nq) - self._noise  # faster than rng.uniform
        qpos = self.pose + noise
        np.minimum(np.maximum(qpos, self._lowest, out=qpos), self._highest, out=qpos)
        mujoco.mj_normalizeQuat(model, qpos)
        return qpos, self._speed_noise * rng.standard_normal(model.nv)

    def sample_goal(self, rng: np.random.Generator) -> Floats:
        """``(goal_size,)`` drawn at the start of an episode, after :meth:`initial_state`, and every
        ``goal_period``.
        """
        return np.zeros(self.goal_size)

    def goal_labels(self) -> Labels:
        """Return ``goal_size`` labels of what :meth:`sample_goal` draws."""
        return numbered("goal", self.goal_size, UNKNOWN)

    def goal_term(self) -> Term:
        """Return the term of what the episode aims at now, such as a command."""
        return labelled(self.goal_labels(), lambda states: states.goals)

    def sensor_term(self, name: str, unit: str = UNKNOWN) -> Term:
        """Return the term of a sensor of the MJCF, in its own axes.

        :param unit: of its numbers; empty: that of its kind of sensor.
        :raises KeyError: the robot has no such sensor.
        """
        sensor = self.model.sensor(name)
        unit = unit or SENSOR_UNITS.get(mujoco.mjtSensor(sensor.type[0]).name, UNKNOWN)
        size = int(sensor.dim[0])
        columns = slice(int(sensor.adr[0]), int(sensor.adr[0]) + size)
        return labelled(
            vector(name, unit) if size == 3 else numbered(name, size, unit),
            lambda states: states.fields["sensordata"][:, columns],
            UNLIMITED,
            fields=("sensordata",),
        )

    def push(self, rng: np.random.Generator) -> Floats:
        """``(nv,)`` added to the velocities every ``push_period``."""
        return np.zeros(self.model.nv)

    def make_observation_terms(self) -> Sequence[Term]:
        """Return the terms of the observation, in the order of their columns.

        By their names ``init`` carries a policy over to another robot, and exported policies clip as
        they do.
        """
        return ()

    @functools.cached_property
    def observation_terms(self) -> Terms:
        """:raises ValueError: see :class:`Terms`."""
        return Terms(self.make_observation_terms(), self.observation_dtype)

    @property
    def own_terms(self) -> Terms | None:
        """The terms of what the task gives; None where a class with an :meth:`observe` of its own
        makes that.
        """
        return self.observation_terms if type(self).observe is Task.observe else None

    @property
    def policy_terms(self) -> Terms | None:
        """The terms of what the policy observes at once, as :attr:`own_terms`."""
        return self.own_terms if self.observed_by is None else self.observed_by

    def observe(self, states: States) -> Numbers:
        """``(n_envs, observation_size)`` float32 or float64, a new array; by default the terms. Row i
        must depend on environment i alone. What another method makes has neither names nor bounds.
        """
        if not self.observation_terms.names:
            raise NotImplementedError("define make_observation_terms() or observe()")
        return self.observation_terms.observe(states)

    def reward_and_terminated(
        self, before: States, action: Numbers, after: States
    ) -> RewardAndTermination:
        """``(n_envs,)`` rewards and terminations of one control step; goals are the same before and
        after.

        :param action: ``(n_envs, nu)`` what the policy gave, clipped to [-1, 1], also where it takes
            effect late.
        """
        raise NotImplementedError

    def measure(self, before: States, action: Numbers, after: States) -> Floats:
        """``(n_envs, len(measures))``; called only where episodes are measured: in evaluation, and in
        training with ``measure_training`` or rungs that compare by measures.
        """
        return np.zeros((len(after.qpos), len(self.measures)))

    def distance_travelled(self, before: States, after: States) -> Floats | None:
        """``(n_envs,)`` metres by which one control step has brought the robot on, the way whose
        cost ``cost_of_transport`` is; None: the task does not move it from place to place. As
        :meth:`measure`, not called where nothing is measured.
        """
        return None

    def goal_marker(self, goal: Floats) -> Floats | None:
        """Position in the world at which pictures show the goal ``(goal_size,)``; None: not
        shown.
        """
        return None


def load_built_in(name: str) -> type[Any]:
    """Return the class of a built-in task."""
    module, kind = BUILT_IN[name].path.split(":")
    found: type[Any] = getattr(importlib.import_module(f"orchestrator.worker.tasks.{module}"), kind)
    return found


def find_keyframe(model: mujoco.MjModel, name: str | None) -> int:
    """Return the number of the keyframe that episodes start from; -1 for the model's own pose.

    :raises KeyError: there is no keyframe with this name.
    """
    if name is not None:
        return int(model.key(name).id)
    home = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_KEY, HOME)
    return 0 if home < 0 and model.nkey else int(home)


def keyframe_pose(model: mujoco.MjModel, key: int) -> Floats:
    """Return a copy of the pose ``(nq,)`` of the keyframe with this number; with -1, of the model's own
    pose.
    """
    return np.array(model.key_qpos[key] if key >= 0 else model.qpos0)


def control_steps(seconds: float, step_s: float) -> int:
    """The number of control steps that comes nearest to ``seconds``, at least 1."""
    return max(1, round(seconds / step_s))


def start_limits(model: mujoco.MjModel, pose: Floats) -> tuple[Floats, Floats]:
    """``(nq,)`` bounds of starting positions: the joints' limits, and the height in ``pose`` for
    free joints.

    They are widened to include ``pose``.
    """
    low = np.full(model.nq, -np.inf)
    high = np.full(model.nq, np.inf)
    limited = np.flatnonzero(model.jnt_limited & (model.jnt_type != int(BALL)))
    of_limited = model.jnt_qposadr[limited]
    low[of_limited], high[of_limited] = model.jnt_range[limited].T
    heights = model.jnt_qposadr[model.jnt_type == int(FREE)] + 2
    low[heights] = pose[heights]
    return np.minimum(low, pose), np.maximum(high, pose)


def start_noise(model: mujoco.MjModel, scale: float) -> tuple[Floats, Floats]:
    """``(nq,)`` and ``(nv,)`` scale of the noise on each starting position and velocity.

    In metres it is less than ``scale`` for robots with small parts, which it would throw into the
    air.
    """
    small = scale * min(1.0, model.stat.meansize / SMALL_PART_M)
    positions = input_names.positions(model).units
    velocities = input_names.velocities(model).units
    return (
        np.array([small if unit == "m" else scale for unit in positions]),
        np.array([small if unit == "m/s" else scale for unit in velocities]),
    )
