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
from typing import Any, NamedTuple

import mujoco
import numpy as np
from mujoco.batch import Batch
from numpy.typing import ArrayLike, NDArray

from orchestrator.core.errors import OrchestratorError
from orchestrator.worker.tasks import States, Task, make_task
from orchestrator.worker.tasks.actions import Floats
from orchestrator.worker.tasks.base import control_name, joint_name
from orchestrator.worker.tasks.conformance import first_observation, first_state

_WARNING_MEANINGS = {
    mujoco.mjtWarning.mjWARN_BADQPOS: "position",
    mujoco.mjtWarning.mjWARN_BADQVEL: "velocity",
    mujoco.mjtWarning.mjWARN_BADQACC: "acceleration",
    mujoco.mjtWarning.mjWARN_BADCTRL: "control",
}

FEW_GEOMS = 4
"""Of one body: with no more, looking at each is faster than searching a tree of their bounding boxes."""
POST_CONSTRAINT = frozenset({"cacc", "cfrc_ext", "cfrc_int"})
"""Fields of ``MjData`` that only ``mj_rnePostConstraint`` computes."""
_STAGE_NONE, _STAGE_VEL, _STAGE_ACC = (
    stage.value for stage in (mujoco.mjtStage.mjSTAGE_NONE, mujoco.mjtStage.mjSTAGE_VEL, mujoco.mjtStage.mjSTAGE_ACC)
)


class PhysicsDiverged(OrchestratorError):
    """A simulation left the finite numbers; it would again. The message names robot, time and joint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One that has just ended."""

    env: int
    terminal_observation: NDArray[Any]
    """``(observation_size,)``"""
    total_reward: float
    length: int
    """Control steps."""
    truncated: bool
    """Ended by the step limit alone."""
    measures: Mapping[str, float]
    """What the task measures besides the return; empty unless the simulation is ``measuring``."""


class StepResult(NamedTuple):
    observations: NDArray[Any]
    """``(n_envs, observation_size)`` of the task's own dtype; of the new episode where one has ended."""
    rewards: Floats
    """``(n_envs,)``"""
    done: NDArray[np.bool_]
    """``(n_envs,)``"""
    ended: Sequence[Episode]


