"""What disturbs a robot from outside of its physics: noise and delays of observations and actions,
and pushes.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.core.numbers.changing_numbers import TrainingMoment
from orchestrator.core.numbers.distributions import (
    NOISE,
    PRIVILEGED,
    disturbance,
    parse_distribution,
)
from orchestrator.worker.envs.episode_conditions import GridPlaces
from orchestrator.worker.envs.randomization.draws import draw, draw_many, of_each, refusal
from orchestrator.worker.mjmodel.root import NoRootError, find_root, horizontal_push
from orchestrator.worker.mjmodel.structure import Floats, as_index
from orchestrator.worker.mjspec.spec_elements import suggestion
from orchestrator.worker.tasks import Task
from orchestrator.worker.tasks.base import control_steps

PUSH_PERIOD = "uniform(2, 2)"
"""Of pushes whose period is not given, in seconds."""
NOISE_STEPS = 32
"""Control steps for which noise is drawn at once, because a call of the generator for each costs
too much."""


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
        self._task = task
        self.seen = seen
        self._envs = np.arange(n_envs)
        keys = (
            set(randomize) if grid is None else {*randomize, *(axis.key for axis in grid.grid.axes)}
        )
        self._sources = {
            key: of_each(key, randomize, grid, n_envs)
            for key in sorted(keys)
            if disturbance(key) is not None
        }
        """Key → what each environment draws it from."""
        self._noisy = {
            key: _noisy_columns(key, randomize, task)
            for key in self._sources
            if disturbance(key) == NOISE
        }
        """Key of noise → the observations that have it."""
        if "push.speed" in self._sources:
            self._sources.setdefault("push.period", [parse_distribution(PUSH_PERIOD)] * n_envs)
            try:
                self._root = find_root(task.model, task.pose)
            except NoRootError as error:
                raise refusal("push.speed", randomize, str(error)) from None
        elif "push.period" in self._sources:
            raise refusal("push.period", randomize, "there are no pushes; set push.speed as well")
        self.drawn = {key: np.zeros(n_envs, np.int64) for key in PRIVILEGED if key in self._sources}
        """Key → ``(n_envs,)`` control steps, of the running episodes."""
        self._steps = np.zeros(2, np.int64)
        """Control steps so far, which count the rows of what is late, and those since noise was drawn
        first, which count its rows."""
        self._noise = np.zeros((NOISE_STEPS if self._noisy else 0, *seen.shape), seen.dtype)
        kept = {
            key: 1 + round(max(source.extremes[1] for source in self._sources[key]))
            for key in ("action.delay", "observation.delay")
            if key in self._sources
        }
        """How many of the latest rows are kept: row ``step % kept`` is the latest."""
        n_actions = len(task.actions.low)
        self._actions = np.zeros((kept.get("action.delay", 0), n_envs, n_actions))
        self._observations = np.zeros((kept.get("observation.delay", 0), *seen.shape), seen.dtype)

    def forget_noise(self) -> None:
        """The generators are new ones: noise that the earlier ones gave is not used."""
        self._steps[1] = 0

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What the next steps depend on, by name: views."""
        arrays = {
            **self.drawn,
            "noise": self._noise,
            "late actions": self._actions,
            "late observations": self._observations,
            "disturbed steps": self._steps,
            "seen": self.seen,
        }
        return {name: array for name, array in arrays.items() if len(array)}

    def begin_episodes(
        self, envs: NDArray[np.intp], rngs: list[np.random.Generator], moment: TrainingMoment
    ) -> None:
        """Draw what an episode keeps; actions before its first were zeros."""
        for env in envs:
            for key, drawn in self.drawn.items():
                value = draw(self._sources[key][env], rngs[env], moment)
                is_seconds = key == "push.period"
                drawn[env] = control_steps(value, self._task.step_s) if is_seconds else round(value)
        self._actions[:, envs] = 0.0

    def disturbed_actions(self, actions: NDArray[Any]) -> NDArray[Any]:
        """The actions that reach the actuators now, where the policy gives ``actions``, ``(n_envs,
        nu)``.
        """
        self._steps[0] += 1
        if not len(self._actions):
            return actions
        return self._delayed_rows(self._actions, actions, "action.delay")

    def disturbed_observations(
        self, observations: NDArray[Any], rngs: list[np.random.Generator], moment: TrainingMoment
    ) -> NDArray[Any]:
        """What the policy sees of ``observations``, ``(n_envs, observation_size)``, which are
        changed.
        """
        if self._noisy:
            row = self._steps[1] % NOISE_STEPS
            self._steps[1] += 1
            if row == 0:
                self._noise[:] = 0.0
                for env, rng in enumerate(rngs):
                    self._add_noise(self._noise[:, env], env, rng, moment)
            observations += self._noise[row]
        if len(self._observations):
            observations = self._delayed_rows(self._observations, observations, "observation.delay")
        self.seen[:] = observations
        return observations

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
        for row, env in enumerate(envs):
            self._add_noise(observations[row : row + 1], env, rngs[env], moment)
        self.seen[envs] = observations
        self._observations[:, envs] = observations
        return observations

    def _add_noise(
        self,
        rows: NDArray[Any],
        env: int | np.intp,
        rng: np.random.Generator,
        moment: TrainingMoment,
    ) -> None:
        """Add noise to ``rows``, ``(n, observation_size)``, of environment ``env``."""
        for key, columns in self._noisy.items():
            noisy = rows[:, columns]  # a view, or a copy
            drawn = draw_many(self._sources[key][env], rng, noisy.size, moment)
            rows[:, columns] = noisy + drawn.reshape(noisy.shape)

    def _delayed_rows(self, latest: NDArray[Any], newest: NDArray[Any], key: str) -> NDArray[Any]:
        """The rows of so many control steps ago.

        :param latest: ``(kept, n_envs, …)``, which takes ``newest``, ``(n_envs, …)``.
        """
        kept = len(latest)
        step = int(self._steps[0])
        latest[step % kept] = newest
        rows: NDArray[Any] = latest[(step - self.drawn[key]) % kept, self._envs]
        return rows

    def push(self, env: int, rng: np.random.Generator, moment: TrainingMoment) -> Floats:
        """``(nv,)`` velocities of one push."""
        speed = draw(self._sources["push.speed"][env], rng, moment)
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


def _noisy_columns(key: str, randomize: Mapping[str, str], task: Task) -> slice | NDArray[np.intp]:
    """Which observations ``key`` names.

    :raises RandomizeError: none.
    """
    if key == NOISE:
        return slice(None)
    pattern = key.removeprefix(f"{NOISE}.")
    terms = task.policy_terms
    names = [] if terms is None else terms.names
    columns = [column for column, name in enumerate(names) if fnmatch.fnmatchcase(name, pattern)]
    if not columns:
        reason = f"no observation of the task matches {pattern!r}{suggestion(pattern, names)}"
        if not names:
            reason = f"the observations of this task have no names; write {NOISE}"
        raise refusal(key, randomize, reason)
    return as_index(np.array(columns, np.intp))
