"""What disturbs a robot from outside of its physics: noise and delays of observations and actions,
and pushes.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from orchestrator.core.numbers.changing_numbers import TrainingMoment
from orchestrator.core.numbers.distributions import (
    DISTURBANCES,
    NOISE,
    PRIVILEGED,
    Distribution,
    disturbance,
    parse_distribution,
)
from orchestrator.worker.envs.episode_conditions import GridPlaces
from orchestrator.worker.envs.randomization.draws import draw, draw_many, of_each
from orchestrator.worker.envs.randomization.randomized_fields import RandomizeError, table_of
from orchestrator.worker.mjmodel.root import NoRootError, find_root, horizontal_push
from orchestrator.worker.mjmodel.structure import Floats, as_index
from orchestrator.worker.mjspec.spec_elements import suggestion
from orchestrator.worker.tasks import Task, input_names
from orchestrator.worker.tasks.base import control_steps

PUSH_PERIOD = "uniform(2, 2)"
"""Of pushes whose period is not given, in seconds."""
NOISE_STEPS = 32
"""Control steps for which noise is drawn at once, because a call of the generator for each costs
too much."""


class DisturbanceState(TypedDict):
    """What a checkpoint holds of them."""

    drawn: dict[str, NDArray[np.int64]]
    """As :attr:`Disturbances.drawn`."""
    noise: NDArray[Any]
    """``(NOISE_STEPS, n_envs, observation_size)``, without rows where there is no noise."""
    late_actions: NDArray[Any]
    """``(kept, n_envs, nu)``"""
    late_observations: NDArray[Any]
    """``(kept, n_envs, observation_size)``"""
    step: int
    noise_step: int
    seen: NDArray[Any]
    """``(n_envs, observation_size)`` the latest observations as the policy has seen them."""


class Disturbances:
    """The keys of :data:`DISTURBANCES` in ``randomize``.

    Delays and the period of pushes are drawn when an episode begins, a push when it happens, and
    noise for :data:`NOISE_STEPS` observations at once, all from the environment's own stream.

    :param grid: whose keys replace those of ``randomize``.
    :param seen: ``(n_envs, observation_size)`` where the latest observations are kept as the policy
        sees them.
    :raises RandomizeError: pushes, and the robot has no base that can be pushed.
    """

    def __init__(
        self,
        randomize: Mapping[str, str],
        task: Task,
        seen: NDArray[Any],
        grid: GridPlaces | None = None,
    ) -> None:
        n_envs = len(seen)
        self._by_key = {
            key: drawn for key in DISTURBANCES if (drawn := of_each(key, randomize, grid, n_envs))
        }
        """Key → what each environment draws it from."""
        self._task = task
        self._seen = seen
        if "push.speed" in self._by_key:
            self._by_key.setdefault("push.period", [parse_distribution(PUSH_PERIOD)] * n_envs)
            try:
                self._root = find_root(task.model, task.pose)
            except NoRootError as error:
                raise RandomizeError(
                    f"{table_of('push.speed', randomize)}.push.speed: {error}"
                ) from None
        elif "push.period" in self._by_key:
            raise RandomizeError(
                f"{table_of('push.period', randomize)}.push.period: there are no pushes; set push.speed as well"
            )
        self.drawn = {key: np.zeros(n_envs, np.int64) for key in PRIVILEGED if key in self._by_key}
        """Key → ``(n_envs,)`` control steps, of the running episodes."""
        self._step = 0
        """Control steps so far: counts the rows of what is late."""
        self._noise_step = 0
        """Control steps since noise was drawn first: counts the rows of noise."""
        self._noises = _noises(randomize, grid, task, seen)
        self._noise = np.zeros((NOISE_STEPS if self._noises else 0, *seen.shape), seen.dtype)
        actions_kept = self._rows_kept("action.delay")
        observations_kept = self._rows_kept("observation.delay")
        self._actions = np.zeros((actions_kept, n_envs, len(task.actions.low)))
        self._observations = np.zeros((observations_kept, *seen.shape), seen.dtype)
        self._all = np.arange(n_envs)

    def _rows_kept(self, key: str) -> int:
        """How many of the latest rows are kept for the delay ``key``: row ``step % kept`` is the
        latest.
        """
        sources = self._by_key.get(key)
        if sources is None:
            return 0
        return 1 + round(max(source.extremes[1] for source in sources))

    def forget_noise(self) -> None:
        """The generators are new ones: noise that the earlier ones gave is not used."""
        self._noise_step = 0

    def begin_episodes(
        self, envs: NDArray[np.intp], rngs: list[np.random.Generator], moment: TrainingMoment
    ) -> None:
        """Draw what an episode keeps; actions before its first were zeros."""
        for env in envs:
            for key, drawn in self.drawn.items():
                value = draw(self._by_key[key][env], rngs[env], moment)
                is_seconds = key == "push.period"
                drawn[env] = control_steps(value, self._task.step_s) if is_seconds else round(value)
        self._actions[:, envs] = 0.0

    def disturbed_actions(self, actions: NDArray[Any]) -> NDArray[Any]:
        """The actions that reach the actuators now, where the policy gives ``actions``, ``(n_envs,
        nu)``.
        """
        self._step += 1
        if not len(self._actions):
            return actions
        return self._delayed_rows(self._actions, actions, "action.delay")

    def disturbed_observations(
        self, observations: NDArray[Any], rngs: list[np.random.Generator], moment: TrainingMoment
    ) -> NDArray[Any]:
        """What the policy sees of ``observations``, ``(n_envs, observation_size)``, which are
        changed.
        """
        if self._noises:
            row = self._noise_step % NOISE_STEPS
            self._noise_step += 1
            if row == 0:
                self._draw_noise(rngs, moment)
            observations += self._noise[row]
        if len(self._observations):
            observations = self._delayed_rows(self._observations, observations, "observation.delay")
        self._seen[:] = observations
        return observations

    def _draw_noise(self, rngs: list[np.random.Generator], moment: TrainingMoment) -> None:
        """Draw what the next :data:`NOISE_STEPS` observations have."""
        self._noise[:] = 0.0
        for of_key in self._noises:
            noise = self._noise[:, :, of_key.columns]  # a view, or a copy
            for env, rng in enumerate(rngs):
                count = NOISE_STEPS * noise.shape[2]
                drawn = draw_many(of_key.sources[env], rng, count, moment)
                noise[:, env] += drawn.reshape(NOISE_STEPS, -1)
            self._noise[:, :, of_key.columns] = noise

    def disturbed_first_observations(
        self,
        observations: NDArray[Any],
        envs: NDArray[np.intp],
        rngs: list[np.random.Generator],
        moment: TrainingMoment,
    ) -> NDArray[Any]:
        """The same when episodes begin, ``(len(envs), observation_size)``: what came before was
        equal to the first.
        """
        for noise in self._noises:
            for row, env in enumerate(envs):
                size = len(observations[row, noise.columns])
                drawn = draw_many(noise.sources[env], rngs[env], size, moment)
                observations[row, noise.columns] += drawn
        self._seen[envs] = observations
        self._observations[:, envs] = observations
        return observations

    def _delayed_rows(self, latest: NDArray[Any], newest: NDArray[Any], key: str) -> NDArray[Any]:
        """The rows of so many control steps ago.

        :param latest: ``(kept, n_envs, …)``, which takes ``newest``, ``(n_envs, …)``.
        """
        kept = len(latest)
        latest[self._step % kept] = newest
        rows: NDArray[Any] = latest[(self._step - self.drawn[key]) % kept, self._all]
        return rows

    def push(self, env: int, rng: np.random.Generator, moment: TrainingMoment) -> Floats:
        """``(nv,)`` velocities of one push."""
        speed = draw(self._by_key["push.speed"][env], rng, moment)
        return horizontal_push(self._root, self._task.model.nv, speed, rng)

    def due_pushes(self, lengths: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """``(n_envs,)`` whether the base is pushed before the next control step; None: none is.

        :param lengths: ``(n_envs,)`` control steps of the running episodes.
        """
        period = self.drawn.get("push.period")
        if period is None:
            return None
        since = lengths % period
        if np.count_nonzero(since) == len(since):  # at nearly every step
            return None
        due: NDArray[np.bool_] = (since == 0) & (lengths > 0)
        return due if np.count_nonzero(due) else None

    def drawn_by(self, env: int) -> dict[str, float]:
        """What the running episode of environment ``env`` has drawn once: delays in control steps,
        the period of pushes in seconds.
        """
        drawn = {key: float(values[env]) for key, values in self.drawn.items()}
        if "push.period" in drawn:
            drawn["push.period"] *= self._task.step_s
        return drawn

    def get_state(self) -> DisturbanceState:
        return {
            "drawn": {key: drawn.copy() for key, drawn in self.drawn.items()},
            "noise": self._noise.copy(),
            "late_actions": self._actions.copy(),
            "late_observations": self._observations.copy(),
            "step": self._step,
            "noise_step": self._noise_step,
            "seen": self._seen.copy(),
        }

    @property
    def seen(self) -> NDArray[Any]:
        """``(n_envs, observation_size)`` a copy of the latest observations as the policy has seen
        them.
        """
        return self._seen.copy()

    def set_state(self, state: DisturbanceState) -> None:
        for key, drawn in self.drawn.items():
            drawn[:] = state["drawn"][key]
        self._noise[:] = state["noise"]
        self._actions[:] = state["late_actions"]
        self._observations[:] = state["late_observations"]
        self._seen[:] = state["seen"]
        self._step = state["step"]
        self._noise_step = state["noise_step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Noise:
    """Noise of one key."""

    columns: slice | NDArray[np.intp]
    """The observations that have it."""
    sources: list[Distribution]
    """What each environment draws it from."""


def _noises(
    randomize: Mapping[str, str], grid: GridPlaces | None, task: Task, seen: NDArray[Any]
) -> list[_Noise]:
    """The noise of each key, sorted by key.

    :param seen: ``(n_envs, observation_size)``
    :raises RandomizeError: a key names no observation of the task.
    """
    n_envs, size = seen.shape
    keys = set(randomize)
    if grid is not None:
        keys |= {axis.key for axis in grid.grid.axes}
    return [
        _Noise(
            columns=_noisy_columns(key, randomize, task, size),
            sources=of_each(key, randomize, grid, n_envs),
        )
        for key in sorted(keys)
        if disturbance(key) == NOISE
    ]


def _noisy_columns(
    key: str, randomize: Mapping[str, str], task: Task, size: int
) -> slice | NDArray[np.intp]:
    """Which of ``size`` observations ``key`` names.

    :raises RandomizeError: none.
    """
    if key == NOISE:
        return slice(None)
    pattern = key.removeprefix(f"{NOISE}.")
    names = input_names.of_task(task, size)
    if names is None:
        raise RandomizeError(
            f"{table_of(key, randomize)}.{key}: the observations of this task have no names; write {NOISE}, or give "
            "it make_observation_terms() in place of observe()"
        )
    columns = [column for column, name in enumerate(names) if fnmatch.fnmatchcase(name, pattern)]
    if not columns:
        raise RandomizeError(
            f"{table_of(key, randomize)}.{key}: no observation of the task matches {pattern!r}"
            f"{suggestion(pattern, names)}"
        )
    return as_index(np.array(columns, np.intp))