def load_model(xml_path: Path | str) -> mujoco.MjModel:
    """Compile an MJCF, with MuJoCo's warnings sent to stderr.

    The path is made absolute because MuJoCo resolves assets of included files differently for a relative
    one. MuJoCo's own warning handler also writes ``MUJOCO_LOG.TXT`` into the working directory, so it is
    replaced. Sleeping is switched off: which bodies sleep is not part of the state MuJoCo can save. So are two
    searches that find nothing in most robots, and without which physics gives the same bits some percent sooner: for
    islands of bodies that do not touch each other, where there is one kinematic tree only, and for near geoms within
    bodies (the mid-phase), where these have but a few.

    :raises ValueError: MuJoCo's own message.
    """
    mujoco.set_mju_user_warning(_warn)
    model = mujoco.MjModel.from_xml_path(str(Path(xml_path).absolute()))
    model.opt.enableflags &= ~int(mujoco.mjtEnableBit.mjENBL_SLEEP)
    if model.ntree == 1:
        model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_ISLAND)
    if model.body_geomnum.max() <= FEW_GEOMS:
        model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_MIDPHASE)
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
    :param measuring: whether ended episodes tell the task's measures.
    :param first_env: number of the first one among those of all ranks: seeds go by these numbers.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        task: Task,
        *,
        n_envs: int,
        seed: int | Sequence[int],
        robot: str,
        measuring: bool = False,
        first_env: int = 0,
    ) -> None:
        self.model = model
        self._first_env = first_env
        self.task = task
        self.n_envs = n_envs
        self.robot = robot
        self.generators = self._generators(seed)
        self._contact_forces = tuple(name for name in task.fields if name in POST_CONSTRAINT)
        self._batch = Batch(model, n_envs, nthread=1, persistent=bool(self._contact_forces))
        self._scratch = mujoco.MjData(model) if self._contact_forces else None
        self._computed_there = [(name, getattr(self._scratch, name)) for name in self._contact_forces]
        self._fields = {name: self._bind(name) for name in task.fields}
        goals = np.zeros((n_envs, task.goal_size))
        self._states = States(self._batch.bind("qpos"), self._batch.bind("qvel"), goals, self._fields)
        copies = {name: field.copy() for name, field in self._fields.items()}
        self._moving = self._batch.state[:, : 1 + model.nq + model.nv]  # time, qpos, qvel: one copy instead of two
        self._moved_from = self._moving.copy()
        before = self._moved_from[:, 1:]
        self._before = States(before[:, : model.nq], before[:, model.nq :], goals, copies)
        assert np.shares_memory(self._moving[:, 1:2], self._states.qpos), "MuJoCo's states begin with the time"
        self._ctrl = self._batch.bind("ctrl")
        self._derived = any(not np.shares_memory(field, self._batch.state) for field in self._fields.values())
        current = self._derived and not task.fields_lag
        # Contact forces need the whole of mj_forward: the solver's last forces are of contacts that are no more.
        self._stage = (_STAGE_ACC if self._contact_forces else _STAGE_VEL) if current else _STAGE_NONE
        self._all_of_it = self._batch.state.reshape(-1)
        kinds = [int(kind) for kind in _WARNING_MEANINGS]
        self._first_warning = min(kinds)
        self._bad_counts = self._batch.warning[:, min(kinds) : max(kinds) + 1, 1]
        self._step = 0
        self._begun = np.zeros(n_envs, np.int64)
        """``_step`` at which each episode under way began: to count on is one addition, whatever ``n_envs``."""
        self._episode_returns = np.zeros(n_envs)
        self._steps_to_limit = task.max_episode_steps
        """Control steps until the longest episode under way reaches the limit."""
        self._tally = _Tally(task, n_envs) if measuring and task.measures else None
        self._everywhere = np.arange(n_envs)
        states = self._states
        states.qpos[0], states.qvel[0], states.goals[0] = first_state(task, generator(0, 0))
        if self._derived:
            self._batch.forward([0])
        observation = first_observation(task, states)
        self.observation_size, self.observation_dtype = observation.shape[1], observation.dtype

    @classmethod
    def from_xml(
        cls,
        xml_path: Path | str,
        task: str,
        *,
        n_envs: int,
        seed: int | Sequence[int],
        task_options: Mapping[str, Any] | None = None,
        measuring: bool = False,
        first_env: int = 0,
    ) -> Simulation:
        """:raises ValueError: the MJCF does not compile, or the task does not fit the robot."""
        model = load_model(xml_path)
        made = make_task(task, model, task_options)
        return cls(
            model, made, n_envs=n_envs, seed=seed, robot=Path(xml_path).name, measuring=measuring, first_env=first_env
        )

    @property
    def control_period_s(self) -> float:
        return self.task.step_s

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
        self.generators = self._generators(seed)

    def _generators(self, seed: int | Sequence[int]) -> list[np.random.Generator]:
        return [generator(seed, self._first_env + env) for env in range(self.n_envs)]

    def reset(self) -> NDArray[Any]:
        """Start a new episode everywhere → ``(n_envs, observation_size)``."""
        return self._start_episodes(self._everywhere)

    def step(self, actions: ArrayLike) -> StepResult:
        """One control step.

        :param actions: ``(n_envs, nu)`` in the bounds of the task's ``actions``, which map them onto the controls.
        :raises PhysicsDiverged:
        """
        task, states = self.task, self._states
        action = task.actions.taken(np.asarray(actions))
        before = self._remember(states)
        self._ctrl[:] = task.actions.ctrl(action)
        self._batch.step(nstep=task.frame_skip, stage=self._stage)
        # The fastest ways to say any() and isfinite().all().
        if np.count_nonzero(self._bad_counts) or not math.isfinite(self._all_of_it.dot(self._all_of_it)):
            raise PhysicsDiverged(self._describe_divergence())
        self._compute_contact_forces(self._everywhere)
        rewards, terminated = task.reward_and_terminated(before, action, states)
        self._step += 1
        self._episode_returns += rewards
        if self._tally is not None:
            self._tally.add(task.measure(before, action, states))
        self._steps_to_limit -= 1
        done = terminated if self._steps_to_limit else terminated | (self._lengths() >= task.max_episode_steps)
        if task.goal_period is not None:
            self._renew_goals(~done & (self._lengths() % task.goal_period == 0))
        if task.push_period is not None:
            self._push(~done & (self._lengths() % task.push_period == 0))
        observations = task.observe(states)
        ended: list[Episode] = []
        if np.count_nonzero(done):
            envs = done.nonzero()[0]
            ended = [self._episode(int(env), observations[env].copy(), bool(terminated[env])) for env in envs]
            observations[envs] = self._start_episodes(envs)
        return StepResult(observations, rewards, done, ended)

    def _lengths(self) -> NDArray[np.int64]:
        """``(n_envs,)`` control steps of the episodes under way."""
        return self._step - self._begun

    def _remember(self, states: States) -> States:
        """The states before a step; the same arrays at every step."""
        before = self._before
        np.copyto(self._moved_from, self._moving)
        for name, field in states.fields.items():
            np.copyto(before.fields[name], field)
        return before

    def _bind(self, name: str) -> NDArray[Any]:
        """``(n_envs, …)`` a field of ``MjData``, live.

        :raises ValueError: there is no such field, or not for every environment.
        """
        if name in self._contact_forces:
            return np.zeros((self.n_envs, self.model.nbody, 6))
        try:
            field: NDArray[Any] = self._batch.bind(name)
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"field {name!r} of MjData, which the task asks for: {error}") from None
        field.flags.writeable = True  # for set_state: what the task reads belongs to the state
        return field

    def _compute_contact_forces(self, envs: NDArray[np.intp]) -> None:
        """``cfrc_ext`` and its like, which ``mj_step`` itself leaves out."""
        if not self._contact_forces:
            return
        for env in envs:
            self._batch.get_data(env, self._scratch)
            mujoco.mj_rnePostConstraint(self.model, self._scratch)
            for name, computed in self._computed_there:
                self._fields[name][env] = computed

    def _renew_goals(self, where: NDArray[np.bool_]) -> None:
        for env in where.nonzero()[0]:
            self._states.goals[env] = self.task.sample_goal(self.generators[env])

    def _push(self, where: NDArray[np.bool_]) -> None:
        envs = where.nonzero()[0]
        for env in envs:
            self._states.qvel[env] += self.task.push(self.generators[env])
        if len(envs) and self._stage != _STAGE_NONE:
            self._batch.forward(envs)
            self._compute_contact_forces(envs)

    def _episode(self, env: int, terminal_observation: NDArray[Any], terminated: bool) -> Episode:
        length = self._step - int(self._begun[env])
        return Episode(
            env=env,
            terminal_observation=terminal_observation,
            total_reward=float(self._episode_returns[env]),
            length=length,
            truncated=not terminated,
            measures={} if self._tally is None else self._tally.result(env, length),
        )

    def _start_episodes(self, envs: NDArray[np.intp]) -> NDArray[Any]:
        """→ ``(len(envs), observation_size)``, the first observations."""
        states = self._states
        self._batch.reset(envs, keyframe=self.task.key, stage=_STAGE_NONE)
        for env in envs:
            states.qpos[env], states.qvel[env] = self.task.initial_state(self.generators[env])
            states.goals[env] = self.task.sample_goal(self.generators[env])
        if self._derived:
            self._batch.forward(envs)
            if self.task.fields_lag:
                for name in self._contact_forces:
                    self._fields[name][envs] = 0.0
            else:
                self._compute_contact_forces(envs)
        self._begun[envs] = self._step
        self._steps_to_limit = self.task.max_episode_steps - int(self._lengths().max())
        self._episode_returns[envs] = 0.0
        if self._tally is not None:
            self._tally.clear(envs)
        fields = {name: field[envs] for name, field in self._fields.items()}
        return self.task.observe(States(states.qpos[envs], states.qvel[envs], states.goals[envs], fields))

    def get_state(self) -> dict[str, Any]:
        """Everything that decides how the environments go on; made of arrays, numbers and text."""
        return {
            "physics": self._batch.state.copy(),
            "fields": {name: field.copy() for name, field in self._fields.items()},
            "goals": self._states.goals.copy(),
            "generators": [generator.bit_generator.state for generator in self.generators],
            "episode_lengths": self._lengths(),
            "episode_returns": self._episode_returns.copy(),
        }

    def set_state(self, state: Mapping[str, Any]) -> NDArray[Any]:
        """Go on exactly where :meth:`get_state` was called, perhaps in another process.

        :return: ``(n_envs, observation_size)``, the current observations.
        :raises ValueError: the state is of another robot or number of environments.
        """
        physics = state["physics"]
        if physics.shape != self._batch.state.shape:
            raise ValueError(
                f"{self.robot}: the saved state has shape {physics.shape} (environments × state), "
                f"this simulation {self._batch.state.shape}: it is of another robot or n_envs"
            )
        self._batch.state[:] = physics
        for name, field in self._fields.items():
            field[:] = state["fields"][name]
        self._states.goals[:] = state["goals"]
        for own, saved in zip(self.generators, state["generators"], strict=True):
            own.bit_generator.state = saved
        self._begun[:] = self._step - state["episode_lengths"]
        self._steps_to_limit = self.task.max_episode_steps - int(state["episode_lengths"].max())
        self._episode_returns[:] = state["episode_returns"]
        return self.task.observe(self._states)

    def _describe_divergence(self) -> str:
        counted = self._bad_counts.any(axis=1)
        bad = counted if counted.any() else ~np.isfinite(self._batch.state).all(axis=1)
        env = int(bad.argmax())
        start = (self._step - int(self._begun[env])) * self.control_period_s
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
            return f"actuator {control_name(self.model, index)}"
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


class _Tally:
    """The task's measures of the episodes under way."""

    def __init__(self, task: Task, n_envs: int) -> None:
        self._measures = task.measures
        self._sums = np.zeros((n_envs, len(task.measures)))
        self._latest = np.zeros_like(self._sums)

    def add(self, values: Floats) -> None:
        """:param values: ``(n_envs, len(task.measures))``"""
        self._sums += values
        self._latest[:] = values

    def clear(self, envs: NDArray[np.intp]) -> None:
        self._sums[envs] = 0.0

    def result(self, env: int, length: int) -> dict[str, float]:
        by = {"sum": self._sums[env], "mean": self._sums[env] / length, "last": self._latest[env]}
        return {one.name: float(by[one.over_episode][number]) for number, one in enumerate(self._measures)}
