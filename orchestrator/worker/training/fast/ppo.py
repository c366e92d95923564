"""PPO of Stable-Baselines3 with its arithmetic in NumPy: several times faster for small networks on
a CPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from orchestrator.core.worker_spec import Mode
from orchestrator.worker.ranks.ppo_log import explained_variance, record_update
from orchestrator.worker.ranks.ranks import ALONE, Ranks
from orchestrator.worker.runtime.sb3_internals import ExtendedPPO
from orchestrator.worker.training.fast import rollout
from orchestrator.worker.training.fast.epochs import Samples
from orchestrator.worker.training.fast.loss import LossSettings
from orchestrator.worker.training.fast.policy import PolicyNetwork
from orchestrator.worker.training.fast.rollout import Rollout


class FastPPO(ExtendedPPO):
    """The same algorithm, hyperparameters, logs and files as ``stable_baselines3.PPO``, without
    callbacks, for trainings that :mod:`.qualify` accepts.

    Parameters, moments and rollout are flat arrays. The torch policy and its optimiser are read
    when a rollout or an update begins and written when an update ends, so that ``save``, ``load``
    and ``predict`` find what they expect, and ``PPO.load`` reads what ``FastPPO.save`` wrote. Given
    the same rollout, an update gives the same parameters to rounding. Rollouts draw other random
    numbers than stock ones: the noise of a whole rollout is drawn at once.
    """

    seconds: dict[str, float]
    """Time spent so far in ``policy_s``, ``gae_s``, ``backward_s`` and ``optimizer_s``."""
    rollout_buffer: Rollout  # type: ignore[assignment]
    """The last rollout."""
    unsaved = ("ranks", "mode", "network", "hidden", "seconds", "each_minibatch")
    hidden = 0
    """Number of the last observations to which the actor is blind."""

    def each_minibatch(self) -> None:
        """Called after each step of the optimiser; to be replaced."""

    def setup_done(self) -> None:
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

    def collect_rollouts(self, env: Any, *_: Any, **__: Any) -> bool:
        """Collect ``n_steps`` steps of each environment."""
        rollout.collect(self, env)
        return True

    def train(self) -> None:
        """``PPO.train``

        :raises orchestrator.worker.training.fast.update.NonFiniteGradient: the policy is unchanged
            then.
        """
        clip_range, clip_range_vf = self.begin_update()
        settings = LossSettings(
            clip_range=clip_range,
            clip_range_vf=clip_range_vf,
            batch_size=self.batch_size,
            n_epochs=self.n_epochs,
            normalize_advantage=self.normalize_advantage,
            ent_coef=self.ent_coef,
            vf_coef=self.vf_coef,
            max_grad_norm=self.max_grad_norm,
            target_kl=self.target_kl,
        )
        samples = _samples(self.rollout_buffer)
        # Stable-Baselines3 counts samples one environment after the other.
        rows = np.arange(len(samples.x)).reshape(self.rollout_buffer.values.shape).T.ravel()
        network = self.network
        network.load(self.policy)
        network.load_moments(self.policy)
        with np.errstate(over="ignore", invalid="ignore"):
            losses = network.update.run(
                samples,
                lambda: rows[np.random.permutation(len(rows))],
                settings,
                self.policy.optimizer.param_groups[0],
                self.seconds,
                self.each_minibatch,
            )
        network.store(self.policy)
        variance = explained_variance(samples.values, samples.returns, self.ranks)
        std = float(np.exp(network.log_std).mean())
        record_update(self, losses, variance, std, clip_range, clip_range_vf)


def _samples(buffer: Rollout) -> Samples:
    """The rollout's samples as rows, one step after the other."""
    size = buffer.values.size
    return Samples(
        x=buffer.x[:-1].reshape(size, -1),
        actions=buffer.actions.reshape(size, -1),
        log_probs=buffer.log_probs.reshape(size),
        advantages=buffer.advantages.reshape(size),
        returns=buffer.returns.reshape(size),
        values=buffer.values.reshape(size),
    )
