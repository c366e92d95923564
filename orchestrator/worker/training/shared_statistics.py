"""What ranks merge after an iteration: ended episodes, normalisation statistics, and the losses
that are logged.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
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
Moments = tuple[NDArray[np.float64], NDArray[np.float64], float]
"""Mean, variance (population, not unbiased) and count."""


def merge_over_ranks(
    ranks: Ranks, mergeables: Sequence[SharedStatistics | SharedEpisodes | SharedLosses]
) -> None:
    """Merge all of them in one exchange. :raises RankLostError: the ranks have lost each other."""
    everyone: Sequence[Any] = ranks.all_gather_object(
        [mergeable.own_part() for mergeable in mergeables]
    )
    for mergeable, parts in zip(mergeables, zip(*everyone, strict=True), strict=True):
        mergeable.merge(parts)


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
                if part[number][2] > 0:
                    common.update_from_moments(*part[number])
            own.mean = np.array(common.mean)
            own.var = np.array(common.var)
            own.count = common.count


def _moments_since(common: RunningMeanStd, now: RunningMeanStd) -> Moments:
    """Moments of the numbers that are counted in ``now`` and not in ``common``."""
    count = now.count - common.count
    if count <= 0:
        return np.zeros_like(now.mean), np.zeros_like(now.var), 0.0
    mean = (now.mean * now.count - common.mean * common.count) / count
    between = np.square(mean - common.mean) * common.count * count / now.count
    squares = now.var * now.count - common.var * common.count - between
    return mean, np.maximum(squares, 0.0) / count, count


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

    def own_part(self) -> tuple[dict[str, list[Any]], int]:
        new = {name: list(getattr(self._model, name)) for name in self.NAMES}
        return new, getattr(self._model, EPISODE_NUM) - self._count

    def merge(self, parts: Sequence[tuple[dict[str, list[Any]], int]]) -> None:
        for name, episodes in self._all.items():
            for new, _ in parts:
                episodes.extend(new[name])
            setattr(self._model, name, episodes)
        setattr(self._model, EPISODE_NUM, self._count + sum(count for _, count in parts))


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

    It does nothing on a single rank. It is made before the environments are reset, because their
    first observations are in the statistics of one rank only.

    :param parameter_server: whether rank 0 alone has the optimiser's state.
    :raises RanksError: (:meth:`start`, :meth:`after_update`) the ranks differ.
    """

    def __init__(self, model: Model, ranks: Ranks, *, parameter_server: bool) -> None:
        self._model = model
        self._ranks = ranks
        self._parameter_server = parameter_server
        self._compare_every = int(os.environ.get(COMPARE_VARIABLE, COMPARE_EVERY))
        if ranks.size == 1:
            return
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
        if self._ranks.size > 1:
            merge_over_ranks(self._ranks, self._statistics)
            self._compare()

    def begin_iteration(self, moment: TrainingMoment) -> TrainingMoment:
        if self._ranks.size > 1:
            self._episodes.begin()
        return moment

    def after_update(self, iteration: int) -> None:
        """Merge, and compare every :data:`COMPARE_EVERY` iterations."""
        if self._ranks.size > 1:
            merge_over_ranks(self._ranks, [self._episodes, *self._statistics, *self._losses])
            if iteration % self._compare_every == 0:
                self._compare()

    def _compare(self) -> None:
        digest = weights.sha256(self._model, optimizers=not self._parameter_server)
        require_equal(
            self._ranks, digest, "parameters, optimiser state or normalisation statistics"
        )
