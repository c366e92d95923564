"""A batch of environments of one robot: physics, task, episodes and the state of it all.

Neither torch nor Stable-Baselines3 is imported here: preflight uses this too. MuJoCo's own batch
(``mujoco.batch``) holds every environment's ``mjSTATE_INTEGRATION`` as a row of one array, which gives
bit for bit what one ``mj_step`` after another gives, batched views without copying, and a state that
is saved by copying that array.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from mujoco.batch import Batch
from numpy.typing import ArrayLike, NDArray

from orchestrator.errors import OrchestratorError
from orchestrator.worker.tasks import States, Task, make_task
from orchestrator.worker.tasks.base import Floats, joint_name

_WARNING_MEANINGS = {
    mujoco.mjtWarning.mjWARN_BADQPOS: "position",
    mujoco.mjtWarning.mjWARN_BADQVEL: "velocity",
    mujoco.mjtWarning.mjWARN_BADQACC: "acceleration",
    mujoco.mjtWarning.mjWARN_BADCTRL: "control",
}


class PhysicsDiverged(OrchestratorError):
    """A simulation left the finite numbers; it would again. The message names robot, time and joint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One that has just ended."""

    env: int
    terminal_observation: NDArray[np.float32]
    """``(observation_size,)``"""
    total_reward: float
    length: int
    """Control steps."""
    truncated: bool
    """Ended by the step limit alone."""


@dataclass(frozen=True, slots=True)
class StepResult:
    observations: NDArray[np.float32]
    """``(n_envs, observation_size)``; of the new episode where one has ended."""
    rewards: Floats
    """``(n_envs,)``"""
    done: NDArray[np.bool_]
    """``(n_envs,)``"""
    ended: Sequence[Episode]


def load_model(xml_path: Path | str) -> mujoco.MjModel:
    """Compile an MJCF, with MuJoCo's warnings sent to stderr.

    The path is made absolute because MuJoCo resolves assets of included files differently for a relative
    one. MuJoCo's own warning handler also writes ``MUJOCO_LOG.TXT`` into the working directory, so it is
    replaced. Sleeping is switched off: which bodies sleep is not part of the state MuJoCo can save.

    :raises ValueError: MuJoCo's own message.
    """
    mujoco.set_mju_user_warning(_warn)
    model = mujoco.MjModel.from_xml_path(str(Path(xml_path).absolute()))
    model.opt.enableflags &= ~int(mujoco.mjtEnableBit.mjENBL_SLEEP)
    return model


def _warn(message: str | bytes) -> None:
    text = message.decode(errors="replace") if isinstance(message, bytes) else message
    print(f"MuJoCo warning: {text.strip()}", file=sys.stderr, flush=True)


def generator(seed: int | Sequence[int], env: int) -> np.random.Generator:
    """Environment ``env``'s own: a function of ``(seed, env)`` and of nothing else."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(env,))))


