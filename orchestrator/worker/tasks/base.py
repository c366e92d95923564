"""What a task is, and what every task can build on.

A task is a value: it holds no state of a running episode, so one serves all environments. What an episode
aims at (a target, a commanded velocity) is its goal, which the simulation keeps.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import mujoco
import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.tasks.actions import ActionMap, Floats, scaled

HOME = "home"
"""The keyframe an episode starts from, where the robot has it; else it is the first one."""

SMALL_PART_M = 0.05
"""Mean size of a robot's parts from which on its starts have the whole noise in metres."""


@dataclass(frozen=True, slots=True)
class States:
    """Physical states of a batch of environments of one robot."""

    qpos: Floats
    """``(n_envs, nq)``, MuJoCo's own units and order."""
    qvel: Floats
    """``(n_envs, nv)``"""
    goals: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """``(n_envs, goal_size)``, as :meth:`Task.sample_goal` gave them."""
    fields: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """``MjData``'s arrays that the task asked for in :attr:`Task.fields`: name → ``(n_envs, …)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Something besides the return that tells how good an episode was."""

    name: str
    """With its unit, ``distance_m``."""
    over_episode: Literal["sum", "mean", "last"]
    """How its values at the control steps become one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeOptions:
    """Options every task has, gymnasium's own ones too."""

    frame_skip: int | None = None
    """Physics steps per control step; None: as many as come nearest to the task's own control period."""
    max_episode_steps: int = 1000
    reset_noise_scale: float = 0.01
    """Half-width of the uniform noise on positions, standard deviation of that on velocities, at a start; in
    radians, and in metres for robots that are not tiny."""

    def __post_init__(self) -> None:
        if self.frame_skip is not None and self.frame_skip < 1:
            raise ValueError(f"frame_skip = {self.frame_skip}: expected at least 1")
        if self.max_episode_steps < 1:
            raise ValueError(f"max_episode_steps = {self.max_episode_steps}: expected at least 1")
        if self.reset_noise_scale < 0:
            raise ValueError(f"reset_noise_scale = {self.reset_noise_scale}: expected 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions(EpisodeOptions):
    """Options every task of ours has, and one of your own should have."""

    keyframe: str | None = None
    """The pose an episode starts from; None: ``home``, else the first keyframe, else the model's own pose."""
    action_scale: float | None = None
    """Share of an actuator's range that actions reach; None: half of it for servos around a keyframe, else all."""

    def __post_init__(self) -> None:
        EpisodeOptions.__post_init__(self)  # super() does not know a class that slots=True has made anew
        if self.action_scale is not None and self.action_scale <= 0:
            raise ValueError(f"action_scale = {self.action_scale}: expected more than 0")


class Task:
    """What a robot must do. A task of your own derives from this.

    To be written: :meth:`observe` and :meth:`reward_and_terminated`. Everything else has a sensible default.
    Whatever is wrong with robot or options, ``__init__`` says by a :class:`ValueError`.
    """

    Options: ClassVar[type[EpisodeOptions]] = CommonOptions
    """Its fields are what ``[jobs.task_options]`` may hold."""
    control_period_s: ClassVar[float] = 0.04
    fields: tuple[str, ...] = ()
    """Derived fields of ``MjData`` to be had in :attr:`States.fields` (``"site_xpos"``, ``"sensordata"`` …). What
    hangs on accelerations or forces (an accelerometer, ``qfrc_actuator``) is that of the last physics step."""
    fields_lag: ClassVar[bool] = False
    """Whether those are as ``mj_step`` leaves them, one physics step behind, instead of current."""
    goal_size: int = 0
    goal_period: int | None = None
    """Control steps after which an episode gets a new goal; None: it keeps the one it started with."""
    push_period: int | None = None
    """Control steps after which the robot is pushed; None: never."""
    measures: tuple[Measure, ...] = ()
    """What :meth:`measure` gives."""
    actions: ActionMap

    def __init__(self, model: mujoco.MjModel, options: Any) -> None:
        """:param options: of the class's own ``Options``, here with all of :class:`CommonOptions`."""
        self.model = model
        self.options = options
        self.key = find_keyframe(model, options.keyframe)
        self.pose: Floats = np.array(model.key_qpos[self.key] if self.key >= 0 else model.qpos0)
        self._lowest, self._highest = start_limits(model, self.pose)
        self._noise, self._speed_noise = start_noise(model, options.reset_noise_scale)
        self.actions = scaled(model, self.key, options.action_scale)
        self.frame_skip = options.frame_skip or control_steps(self.control_period_s, model.opt.timestep)
        self.max_episode_steps = options.max_episode_steps

    @functools.cached_property
    def step_s(self) -> float:
        """Simulated seconds per control step."""
        return float(self.frame_skip * self.model.opt.timestep)

    def initial_state(self, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """``(qpos (nq,), qvel (nv,))`` for a new episode; ``rng`` is the only source of randomness.

        The starting pose with noise, within the joints' limits and with unit quaternions.
        """
        model = self.model
        qpos = self.pose + rng.uniform(-self._noise, self._noise)
        np.minimum(np.maximum(qpos, self._lowest, out=qpos), self._highest, out=qpos)
        mujoco.mj_normalizeQuat(model, qpos)
        return qpos, self._speed_noise * rng.standard_normal(model.nv)

    def sample_goal(self, rng: np.random.Generator) -> Floats:
        """``(goal_size,)`` drawn at the start of an episode, after :meth:`initial_state`, and every ``goal_period``."""
        return np.zeros(self.goal_size)

    def push(self, rng: np.random.Generator) -> Floats:
        """``(nv,)`` what a push adds to the velocities, every ``push_period``."""
        return np.zeros(self.model.nv)

    def observe(self, states: States) -> NDArray[Any]:
        """``(n_envs, observation_size)`` float32 or float64, a new array. Row i depends on environment i alone."""
        raise NotImplementedError

    def reward_and_terminated(
        self, before: States, action: NDArray[Any], after: States
    ) -> tuple[Floats, NDArray[np.bool_]]:
        """``(n_envs,)`` rewards and terminations of one control step; the goals are the same before and after.

        :param action: ``(n_envs, nu)`` as taken: in [-1, 1].
        """
        raise NotImplementedError

    def measure(self, before: States, action: NDArray[Any], after: States) -> Floats:
        """``(n_envs, len(measures))``; asked for in evaluation only."""
        return np.zeros((len(after.qpos), len(self.measures)))

    def goal_marker(self, goal: Floats) -> tuple[float, float, float] | None:
        """Where in the world a picture shows the goal ``(goal_size,)``; None for nowhere."""
        return None


Options = TypeVar("Options", bound=EpisodeOptions)

Range = tuple[float, float]
"""As an option: a list of two numbers in the job file; ``inf`` may be one of them."""


def load_built_in(path: str) -> Any:
    """The class of a built-in task: ``path`` is a value of :data:`orchestrator.core.task_names.TASKS`."""
    module, _, kind = path.partition(":")
    return getattr(importlib.import_module(f"orchestrator.worker.tasks.{module}"), kind)


def read_options(task: str, kind: type[Options], options: Mapping[str, Any]) -> Options:
    """The user's ``task_options`` as a value of ``kind``.

    :raises ValueError: unknown option (answered with the valid ones), wrong type or value.
    """
    hints = get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    values: dict[str, Any] = {}
    for name, value in options.items():
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f'did you mean "{near[0]}"? ' if near else ""
            raise ValueError(f'unknown option "{name}" of task "{task}"; {hint}it has: {", ".join(sorted(names))}')
        wanted = hints[name]
        alternatives = get_args(wanted) if get_origin(wanted) in (Union, UnionType) else (wanted,)
        accepted = [one if one == Range else get_origin(one) or one for one in alternatives if one is not type(None)]
        if not _is_a(value, accepted):
            expected = " or ".join(_WORDS.get(one) or one.__name__ for one in accepted)
            raise ValueError(f'option "{name}" of task "{task}" is {value!r}: expected {expected}')
        values[name] = tuple(map(float, value)) if Range in accepted and isinstance(value, (list, tuple)) else value
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f'task "{task}": {error}') from None


_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "text",
    list: "a list",
    Range: "a list of two numbers",
}


