"""A batch of environments of one robot: physics, task and episodes.

Neither torch nor Stable-Baselines3 is imported here, because the preflight check uses this module
too. MuJoCo's own batch (``mujoco.batch``) holds every environment's ``mjSTATE_INTEGRATION`` as a
row of one array. It gives bit for bit what one ``mj_step`` after another gives, views of all
environments without copying, and a state that is saved by copying that array.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import mujoco
import numpy as np
from mujoco.batch import Batch
from numpy.typing import ArrayLike, NDArray

from orchestrator.core.numbers.changing_numbers import END, TrainingMoment
from orchestrator.core.numbers.terrain import Terrain
from orchestrator.worker.envs import divergence
from orchestrator.worker.envs.batch_interface import (
    BatchSettings,
    Episode,
    SimulationState,
    StepResult,
    restore_arrays,
)
from orchestrator.worker.envs.divergence import PhysicsDiverged
from orchestrator.worker.envs.effort import EffortMeter
from orchestrator.worker.envs.episode_conditions import TerrainPlace
from orchestrator.worker.envs.model_loading import load_model
from orchestrator.worker.envs.observation_history import ObservationHistory, names_over_steps
from orchestrator.worker.mjmodel.structure import Floats
from orchestrator.worker.tasks import States, Task, conformance, make_task
from orchestrator.worker.tasks.terms import LAST_ACTION

if TYPE_CHECKING:
    from gymnasium import spaces

_FIRST_WARNING = min(map(int, divergence.quantities()))
_LAST_WARNING = max(map(int, divergence.quantities()))
# What the batch has of each warning.
_LAST_INFO = 0
_COUNT = 1
POST_CONSTRAINT = frozenset({"cacc", "cfrc_ext", "cfrc_int"})
"""Fields of ``MjData`` that only ``mj_rnePostConstraint`` computes."""
_STAGE_NONE: int = mujoco.mjtStage.mjSTAGE_NONE.value
_STAGE_VEL: int = mujoco.mjtStage.mjSTAGE_VEL.value
_STAGE_ACC: int = mujoco.mjtStage.mjSTAGE_ACC.value


def generator(seed: int | Sequence[int], env: int) -> np.random.Generator:
    """The generator of environment ``env``: a function of ``(seed, env)`` and of nothing else."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(env,))))


