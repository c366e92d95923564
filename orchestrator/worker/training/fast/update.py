"""PPO's update: epochs of minibatches over one rollout, each with its gradient, clipping and a step
of Adam.

It computes the same numbers as ``stable_baselines3.PPO.train``. Everything that does not depend on
the parameters is computed for all minibatches of an epoch at once, and logged values after the
epoch.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.training.fast.epochs import Epoch
from orchestrator.worker.training.fast.network import Array

if TYPE_CHECKING:
    from orchestrator.worker.training.fast.ppo import FastPPO


class NonFiniteGradient(FloatingPointError):
    """The gradient is not finite."""


def run(
    model: FastPPO, clip_range: float, clip_range_vf: float | None
) -> list[NDArray[np.float64]]:
    """Update the parameters of the model's network.

    Each rank has a part of every minibatch. Either every rank adds up the gradients of all and
    takes the same step, or rank 0, the parameter server, takes it alone and sends the parameters to
    the others.

    :return: :meth:`Epoch.log` of each epoch begun.
    :raises NonFiniteGradient: the parameters of the network are undefined then.
    """
    network = model.network
    ranks = model.ranks
    seconds = model.seconds
    has_server = model.mode == "parameter-server"
    group = model.policy.optimizer.param_groups[0]
    epoch = Epoch(model, clip_range)
    logs: list[NDArray[np.float64]] = []
    ended = False
    while len(logs) < model.n_epochs and not ended:
        epoch.begin()
        for rows in epoch.minibatches:
            minibatch = network.minibatch(len(rows.order))
            epoch.x.take(rows.order, axis=0, out=minibatch.x, mode="clip")
            epoch.log_std_sums[epoch.done] = minibatch.ratios(rows)
            epoch.done += 1
            started = perf_counter()
            minibatch.differentiate(rows, model, clip_range_vf, 1.0 / ranks.size)
            network.untrained[...] = 0.0
            seconds["backward_s"] += perf_counter() - started
            ended = _exchange_gradients(model, rows.log_ratios)
            if ended:
                break
            started = perf_counter()
            if not has_server or ranks.rank == 0:
                network.step(group, model.max_grad_norm)
            seconds["optimizer_s"] += perf_counter() - started
            if has_server:
                ranks.broadcast(network.parameters)
            model.each_minibatch()
        logs.append(epoch.log())
    return logs


def _exchange_gradients(model: FastPPO, log_ratios: Array) -> bool:
    """Add up the gradients of all ranks. Return whether ``target_kl`` ends the update."""
    values = model.network.gradients_and_kl
    limit = model.target_kl
    if limit is not None:
        values[-1] = np.mean(np.exp(log_ratios) - 1.0 - log_ratios) / model.ranks.size
    model.ranks.all_reduce(values)
    return limit is not None and float(values[-1]) > 1.5 * limit
