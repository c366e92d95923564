"""What ranks tell each other after an iteration: ended episodes, normalisation statistics, and losses to be logged."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecNormalize

from orchestrator.worker.distributed.ranks import Ranks, require_equal
from orchestrator.worker.training import weights
from orchestrator.worker.training.algorithms import Model, OffPolicy

COMPARE_VARIABLE = "ORCHESTRATOR_COMPARE_EVERY"
"""Environment variable: iterations between comparisons of what all ranks must have in common."""
COMPARE_EVERY = 100
Moments = tuple[NDArray[np.float64], NDArray[np.float64], float]
"""Mean, variance (of the numbers themselves, not unbiased) and count."""


class Shared(Protocol):
    """Something of which each rank has a part, and all shall have the same."""

    def tell(self) -> Any:
        """What this rank has of it."""

    def take(self, everyone: Sequence[Any]) -> None:
        """:param everyone: what each rank has told, in order of rank."""


def pool(ranks: Ranks, shared: Sequence[Shared]) -> None:
    """Everybody tells and takes, in one exchange. :raises RankLostError: the ranks have lost each other."""
    everyone = ranks.all_gather([one.tell() for one in shared])
    for number, one in enumerate(shared):
        one.take([told[number] for told in everyone])


class SharedStatistics:
    """The moments of :class:`VecNormalize` over all ranks.

    During a rollout every rank goes on from the common ones with what it sees itself. What each has seen since then
    makes the new common ones: the same bits on every rank.
    """

    def __init__(self, normalization: VecNormalize) -> None:
        self._normalization = normalization
        self._common = [one.copy() for one in self._statistics()]

    def _statistics(self) -> list[RunningMeanStd]:
        observations = getattr(self._normalization, "obs_rms", None)
        if isinstance(observations, dict):
            parts = list(observations.values())
        else:
            parts = [] if observations is None else [observations]
        return [*parts, self._normalization.ret_rms]

    def tell(self) -> list[Moments]:
        return [_since(common, now) for common, now in zip(self._common, self._statistics(), strict=True)]

    def take(self, everyone: Sequence[list[Moments]]) -> None:
        for number, (common, own) in enumerate(zip(self._common, self._statistics(), strict=True)):
            for one in everyone:
                if one[number][2] > 0:
                    common.update_from_moments(*one[number])
            own.mean, own.var, own.count = np.array(common.mean), np.array(common.var), common.count


def _since(common: RunningMeanStd, now: RunningMeanStd) -> Moments:
    """Moments of what ``now`` has seen and ``common`` has not."""
    count = now.count - common.count
    if count <= 0:
        return np.zeros_like(now.mean), np.zeros_like(now.var), 0.0
    mean = (now.mean * now.count - common.mean * common.count) / count
    between = np.square(mean - common.mean) * common.count * count / now.count
    squares = now.var * now.count - common.var * common.count - between
    return mean, np.maximum(squares, 0.0) / count, count


class SharedEpisodes:
    """The last episodes of all ranks, which ``ep_rew_mean`` is the mean of.

    :meth:`begin` comes before each rollout and leaves the model with none, so that what it has afterwards is new.
    Those of every rank follow those known, in order of rank.
    """

    NAMES = ("ep_info_buffer", "ep_success_buffer")

    def __init__(self, model: Any) -> None:
        self._model = model
        self._all: dict[str, deque[Any]] = {}
        self._count = 0
        """Episodes before the rollout, where the algorithm counts them."""

    def begin(self) -> None:
        for name in self.NAMES:
            self._all[name] = getattr(self._model, name)
            setattr(self._model, name, deque())
        self._count = self._model._episode_num

    def tell(self) -> tuple[dict[str, list[Any]], int]:
        new = {name: list(getattr(self._model, name)) for name in self.NAMES}
        return new, self._model._episode_num - self._count

    def take(self, everyone: Sequence[tuple[dict[str, list[Any]], int]]) -> None:
        for name, known in self._all.items():
            for one, _ in everyone:
                known.extend(one[name])
            setattr(self._model, name, known)
        self._model._episode_num = self._count + sum(count for _, count in everyone)


class SharedLosses:
    """What an algorithm has logged of its last update that each rank knows of its own part only: means over all."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def tell(self) -> dict[str, float]:
        return {name: value for name, value in self._model.logger.name_to_value.items() if name.endswith("_loss")}

    def take(self, everyone: Sequence[dict[str, float]]) -> None:
        for name in everyone[0]:
            self._model.logger.record(name, float(np.mean([told[name] for told in everyone])))


class Common:
    """What all ranks must have in common: made so at the start, kept so after every iteration. Alone there is nothing.

    Made before the environments are reset: what they show then, the statistics of other ranks do not know yet.

    :param serving: whether rank 0 alone has the optimiser's state.
    """

    def __init__(self, model: Model, ranks: Ranks, *, serving: bool) -> None:
        self._model, self._ranks, self._serving = model, ranks, serving
        self._compare_every = int(os.environ.get(COMPARE_VARIABLE, COMPARE_EVERY))
        self._episodes: SharedEpisodes | None = None
        self._statistics: list[SharedStatistics] = []
        self._losses: list[SharedLosses] = []
        if ranks.size == 1:
            return
        for tensor in model.policy.state_dict().values():
            values = tensor.detach().cpu().numpy()
            ranks.broadcast(values)
            tensor.copy_(torch.from_numpy(values))
        normalization = model.get_vec_normalize_env()
        self._episodes = SharedEpisodes(model)
        if normalization is not None:
            self._statistics = [SharedStatistics(normalization)]
        if isinstance(model, OffPolicy):  # updates of PPO see to it themselves
            self._losses = [SharedLosses(model)]

    def start(self) -> None:
        """The environments have been reset. :raises RanksError: the ranks differ."""
        if self._ranks.size > 1:
            pool(self._ranks, self._statistics)
            self._compare()

    def begin(self) -> None:
        """An iteration begins."""
        if self._episodes is not None:
            self._episodes.begin()

    def end(self, iteration: int) -> None:
        """:raises RanksError: the ranks have drifted apart; looked at in every so many iterations."""
        if self._episodes is not None:
            pool(self._ranks, [self._episodes, *self._statistics, *self._losses])
        if self._ranks.size > 1 and iteration % self._compare_every == 0:
            self._compare()

    def _compare(self) -> None:
        digest = weights.sha256(self._model, optimizers=not self._serving)
        require_equal(self._ranks, digest, "parameters, optimiser state or normalisation statistics")
