"""What disturbs a robot from outside of its physics: noise and delays of observations and actions, and pushes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from orchestrator.core.distributions import DISTURBANCES, parse_distribution
from orchestrator.worker.envs.randomization.draws import draw, draw_many
from orchestrator.worker.envs.randomization.randomized_fields import TABLE, RandomizeError
from orchestrator.worker.tasks import Task
from orchestrator.worker.tasks.actions import Floats
from orchestrator.worker.tasks.base import control_steps
from orchestrator.worker.tasks.root import NoRootError, find_root, horizontal_push

PUSH_PERIOD = "uniform(2, 2)"
"""Of pushes whose period is not given, in seconds."""
NOISE_STEPS = 32
"""Control steps for which noise is drawn at once, because a call of the generator for each costs too much."""
_DRAWN_PER_EPISODE = ("action.delay", "observation.delay", "push.period")


class DisturbanceState(TypedDict):
    """What a checkpoint holds of them."""

    drawn: dict[str, NDArray[np.int64]]
    noise: NDArray[Any]
    late_actions: NDArray[Any]
    late_observations: NDArray[Any]
    step: int
    seen: NDArray[Any]
    """``(n_envs, observation_size)`` the latest observations as the policy has seen them."""


class Disturbances:
    """The keys of :data:`DISTURBANCES` in ``randomize``.

    Delays and the period of pushes are drawn when an episode begins, a push when it happens, and noise for
    :data:`NOISE_STEPS` observations at once, all from the environment's own stream.

    :param seen: ``(n_envs, observation_size)`` where the latest observations are kept as the policy sees them.
    :raises RandomizeError: pushes, and the robot has no base that can be pushed.
    """

    def __init__(self, randomize: Mapping[str, str], task: Task, seen: NDArray[Any]) -> None:
        n_envs = len(seen)
        self._by_key = {key: parse_distribution(randomize[key]) for key in DISTURBANCES if key in randomize}
        self._task, self._seen = task, seen
        if "push.speed" in self._by_key:
            self._by_key.setdefault("push.period", parse_distribution(PUSH_PERIOD))
            try:
                self._root = find_root(task.model, task.pose)
            except NoRootError as error:
                raise RandomizeError(f"{TABLE}.push.speed: {error}") from None
        elif "push.period" in self._by_key:
            raise RandomizeError(f"{TABLE}.push.period: there are no pushes; set push.speed as well")
        self._drawn = {key: np.zeros(n_envs, np.int64) for key in _DRAWN_PER_EPISODE if key in self._by_key}
        """Key → ``(n_envs,)`` control steps, of the running episodes."""
        self._step = 0
        self._noise_of = self._by_key.get("observation.noise")
        self._noise = np.zeros((NOISE_STEPS if self._noise_of else 0, *seen.shape), seen.dtype)
        self._actions = np.zeros((self._memory("action.delay"), n_envs, len(task.actions.low)))
        self._observations = np.zeros((self._memory("observation.delay"), *seen.shape), seen.dtype)
        self._all = np.arange(n_envs)

    def _memory(self, key: str) -> int:
        """How many of the latest rows are kept for the delay ``key``: row ``step % memory`` is the latest."""
        found = self._by_key.get(key)
        return 0 if found is None else 1 + round(found.extremes[1])

    def restart(self) -> None:
        """The generators are new ones: noise that the earlier ones gave is not used."""
        self._step = 0

    def begin(self, envs: NDArray[np.intp], rngs: list[np.random.Generator], progress: float) -> None:
        """Draw what an episode keeps; actions before its first were zeros."""
        for env in envs:
            for key, drawn in self._drawn.items():
                value = draw(self._by_key[key], rngs[env], progress)
                drawn[env] = control_steps(value, self._task.step_s) if key == "push.period" else round(value)
        self._actions[:, envs] = 0.0

    def acted(self, actions: NDArray[Any]) -> NDArray[Any]:
        """The actions that reach the actuators now, where the policy gives ``actions``, ``(n_envs, nu)``."""
        self._step += 1
        return self._delayed(self._actions, actions, "action.delay") if len(self._actions) else actions

    def observed(self, observations: NDArray[Any], rngs: list[np.random.Generator], progress: float) -> NDArray[Any]:
        """What the policy sees of ``observations``, ``(n_envs, observation_size)``, which are changed."""
        if self._noise_of is not None:
            row = (self._step - 1) % NOISE_STEPS
            if row == 0:
                size = NOISE_STEPS * observations.shape[1]
                for env, rng in enumerate(rngs):
                    drawn = draw_many(self._noise_of, rng, size, progress)
                    self._noise[:, env] = drawn.reshape(NOISE_STEPS, -1)
            observations += self._noise[row]
        if len(self._observations):
            observations = self._delayed(self._observations, observations, "observation.delay")
        self._seen[:] = observations
        return observations

    def first_observed(
        self, observations: NDArray[Any], envs: NDArray[np.intp], rngs: list[np.random.Generator], progress: float
    ) -> NDArray[Any]:
        """The same when episodes begin, ``(len(envs), observation_size)``: what came before was equal to the first."""
        if self._noise_of is not None:
            for row, env in enumerate(envs):
                observations[row] += draw_many(self._noise_of, rngs[env], observations.shape[1], progress)
        self._observations[:, envs] = self._seen[envs] = observations
        return observations

    def _delayed(self, latest: NDArray[Any], newest: NDArray[Any], key: str) -> NDArray[Any]:
        """The rows of so many control steps ago.

        :param latest: ``(memory, n_envs, …)``, which takes ``newest``, ``(n_envs, …)``.
        """
        memory = len(latest)
        latest[self._step % memory] = newest
        rows: NDArray[Any] = latest[(self._step - self._drawn[key]) % memory, self._all]
        return rows

    def push(self, rng: np.random.Generator, progress: float) -> Floats:
        """``(nv,)`` velocities of one push."""
        return horizontal_push(self._root, self._task.model.nv, draw(self._by_key["push.speed"], rng, progress), rng)

    def is_push_due(self, lengths: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """``(n_envs,)`` whether the base is pushed before the next control step; None: none is.

        :param lengths: ``(n_envs,)`` control steps of the running episodes.
        """
        period = self._drawn.get("push.period")
        due = None if period is None else (lengths % period == 0) & (lengths > 0)
        return due if due is not None and np.count_nonzero(due) else None

    def get_state(self) -> DisturbanceState:
        return {
            "drawn": {key: drawn.copy() for key, drawn in self._drawn.items()},
            "noise": self._noise.copy(),
            "late_actions": self._actions.copy(),
            "late_observations": self._observations.copy(),
            "step": self._step,
            "seen": self._seen.copy(),
        }

    def set_state(self, state: DisturbanceState) -> NDArray[Any]:
        """:return: ``(n_envs, observation_size)``, the current observations."""
        for key, drawn in self._drawn.items():
            drawn[:] = state["drawn"][key]
        self._noise[:], self._actions[:] = state["noise"], state["late_actions"]
        self._observations[:], self._seen[:] = state["late_observations"], state["seen"]
        self._step = state["step"]
        return self._seen.copy()