class Simulation:
    """``n_envs`` environments stepped together, each starting a new episode as soon as one ends.

    :param robot: the robot's name in error messages.
    :param asymmetric: whether the last observations are those of the task that the policy does not
        observe, for the critic alone.
    """

    privileged_names: tuple[str, ...] = ()
    """Names of the last observations, which the critic alone may see."""
    terrain: Terrain | None = None
    """In place of the robot's floor."""
    moment: TrainingMoment = END
    """Of the training: numbers that change over it, and are drawn from, are those of this moment."""

    def __init__(
        self,
        model: mujoco.MjModel,
        task: Task,
        *,
        robot: str,
        asymmetric: bool = False,
        **settings: Unpack[BatchSettings],
    ) -> None:
        self.model = model
        self.task = task
        self.robot = robot
        self.n_envs = settings["n_envs"]
        self._all_envs = np.arange(self.n_envs)
        self._first_env = settings.get("first_env", 0)
        self._on_divergence = settings.get("on_divergence")
        self._autoreset = settings.get("autoreset", True)
        self._is_measuring = settings.get("measuring", False)
        self.generators = self._generators(settings["seed"])
        self._make_batch(settings.get("n_threads", 1))
        self._view_states()
        self._begin_counting()
        self._observe_an_example(asymmetric)

    def _make_batch(self, n_threads: int) -> None:
        """Make the physics of all environments, and what computes their contact forces."""
        model = self.model
        self._contact_forces = [name for name in self.task.all_fields if name in POST_CONSTRAINT]
        has_contact_forces = bool(self._contact_forces)
        # An engine plugin's hidden memory is that of a thread, unless each environment has its own
        # MjData.
        is_bound_to_thread = model.nplugin > 0 and not has_contact_forces
        self._batch = Batch(
            model,
            self.n_envs,
            nthread=1 if is_bound_to_thread else min(self.n_envs, n_threads),
            persistent=has_contact_forces,
        )
        self._scratch = mujoco.MjData(model) if has_contact_forces else None

    def _view_states(self) -> None:
        """Make views of the physics, and what keeps the states from before a step."""
        model = self.model
        batch = self._batch
        self._fields = {name: self._bind(name) for name in self.task.all_fields}
        goals = np.zeros((self.n_envs, self.task.goal_size))
        self.states = States(batch.bind("qpos"), batch.bind("qvel"), goals, self._fields)
        """Views of the current states; the next step changes them."""
        self._moving_state = batch.state[:, : 1 + model.nq + model.nv]
        """``(n_envs, 1 + nq + nv)`` time, qpos and qvel: one copy of them is faster than two."""
        self._moving_state_before = self._moving_state.copy()
        """The same before the step."""
        before = self._moving_state_before[:, 1:]
        copies = {name: field.copy() for name, field in self._fields.items()}
        self._before = States(before[:, : model.nq], before[:, model.nq :], goals, copies)
        self._ctrl = batch.bind("ctrl")
        self._has_derived_fields = any(
            not np.shares_memory(field, batch.state)
            for name, field in self._fields.items()
            if name != LAST_ACTION
        )
        self._stage = _STAGE_NONE
        """What is computed anew after a step, so that derived fields belong to its last state."""
        if self._has_derived_fields and not self.task.fields_lag:
            # Contact forces need the whole of mj_forward: the solver's last forces belong to the
            # contacts before the step.
            self._stage = _STAGE_ACC if self._contact_forces else _STAGE_VEL
        self._flat_state = batch.state.reshape(-1)
        self._divergence_counts = batch.warning[:, _FIRST_WARNING : _LAST_WARNING + 1, _COUNT]
        """``(n_envs, kinds)`` how often MuJoCo has warned of each kind of divergence."""

    def _bind(self, name: str) -> NDArray[Any]:
        """``(n_envs, …)`` a view of a field of ``MjData``.

        :raises ValueError: there is no such field, or not for every environment.
        """
        if name in self._contact_forces:
            return np.zeros((self.n_envs, self.model.nbody, 6))
        if name == LAST_ACTION:
            return np.zeros((self.n_envs, len(self.task.actions.low)))
        try:
            field: NDArray[Any] = self._batch.bind(name)
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(
                f"the task's fields name {name!r}, which is not available from MjData: {error}"
            ) from None
        field.flags.writeable = True  # for set_state: what the task reads belongs to the state
        return field

    def _begin_counting(self) -> None:
        """Make the counts and sums of the running episodes."""
        n_envs = self.n_envs
        task = self.task
        self._step = 0
        self._started_at = np.zeros(n_envs, np.int64)
        """``_step`` at which each running episode began: counting costs one addition, whatever
        ``n_envs``."""
        self._episode_returns = np.zeros(n_envs)
        self._steps_to_limit = task.max_episode_steps
        """Control steps until the longest running episode reaches the limit."""
        self._effort: EffortMeter | None = None
        if self._is_measuring:
            self._effort = EffortMeter(
                self.model, self._batch, task.pose, task.frame_skip, self._stage
            )
        self._latest_measures = np.zeros((n_envs, len(task.measures)))
        """Of the latest control step."""
        self._measure_sums = self._latest_measures.copy()
        """Over the running episodes."""

    def _observe_an_example(self, asymmetric: bool) -> None:
        """Learn from the first environment what observations are like."""
        task = self.task
        start = conformance.first_state(task, generator(0, 0))
        self.states.qpos[0] = start.qpos
        self.states.qvel[0] = start.qvel
        self.states.goals[0] = start.goal
        if self._has_derived_fields:
            self._batch.forward([0])
        trial = conformance.repeated_first(self.states)
        full = conformance.first_observation(task, trial)
        conformance.check_step(task, trial)
        sensed = full
        if task.observed_by is not None:
            sensed = task.observed_by.observe(trial)
        self.observation_dtype = sensed.dtype
        self._sensed_size = sensed.shape[1]
        """Numbers that are observed at once, without those of the steps before and those of the critic."""
        self._history: ObservationHistory | None = None
        if task.observed_steps > 1:
            example = np.zeros((self.n_envs, self._sensed_size), sensed.dtype)
            self._history = ObservationHistory(example, task.observed_steps)
        self._not_sensed = np.zeros(0, np.intp)
        """Columns of the task's own observations that the critic sees, and not the actor."""
        if asymmetric and task.observed_by is not None:
            terms = task.own_terms
            names = [f"observation {number}" for number in range(full.shape[1])]
            if terms is not None:
                names = terms.names
            sensed_names = task.observed_by.names
            hidden = [column for column, name in enumerate(names) if name not in sensed_names]
            self._not_sensed = np.array(hidden, np.intp)
            self.privileged_names = tuple(names[column] for column in hidden)
        self.observation_size = self._sensed_size * task.observed_steps + len(self.privileged_names)

    @classmethod
    def from_xml(
        cls,
        xml_path: Path | str,
        task: str,
        task_options: Mapping[str, Any] | None = None,
        *,
        asymmetric: bool = False,
        **settings: Unpack[BatchSettings],
    ) -> Simulation:
        """:raises ValueError: the MJCF does not compile, or the task does not fit the robot."""
        model = load_model(xml_path)
        made = make_task(task, model, task_options)
        return cls(model, made, robot=Path(xml_path).name, asymmetric=asymmetric, **settings)

    @property
    def control_period_s(self) -> float:
        return self.task.step_s

    def env_spaces(self) -> tuple[spaces.Box, spaces.Box]:
        """Of one environment: the observations, of the task's own dtype, and the actions, in the
        task's bounds.
        """
        from gymnasium import spaces

        size = (self.observation_size,)
        observations = spaces.Box(-np.inf, np.inf, size, self.observation_dtype.type)
        mapping = self.task.actions
        return observations, spaces.Box(mapping.low, mapping.high, dtype=np.float32)

    def observation_names(self) -> list[str] | None:
        """``observation_size`` names, those of what the critic alone sees last; None where the task
        gives none.
        """
        terms = self.task.policy_terms
        if terms is None:
            return None
        together = names_over_steps(terms.names, self.task.observed_steps)
        return [*together, *self.privileged_names]

    def data(self, env: int) -> mujoco.MjData:
        """A new ``MjData`` in environment ``env``'s state, derived fields included, for
        rendering.
        """
        data: mujoco.MjData = self._batch.get_data(env)
        mujoco.mj_forward(self.model_of(env), data)
        return data

    def model_of(self, env: int) -> mujoco.MjModel:
        """The robot of environment ``env``; all have the same here."""
        return self.model

    def ground(self, env: int) -> TerrainPlace | None:
        """Where the terrain of environment ``env`` lies; None: it has none."""
        return None

    def physics(self, env: int) -> Floats:
        """A copy of environment ``env``'s ``mjSTATE_INTEGRATION``."""
        return np.array(self._batch.state[env])

    def use_task(self, task: Task) -> None:
        """Go on with ``task``, which may differ from the present one in its numbers, also in
        running episodes.
        """
        self.task = task
        self._count_steps_to_limit()

    def _count_steps_to_limit(self) -> None:
        """Set how many control steps the longest running episode may still take."""
        self._steps_to_limit = self.task.max_episode_steps - int(self._lengths().max())

    def _lengths(self) -> NDArray[np.int64]:
        """``(n_envs,)`` control steps of the running episodes."""
        return self._step - self._started_at

    def seed(self, seed: int | Sequence[int]) -> None:
        """New generators; running episodes continue."""
        self.generators = self._generators(seed)

    def _generators(self, seed: int | Sequence[int]) -> list[np.random.Generator]:
        return [generator(seed, self._first_env + env) for env in range(self.n_envs)]

    def reset(self) -> NDArray[Any]:
        """Start a new episode in every environment; returns observations ``(n_envs,
        observation_size)``.
        """
        return self._start_episodes(self._all_envs)

    def step(self, actions: ArrayLike) -> StepResult:
        """One control step.

        :param actions: ``(n_envs, nu)`` in the bounds of the task's ``actions``, which map them
            onto the controls.
        :raises PhysicsDiverged: a state is not finite, unless that ends only the episode.
        """
        task = self.task
        action = task.actions.taken(np.asarray(actions))
        np.copyto(self._moving_state_before, self._moving_state)
        for name, field in self._fields.items():
            np.copyto(self._before.fields[name], field)
        if LAST_ACTION in self._fields:
            self._fields[LAST_ACTION][:] = action
        self._ctrl[:] = task.actions.ctrl(self._arriving(action))
        if self._effort is None:
            self._batch.step(nstep=task.frame_skip, stage=self._stage)
        else:
            self._effort.step()
        self._compute_contact_forces(self._all_envs)
        diverged: dict[int, str] = {}
        # The fastest ways to say any() and isfinite().all().
        if np.count_nonzero(self._divergence_counts) or not math.isfinite(
            self._flat_state.dot(self._flat_state)
        ):
            diverged = self._diverged_envs(action)
        rewards, terminated = task.reward_and_terminated(self._before, action, self.states)
        if diverged:
            bad = list(diverged)
            rewards = rewards.copy()
            terminated = terminated.copy()
            rewards[bad] = np.nan_to_num(rewards[bad], posinf=0.0, neginf=0.0)
            terminated[bad] = True
        self._step += 1
        self._steps_to_limit -= 1
        self._episode_returns += rewards
        if self._effort is not None:
            if task.measures:
                self._latest_measures[:] = task.measure(self._before, action, self.states)
                self._measure_sums += self._latest_measures
            self._effort.add(task.distance_travelled(self._before, self.states), list(diverged))
        done = terminated
        if self._steps_to_limit <= 0:
            done = terminated | (self._lengths() >= task.max_episode_steps)
        self._change_goals_and_push(done)
        observations = self._observe()
        ended: list[Episode] = []
        if np.count_nonzero(done):
            envs = done.nonzero()[0]
            ended = [
                self._episode(int(env), observations[env].copy(), bool(terminated[env]), diverged)
                for env in envs
            ]
            if self._autoreset:
                observations[envs] = self._start_episodes(envs)
        return StepResult(observations, rewards, done, ended)

    def _change_goals_and_push(self, done: NDArray[np.bool_]) -> None:
        """Give new goals, and pushes, to the episodes that go on, where they are due."""
        task = self.task
        if task.goal_period is not None:
            for env in (~done & (self._lengths() % task.goal_period == 0)).nonzero()[0]:
                self.states.goals[env] = task.sample_goal(self.generators[env])
        if task.push_period is not None:
            due = ~done & (self._lengths() % task.push_period == 0)
            self._push(due, lambda env: task.push(self.generators[env]))

    def _arriving(self, action: NDArray[Any]) -> NDArray[Any]:
        """Return the actions that reach the actuators now, where the policy gives ``action``,
        ``(n_envs, nu)``.
        """
        return action

    def _observe(self) -> NDArray[Any]:
        """``(n_envs, observation_size)`` after a control step."""
        sensed = self._sensed()
        if self._history is not None:
            sensed = self._history.add(sensed)
        return self._with_privileged(sensed, self._all_envs)

    def _sensed(self) -> NDArray[Any]:
        """What is observed at once after a control step, without what the critic alone sees."""
        return self._sense(self.states)

    def _first_sensed(self, envs: NDArray[np.intp]) -> NDArray[Any]:
        """The same where episodes begin."""
        return self._sense(self._states_of(envs))

    def _sensed_last(self) -> NDArray[Any]:
        """The same of a state that was restored."""
        return self._sense(self.states)

    def _sense(self, states: States) -> NDArray[Any]:
        by = self.task.observed_by
        return self.task.observe(states) if by is None else by.observe(states)

    def _states_of(self, envs: NDArray[np.intp]) -> States:
        states = self.states
        fields = {name: field[envs] for name, field in self._fields.items()}
        return States(states.qpos[envs], states.qvel[envs], states.goals[envs], fields)

    def _with_privileged(self, observations: NDArray[Any], envs: NDArray[np.intp]) -> NDArray[Any]:
        """``observations``, ``(len(envs), …)``, with what the critic alone sees behind them."""
        if not self.privileged_names:
            return observations
        parts = [observations, *self._privileged_values(envs)]
        return np.column_stack(parts).astype(observations.dtype)

    def _privileged_values(self, envs: NDArray[np.intp]) -> list[NDArray[Any]]:
        """The parts, ``(len(envs), …)`` each, of what the critic alone sees."""
        if not len(self._not_sensed):
            return []
        return [self.task.observe(self._states_of(envs))[:, self._not_sensed]]

    def _compute_contact_forces(self, envs: NDArray[np.intp]) -> None:
        """Fields of :data:`POST_CONSTRAINT`, which ``mj_step`` itself does not compute."""
        if not self._contact_forces:
            return
        for env in envs:
            self._batch.get_data(env, self._scratch)
            mujoco.mj_rnePostConstraint(self.model_of(env), self._scratch)
            for name in self._contact_forces:
                self._fields[name][env] = getattr(self._scratch, name)

    def _push(self, where: NDArray[np.bool_], push: Callable[[int], Floats]) -> None:
        """Add ``push(env)``, ``(nv,)``, to the velocities of the environments ``where``,
        ``(n_envs,)``.
        """
        envs = where.nonzero()[0]
        for env in envs:
            self.states.qvel[env] += push(int(env))
        if len(envs) and self._stage != _STAGE_NONE:
            self._batch.forward(envs)
            self._compute_contact_forces(envs)

    def _episode(
        self,
        env: int,
        terminal_observation: NDArray[Any],
        terminated: bool,
        diverged: Mapping[int, str],
    ) -> Episode:
        """The episode in environment ``env``, which has just ended."""
        length = self._step - int(self._started_at[env])
        measures: dict[str, float] = {}
        if self._effort is not None:
            sums = self._measure_sums[env]
            means = sums / length
            combined = {
                "sum": sums,
                "mean": means,
                "last": self._latest_measures[env],
                "rms": np.sqrt(np.abs(means)),
            }
            for column, (name, over_episode) in enumerate(self.task.measures.items()):
                measures[name] = float(combined[over_episode][column])
            measures = {**measures, **self._effort.measures(env, length), **measures}
        return Episode(
            env=env,
            terminal_observation=terminal_observation,
            total_reward=float(self._episode_returns[env]),
            length=length,
            truncated=not terminated,
            measures=measures,
            divergence=diverged.get(env, ""),
            drawn=self._drawn_by(env) if self._is_measuring else {},
        )

    def _drawn_by(self, env: int) -> dict[str, float]:
        """Keys of ``randomize``, and what the running episode of environment ``env`` has drawn."""
        return {}

    def _start_episodes(self, envs: NDArray[np.intp]) -> NDArray[Any]:
        """Returns the first observations, ``(len(envs), observation_size)``."""
        states = self.states
        self._batch.reset(envs, keyframe=self.task.key, stage=_STAGE_NONE)
        for env in envs:
            states.qpos[env], states.qvel[env] = self._initial_state(int(env))
            states.goals[env] = self.task.sample_goal(self.generators[env])
        if self._has_derived_fields:
            self._batch.forward(envs)
            if self.task.fields_lag:
                for name in self._contact_forces:
                    self._fields[name][envs] = 0.0
            else:
                self._compute_contact_forces(envs)
        self._started_at[envs] = self._step
        self._count_steps_to_limit()
        self._episode_returns[envs] = 0.0
        self._measure_sums[envs] = 0.0
        if self._effort is not None:
            self._effort.begin(envs)
        if LAST_ACTION in self._fields:
            self._fields[LAST_ACTION][envs] = 0.0
        sensed = self._first_sensed(envs)
        if self._history is not None:
            sensed = self._history.begin(envs, sensed)
        return self._with_privileged(sensed, envs)

    def _initial_state(self, env: int) -> tuple[Floats, Floats]:
        """``(qpos (nq,), qvel (nv,))`` of a new episode."""
        return self.task.initial_state(self.generators[env])

    def get_state(self) -> SimulationState:
        return {
            "arrays": {name: array.copy() for name, array in self._arrays().items()},
            "generators": [generator.bit_generator.state for generator in self.generators],
            "episode_lengths": self._lengths(),
            "sums": {name: values.copy() for name, values in self._sums().items()},
        }

    def _arrays(self) -> dict[str, NDArray[Any]]:
        """What the next steps depend on, by name: views."""
        arrays = {
            "physics": self._batch.state,
            "goals": self.states.goals,
            "episode returns": self._episode_returns,
            **self._fields,
        }
        if self._history is not None:
            arrays["history"] = self._history.latest
        return arrays

    def _sums(self) -> dict[str, Floats]:
        """What is measured of the running episodes, by name: views ``(n_envs,)``."""
        if self._effort is None:
            return {}
        of_task = {
            f"task {name}": self._measure_sums[:, column]
            for column, name in enumerate(self.task.measures)
        }
        return of_task | self._effort.sums

    def set_state(self, state: SimulationState) -> NDArray[Any]:
        """Continue exactly where :meth:`get_state` was called, perhaps in another process.

        Where it was not measured, measures of the episodes that have begun are NaN.

        :return: ``(n_envs, observation_size)``, the current observations.
        :raises ValueError: the state is of another robot, task or number of environments.
        """
        sums = self._sums()
        try:
            restore_arrays(self._arrays(), state["arrays"])
            if sums.keys() == state["sums"].keys():
                restore_arrays(sums, state["sums"])
            else:
                for values in sums.values():
                    values[:] = np.where(state["episode_lengths"] > 0, np.nan, 0.0)
        except ValueError as error:
            raise ValueError(f"{self.robot}: {error}") from None
        for own, saved in zip(self.generators, state["generators"], strict=True):
            own.bit_generator.state = saved
        self._started_at[:] = self._step - state["episode_lengths"]
        self._count_steps_to_limit()
        sensed = self._sensed_last() if self._history is None else self._history.together()
        return self._with_privileged(sensed, self._all_envs)

    def _diverged_envs(self, action: NDArray[Any]) -> dict[int, str]:
        """The environments whose physics has diverged, each with a description. They get the state
        from before the step, or the model's own pose if that was bad already.

        :raises PhysicsDiverged: a divergence ends the job, or an action is the cause of one.
        """
        counted = self._divergence_counts.any(axis=1)
        envs = (counted | ~np.isfinite(self._batch.state).all(axis=1)).nonzero()[0]
        descriptions = {int(env): self._describe_divergence(int(env)) for env in envs}
        if not descriptions:  # finite numbers whose squares are not
            return {}
        if self._on_divergence != "end-episode" or not np.isfinite(action[envs]).all():
            hint = f"; {divergence.HINT}" if self._on_divergence == "fail" else ""
            raise PhysicsDiverged(descriptions[int(envs[0])] + hint)
        states = self._moving_state_before[envs]
        # An episode, or a push, may have begun badly.
        is_bad = ~(np.abs(states) <= mujoco.mjMAXVAL).all(axis=1)
        states[is_bad] = [0.0, *self.model.qpos0, *np.zeros(self.model.nv)]
        self._moving_state[envs] = self._moving_state_before[envs] = states
        for name, field in self._fields.items():
            before = self._before.fields[name]
            field[envs] = before[envs] = np.nan_to_num(before[envs], posinf=0.0, neginf=0.0)
        self._batch.warning[envs] = 0
        return descriptions

    def _describe_divergence(self, env: int) -> str:
        if self._divergence_counts[env].any():
            warning = _FIRST_WARNING + int(self._divergence_counts[env].argmax())
            index = int(self._batch.warning[env, warning, _LAST_INFO])
            what = divergence.describe(self.model, mujoco.mjtWarning(warning), index)
        else:
            what = divergence.describe_state(
                self.model, self.states.qpos[env], self.states.qvel[env]
            )
        drawn = [f"{key} = {value:.4g}" for key, value in self._drawn_by(env).items()]
        had_drawn = f"; the episode had drawn {', '.join(drawn)}" if drawn else ""
        return (
            f"{self.robot}: environment {self._first_env + env} at simulation time "
            f"{self._lengths()[env] * self.control_period_s:.3f} s of its episode: physics diverged, {what} is not "
            f"finite or out of bounds; {divergence.REMEDIES}{had_drawn}"
        )
