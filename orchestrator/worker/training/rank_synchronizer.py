"""Merges what ranks have in common after every iteration: ended episodes and normalisation
statistics.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.running_mean_std import RunningMeanStd

from orchestrator.core.numbers.changing_numbers import TrainingMoment
from orchestrator.worker.ranks.ranks import Ranks, RanksError
from orchestrator.worker.runtime.sb3_internals import EPISODE_NUM
from orchestrator.worker.training import weights
from orchestrator.worker.training.algorithms import Model
from orchestrator.worker.training.loop_parts import LoopPart

COMPARE_VARIABLE = "ORCHESTRATOR_COMPARE_EVERY"
"""Environment variable: iterations between comparisons of what must be equal on all ranks."""
COMPARE_EVERY = 100
EPISODE_BUFFERS = ("ep_info_buffer", "ep_success_buffer")


class RankSynchronizer(LoopPart):
    """Makes equal at the start what must be equal on all ranks, and merges it after every
    iteration, with the same bits on every rank.

    During a rollout every rank updates the common normalisation statistics with its own
    observations, and has only its own new episodes. Merged are the statistics with what each rank
    has observed since the last merge, and the earlier episodes with the new ones in order of rank.
    It is made before the environments are reset, because their first observations are in the
    statistics of one rank only.

    :param parameter_server: whether rank 0 alone has the optimiser's state.
    :raises RanksError: (:meth:`start`, :meth:`after_update`) the ranks differ.
    """

    def __init__(self, model: Model, ranks: Ranks, *, parameter_server: bool) -> None:
        self._model: Any = model
        self._ranks = ranks
        self._parameter_server = parameter_server
        self._compare_every = int(os.environ.get(COMPARE_VARIABLE, COMPARE_EVERY))
        for tensor in model.policy.state_dict().values():
            values = tensor.detach().cpu().numpy()
            ranks.broadcast(values)
            tensor.copy_(torch.from_numpy(values))
        self._statistics = _statistics(model)
        self._common = [statistics.copy() for statistics in self._statistics]

    def start(self) -> None:
        """Merge the statistics of the reset."""
        self._set_episodes_aside()
        self._merge()
        self._compare()

    def begin_iteration(self, moment: TrainingMoment) -> TrainingMoment:
        self._set_episodes_aside()
        return moment

    def after_update(self, iteration: int) -> None:
        """Merge, and compare every :data:`COMPARE_EVERY` iterations."""
        self._merge()
        if iteration % self._compare_every == 0:
            self._compare()

    def _set_episodes_aside(self) -> None:
        """Empty the model's buffers of episodes, so that they hold new ones after the rollout."""
        self._episodes = {name: getattr(self._model, name) for name in EPISODE_BUFFERS}
        self._n_episodes = getattr(self._model, EPISODE_NUM)
        for name in EPISODE_BUFFERS:
            setattr(self._model, name, deque())

    def _merge(self) -> None:
        model = self._model
        own = (
            list(map(_moments_since, self._common, self._statistics)),
            [getattr(model, name) for name in EPISODE_BUFFERS],
            getattr(model, EPISODE_NUM) - self._n_episodes,
        )
        moments, episodes, counts = zip(*self._ranks.all_gather_object(own), strict=True)
        for common, statistics, *parts in zip(
            self._common, self._statistics, *moments, strict=True
        ):
            for since in parts:
                if since.count > 0:
                    common.combine(since)
            vars(statistics).update(vars(common.copy()))
        for name, *parts in zip(EPISODE_BUFFERS, *episodes, strict=True):
            for new in parts:
                self._episodes[name].extend(new)
            setattr(model, name, self._episodes[name])
        setattr(model, EPISODE_NUM, self._n_episodes + sum(counts))

    def _compare(self) -> None:
        """Compare what must be equal on all ranks. :raises RanksError: it differs."""
        digest = weights.sha256(self._model, optimizers=not self._parameter_server)
        digests = self._ranks.all_gather_object(digest)
        different = [rank for rank, other in enumerate(digests) if other != digests[0]]
        if different:
            raise RanksError(
                f"parameters, optimiser state or normalisation statistics of ranks {different} differ from those of"
                " rank 0"
            )


def _statistics(model: Model) -> Sequence[RunningMeanStd]:
    """The statistics of the observations, or of each entry of a ``Dict``, and of the returns."""
    normalization = model.get_vec_normalize_env()
    if normalization is None:
        return []
    observations: Any = getattr(normalization, "obs_rms", {})
    parts = observations.values() if isinstance(observations, dict) else [observations]
    return [*parts, normalization.ret_rms]


def _moments_since(common: RunningMeanStd, now: RunningMeanStd) -> RunningMeanStd:
    """Statistics of the numbers that are counted in ``now`` and not in ``common``."""
    since = now.copy()
    since.count = now.count - common.count
    if since.count > 0:
        since.mean = (now.mean * now.count - common.mean * common.count) / since.count
        between = np.square(since.mean - common.mean) * common.count * since.count / now.count
        squares = now.var * now.count - common.var * common.count - between
        since.var = np.maximum(squares, 0.0) / since.count
    return since
