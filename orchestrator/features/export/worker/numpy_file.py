"""Writes ``.npz`` files; :mod:`orchestrator.features.export.worker.numpy_policy` reads them."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np

from orchestrator.core.decoding import field_values
from orchestrator.features.export.worker.exported_policy import ExportedPolicy, Normalization


def content(policy: ExportedPolicy) -> bytes:
    zeros = np.zeros(policy.layers[0].weight.shape[1])
    scaling = policy.normalization or Normalization(mean=zeros, std=zeros + 1, clip=math.inf)
    arrays: dict[str, Any] = {"mean": scaling.mean, "std": scaling.std, "clip": scaling.clip}
    if (limits := policy.limits) is not None:
        arrays |= {"observation_low": limits.low, "observation_high": limits.high}
    for number, layer in enumerate(policy.layers):
        arrays |= {f"weight_{number}": layer.weight, f"bias_{number}": layer.bias}
    arrays["activations"] = [layer.activation for layer in policy.layers]
    arrays |= {"mean_limit": np.float32(policy.mean_limit), "squash": policy.squash}
    arrays |= {"low": policy.low, "high": policy.high, "half_range": policy.half_range}
    if (controls := policy.controls) is not None:
        arrays |= {f"ctrl_{name}": values for name, values in field_values(controls).items()}
    for name, value in field_values(policy.metadata).items():
        arrays[f"meta_{name}"] = np.array(math.nan if value is None else value)
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()
