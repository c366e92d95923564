"""PPO of Stable-Baselines3 with its arithmetic in NumPy: several times faster for small networks on
a CPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from orchestrator.worker.ranks.ranked_ppo import RankedPPO
from orchestrator.worker.training.fast import rollout, update
from orchestrator.worker.training.fast.policy import PolicyNetwork
from orchestrator.worker.training.fast.rollout import Rollout


class FastPPO(RankedPPO):
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
    unsaved = (*RankedPPO.unsaved, "network", "seconds", "each_minibatch")

    def each_minibatch(self) -> None:
        """Called after each step of the optimiser; to be replaced."""

    def setup_done(self) -> None:
        self.network = PolicyNetwork(self.policy)
        self.seconds = dict.fromkeys(("policy_s", "gae_s", "backward_s", "optimizer_s"), 0.0)

    def collect_rollouts(self, env: Any, *_: Any, **__: Any) -> bool:
        """Collect ``n_steps`` steps of each environment."""
        rollout.collect(self, env)
        return True

    def train(self) -> None:
        """``PPO.train``

        :raises orchestrator.worker.training.fast.update.NonFiniteGradient: the policy is
            unchanged then.
        """
        clip_range, clip_range_vf = self.begin_update()
        self.network.load(self.policy)
        with np.errstate(over="ignore", invalid="ignore"):
            epochs = update.run(self, clip_range, clip_range_vf)
        self.network.store(self.policy)
        self.record_update(epochs, clip_range, clip_range_vf)