def _is_a(value: object, accepted: Collection[Any]) -> bool:
    if isinstance(value, bool):
        return bool in accepted
    if isinstance(value, int):
        return int in accepted or float in accepted
    if isinstance(value, float):
        return float in accepted and math.isfinite(value)
    if Range in accepted and isinstance(value, (list, tuple)):
        return len(value) == 2 and all(_is_a(one, (float,)) or one in (math.inf, -math.inf) for one in value)
    return type(value) in accepted


def find_keyframe(model: mujoco.MjModel, wanted: str | None) -> int:
    """Number of the keyframe that episodes start from; -1 for the model's own pose.

    :raises ValueError: there is no keyframe of the wanted name.
    """
    names = [model.key(number).name for number in range(model.nkey)]
    if wanted is None:
        return names.index(HOME) if HOME in names else min(0, model.nkey - 1)
    if wanted not in names:
        raise ValueError(f'keyframe = "{wanted}": the robot has {", ".join(filter(None, names)) or "none with a name"}')
    return names.index(wanted)


def control_steps(seconds: float, step_s: float) -> int:
    """The number of control steps that comes nearest, at least 1."""
    return max(1, round(seconds / step_s))


def start_limits(model: mujoco.MjModel, pose: Floats) -> tuple[Floats, Floats]:
    """``(nq,)`` least and greatest positions at a start: the joints' limits, and no free joint lower than in ``pose``.

    A pose beyond them stays as it is.
    """
    low, high = np.full(model.nq, -np.inf), np.full(model.nq, np.inf)
    for joint in range(model.njnt):
        address, kind = model.jnt_qposadr[joint], joint_type(model, joint)
        if kind == mujoco.mjtJoint.mjJNT_FREE:
            low[address + 2] = pose[address + 2]
        elif kind != mujoco.mjtJoint.mjJNT_BALL and model.jnt_limited[joint]:
            low[address], high[address] = model.jnt_range[joint]
    return np.minimum(low, pose), np.maximum(high, pose)


