"""The tables of algorithms and policies: the keyword arguments and defaults of
Stable-Baselines3.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import Predicate
from pydantic import Field

from orchestrator.core.worker_spec import Activation
from orchestrator.keys import value_types
from orchestrator.keys.value_types import (
    MOST,
    Count,
    CountFromZero,
    Expected,
    Fraction,
    Schedule,
    TomlTable,
    Whole,
    key,
)

_LEARNING_RATE = (
    'Step size of the optimiser: a number, or a schedule "linear(start, end[, fraction])", which reaches end after '
    "that fraction of the training."
)
_GAMMA = "Discount factor, 0 to 1."
_TAU = "Soft update coefficient (Polyak averaging) of the target networks, 0 to 1."
_GAE_LAMBDA = "Trade-off of bias and variance in generalised advantage estimation (GAE), 0 to 1."
_WINDOW = "Number of episodes over which logged returns and lengths are averaged."
_USE_SDE = "State-dependent exploration (gSDE) instead of independent noise."
_SDE_FREQ = "Steps between samples of gSDE noise; -1: sample only at the start of a rollout."
_ACTION_NOISE = "Standard deviation of normal noise added to actions, which are scaled to -1 … 1; unset: no noise."


def _is_frequency(value: list[Any]) -> bool:
    match value:
        case [int(count), "step" | "episode"]:
            return 1 <= count <= MOST
    return False


TrainFreq = Annotated[
    Count | Annotated[list[Any], Predicate(_is_frequency)],
    Expected(f'a whole number of steps from 1 to {MOST:_}, or [1, "episode"]'),
]
EntCoef = Annotated[
    Annotated[float, Field(ge=0, le=MOST)]
    | Annotated[str, Field(pattern=r"^auto(_\d*\.?\d+([eE][-+]?\d+)?)?$")],
    Expected(f'"auto", "auto_0.1" (learnt, with an initial value), or a number from 0 to {MOST:_}'),
]
TargetEntropy = Annotated[
    Annotated[float, Field(ge=-MOST, le=MOST)] | Literal["auto"],
    Expected(f'"auto" (minus the number of actions) or a number from -{MOST:_} to {MOST:_}'),
]
Positive = Annotated[float, Field(gt=0)]
OptionalPositive = Annotated[float | None, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
SampleFreq = Annotated[int, Field(ge=-1, le=MOST), Whole]


class OnPolicy(TomlTable):
    """Keyword arguments that PPO and A2C share."""

    gamma: Fraction = key(0.99, _GAMMA)
    ent_coef: float = key(0.0, "Weight of the entropy in the loss.", 0.01)
    vf_coef: float = key(0.5, "Weight of the value function in the loss.")
    max_grad_norm: Positive = key(
        0.5, "Norm to which gradients are clipped; a huge number disables clipping."
    )
    use_sde: bool = key(False, _USE_SDE, True)
    sde_sample_freq: SampleFreq = key(-1, _SDE_FREQ, 4)
    stats_window_size: Count = key(100, _WINDOW)


class Ppo(OnPolicy):
    """Keyword arguments of stable_baselines3.PPO, under its own names and with its own defaults."""

    learning_rate: Schedule = key(3e-4, _LEARNING_RATE)
    n_steps: Count = key(
        2048, "Steps of each environment per update; a rollout has n_steps × n_envs.", 256
    )
    batch_size: Count = key(64, "Minibatch size; must divide n_steps × n_envs.")
    n_epochs: Count = key(10, "Epochs over the rollout per update.")
    gae_lambda: Fraction = key(0.95, _GAE_LAMBDA)
    clip_range: Schedule = key(0.2, "Clipping of the probability ratio: a number or a schedule.")
    clip_range_vf: value_types.OptionalSchedule = key(
        None, "Clipping of the value function: a number or a schedule; unset: no clipping.", 0.2
    )
    normalize_advantage: bool = key(True, "Normalise the advantages of every minibatch.")
    target_kl: OptionalPositive = key(
        None,
        "An update ends early when the KL divergence exceeds 1.5 × this; unset: no limit.",
        0.02,
    )


class A2c(OnPolicy):
    """Keyword arguments of stable_baselines3.A2C, under its own names and with its own defaults."""

    learning_rate: Schedule = key(7e-4, _LEARNING_RATE)
    n_steps: Count = key(5, "Steps of each environment per update.")
    gae_lambda: Fraction = key(1.0, _GAE_LAMBDA)
    rms_prop_eps: Positive = key(1e-5, "Constant that keeps RMSprop from dividing by zero.")
    use_rms_prop: bool = key(True, "Use RMSprop as the optimiser; false: Adam.")
    normalize_advantage: bool = key(False, "Normalise the advantages of every rollout.", True)


class OffPolicy(TomlTable):
    """Keyword arguments that SAC and TD3 share."""

    learning_rate: Schedule = key(3e-4, _LEARNING_RATE)
    buffer_size: Count = key(
        1_000_000,
        "Capacity of the replay buffer in transitions, over all environments; the oldest are overwritten.",
        300_000,
    )
    learning_starts: CountFromZero = key(
        100, "env_steps with random actions before the first update.", 1000
    )
    batch_size: Count = key(
        256, "Transitions sampled from the replay buffer for each gradient step."
    )
    gamma: Fraction = key(0.99, _GAMMA)
    train_freq: TrainFreq = key(
        1, 'Steps of each environment between updates, or [count, "episode"] with one environment.'
    )
    gradient_steps: SampleFreq = key(
        1, "Gradient steps per update; -1: as many as env_steps since the last update.", -1
    )
    action_noise: OptionalPositive = key(None, _ACTION_NOISE, 0.1)
    n_steps: Count = key(1, "Number of steps of n-step returns.", 3)
    stats_window_size: Count = key(100, _WINDOW)


class Sac(OffPolicy):
    """Keyword arguments of stable_baselines3.SAC, under its own names and with its own defaults."""

    ent_coef: EntCoef = key(
        "auto", 'Weight of the entropy; "auto": learnt; "auto_0.1": learnt from 0.1.'
    )
    target_entropy: TargetEntropy = key(
        "auto", 'Target of a learnt ent_coef; "auto": minus the number of actions.'
    )
    use_sde: bool = key(False, _USE_SDE, True)
    sde_sample_freq: SampleFreq = key(-1, _SDE_FREQ, 4)
    use_sde_at_warmup: bool = key(
        False, "Use gSDE instead of random actions before learning_starts.", True
    )
    tau: Fraction = key(0.005, _TAU)
    target_update_interval: Count = key(1, "Gradient steps between updates of the target networks.")


class Td3(OffPolicy):
    """Keyword arguments of stable_baselines3.TD3, under its own names and with its own defaults."""

    tau: Fraction = key(0.005, _TAU)
    learning_rate: Schedule = key(1e-3, _LEARNING_RATE)
    action_noise: OptionalPositive = key(
        None, f"{_ACTION_NOISE[:-1]}, so nothing is explored after learning_starts.", 0.1
    )
    policy_delay: Count = key(
        2, "Updates of the critics per update of the policy and the target networks."
    )
    target_policy_noise: NotNegative = key(
        0.2, "Standard deviation of the noise on the target policy's actions."
    )
    target_noise_clip: NotNegative = key(0.5, "Largest absolute value of target_policy_noise.")


class PolicyKwargs(TomlTable):
    """Keyword arguments of Stable-Baselines3's policies, under its own names; each algorithm has
    some of them.
    """

    net_arch: value_types.NetArch = key(
        None,
        "Widths of the hidden layers: a list, or a table { pi = […], vf = […] } (off-policy: { pi = […], qf = […] }); "
        "unset: [64, 64] for PPO and A2C, [256, 256] for SAC, [400, 300] for TD3.",
        [64, 64],
    )
    activation_fn: Activation | None = key(
        None,
        "Activation function between layers; unset: tanh for PPO and A2C, relu for the others.",
        "tanh",
    )
    ortho_init: bool = key(True, "PPO, A2C: initialise weights orthogonally.")
    log_std_init: float | None = key(
        None,
        "Initial logarithm of the actions' standard deviation (off-policy: only with gSDE); unset: 0, off-policy -3.",
        -1.0,
    )
    full_std: bool = key(
        True, "PPO, A2C with gSDE: parameters for features × actions; false: features only."
    )
    use_expln: bool = key(False, "gSDE: use expln() instead of exp() for the standard deviation.")
    squash_output: bool = key(False, "PPO, A2C: squash actions by tanh; needs use_sde = true.")
    clip_mean: NotNegative = key(
        2.0, "Off-policy with gSDE: limit of the mean action before tanh; 0: no limit."
    )
    n_critics: Count = key(
        2, "Off-policy: number of critics; the smallest of their values is used."
    )
    share_features_extractor: bool | None = key(
        None,
        "Policy and value function share a feature extractor; unset: true for PPO and A2C, else false.",
        True,
    )
    normalize_images: bool = key(True, "Divide images by 255.")


_SHARED = {"net_arch", "activation_fn", "share_features_extractor", "normalize_images"}
_ACTOR_CRITIC = _SHARED | {"ortho_init", "log_std_init", "full_std", "use_expln", "squash_output"}
_ENTROPY = _SHARED | {"log_std_init", "use_expln", "clip_mean", "n_critics"}

ALGORITHMS: dict[str, type[TomlTable]] = {
    "ppo": Ppo,
    "sac": Sac,
    "td3": Td3,
    "a2c": A2c,
}
"""Algorithms and the models of their tables, which have the same names."""
DEFAULTS = {name: table().model_dump() for name, table in ALGORITHMS.items()}
POLICY_KEYS = {
    "ppo": _ACTOR_CRITIC,
    "a2c": _ACTOR_CRITIC,
    "sac": _ENTROPY,
    "td3": _SHARED | {"n_critics"},
}
"""Keys of ``policy_kwargs`` that the policies of each algorithm accept."""
