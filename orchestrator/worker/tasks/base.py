"""What a task is: observation, reward and termination over any MJCF, computed for a batch at once.

A task is a frozen value: everything it needs is worked out from the model when it is made, and
nothing in it changes afterwards. So a simulation is restored from physics, generators and episode
counters alone, and one task serves every environment. Tasks read only positions and velocities:
derived fields (``xpos`` …) lag one substep behind after ``mj_step`` and would differ after a restore.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, get_args, get_type_hints

import mujoco
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class States:
    """Physical states of a batch of environments of one robot."""

    qpos: Floats
    """``(n_envs, nq)``, MuJoCo's own units and order."""
    qvel: Floats
    """``(n_envs, nv)``"""


class Task(Protocol):
    """The plug; see :mod:`orchestrator.worker.tasks` for how one is named and made."""

    @property
    def frame_skip(self) -> int:
        """Physics steps per control step."""

    @property
    def max_episode_steps(self) -> int:
        """Control steps after which an episode is truncated."""

    @property
    def observation_size(self) -> int: ...

    def initial_state(self, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """``(qpos (nq,), qvel (nv,))`` for a new episode; ``rng`` is the only source of randomness."""

    def observe(self, states: States) -> NDArray[np.float32]:
        """``(n_envs, observation_size) float32``, a new array. Row i depends on environment i alone."""

    def reward_and_terminated(self, before: States, action: Floats, after: States) -> tuple[Floats, NDArray[np.bool_]]:
        """``(n_envs,)`` rewards and terminations of one control step.

        :param action: ``(n_envs, nu)`` in [-1, 1], as taken.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions:
    """Options every task has."""

    frame_skip: int | None = None
    """Physics steps per control step; None: as many as come nearest to the task's own control period."""
    max_episode_steps: int = 1000
    reset_noise_scale: float = 0.01
    """Half-width of the uniform noise on positions, standard deviation of that on velocities, at a start."""

    def __post_init__(self) -> None:
        if self.frame_skip is not None and self.frame_skip < 1:
            raise ValueError(f"frame_skip = {self.frame_skip}: expected at least 1")
        if self.max_episode_steps < 1:
            raise ValueError(f"max_episode_steps = {self.max_episode_steps}: expected at least 1")
        if self.reset_noise_scale < 0:
            raise ValueError(f"reset_noise_scale = {self.reset_noise_scale}: expected 0 or more")

    def frame_skip_for(self, model: mujoco.MjModel, control_period_s: float) -> int:
        return self.frame_skip or max(1, round(control_period_s / model.opt.timestep))


Options = TypeVar("Options", bound=CommonOptions)


def read_options(task: str, kind: type[Options], options: Mapping[str, Any]) -> Options:
    """The user's ``task_options`` as a value of ``kind``.

    :raises ValueError: unknown option (answered with the valid ones), wrong type or value.
    """
    hints = get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    for name, value in options.items():
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f'did you mean "{near[0]}"? ' if near else ""
            raise ValueError(f'unknown option "{name}" of task "{task}"; {hint}it has: {", ".join(sorted(names))}')
        accepted = tuple(set(get_args(hints[name]) or (hints[name],)) - {type(None)})
        if not _is_a(value, accepted):
            expected = " or ".join(_WORDS[kind] for kind in accepted)
            raise ValueError(f'option "{name}" of task "{task}" is {value!r}: expected {expected}')
    try:
        return kind(**options)
    except ValueError as error:
        raise ValueError(f'task "{task}": {error}') from None


_WORDS = {bool: "true or false", int: "a whole number", float: "a finite number"}


def _is_a(value: object, accepted: tuple[type, ...]) -> bool:
    if isinstance(value, bool):
        return bool in accepted
    if isinstance(value, int):
        return int in accepted or float in accepted
    return isinstance(value, float) and float in accepted and math.isfinite(value)


def start_pose(model: mujoco.MjModel) -> Floats:
    """``(nq,)`` the pose an episode starts from: keyframe ``home`` where the robot has one, else ``qpos0``."""
    key = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_KEY, "home")
    return np.array(model.key_qpos[key] if key >= 0 else model.qpos0)


def noisy_start(model: mujoco.MjModel, pose: Floats, scale: float, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """``(qpos (nq,), qvel (nv,))`` near ``pose``, with unit quaternions."""
    qpos = pose + rng.uniform(-scale, scale, model.nq)
    mujoco.mj_normalizeQuat(model, qpos)
    return qpos, scale * rng.standard_normal(model.nv)


def joint_type(model: mujoco.MjModel, joint: int) -> mujoco.mjtJoint:
    """As the enumeration: its members do not equal NumPy's integers when asked with ``in``."""
    return mujoco.mjtJoint(int(model.jnt_type[joint]))


def joint_name(model: mujoco.MjModel, joint: int) -> str:
    """The joint's name as in the MJCF, or its number and body where it has none."""
    name = model.joint(joint).name
    if name:
        return f"'{name}'"
    return f"{joint} of body '{model.body(model.jnt_bodyid[joint]).name or model.jnt_bodyid[joint]}'"