def start_noise(model: mujoco.MjModel, scale: float) -> tuple[Floats, Floats]:
    """``(nq,)`` and ``(nv,)`` how much noise each position and velocity has at a start.

    ``scale``, in metres less for a robot whose parts are so small that it would be thrown into the air.
    """
    metres = scale * min(1.0, model.stat.meansize / SMALL_PART_M)
    positions, velocities = np.full(model.nq, scale), np.full(model.nv, scale)
    for joint in range(model.njnt):
        width = {mujoco.mjtJoint.mjJNT_FREE: 3, mujoco.mjtJoint.mjJNT_SLIDE: 1}.get(joint_type(model, joint), 0)
        position, velocity = model.jnt_qposadr[joint], model.jnt_dofadr[joint]
        positions[position : position + width] = metres
        velocities[velocity : velocity + width] = metres
    return positions, velocities


def joint_type(model: mujoco.MjModel, joint: int) -> mujoco.mjtJoint:
    """As the enumeration: its members do not equal NumPy's integers when asked with ``in``."""
    return mujoco.mjtJoint(int(model.jnt_type[joint]))


def control_name(model: mujoco.MjModel, control: int) -> str:
    """The name of the actuator that a control is of, or its number where it has none."""
    actuator = int(np.searchsorted(model.actuator_ctrladr, control, side="right")) - 1
    return f"'{model.actuator(actuator).name or actuator}'"


def joint_name(model: mujoco.MjModel, joint: int) -> str:
    """The joint's name as in the MJCF, or its number and body where it has none."""
    name = model.joint(joint).name
    if name:
        return f"'{name}'"
    return f"{joint} of body '{model.body(model.jnt_bodyid[joint]).name or model.jnt_bodyid[joint]}'"
