"""What ranks merge after an iteration: ended episodes, normalisation statistics, and the losses
that are logged.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecNormalize

from orchestrator.core.numbers.changing_numbers import TrainingMoment
from orchestrator.worker.distributed.ranks import Ranks, require_equal
from orchestrator.worker.runtime.sb3_internals import EPISODE_NUM
from orchestrator.worker.training import weights
from orchestrator.worker.training.algorithms import Model, OffPolicy
from orchestrator.worker.training.loop_parts import LoopPart

COMPARE_VARIABLE = "ORCHESTRATOR_COMPARE_EVERY"
"""Environment variable: iterations between comparisons of what must be equal on all ranks."""
COMPARE_EVERY = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Of numbers that a rank has seen."""

    mean: NDArray[np.float64]
    variance: NDArray[np.float64]
    """Of the population, not unbiased."""
    count: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEpisodes:
    """What a rollout has added on one rank."""

    by_buffer: dict[str, list[Any]]
    """Name of the model's buffer → what the rollout has appended to it."""
    count: int
    """Episodes, where the algorithm counts them."""


def merge_over_ranks(
    ranks: Ranks, mergeables: Sequence[SharedStatistics | SharedEpisodes | SharedLosses]
) -> None:
    """Merge all of them in one exchange. :raises RankLostError: the ranks have lost each other."""
    own: list[Any] = [mergeable.own_part() for mergeable in mergeables]
    of_ranks = ranks.all_gather_object(own)
    for index, mergeable in enumerate(mergeables):
        mergeable.merge([of_rank[index] for of_rank in of_ranks])


class SharedStatistics:
    """The moments of :class:`VecNormalize` over all ranks.

    During a rollout every rank updates the common moments with its own observations. The common
    moments after it are merged from what each rank has observed since the last merge, with the same
    bits on every rank.
    """

    def __init__(self, normalization: VecNormalize) -> None:
        self._normalization = normalization
        self._common = [statistics.copy() for statistics in self._statistics()]

    def _statistics(self) -> list[RunningMeanStd]:
        """Those of the observations, or of each entry of a ``Dict``, and of the returns."""
        observations: Any = getattr(self._normalization, "obs_rms", {})
        parts = observations.values() if isinstance(observations, dict) else [observations]
        return [*parts, self._normalization.ret_rms]

    def own_part(self) -> list[Moments]:
        return [
            _moments_since(common, now)
            for common, now in zip(self._common, self._statistics(), strict=True)
        ]

    def merge(self, parts: Sequence[list[Moments]]) -> None:
        for number, (common, own) in enumerate(zip(self._common, self._statistics(), strict=True)):
            for part in parts:
                moments = part[number]
                if moments.count > 0:
                    common.update_from_moments(moments.mean, moments.variance, moments.count)
            own.mean = np.array(common.mean)
            own.var = np.array(common.var)
            own.count = common.count


def _moments_since(common: RunningMeanStd, now: RunningMeanStd) -> Moments:
    """Moments of the numbers that are counted in ``now`` and not in ``common``."""
    count = now.count - common.count
    if count <= 0:
        nothing = np.zeros_like(now.mean)
        return Moments(mean=nothing, variance=nothing, count=0.0)
    mean = (now.mean * now.count - common.mean * common.count) / count
    between = np.square(mean - common.mean) * common.count * count / now.count
    squares = now.var * now.count - common.var * common.count - between
    return Moments(mean=mean, variance=np.maximum(squares, 0.0) / count, count=count)


class SharedEpisodes:
    """The last episodes of all ranks, whose mean return is ``ep_rew_mean``.

    :meth:`begin` empties the model's buffers before a rollout, so that they hold new episodes
    afterwards. The new ones of every rank are appended to the earlier ones in order of rank.
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
        self._count = getattr(self._model, EPISODE_NUM)

    def own_part(self) -> NewEpisodes:
        return NewEpisodes(
            by_buffer={name: list(getattr(self._model, name)) for name in self.NAMES},
            count=getattr(self._model, EPISODE_NUM) - self._count,
        )

    def merge(self, parts: Sequence[NewEpisodes]) -> None:
        for name, episodes in self._all.items():
            for part in parts:
                episodes.extend(part.by_buffer[name])
            setattr(self._model, name, episodes)
        ended = sum(part.count for part in parts)
        setattr(self._model, EPISODE_NUM, self._count + ended)


class SharedLosses:
    """Losses of the last update that each rank has logged of its own part: replaced by means over
    all ranks.
    """

    def __init__(self, model: Any) -> None:
        self._model = model

    def own_part(self) -> dict[str, float]:
        return {
            name: value
            for name, value in self._model.logger.name_to_value.items()
            if name.endswith("_loss")
        }

    def merge(self, parts: Sequence[dict[str, float]]) -> None:
        for name in parts[0]:
            self._model.logger.record(name, float(np.mean([losses[name] for losses in parts])))


class RankSynchronizer(LoopPart):
    """Makes equal at the start what must be equal on all ranks, and merges it after every
    iteration.

    It is made before the environments are reset, because their first observations are in the
    statistics of one rank only.

    :param parameter_server: whether rank 0 alone has the optimiser's state.
    :raises RanksError: (:meth:`start`, :meth:`after_update`) the ranks differ.
    """

    def __init__(self, model: Model, ranks: Ranks, *, parameter_server: bool) -> None:
        self._model = model
        self._ranks = ranks
        self._parameter_server = parameter_server
        self._compare_every = int(os.environ.get(COMPARE_VARIABLE, COMPARE_EVERY))
        for tensor in model.policy.state_dict().values():
            values = tensor.detach().cpu().numpy()
            ranks.broadcast(values)
            tensor.copy_(torch.from_numpy(values))
        normalization = model.get_vec_normalize_env()
        self._statistics = [] if normalization is None else [SharedStatistics(normalization)]
        self._episodes = SharedEpisodes(model)
        # PPO's updates log means over all ranks themselves.
        self._losses = [SharedLosses(model)] if isinstance(model, OffPolicy) else []

    def start(self) -> None:
        """Merge the statistics of the reset."""
        merge_over_ranks(self._ranks, self._statistics)
        self._compare()

    def begin_iteration(self, moment: TrainingMoment) -> TrainingMoment:
        self._episodes.begin()
        return moment

    def after_update(self, iteration: int) -> None:
        """Merge, and compare every :data:`COMPARE_EVERY` iterations."""
        merge_over_ranks(self._ranks, [self._episodes, *self._statistics, *self._losses])
        if iteration % self._compare_every == 0:
            self._compare()

    def _compare(self) -> None:
        digest = weights.sha256(self._model, optimizers=not self._parameter_server)
        require_equal(
            self._ranks, digest, "parameters, optimiser state or normalisation statistics"
        )
