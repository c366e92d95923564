"""PPO of Stable-Baselines3 with its arithmetic in NumPy: several times faster for small networks on
a CPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback

from orchestrator.core.worker_spec import Mode
from orchestrator.worker.distributed.ranks import ALONE, Ranks, moments_over_ranks
from orchestrator.worker.runtime.sb3_internals import ExtendedPPO
from orchestrator.worker.training.fast import rollout
from orchestrator.worker.training.fast.epochs import Losses, Samples
from orchestrator.worker.training.fast.loss import LossSettings
from orchestrator.worker.training.fast.network import Array
from orchestrator.worker.training.fast.policy import PolicyNetwork, UnsuitableError

CONSTANTS = (
    "batch_size",
    "n_epochs",
    "normalize_advantage",
    "ent_coef",
    "vf_coef",
    "max_grad_norm",
    "target_kl",
)
"""Fields of :class:`LossSettings` that are attributes of ``PPO`` and no schedules."""


class FastPPO(ExtendedPPO):
    """The same algorithm, hyperparameters, logs and files as ``stable_baselines3.PPO``.

    Policy, optimiser and rollout buffer are objects of Stable-Baselines3 and torch. They are read
    when a rollout or an update begins and written when it ends, so that ``save``, ``load`` and
    callbacks find what they expect, and ``PPO.load`` reads what ``FastPPO.save`` wrote. Given the
    same rollout, an update gives the same parameters to rounding. Rollouts draw other random
    numbers than stock ones: the noise of a whole rollout is drawn at once. Callbacks find rewards
    and episode starts in the buffer at every step, the rest when the rollout has ended.

    :raises UnsuitableError: the policy has a form that is not implemented here: see
        :mod:`.qualify`.
    """

    seconds: dict[str, float]
    """Time spent so far in ``policy_s``, ``gae_s``, ``backward_s`` and ``optimizer_s``."""
    unsaved = ("ranks", "mode", "network", "hidden", "seconds", "each_minibatch")
    hidden = 0
    """Number of the last observations to which the actor is blind."""

    def each_minibatch(self) -> None:
        """Called after each step of the optimiser; to be replaced."""

    def setup_done(self) -> None:
        if type(self.rollout_buffer) is not RolloutBuffer:
            raise UnsuitableError(f"its buffer is a {type(self.rollout_buffer).__name__}")
        self.join(ALONE)
        self.seconds = dict.fromkeys(("policy_s", "gae_s", "backward_s", "optimizer_s"), 0.0)

    def hide_from_actor(self, count: int) -> None:
        """The actor's weights for the last ``count`` observations stay as they are."""
        self.hidden = count
        self.join(self.ranks, self.mode)

    def join(self, ranks: Ranks, mode: Mode = "allreduce") -> None:
        """Train together with other ranks: each has its part of the environments, and so of every
        minibatch.

        ``batch_size`` counts the rows of all ranks together. The caller of :meth:`collect_rollouts`
        adds the others' steps to ``num_timesteps``.
        """
        self.ranks = ranks
        self.mode = mode
        self.network = PolicyNetwork(self.policy, ranks, mode, hidden=self.hidden)

    def __getstate__(self) -> dict[str, Any]:
        """For ``copy.deepcopy`` and pickle: without ``network``, whose arrays are views of each
        other's memory.
        """
        return {name: value for name, value in vars(self).items() if name != "network"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.join(self.ranks, self.mode)

    def collect_rollouts(
        self, env: Any, callback: BaseCallback, rollout_buffer: RolloutBuffer, n_rollout_steps: int
    ) -> bool:
        """Collect as Stable-Baselines3 does, for as many steps as the buffer holds."""
        assert n_rollout_steps == rollout_buffer.buffer_size, "a rollout fills its buffer"
        self.policy.set_training_mode(False)
        return rollout.collect(self, env, callback, rollout_buffer)

    def train(self) -> None:
        """As in Stable-Baselines3.

        :raises orchestrator.worker.training.fast.update.NonFiniteGradient: the policy is unchanged
            then.
        """
        clip_range, clip_range_vf = self.begin_update()
        constants = {name: getattr(self, name) for name in CONSTANTS}
        settings = LossSettings(clip_range=clip_range, clip_range_vf=clip_range_vf, **constants)
        samples, rows = _samples(self.rollout_buffer, self.network)
        self.network.load(self.policy)
        self.network.load_moments(self.policy)
        with np.errstate(over="ignore", invalid="ignore"):
            losses = self.network.update.run(
                samples,
                lambda: rows[np.random.permutation(len(rows))],
                settings,
                self.policy.optimizer.param_groups[0],
                self.seconds,
                self.each_minibatch,
            )
        self.network.store(self.policy)
        variance = explained_variance(samples.values, samples.returns, self.ranks)
        record_update(
            self,
            losses,
            variance,
            float(np.exp(self.network.log_std).mean()),
            clip_range,
            clip_range_vf,
        )


def _samples(buffer: RolloutBuffer, network: PolicyNetwork) -> tuple[Samples, NDArray[np.intp]]:
    """The buffer's content as rows, and ``(n,)`` the row of each sample in the order of the
    buffer's ``get``.
    """
    size = buffer.buffer_size * buffer.n_envs
    observations = buffer.observations.reshape(size, -1)
    x = np.ones((size, observations.shape[1] + 1), network.dtype)
    x[:, :-1] = observations

    def column(array: Array) -> Array:
        return np.ascontiguousarray(array.reshape(size), network.dtype)

    samples = Samples(
        x=x,
        actions=np.ascontiguousarray(buffer.actions.reshape(size, -1), network.dtype),
        log_probs=column(buffer.log_probs),
        advantages=column(buffer.advantages),
        returns=column(buffer.returns),
        values=column(buffer.values),
    )
    rows = np.arange(size)
    if not buffer.generator_ready:  # Stable-Baselines3 counts one environment after the other
        rows = rows.reshape(buffer.buffer_size, buffer.n_envs).T.ravel()
    return samples, rows


def record_update(
    model: ExtendedPPO,
    losses: Losses,
    variance: float,
    std: float | None,
    clip_range: float,
    clip_range_vf: float | None,
) -> None:
    """Log what ``PPO.train`` logs at its end, and print that ``target_kl`` has ended it.

    :param variance: explained variance of the values. :param std: mean of the actions' standard
        deviations, or None.
    """
    if losses.ended_at_kl is not None and model.verbose >= 1:
        print(
            f"Early stopping at step {losses.epochs - 1} due to reaching max kl: {losses.ended_at_kl:.2f}"
        )
    record = model.logger.record
    for name in (
        "entropy_loss",
        "policy_gradient_loss",
        "value_loss",
        "approx_kl",
        "clip_fraction",
        "loss",
    ):
        record(f"train/{name}", getattr(losses, name))
    record("train/explained_variance", variance)
    if std is not None:
        record("train/std", std)
    record("train/n_updates", model.count_epochs(losses.epochs), exclude="tensorboard")
    record("train/clip_range", clip_range)
    if clip_range_vf is not None:
        record("train/clip_range_vf", clip_range_vf)


def explained_variance(predicted: Array, true: Array, ranks: Ranks) -> float:
    """``stable_baselines3.common.utils.explained_variance`` over all ranks: 1 - Var(true -
    predicted) / Var(true).
    """
    numbers = np.stack([true, true - predicted]).astype(np.float64)
    means = numbers.mean(axis=1)
    squares = np.square(numbers - means[:, None]).sum(axis=1)
    _, squares = moments_over_ranks(ranks, numbers.shape[1], means, squares)
    return float("nan") if squares[0] == 0.0 else float(1.0 - squares[1] / squares[0])