class Simulation:
    """``n_envs`` environments stepped together, each starting a new episode as soon as one ends.

    :param robot: the robot's name in error messages.
    """

    def __init__(
        self, model: mujoco.MjModel, task: Task, *, n_envs: int, seed: int | Sequence[int], robot: str
    ) -> None:
        self.model = model
        self.task = task
        self.n_envs = n_envs
        self.robot = robot
        self.generators = [generator(seed, env) for env in range(n_envs)]
        self._batch = Batch(model, n_envs, nthread=1)
        self._states = States(self._batch.bind("qpos"), self._batch.bind("qvel"))
        self._ctrl = self._batch.bind("ctrl")
        kinds = [int(kind) for kind in _WARNING_MEANINGS]
        self._first_warning = min(kinds)
        self._bad_counts = self._batch.warning[:, min(kinds) : max(kinds) + 1, 1]
        limited = model.actuator_ctrllimited.astype(bool)
        low = np.where(limited, model.actuator_ctrlrange[:, 0], -1.0)
        high = np.where(limited, model.actuator_ctrlrange[:, 1], 1.0)
        self._ctrl_middle = (low + high) / 2
        self._ctrl_half = (high - low) / 2
        self._episode_lengths = np.zeros(n_envs, np.int64)
        self._episode_returns = np.zeros(n_envs)
        self._everywhere = np.arange(n_envs)

    @classmethod
    def from_xml(
        cls,
        xml_path: Path | str,
        task: str,
        *,
        n_envs: int,
        seed: int | Sequence[int],
        task_options: Mapping[str, Any] | None = None,
    ) -> Simulation:
        """:raises ValueError: the MJCF does not compile, or the task does not fit the robot."""
        model = load_model(xml_path)
        made = make_task(task, model, task_options)
        return cls(model, made, n_envs=n_envs, seed=seed, robot=Path(xml_path).name)

    @property
    def control_period_s(self) -> float:
        return float(self.task.frame_skip * self.model.opt.timestep)

    @property
    def states(self) -> States:
        """Live views: the next step changes them."""
        return self._states

    def data(self, env: int) -> mujoco.MjData:
        """A new ``MjData`` in environment ``env``'s state, derived fields included; for rendering."""
        data: mujoco.MjData = self._batch.get_data(env)
        mujoco.mj_forward(self.model, data)
        return data

    def seed(self, seed: int | Sequence[int]) -> None:
        """New generators; the episodes under way go on."""
        self.generators = [generator(seed, env) for env in range(self.n_envs)]

    def reset(self) -> NDArray[np.float32]:
        """Start a new episode everywhere → ``(n_envs, observation_size) float32``."""
        return self._start_episodes(self._everywhere)

    def step(self, actions: ArrayLike) -> StepResult:
        """One control step.

        :param actions: ``(n_envs, nu)``, clipped to [-1, 1] and mapped onto each actuator's control range
            (taken as they are where it has none).
        :raises PhysicsDiverged:
        """
        action = np.minimum(np.maximum(np.asarray(actions, np.float64), -1.0), 1.0)
        np.multiply(action, self._ctrl_half, out=self._ctrl)
        self._ctrl += self._ctrl_middle
        states = self._states
        before = States(states.qpos.copy(), states.qvel.copy())
        self._batch.step(nstep=self.task.frame_skip)
        if self._bad_counts.any() or not math.isfinite(self._batch.state.sum()):
            raise PhysicsDiverged(self._describe_divergence())
        rewards, terminated = self.task.reward_and_terminated(before, action, states)
        observations = self.task.observe(states)
        self._episode_lengths += 1
        self._episode_returns += rewards
        done = terminated | (self._episode_lengths >= self.task.max_episode_steps)
        ended: list[Episode] = []
        if done.any():
            envs = done.nonzero()[0]
            ended = [
                Episode(
                    env=int(env),
                    terminal_observation=observations[env].copy(),
                    total_reward=float(self._episode_returns[env]),
                    length=int(self._episode_lengths[env]),
                    truncated=not terminated[env],
                )
                for env in envs
            ]
            observations[envs] = self._start_episodes(envs)
        return StepResult(observations, rewards, done, ended)

    def _start_episodes(self, envs: NDArray[np.intp]) -> NDArray[np.float32]:
        """→ ``(len(envs), observation_size) float32``, the first observations."""
        qpos, qvel = self._states.qpos, self._states.qvel
        self._batch.reset(envs, stage=mujoco.mjtStage.mjSTAGE_NONE.value)
        for env in envs:
            qpos[env], qvel[env] = self.task.initial_state(self.generators[env])
        self._episode_lengths[envs] = 0
        self._episode_returns[envs] = 0.0
        return self.task.observe(States(qpos[envs], qvel[envs]))

    def get_state(self) -> dict[str, Any]:
        """Everything that decides how the environments go on; made of arrays, numbers and text."""
        return {
            "physics": self._batch.state.copy(),
            "generators": [generator.bit_generator.state for generator in self.generators],
            "episode_lengths": self._episode_lengths.copy(),
            "episode_returns": self._episode_returns.copy(),
        }

    def set_state(self, state: Mapping[str, Any]) -> NDArray[np.float32]:
        """Go on exactly where :meth:`get_state` was called, perhaps in another process.

        :return: ``(n_envs, observation_size) float32``, the current observations.
        :raises ValueError: the state is of another robot or number of environments.
        """
        physics = state["physics"]
        if physics.shape != self._batch.state.shape:
            raise ValueError(
                f"{self.robot}: the saved state has shape {physics.shape} (environments × state), "
                f"this simulation {self._batch.state.shape}: it is of another robot or n_envs"
            )
        self._batch.state[:] = physics
        for own, saved in zip(self.generators, state["generators"], strict=True):
            own.bit_generator.state = saved
        self._episode_lengths[:] = state["episode_lengths"]
        self._episode_returns[:] = state["episode_returns"]
        return self.task.observe(self._states)

    def _describe_divergence(self) -> str:
        counted = self._bad_counts.any(axis=1)
        bad = counted if counted.any() else ~np.isfinite(self._batch.state).all(axis=1)
        env = int(bad.argmax())
        start = self._episode_lengths[env] * self.control_period_s
        where = (
            f"{self.robot}: environment {env} at simulation time {start:.3f}–{start + self.control_period_s:.3f} s "
            f"of its episode"
        )
        if counted[env]:
            kind = mujoco.mjtWarning(self._first_warning + int(self._bad_counts[env].argmax()))
            index = int(self._batch.warning[env, int(kind), 0])
            what = f"{_WARNING_MEANINGS[kind]} of {self._name(kind, index)}"
        else:
            what = self._first_bad(env)
        return (
            f"{where}: physics diverged, {what} is not finite or beyond bounds; "
            "a smaller timestep, weaker actuators or more damping or armature usually help"
        )

    def _name(self, kind: mujoco.mjtWarning, index: int) -> str:
        if kind == mujoco.mjtWarning.mjWARN_BADCTRL:
            return f"actuator '{self.model.actuator(index).name or index}'"
        if kind == mujoco.mjtWarning.mjWARN_BADQPOS:
            joint = int(np.searchsorted(self.model.jnt_qposadr, index, side="right")) - 1
        else:
            joint = int(self.model.dof_jntid[index])
        return f"joint {joint_name(self.model, joint)}"

    def _first_bad(self, env: int) -> str:
        for values, kind in (
            (self._states.qvel[env], mujoco.mjtWarning.mjWARN_BADQVEL),
            (self._states.qpos[env], mujoco.mjtWarning.mjWARN_BADQPOS),
        ):
            bad = ~np.isfinite(values)
            if bad.any():
                return f"{_WARNING_MEANINGS[kind]} of {self._name(kind, int(bad.argmax()))}"
        return "its state"
