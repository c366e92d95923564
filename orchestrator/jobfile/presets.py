"""Presets: values of the keys that a job leaves unset, between the built-in defaults and
``[defaults]``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Literal, TypeAlias

from orchestrator.core.decoding import Table

PresetName: TypeAlias = Literal["quick", "standard", "thorough"]

_TUNED: Table = {
    "n_envs": 8,
    "normalize": True,
    "eval_episodes": 10,
    "ppo": {
        "learning_rate": "linear(3e-4, 0)",
        "n_steps": 256,
        "batch_size": 64,
        "n_epochs": 10,
        "gamma": 0.99,
        "gae_lambda": 0.925,
    },
    "policy_kwargs": {"log_std_init": -0.5},
}
"""PPO for good returns on gymnasium's robots; ``docs/presets.md`` has the measurements."""

PRESETS: Mapping[PresetName, Table] = {
    "quick": {
        "total_timesteps": 307_200,
        "n_envs": 8,
        "normalize": True,
        "eval_episodes": 10,
        "ppo": {
            "learning_rate": "linear(1e-3, 0)",
            "n_steps": 256,
            "batch_size": 64,
            "n_epochs": 5,
            "gamma": 0.98,
            "gae_lambda": 0.95,
            "clip_range": 0.2,
            "ent_coef": 0.0,
        },
        "policy_kwargs": {"net_arch": [64, 64]},
    },
    "standard": {"total_timesteps": 614_400, **_TUNED},
    "thorough": {"total_timesteps": 1_024_000, **_TUNED},
}
"""The values of each preset, in the form of ``[defaults]``."""

FOR_PPO = ("ppo", "policy_kwargs")
FOR_ALL = ("total_timesteps", "eval_episodes")
"""Keys for every algorithm. A2C takes all keys but :data:`FOR_PPO`."""


@functools.cache
def preset_values(name: PresetName | None, algo: str) -> Table:
    """Return the values of a preset for a job of this algorithm; empty without a preset."""
    values = PRESETS[name] if name else {}
    if algo == "ppo":
        return values
    return {
        key: value
        for key, value in values.items()
        if key not in FOR_PPO and (key in FOR_ALL or algo == "a2c")
    }
