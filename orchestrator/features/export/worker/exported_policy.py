"""What is exported of a policy: plain arrays, from which each format is written.

For an observation x, ``(n,)``, as the environment gives it, or the entries of a ``Dict`` behind each
other:

    x = clip(x, observation_low, observation_high)   as the task clips what it observes
    x = clip((x - mean) / std, -clip, clip)          in float64, then rounded to float32, as in training
    x = activation(weight · x + bias)                for each layer; the last one has no activation
    x = clip(x, -mean_limit, mean_limit)
    x = low + (tanh(x) + 1) · (high - low) / 2       where actions are squashed
    action = clip(x, low, high)
    ctrl = clip(middle + half · action, ctrl_low, ctrl_high)
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.core.decoding import field_values
from orchestrator.core.errors import UsageError

Floats = NDArray[np.float32]
INPUT = "observation"
"""Name of the input in every format; the next two are those of the outputs."""
ACTION = "action"
CTRL = "ctrl"
LEAKY_SLOPE = 0.01
"""Of ``leaky_relu``, as torch has it."""


OF_MJLAB = (
    "joint_names",
    "default_joint_pos",
    "joint_stiffness",
    "joint_damping",
    "action_scale",
    "command_names",
)
"""Names of metadata that controllers for policies of mjlab read, in the form in which it writes
them."""


class ExportError(UsageError):
    """A policy cannot be exported, or an exported file not be used; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """What a robot's controller must know besides the numbers of the policy. Every format holds
    it.
    """

    job: str
    algo: str
    task: str
    """The task, gymnasium id or entry point of the job."""
    env_steps: int
    """How long the policy was trained."""
    robot_sha256: str
    """Of the robot that it was trained with, as the job's ``robot.sha256`` has it; empty without a
    robot."""
    control_period_s: float | None
    """Seconds between two actions; None where the environment does not tell."""
    observation_names: Sequence[str]
    observation_units: Sequence[str]
    """Empty where a unit is not known; ``1`` for plain numbers."""
    input_names: Sequence[str] = ()
    """Entries of a ``Dict`` observation, each an input of its own, in the order of the observations;
    empty for a vector."""
    input_sizes: Sequence[int] = ()
    action_names: Sequence[str]
    """Of the actuators, in the order of ``action`` and ``ctrl``."""
    ctrl_units: Sequence[str]
    """What a ``ctrl`` of 1 means: ``18 N m``, ``rad``; empty where that is not known."""
    joint_names: Sequence[str] = ()
    """Hinges and slides of the robot, without its root, as for the next three; empty where only the
    environment knows them."""
    default_joint_pos: Sequence[float] = ()
    joint_stiffness: Sequence[float] = ()
    joint_damping: Sequence[float] = ()
    joint_force_limit: Sequence[float] = ()
    """inf without a limit, 0 without an actuator."""
    action_scale: Sequence[float] = ()
    """By how much an action of 1 moves the target of its joint; 0 where it has no position servo."""
    command_names: Sequence[str] = ()


def with_commas(values: Sequence[object]) -> str:
    """A list as mjlab writes it."""
    return ",".join(map(str, values))


def _text(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if name in OF_MJLAB:
        assert isinstance(value, Sequence)
        return with_commas(value)
    return json.dumps(value)


def finite(value: Any) -> Any:
    """``value``, with None for numbers in it that are not finite."""
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalization:
    mean: NDArray[np.float64]
    """``(n,)``"""
    std: NDArray[np.float64]
    """``(n,)``, never 0"""
    clip: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of observations; ``(n,)`` float64 each, ∓inf where there is none."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseLayer:
    weight: Floats
    """``(outputs, inputs)``"""
    bias: Floats
    """``(outputs,)``"""
    activation: str
    """A value of :data:`orchestrator.core.worker_spec.Activation`; empty for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """How actions become controls; ``(actions,)`` float64 each."""

    middle: NDArray[np.float64]
    half: NDArray[np.float64]
    low: NDArray[np.float64]
    """-inf where the actuator has no limit."""
    high: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedPolicy:
    metadata: Metadata
    limits: Limits | None
    """None where the task clips nothing of what it observes, or only the environment knows."""
    unknown_limits: str | None = None
    """Why it is not known how the task clips, and what to do; None where it is known, or where there
    is no task."""
    normalization: Normalization | None
    layers: Sequence[DenseLayer]
    mean_limit: float = math.inf
    """Bound of the last layer's output: SAC has one with gSDE."""
    squash: bool
    low: Floats
    """``(actions,)`` bounds of actions."""
    high: Floats
    controls: Controls | None
    """None where only the environment knows how actions become controls."""
    mjlab_terms: Mapping[str, Sequence[Any]] | None = None
    """As :func:`.mjlab_terms.mjlab_terms`, for ONNX, the format of mjlab."""

    def facts(self) -> dict[str, Any]:
        """The metadata and, where they are known, how actions become controls; numbers that are
        not finite, which JSON does not have, as None.
        """
        found = dict(field_values(self.metadata))
        if self.controls is not None:
            controls = field_values(self.controls)
            found |= {f"ctrl_{name}": values.tolist() for name, values in controls.items()}
        return {name: finite(value) for name, value in found.items()}

    def facts_as_text(self) -> dict[str, str]:
        """Each of them as text: numbers and lists as JSON, those of :data:`OF_MJLAB` with commas
        between them.
        """
        return {name: _text(name, value) for name, value in self.facts().items()}

    @property
    def outputs(self) -> frozenset[str]:
        """The names of what the policy gives in every format."""
        return frozenset({ACTION} if self.controls is None else {ACTION, CTRL})

    @property
    def half_range(self) -> Floats:
        """``(actions,)`` half the distance of the bounds of actions."""
        half: Floats = np.float32(0.5) * (self.high - self.low)
        return half
