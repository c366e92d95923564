"""What policies that were made for the original robot reach on a changed one: returns and lengths
of episodes from the same starts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.features.advice.physics_advice import Difference, PolicyEffect
from orchestrator.features.advice.worker.interleaved_speed import random_actions
from orchestrator.features.advice.worker.short_training import ShortTrainedPolicy
from orchestrator.worker.envs.simulation import Simulation
from orchestrator.worker.mjmodel.structure import Floats

EPISODES = 24
STUDENT_T = 2.069
"""97.5 % quantile of Student's t with ``EPISODES - 1`` degrees of freedom."""
LEAST_NOISE = 0.05
"""Differences are compared with the standard deviation over the original's episodes, but at least
with this share of their mean: equal episodes have none."""
LEAST_PLAYED_S = 2.0
"""Simulated time that is played at least of episodes that are longer, where a change is judged by them:
twice that over which motions are compared."""
SEED = 1
"""Of starts and random actions."""
RANDOM = "random actions"
TRAINED = "a short-trained policy"
Act = Callable[[NDArray[Any]], NDArray[Any]]
"""Observations ``(EPISODES, observation_size)`` → actions ``(EPISODES, actions)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedEpisodes:
    """``(EPISODES,)`` each; of the first control steps, where episodes are longer."""

    returns: Floats
    lengths: Floats


def play(simulation: Simulation, act: Act, most_steps: int) -> PlayedEpisodes:
    """One episode in each of the ``EPISODES`` environments of ``simulation``, from its first one
    on.

    :param simulation: without ``autoreset``; with an equal seed the starts are equal.
    :param most_steps: control steps after which an episode is cut off.
    """
    runs = np.ones(EPISODES, bool)
    returns = np.zeros(EPISODES)
    lengths = np.zeros(EPISODES)
    observations = simulation.reset()
    for _ in range(most_steps):
        result = simulation.step(act(observations))
        observations = result.observations
        returns[runs] += result.rewards[runs]
        lengths[runs] += 1
        runs &= ~result.done
        if not runs.any():
            break
    return PlayedEpisodes(returns=returns, lengths=lengths)


class PolicyEffects:
    """Random actions and a short-trained policy, on the original and then on changed robots.

    :param episodes: gives the original with ``EPISODES`` environments without ``autoreset``.
    :param most_steps: control steps after which an episode is cut off.
    :param enough_steps: of which so many judge a change.
    """

    def __init__(
        self,
        trained: ShortTrainedPolicy,
        episodes: Callable[[], Simulation],
        *,
        most_steps: int,
        enough_steps: int,
    ) -> None:
        self.most_steps = most_steps
        self._policies: dict[str, Callable[[Simulation], Act]] = {
            RANDOM: _random_actions,
            TRAINED: lambda _: trained.actions,
        }
        self._before = {name: self._play(name, episodes()) for name in self._policies}
        self.are_cut_short = any(
            is_cut_short(before.lengths, most_steps, enough_steps)
            for before in self._before.values()
        )
        """Whether episodes are too short to judge a change by them."""

    def on(self, changed: Simulation) -> list[PolicyEffect]:
        """:param changed: as ``episodes`` of the constructor, of a changed robot."""
        effects = []
        for name, before in self._before.items():
            effects.append(effect(name, before, self._play(name, changed)))
        return effects

    def _play(self, name: str, simulation: Simulation) -> PlayedEpisodes:
        simulation.seed(SEED)
        return play(simulation, self._policies[name](simulation), self.most_steps)


def _random_actions(simulation: Simulation) -> Act:
    """The same in each step of each robot."""
    rng = np.random.default_rng(SEED)

    def act(_: NDArray[Any]) -> NDArray[Any]:
        actions: NDArray[Any] = random_actions(simulation, rng, 1)[0]
        return actions

    return act


def is_cut_short(lengths: Floats, most_steps: int, enough_steps: int) -> bool:
    """Whether half of the episodes or more were cut off before ``enough_steps``.

    :param lengths: ``(EPISODES,)`` control steps that were played on the original.
    :param most_steps: after which they were cut off.
    """
    ended = int(np.count_nonzero(lengths < most_steps))
    return 2 * ended <= len(lengths) and most_steps < enough_steps


def effect(policy: str, before: PlayedEpisodes, after: PlayedEpisodes) -> PolicyEffect:
    """:param before: on the original robot, from the same starts."""
    return PolicyEffect(
        policy=policy,
        returns=_difference(before.returns, after.returns),
        lengths=_difference(before.lengths, after.lengths),
    )


def _difference(before: Floats, after: Floats) -> Difference:
    noise = max(float(before.std(ddof=1)), LEAST_NOISE * abs(float(before.mean())), 1e-9)
    differences = (after - before) / noise
    mean = float(differences.mean())
    reach = STUDENT_T * float(differences.std(ddof=1)) / math.sqrt(EPISODES)
    return Difference(
        before=float(before.mean()),
        after=float(after.mean()),
        low=mean - reach,
        high=mean + reach,
    )
