"""Writes and reads TorchScript, which libtorch loads in programs without Python.

TorchScript reads annotations, so they are not postponed here.
"""

import io
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from orchestrator.features.export.worker.exported_policy import ExportedPolicy, Floats
from orchestrator.worker.training import algorithms
from orchestrator.worker.training.trained_policy import Observation

METADATA = "metadata.json"
"""The extra file with the metadata."""


def content(policy: ExportedPolicy) -> bytes:
    file = io.BytesIO()
    with _without_deprecation():
        names = policy.metadata.input_names
        module = _ModuleOfEntries(policy, list(names)) if names else _Module(policy)
        scripted = torch.jit.script(module.eval())
        text = json.dumps(policy.facts(), ensure_ascii=False)
        torch.jit.save(scripted, file, _extra_files={METADATA: text.encode()})
    return file.getvalue()


class TorchScriptPolicy:
    """A policy in TorchScript, on the CPU."""

    def __init__(self, path: Path) -> None:
        extra = {METADATA: ""}
        with _without_deprecation():
            self._module = torch.jit.load(io.BytesIO(path.read_bytes()), "cpu", _extra_files=extra)  # type: ignore[no-untyped-call]
        metadata = json.loads(extra[METADATA])
        self.inputs: Sequence[str] = tuple(metadata.get("input_names", ()))
        self.observations = len(metadata["observation_names"])
        self.actions = len(metadata["action_names"])

    def __call__(self, observation: Observation) -> Mapping[str, Floats]:
        with torch.inference_mode():
            if isinstance(observation, Mapping):
                given = {name: torch.as_tensor(values) for name, values in observation.items()}
                outputs = self._module(given)
            else:
                outputs = self._module(torch.as_tensor(observation))
        return {name: values.numpy() for name, values in outputs.items()}


class _Module(nn.Module):
    """The operations of the policy itself, so that the results have the same bits."""

    clips: Final[bool]
    normalizes: Final[bool]
    squash: Final[bool]
    limits: Final[bool]
    controls: Final[bool]
    observation_low: torch.Tensor
    observation_high: torch.Tensor
    mean: torch.Tensor
    std: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor
    half_range: torch.Tensor
    ctrl_middle: torch.Tensor
    ctrl_half: torch.Tensor
    ctrl_low: torch.Tensor
    ctrl_high: torch.Tensor

    def __init__(self, policy: ExportedPolicy) -> None:
        super().__init__()
        limits = policy.limits
        scaling = policy.normalization
        controls = policy.controls
        nothing = np.zeros(0)
        self.clips = limits is not None
        self.normalizes = scaling is not None
        self.squash = policy.squash
        self.controls = controls is not None
        self.limits = math.isfinite(policy.mean_limit)
        self.mean_limit = float(policy.mean_limit)
        self.clip = math.inf if scaling is None else float(scaling.clip)
        arrays = {
            "observation_low": nothing if limits is None else limits.low,
            "observation_high": nothing if limits is None else limits.high,
            "mean": nothing if scaling is None else scaling.mean,
            "std": nothing if scaling is None else scaling.std,
            "low": policy.low,
            "high": policy.high,
            "half_range": policy.half_range,
            "ctrl_middle": nothing if controls is None else controls.middle,
            "ctrl_half": nothing if controls is None else controls.half,
            "ctrl_low": nothing if controls is None else controls.low,
            "ctrl_high": nothing if controls is None else controls.high,
        }
        for name, values in arrays.items():
            self.register_buffer(name, torch.from_numpy(np.array(values)))
        layers: list[nn.Module] = []
        for layer in policy.layers:
            outputs, inputs = map(int, layer.weight.shape)
            linear = nn.Linear(inputs, outputs)
            parameters = {"weight": layer.weight, "bias": layer.bias}
            linear.load_state_dict(
                {name: torch.from_numpy(values) for name, values in parameters.items()}
            )
            layers.append(linear)
            if layer.activation:
                layers.append(algorithms.activation(layer.activation)())
        self.network = nn.Sequential(*layers)

    def forward(self, observation: torch.Tensor) -> dict[str, torch.Tensor]:
        x = observation
        if self.clips:
            x = torch.maximum(x.double(), self.observation_low)
            x = torch.minimum(x, self.observation_high)
        if self.normalizes:
            x = ((x.double() - self.mean) / self.std).clamp(-self.clip, self.clip)
        x = x.float()
        x = self.network(x)
        if self.limits:
            x = x.clamp(-self.mean_limit, self.mean_limit)
        if self.squash:
            x = self.low + (torch.tanh(x) + 1.0) * self.half_range
        action = torch.maximum(torch.minimum(x, self.high), self.low)
        outputs = {"action": action}
        if self.controls:
            ctrl = self.ctrl_middle + self.ctrl_half * action.double()
            outputs["ctrl"] = torch.maximum(
                torch.minimum(ctrl, self.ctrl_high), self.ctrl_low
            ).float()
        return outputs


class _ModuleOfEntries(nn.Module):
    """The same for the entries of a ``Dict`` observation."""

    names: Final[list[str]]

    def __init__(self, policy: ExportedPolicy, names: list[str]) -> None:
        super().__init__()
        self.names = names
        self.of_vector = _Module(policy)

    def forward(self, observation: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        entries = [observation[name] for name in self.names]
        outputs: dict[str, torch.Tensor] = self.of_vector(torch.cat(entries, dim=-1))
        return outputs


def _without_deprecation() -> "warnings.catch_warnings[Any]":
    """PyTorch recommends torch.export in place of TorchScript, but its C++ library still loads this
    format alone.
    """
    return warnings.catch_warnings(action="ignore", category=DeprecationWarning)
