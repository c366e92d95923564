"""Learners that train alternately in one process, and the CPU time of each per env_step."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.harness import both_ways, cpu_timed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from benchmarks.bare_physics import Shadow

LEAST_STEPS = 4096
"""Fewest env_steps of a learner in a repeat; at least one iteration is run."""
BUFFER = (
    "observations",
    "actions",
    "rewards",
    "episode_starts",
    "values",
    "log_probs",
    "advantages",
    "returns",
)
"""What a rollout has for an update, by its name in the buffer."""


class SB3Learner:
    """A learner with Stable-Baselines3's methods.

    :param model: an ``OnPolicyAlgorithm``.
    :param shadow: takes the same steps without the learner; None where that is not compared.
    """

    def __init__(self, model: Any, shadow: Shadow | None = None) -> None:
        from stable_baselines3.common.logger import Logger

        model.set_logger(Logger(folder=None, output_formats=[]))
        _, self._callback = model._setup_learn(1, None)
        self.model = model
        self.shadow = shadow

    @property
    def env_steps(self) -> int:
        """env_steps of an iteration."""
        return int(self.model.n_steps * self.model.n_envs)

    def collect(self) -> float:
        """CPU seconds of a rollout."""
        model = self.model
        return cpu_timed(
            lambda: model.collect_rollouts(
                model.env, self._callback, model.rollout_buffer, model.n_steps
            )
        )[0]

    def iterate(self) -> tuple[float, NDArray[Any]]:
        """A rollout and an update. Returns CPU seconds, and the actions as the environments
        received them."""
        rollout_s = self.collect()
        space = self.model.action_space
        # Before train(), as stock PPO flattens the buffer there.
        actions = np.clip(self.model.rollout_buffer.actions, space.low, space.high)
        return rollout_s + cpu_timed(self.model.train)[0], actions


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds per env_step, one value per repeat."""

    learner_s: list[float]
    bare_s: list[float]
    """Bare physics of the same steps; zero without a shadow."""


def interleave(measured: Mapping[str, SB3Learner], repeats: int) -> dict[str, StepTimes]:
    """Alternate iterations of all learners, after one warm-up iteration of each."""
    for learner in measured.values():
        learner.iterate()
    times = {name: StepTimes([], []) for name in measured}
    for number in range(repeats):
        spent = {name: Spent() for name in measured}
        turns = max(1, LEAST_STEPS // max(learner.env_steps for learner in measured.values()))
        for turn in range(turns):
            for name in both_ways(number + turn, *measured):
                spent[name].add(measured[name])
        for name, sums in spent.items():
            times[name].learner_s.append(sums.learner_s / sums.env_steps)
            times[name].bare_s.append(sums.bare_s / sums.env_steps)
    return times


@dataclass(slots=True)
class Spent:
    """Time and env_steps of one learner in one repeat."""

    learner_s: float = 0.0
    bare_s: float = 0.0
    env_steps: int = 0

    def add(self, learner: SB3Learner) -> None:
        gc.collect()  # garbage of the other learners must not count
        shadow = learner.shadow
        if shadow is not None:
            shadow.remember()
        seconds, actions = learner.iterate()
        self.learner_s += seconds
        self.env_steps += learner.env_steps
        if shadow is not None:
            self.bare_s += shadow.seconds(actions)


class Update:
    """Repeated ``train()`` of one rollout, from the same parameters."""

    def __init__(
        self, model: Any, rollout: Mapping[str, NDArray[Any]], parameters: Mapping[str, Any]
    ) -> None:
        self._model = model
        self._rollout = rollout
        self._parameters = parameters

    @property
    def minibatches(self) -> int:
        size = self._model.n_steps * self._model.n_envs
        return int(self._model.n_epochs * -(-size // self._model.batch_size))

    def seconds(self) -> float:
        """CPU seconds of one minibatch."""
        buffer = self._model.rollout_buffer
        is_stock = hasattr(buffer, "reset")
        if is_stock:
            buffer.reset()
        for name, values in self._rollout.items():
            getattr(buffer, name)[...] = values
        if is_stock:
            buffer.pos = buffer.buffer_size
            buffer.full = True
        self._model.policy.load_state_dict(self._parameters)
        gc.collect()
        return cpu_timed(self._model.train)[0] / self.minibatches
