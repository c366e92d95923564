"""Merges what ranks have in common after every iteration: ended episodes, normalisation statistics,
and the losses that are logged.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from stable_baselines3.common.running_mean_std import RunningMeanStd

from orchestrator.core.numbers.changing_numbers import TrainingMoment
from orchestrator.worker.ranks.ranks import Ranks, require_equal
from orchestrator.worker.runtime.sb3_internals import EPISODE_NUM
from orchestrator.worker.training import weights
from orchestrator.worker.training.algorithms import Model, OffPolicy
from orchestrator.worker.training.loop_parts import LoopPart

COMPARE_VARIABLE = "ORCHESTRATOR_COMPARE_EVERY"
"""Environment variable: iterations between comparisons of what must be equal on all ranks."""
COMPARE_EVERY = 100
EPISODE_BUFFERS = ("ep_info_buffer", "ep_success_buffer")


class Part(NamedTuple):
    """What one rank adds to what all have in common."""

    statistics: list[RunningMeanStd]
    """Of what it has observed since the last merge."""
    episodes: dict[str, list[Any]]
    """What the rollout has added to each of the model's :data:`EPISODE_BUFFERS`."""
    n_episodes: int
    """Ended episodes, where the algorithm counts them."""
    losses: dict[str, float]
    """That this rank has logged of its own part of the last update."""


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
        self._episodes: dict[str, deque[Any]] = {}
        self._n_episodes = 0

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
        for name in EPISODE_BUFFERS:
            self._episodes[name] = getattr(self._model, name)
            setattr(self._model, name, deque())
        self._n_episodes = getattr(self._model, EPISODE_NUM)

    def _merge(self) -> None:
        parts: list[Part] = self._ranks.all_gather_object(self._own_part())
        for number, (common, own) in enumerate(zip(self._common, self._statistics, strict=True)):
            for part in parts:
                since = part.statistics[number]
                if since.count > 0:
                    common.combine(since)
            own.mean = np.array(common.mean)
            own.var = np.array(common.var)
            own.count = common.count
        for name, episodes in self._episodes.items():
            for part in parts:
                episodes.extend(part.episodes[name])
            setattr(self._model, name, episodes)
        n_episodes = self._n_episodes + sum(part.n_episodes for part in parts)
        setattr(self._model, EPISODE_NUM, n_episodes)
        for name in parts[0].losses:
            mean = np.mean([part.losses[name] for part in parts])
            self._model.logger.record(name, float(mean))

    def _own_part(self) -> Part:
        losses = {}
        if isinstance(self._model, OffPolicy):  # PPO logs means over all ranks itself
            logged = self._model.logger.name_to_value
            losses = {name: value for name, value in logged.items() if name.endswith("_loss")}
        return Part(
            statistics=[
                _moments_since(common, now)
                for common, now in zip(self._common, self._statistics, strict=True)
            ],
            episodes={name: list(getattr(self._model, name)) for name in EPISODE_BUFFERS},
            n_episodes=getattr(self._model, EPISODE_NUM) - self._n_episodes,
            losses=losses,
        )

    def _compare(self) -> None:
        digest = weights.sha256(self._model, optimizers=not self._parameter_server)
        require_equal(
            self._ranks, digest, "parameters, optimiser state or normalisation statistics"
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
