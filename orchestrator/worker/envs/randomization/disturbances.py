"""What disturbs a robot from outside of its physics: noise and delays of observations and actions,
and pushes.
"""

from __future__ import annotations

import fnmatch
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.core.numbers.distributions import (
    NOISE,
    PRIVILEGED,
    disturbance,
    parse_distribution,
)
from orchestrator.worker.envs.randomization.draws import EpisodeDraws
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
    """The keys ``observation.*``, ``action.*`` and ``push.*`` of ``randomize``.

    Delays and the period of pushes are drawn when an episode begins, a push when it happens, and
    noise for :data:`NOISE_STEPS` observations at once, all from the environment's own stream.

    :param draws: gets delays and the period of pushes, in control steps.
    :param seen: ``(n_envs, observation_size)`` where the latest observations are kept as the policy
        sees them.
    :raises RandomizeError: a key does not fit the robot.
    """

    def __init__(self, draws: EpisodeDraws, task: Task, seen: NDArray[Any]) -> None:
        n_envs = len(seen)
        self._draws = draws
        self._task = task
        self.seen = seen
        self._envs = np.arange(n_envs)
        sources = draws.sources
        self._noisy = {
            key: _noisy_columns(key, draws, task) for key in sources if disturbance(key) == NOISE
        }
        """Key of noise → the observations that have it."""
        if "push.speed" in sources:
            sources.setdefault("push.period", parse_distribution(PUSH_PERIOD))
            try:
                self._root = find_root(task.model, task.pose)
            except NoRootError as error:
                raise draws.refusal("push.speed", str(error)) from None
        elif "push.period" in sources:
            raise draws.refusal("push.period", "there are no pushes; set push.speed as well")
        self._drawn = {key: np.zeros(n_envs, np.int64) for key in PRIVILEGED if key in sources}
        """Key → ``(n_envs,)`` control steps, of the running episodes."""
        draws.values |= self._drawn
        self._steps = np.zeros(2, np.int64)
        """Control steps so far, which count the rows of what is late, and those since noise was drawn
        first, which count its rows."""
        self._noise = np.zeros((NOISE_STEPS if self._noisy else 0, *seen.shape), seen.dtype)
        kept = {
            key: 1 + round(sources[key].extremes[1])
            for key in ("action.delay", "observation.delay")
            if key in sources
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
            "noise": self._noise,
            "late actions": self._actions,
            "late observations": self._observations,
            "disturbed steps": self._steps,
            "seen": self.seen,
        }
        return {name: array for name, array in arrays.items() if len(array)}

    def begin_episodes(self, envs: NDArray[np.intp]) -> None:
        """Draw what an episode keeps; actions before its first were zeros."""
        for env in envs:
            for key, drawn in self._drawn.items():
                value = self._draws.draw(key, env)
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

    def disturbed_observations(self, observations: NDArray[Any]) -> NDArray[Any]:
        """What the policy sees of ``observations``, ``(n_envs, observation_size)``, which are
        changed.
        """
        if self._noisy:
            row = self._steps[1] % NOISE_STEPS
            self._steps[1] += 1
            if row == 0:
                self._noise[:] = 0.0
                for env in range(len(self._envs)):
                    self._add_noise(self._noise[:, env], env)
            observations += self._noise[row]
        if len(self._observations):
            observations = self._delayed_rows(self._observations, observations, "observation.delay")
        self.seen[:] = observations
        return observations

    def disturbed_first_observations(
        self, observations: NDArray[Any], envs: NDArray[np.intp]
    ) -> NDArray[Any]:
        """The same when episodes begin, ``(len(envs), observation_size)``: what came before was
        equal to the first.
        """
        for row, env in enumerate(envs):
            self._add_noise(observations[row : row + 1], env)
        self.seen[envs] = observations
        self._observations[:, envs] = observations
        return observations

    def _add_noise(self, rows: NDArray[Any], env: int | np.intp) -> None:
        """Add noise to ``rows``, ``(n, observation_size)``, of environment ``env``."""
        for key, columns in self._noisy.items():
            noisy = rows[:, columns]  # a view, or a copy
            drawn = self._draws.draw_many(key, env, noisy.size)
            rows[:, columns] = noisy + drawn.reshape(noisy.shape)

    def _delayed_rows(self, latest: NDArray[Any], newest: NDArray[Any], key: str) -> NDArray[Any]:
        """The rows of so many control steps ago.

        :param latest: ``(kept, n_envs, …)``, which takes ``newest``, ``(n_envs, …)``.
        """
        kept = len(latest)
        step = int(self._steps[0])
        latest[step % kept] = newest
        rows: NDArray[Any] = latest[(step - self._drawn[key]) % kept, self._envs]
        return rows

    def push(self, env: int, rng: np.random.Generator) -> Floats:
        """``(nv,)`` velocities of one push."""
        speed = self._draws.draw("push.speed", env)
        return horizontal_push(self._root, self._task.model.nv, speed, rng)

    def due_pushes(self, lengths: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """``(n_envs,)`` whether the base is pushed before the next control step; None: none is.

        :param lengths: ``(n_envs,)`` control steps of the running episodes.
        """
        period = self._drawn.get("push.period")
        if period is None:
            return None
        since = lengths % period
        if np.count_nonzero(since) == len(since):  # at nearly every step
            return None
        due: NDArray[np.bool_] = (since == 0) & (lengths > 0)
        return due


def _noisy_columns(key: str, draws: EpisodeDraws, task: Task) -> slice | NDArray[np.intp]:
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
        reason = f"no observation of the task has a name like {pattern!r}"
        raise draws.refusal(key, f"{reason}{suggestion(pattern, names)}")
    return as_index(np.array(columns, np.intp))
