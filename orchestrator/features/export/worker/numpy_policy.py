"""Runs a policy that ``orchestrator export`` has written as ``.npz``. This file needs NumPy alone
and may be copied.

act = load("hopper.npz")
act.metadata["control_period_s"]        # seconds between two actions
act(observation)["action"]              # (batch, n) or (n,) → (batch, actions) or (actions,)

Where ``act.inputs`` has names, an observation is a dictionary with an array for each of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_erf = np.frompyfunc(math.erf, 1, 1)
ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "": lambda x: x,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "leaky_relu": lambda x: np.where(x > 0, x, np.float32(0.01) * x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * (0.5 + 0.5 * _erf(x / math.sqrt(2)).astype(np.float32)),
}


class NumpyPolicy:
    """:param arrays: the content of the file, by name."""

    def __init__(self, arrays: dict[str, NDArray[Any]]) -> None:
        self._arrays = arrays
        self._layers = [
            (arrays[f"weight_{number}"].T, arrays[f"bias_{number}"], ACTIVATIONS[str(name)])
            for number, name in enumerate(arrays["activations"])
        ]
        self.observations = len(arrays["mean"])
        self.actions = len(arrays["low"])
        self.metadata = {
            name[5:]: array.tolist() for name, array in arrays.items() if name.startswith("meta_")
        }
        self.inputs: Sequence[str] = tuple(self.metadata.get("input_names", ()))

    def __call__(
        self, observation: NDArray[Any] | Mapping[str, NDArray[Any]]
    ) -> dict[str, NDArray[np.float32]]:
        """``action`` and, where the file has it, ``ctrl``: ``(batch, actions)`` for observations
        ``(batch, n)``.
        """
        of = self._arrays
        if isinstance(observation, Mapping):
            observation = np.concatenate([observation[name] for name in self.inputs], axis=-1)
        x = np.asarray(observation)
        if "observation_low" in of:
            x = np.clip(x, of["observation_low"], of["observation_high"])
        x = np.clip((x - of["mean"]) / of["std"], -of["clip"], of["clip"]).astype(np.float32)
        for weight, bias, activation in self._layers:
            x = activation(x @ weight + bias)
        x = np.clip(x, -of["mean_limit"], of["mean_limit"])
        if of["squash"]:
            x = of["low"] + (np.tanh(x) + 1) * of["half_range"]
        action = np.clip(x, of["low"], of["high"])
        if "ctrl_half" not in of:
            return {"action": action}
        ctrl = np.clip(
            of["ctrl_middle"] + of["ctrl_half"] * action, of["ctrl_low"], of["ctrl_high"]
        )
        return {"action": action, "ctrl": ctrl.astype(np.float32)}


def load(path: str | Path) -> NumpyPolicy:
    """:raises ValueError, OSError: it is no such file."""
    with np.load(path, allow_pickle=False) as file:
        return NumpyPolicy({name: file[name] for name in file.files})
