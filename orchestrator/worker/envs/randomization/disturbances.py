"""What disturbs a robot from outside of its physics: noise and delays of observations and actions, and pushes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from orchestrator.core.distributions import DISTURBANCES, parse_distribution
from orchestrator.worker.envs.randomization.randomized_fields import TABLE, RandomizeError
from orchestrator.worker.tasks import Task
from orchestrator.worker.tasks.actions import Floats
from orchestrator.worker.tasks.base import control_steps
from orchestrator.worker.tasks.root import NoRootError, find_root, horizontal_push

PUSH_PERIOD = "uniform(2, 2)"
"""Of pushes whose period is not given, in seconds."""
_DRAWN_PER_EPISODE = ("action.delay", "observation.delay", "push.period")


class DisturbanceState(TypedDict):
    """What a checkpoint holds of them."""

    drawn: dict[str, NDArray[np.int64]]
    late_actions: Floats
    late_observations: Floats
    seen: NDArray[Any]
    """``(n_envs, observation_size)`` the latest observations as the policy has seen them."""


class Disturbances:
    """The keys of :data:`DISTURBANCES` in ``randomize``.

    Delays and the period of pushes are drawn when an episode begins, a push when it happens, and noise for every
    observation, all from the environment's own stream.

    :param seen: ``(n_envs, observation_size)`` where the latest observations are kept as the policy sees them.
    :raises RandomizeError: pushes, and the robot has no base that can be pushed.
    """

    def __init__(self, randomize: Mapping[str, str], task: Task, seen: NDArray[Any]) -> None:
        n_envs = len(seen)
        self._by_key = {key: parse_distribution(randomize[key]) for key in DISTURBANCES if key in randomize}
        self._task = task
        if "push.speed" in self._by_key:
            self._by_key.setdefault("push.period", parse_distribution(PUSH_PERIOD))
            try:
                self._root = find_root(task.model, task.pose)
            except NoRootError as error:
                raise RandomizeError(f"{TABLE}.push.speed: {error}") from None
        elif "push.period" in self._by_key:
            raise RandomizeError(f"{TABLE}.push.period: there are no pushes; set push.speed as well")
        self._noise = self._by_key.get("observation.noise")
        drawn = {key: np.zeros(n_envs, np.int64) for key in _DRAWN_PER_EPISODE if key in self._by_key}
        self._drawn = drawn
        """Key → ``(n_envs,)`` control steps, of the running episodes."""
        self._actions = np.zeros((self._longest("action.delay"), n_envs, len(task.actions.low)))
        """The actions before the latest, newest first."""
        self._observations = np.zeros((self._longest("observation.delay"), *seen.shape), seen.dtype)
        self._seen = seen
        self._all = np.arange(n_envs)

    def _longest(self, key: str) -> int:
        found = self._by_key.get(key)
        return 0 if found is None else round(max(found.bounds(0.0)[1], found.bounds(1.0)[1]))

    def begin(self, envs: NDArray[np.intp], rngs: list[np.random.Generator], progress: float) -> None:
        """Draw what an episode keeps; actions before its first were zeros."""
        for env in envs:
            for key, drawn in self._drawn.items():
                value = self._by_key[key].draw(rngs[env], progress)
                drawn[env] = control_steps(value, self._task.step_s) if key == "push.period" else round(value)
        self._actions[:, envs] = 0.0

    def acted(self, actions: NDArray[Any]) -> NDArray[Any]:
        """The actions that reach the actuators now, where the policy gives ``actions``, ``(n_envs, nu)``."""
        if not len(self._actions):
            return actions
        return _delayed(self._actions, actions, self._drawn["action.delay"], self._all)

    def observed(
        self, observations: NDArray[Any], envs: NDArray[np.intp], rngs: list[np.random.Generator], progress: float
    ) -> NDArray[Any]:
        """What the policy sees of ``observations``, ``(len(envs), observation_size)``, which are changed."""
        self._add_noise(observations, envs, rngs, progress)
        if len(self._observations):
            observations = _delayed(self._observations, observations, self._drawn["observation.delay"], envs)
        self._seen[envs] = observations
        return observations

    def first_observed(
        self, observations: NDArray[Any], envs: NDArray[np.intp], rngs: list[np.random.Generator], progress: float
    ) -> NDArray[Any]:
        """The same when an episode begins: what came before was its first observation too."""
        self._add_noise(observations, envs, rngs, progress)
        self._observations[:, envs] = self._seen[envs] = observations
        return observations

    def push(self, rng: np.random.Generator, progress: float) -> Floats:
        """``(nv,)`` velocities of one push."""
        return horizontal_push(self._root, self._task.model.nv, self._by_key["push.speed"].draw(rng, progress), rng)

    def is_push_due(self, lengths: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """``(n_envs,)`` whether the base is pushed before the next control step; None: nothing is ever pushed.

        :param lengths: ``(n_envs,)`` control steps of the running episodes.
        """
        period = self._drawn.get("push.period")
        return None if period is None else (lengths > 0) & (lengths % period == 0)

    def get_state(self) -> DisturbanceState:
        return {
            "drawn": {key: drawn.copy() for key, drawn in self._drawn.items()},
            "late_actions": self._actions.copy(),
            "late_observations": self._observations.copy(),
            "seen": self._seen.copy(),
        }

    def set_state(self, state: DisturbanceState) -> NDArray[Any]:
        """:return: ``(n_envs, observation_size)``, the current observations."""
        for key, drawn in self._drawn.items():
            drawn[:] = state["drawn"][key]
        self._actions[:] = state["late_actions"]
        self._observations[:] = state["late_observations"]
        self._seen[:] = state["seen"]
        return self._seen.copy()

    def _add_noise(
        self, observations: NDArray[Any], envs: NDArray[np.intp], rngs: list[np.random.Generator], progress: float
    ) -> None:
        if self._noise is not None:
            for row, env in enumerate(envs):
                observations[row] += self._noise.draw_many(rngs[env], observations.shape[1], progress)


def _delayed(
    history: NDArray[Any], latest: NDArray[Any], delays: NDArray[np.int64], envs: NDArray[np.intp]
) -> NDArray[Any]:
    """What was ``delays`` control steps ago; ``history`` takes ``latest``, a row for each of ``envs``.

    :param history: ``(longest delay, n_envs, …)``, newest first.
    """
    both = np.concatenate([latest[None], history[:, envs]])
    history[:, envs] = both[:-1]
    return both[delays[envs], np.arange(len(envs))].astype(latest.dtype)
