"""The tables of the algorithms, and of their policies: Stable-Baselines3's own keyword arguments and defaults."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import Field, PlainValidator, WithJsonSchema

from orchestrator.core.worker_spec import Activation
from orchestrator.jobfile.toml_table import Table, key
from orchestrator.jobfile.value_types import (
    MOST,
    Count,
    CountFromZero,
    ExpectedError,
    Fraction,
    NetArch,
    OptionalSchedule,
    Schedule,
)

_LEARNING_RATE = 'The optimiser\'s step size: a number, or a schedule "linear(start, end[, fraction])".'
_GAMMA = "Discount factor, 0 to 1."
_WINDOW = "Episodes over which returns and lengths are averaged in the logs."
_USE_SDE = "State-dependent exploration (gSDE) instead of independent noise."
_SDE_FREQ = "Steps between new gSDE noise; -1: only at the start of a rollout."
_BUFFER_SIZE = "Transitions that the replay buffer holds, over all environments; the oldest give way."
_LEARNING_STARTS = "env_steps with random actions before the first update."
_BATCH_SIZE = "Transitions sampled from the replay buffer for each gradient step."
_TAU = "How far target networks follow at each update of them, 0 to 1."
_TRAIN_FREQ = 'Steps of each environment between updates, or [count, "episode"] with one environment.'
_GRADIENT_STEPS = "Gradient steps per update; -1: as many as there were env_steps since the last one."
_ACTION_NOISE = "Standard deviation of normal noise on actions scaled to -1 … 1; none unset."
_MULTI_STEP = "Steps over which rewards are added up before the value function takes over."

_LEARNT = re.compile(r"auto(_(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?)?\Z")


def _train_freq(value: Any) -> int | list[Any]:
    match value:
        case bool():
            pass
        case int() if 1 <= value <= MOST:
            return value
        case [bool(), _]:
            pass
        case [int(count), "step" | "episode"] if 1 <= count <= MOST:
            return list(value)
    raise ExpectedError('expected a whole number of at least 1 (steps), or [1, "episode"]')


def _ent_coef(value: Any) -> float | str:
    if isinstance(value, str) and _LEARNT.match(value) and float(value.partition("_")[2] or 1) > 0:
        return value
    return _number_or(value, 0.0, '"auto", "auto_0.1" (learnt, with a value to begin with), or a number of at least 0')


def _target_entropy(value: Any) -> float | str:
    if value == "auto":
        return "auto"
    return _number_or(value, -MOST, '"auto" (minus the number of actions) or a number')


def _number_or(value: Any, least: float, expected: str) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= MOST:
        return float(value)
    raise ExpectedError(f"expected {expected}")


TrainFreq = Annotated[
    int | list[Any],
    PlainValidator(_train_freq),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {
                    "type": "array",
                    "prefixItems": [{"type": "integer", "minimum": 1}, {"enum": ["step", "episode"]}],
                    "minItems": 2,
                    "maxItems": 2,
                },
            ]
        }
    ),
]
EntCoef = Annotated[
    float | str,
    PlainValidator(_ent_coef),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": "^auto(_.+)?$"}]}),
]
TargetEntropy = Annotated[
    float | str, PlainValidator(_target_entropy), WithJsonSchema({"anyOf": [{"type": "number"}, {"const": "auto"}]})
]
NoiseStd = Annotated[float | None, Field(gt=0)]
SampleFreq = Annotated[int, Field(ge=-1, le=MOST)]
GradientSteps = Annotated[int, Field(ge=-1, le=MOST)]
GradNorm = Annotated[float, Field(gt=0)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


class Ppo(Table):
    """Keyword arguments of stable_baselines3.PPO, under its own names and with its own defaults."""

    learning_rate: Schedule = key(3e-4, _LEARNING_RATE, 3e-4)
    n_steps: Count = key(2048, "Steps of each environment per update; n_steps × n_envs is the rollout.", 256)
    batch_size: Count = key(64, "Minibatch size; divides n_steps × n_envs.", 64)
    n_epochs: Count = key(10, "Passes over the rollout per update.", 10)
    gamma: Fraction = key(0.99, _GAMMA, 0.99)
    gae_lambda: Fraction = key(0.95, "Bias against variance in generalised advantage estimation, 0 to 1.", 0.95)
    clip_range: Schedule = key(0.2, "Clipping of the probability ratio: a number or a schedule.", 0.2)
    clip_range_vf: OptionalSchedule = key(
        None, "Clipping of the value function: a number or a schedule; off unless set.", 0.2
    )
    normalize_advantage: bool = key(True, "Normalise the advantages of every minibatch.", True)
    ent_coef: float = key(0.0, "Weight of the entropy in the loss.", 0.01)
    vf_coef: float = key(0.5, "Weight of the value function in the loss.", 0.5)
    max_grad_norm: GradNorm = key(0.5, "Largest norm of the gradient; a huge number switches clipping off.", 0.5)
    use_sde: bool = key(False, _USE_SDE, True)
    sde_sample_freq: SampleFreq = key(-1, _SDE_FREQ, 4)
    target_kl: Annotated[float | None, Field(gt=0)] = key(
        None, "Ends an update early beyond 1.5 × this KL divergence; off unless set.", 0.02
    )
    stats_window_size: Count = key(100, _WINDOW, 100)


class A2c(Table):
    """Keyword arguments of stable_baselines3.A2C, under its own names and with its own defaults."""

    learning_rate: Schedule = key(7e-4, _LEARNING_RATE, 7e-4)
    n_steps: Count = key(5, "Steps of each environment per update.", 5)
    gamma: Fraction = key(0.99, _GAMMA, 0.99)
    gae_lambda: Fraction = key(1.0, "Bias against variance in generalised advantage estimation, 0 to 1.", 1.0)
    ent_coef: float = key(0.0, "Weight of the entropy in the loss.", 0.01)
    vf_coef: float = key(0.5, "Weight of the value function in the loss.", 0.5)
    max_grad_norm: GradNorm = key(0.5, "Largest norm of the gradient; a huge number switches clipping off.", 0.5)
    rms_prop_eps: Positive = key(1e-5, "Keeps RMSprop from dividing by zero.", 1e-5)
    use_rms_prop: bool = key(True, "RMSprop as the optimiser, else Adam.", True)
    use_sde: bool = key(False, _USE_SDE, True)
    sde_sample_freq: SampleFreq = key(-1, _SDE_FREQ, 4)
    normalize_advantage: bool = key(False, "Normalise the advantages of every rollout.", True)
    stats_window_size: Count = key(100, _WINDOW, 100)


class OffPolicy(Table):
    """What SAC and TD3 have in common."""

    learning_rate: Schedule = key(3e-4, _LEARNING_RATE, 3e-4)
    buffer_size: Count = key(1_000_000, _BUFFER_SIZE, 300_000)
    learning_starts: CountFromZero = key(100, _LEARNING_STARTS, 1000)
    batch_size: Count = key(256, _BATCH_SIZE, 256)
    tau: Fraction = key(0.005, _TAU, 0.005)
    gamma: Fraction = key(0.99, _GAMMA, 0.99)
    train_freq: TrainFreq = key(1, _TRAIN_FREQ, 1)
    gradient_steps: GradientSteps = key(1, _GRADIENT_STEPS, -1)
    action_noise: NoiseStd = key(None, _ACTION_NOISE, 0.1)
    n_steps: Count = key(1, _MULTI_STEP, 3)
    stats_window_size: Count = key(100, _WINDOW, 100)


class Sac(OffPolicy):
    """Keyword arguments of stable_baselines3.SAC, under its own names and with its own defaults."""

    ent_coef: EntCoef = key("auto", 'Weight of the entropy: "auto" learns it, "auto_0.1" from 0.1 on.', "auto")
    target_update_interval: Count = key(1, "Gradient steps between updates of the target networks.", 1)
    target_entropy: TargetEntropy = key("auto", 'What a learnt ent_coef aims at; "auto": minus the actions.', "auto")
    use_sde: bool = key(False, _USE_SDE, True)
    sde_sample_freq: SampleFreq = key(-1, _SDE_FREQ, 4)
    use_sde_at_warmup: bool = key(False, "gSDE instead of random actions before learning_starts.", True)


class Td3(OffPolicy):
    """Keyword arguments of stable_baselines3.TD3, under its own names and with its own defaults."""

    learning_rate: Schedule = key(1e-3, _LEARNING_RATE, 1e-3)
    action_noise: NoiseStd = key(None, f"{_ACTION_NOISE[:-1]}: then nothing is explored after learning_starts.", 0.1)
    policy_delay: Count = key(2, "Updates of the critics for each of policy and target networks.", 2)
    target_policy_noise: NotNegative = key(0.2, "Standard deviation of the noise on the target policy's actions.", 0.2)
    target_noise_clip: NotNegative = key(0.5, "Largest absolute value of that noise.", 0.5)


class PolicyKwargs(Table):
    """Keyword arguments of Stable-Baselines3's policies, under its own names; which, depends on the algorithm."""

    net_arch: NetArch = key(
        None,
        "Widths of the hidden layers, or a table { pi = […], vf = […] }, of SAC and TD3 { pi = […], qf = […] }; unset: "
        "[64, 64] of PPO and A2C, [256, 256] of SAC, [400, 300] of TD3.",
        [64, 64],
    )
    activation_fn: Activation | None = key(
        None, "Activation between layers; unset: tanh of PPO and A2C, relu of SAC and TD3.", "tanh"
    )
    ortho_init: bool = key(True, "PPO, A2C: orthogonal initialisation.", True)
    log_std_init: float | None = key(
        None, "Initial logarithm of the actions' standard deviation (SAC: with gSDE alone); unset: 0, of SAC -3.", -1.0
    )
    full_std: bool = key(True, "PPO, A2C with gSDE: parameters for features × actions, not features alone.", True)
    use_expln: bool = key(False, "gSDE: expln() instead of exp() for the standard deviation.", False)
    squash_output: bool = key(False, "PPO, A2C: squash actions by tanh; needs use_sde = true.", False)
    clip_mean: NotNegative = key(2.0, "SAC with gSDE: limit of the mean action before tanh; 0: none.", 2.0)
    n_critics: Count = key(2, "SAC, TD3: value networks, of which the lowest counts.", 2)
    share_features_extractor: bool | None = key(
        None, "One feature extractor for policy and value function; unset: true of PPO and A2C, else false.", True
    )
    normalize_images: bool = key(True, "Divide images by 255.", True)


_SHARED = {"net_arch", "activation_fn", "share_features_extractor", "normalize_images"}
_ACTOR_CRITIC = _SHARED | {"ortho_init", "log_std_init", "full_std", "use_expln", "squash_output"}

ALGORITHMS: dict[str, type[Table]] = {"ppo": Ppo, "sac": Sac, "td3": Td3, "a2c": A2c}
"""The table of each, which has its name."""
POLICY_KEYS = {
    "ppo": _ACTOR_CRITIC,
    "a2c": _ACTOR_CRITIC,
    "sac": _SHARED | {"log_std_init", "use_expln", "clip_mean", "n_critics"},
    "td3": _SHARED | {"n_critics"},
}
"""Keys of ``policy_kwargs`` that the algorithm's policies take."""
