"""The columns of ``progress.csv`` that the algorithms fill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

ROLLOUT = ("rollout/ep_rew_mean", "rollout/ep_len_mean")
_ON_POLICY = (
    "value_loss",
    "entropy_loss",
    "explained_variance",
    "learning_rate",
    "n_updates",
    "std",
)
_PPO = (
    "loss",
    "policy_gradient_loss",
    "approx_kl",
    "clip_fraction",
    "clip_range",
    *_ON_POLICY,
)
_OFF_POLICY = ("actor_loss", "critic_loss", "learning_rate", "n_updates")
_WITH_ENTROPY = (*_OFF_POLICY, "ent_coef", "ent_coef_loss")
_TRAIN: Mapping[str, Sequence[str]] = {
    "ppo": _PPO,
    "a2c": ("policy_loss", *_ON_POLICY),
    "td3": _OFF_POLICY,
    "sac": _WITH_ENTROPY,
}


def progress_columns(algo: str) -> list[str]:
    """The columns of ``progress.csv`` that an algorithm fills and that depend on the training
    alone.
    """
    return [*ROLLOUT, "time/total_timesteps", *(f"train/{name}" for name in _TRAIN.get(algo, ()))]
