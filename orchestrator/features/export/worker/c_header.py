"""Writes a C99 header with the policy as constants and one function, for a robot's controller
without an OS.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from orchestrator.features.export.worker.exported_policy import (
    INPUT,
    LEAKY_SLOPE,
    DenseLayer,
    ExportedPolicy,
)

ACTIVATIONS = {
    "tanh": "tanhf(x)",
    "relu": "x > 0.0f ? x : 0.0f",
    "leaky_relu": f"x > 0.0f ? x : {LEAKY_SLOPE}f * x",
    "elu": "x > 0.0f ? x : expm1f(x)",
    "silu": "x / (1.0f + expf(-x))",
    "gelu": "x * (0.5f + 0.5f * erff(x * 0.70710678f))",
}
PER_LINE = 8


def content(policy: ExportedPolicy, stem: str) -> str:
    """:param stem: the file's name without ``.h``, from which all names in it are made."""
    return _Header(policy, re.sub(r"\W", "_", stem, flags=re.ASCII)).text()


class _Header:
    def __init__(self, policy: ExportedPolicy, stem: str) -> None:
        self._policy = policy
        self._name = f"policy_{stem}" if stem[:1].isdigit() else stem.lower()
        self._macro = self._name.upper()
        self._widths = [
            policy.layers[0].weight.shape[1],
            *(len(layer.bias) for layer in policy.layers),
        ]

    def text(self) -> str:
        facts = self._policy.metadata
        name = self._name
        macro = self._macro
        inputs = [f"const float {INPUT}[{macro}_OBSERVATIONS]"]
        if facts.input_names:
            inputs = [f"const float in_{one}[{macro}_SIZE_{one}]" for one in facts.input_names]
        parameters = [*inputs, f"float action[{macro}_ACTIONS]"]
        if self._policy.controls is not None:
            parameters.append(f"float ctrl[{macro}_ACTIONS]")
        period = "NAN" if facts.control_period_s is None else repr(facts.control_period_s)
        lines = [
            f"/* The policy of job {_comment(facts.job)} ({facts.algo}, {facts.env_steps} env_steps, task "
            f"{_comment(facts.task)}).",
            " * Written by `orchestrator export`; C99, needs nothing but the mathematical library.",
            " *",
            f" * {name}_act has to be called every {macro}_CONTROL_PERIOD_S seconds.",
            " * It returns 0; where an observation is not finite, its number counted from 1, and changes nothing then.",
            " *",
            " * Observations:",
            *self._table("observation", facts.observation_names, facts.observation_units),
            " * Actions, within their bounds:",
            *self._table("action", facts.action_names, [""] * len(facts.action_names)),
            *self._table_of_controls(),
            " */",
            f"#ifndef {macro}_H",
            f"#define {macro}_H",
            "#include <math.h>",
            "",
            f"#define {macro}_OBSERVATIONS {self._widths[0]}",
            *self._sizes_of_inputs(),
            f"#define {macro}_ACTIONS {self._widths[-1]}",
            f"#define {macro}_COMMANDS {len(facts.command_names)}",
            f"#define {macro}_CONTROL_PERIOD_S {period}",
            f"#define {macro}_ROBOT_SHA256 {_string(facts.robot_sha256)}",
            "",
            *self._strings("observation_names", facts.observation_names),
            *self._strings("observation_units", facts.observation_units),
            *self._strings("action_names", facts.action_names),
            *self._strings("ctrl_units", facts.ctrl_units),
            *self._joints(),
            *self._strings("command_names", facts.command_names),
            *self._constants(),
            "",
            f"static inline int {name}_act({', '.join(parameters)})",
            "{",
            *(f"    {line}" if line else "" for line in self._body()),
            "}",
            "",
            f"#endif /* {macro}_H */",
        ]
        return "\n".join(lines) + "\n"

    def _sizes_of_inputs(self) -> Iterable[str]:
        facts = self._policy.metadata
        for name, size in zip(facts.input_names, facts.input_sizes, strict=True):
            yield f"#define {self._macro}_SIZE_{name} {size}"

    def _table_of_controls(self) -> Iterable[str]:
        if self._policy.controls is None:
            return
        facts = self._policy.metadata
        yield " * Controls, what a number of 1 means in brackets:"
        yield from self._table("ctrl", facts.action_names, facts.ctrl_units)

    def _joints(self) -> Iterable[str]:
        facts = self._policy.metadata
        yield f"#define {self._macro}_JOINTS {len(facts.joint_names)}"
        yield from self._strings("joint_names", facts.joint_names)
        for name in (
            "default_joint_pos",
            "joint_stiffness",
            "joint_damping",
            "joint_force_limit",
            "action_scale",
        ):
            yield from self._array(name, np.array(getattr(facts, name), np.float32))

    def _constants(self) -> Iterable[str]:
        policy = self._policy
        if (limits := policy.limits) is not None:
            yield from self._array("observation_low", limits.low.astype(np.float32))
            yield from self._array("observation_high", limits.high.astype(np.float32))
        if (scaling := policy.normalization) is not None:
            yield from self._array("mean", scaling.mean)
            yield from self._array("std", scaling.std)
        for number, layer in enumerate(policy.layers):
            yield from self._array(f"weight_{number}", layer.weight)
            yield from self._array(f"bias_{number}", layer.bias)
        yield from self._array("low", policy.low)
        yield from self._array("high", policy.high)
        if policy.squash:
            yield from self._array("half_range", policy.half_range)
        if (controls := policy.controls) is not None:
            for part in ("middle", "half", "low", "high"):
                yield from self._array(f"ctrl_{part}", getattr(controls, part).astype(np.float32))

    def _body(self) -> Iterable[str]:
        policy = self._policy
        name = self._name
        widest = max(self._widths)
        yield f"float a[{widest}], b[{widest}];"
        yield from self._one_observation()
        yield "int i, j;"
        yield f"for (i = 0; i < {self._widths[0]}; i++)"
        yield "    if (!isfinite(observation[i]))"
        yield "        return i + 1;"
        yield f"for (i = 0; i < {self._widths[0]}; i++) {{"
        yield "    float o = observation[i];"
        if policy.limits is not None:
            low = f"{name}_observation_low[i]"
            high = f"{name}_observation_high[i]"
            yield f"    o = o < {low} ? {low} : o > {high} ? {high} : o;"
        if (scaling := policy.normalization) is not None:
            clip = _number(scaling.clip, "")
            yield f"    double x = ((double)o - {name}_mean[i]) / {name}_std[i];"
            yield f"    a[i] = (float)(x < -{clip} ? -{clip} : x > {clip} ? {clip} : x);"
        else:
            yield "    a[i] = o;"
        yield "}"
        source = "a"
        target = "b"
        for number, layer in enumerate(policy.layers):
            yield from self._layer(number, layer, source, target)
            source, target = target, source  # what a layer has written is read by the next one
        yield from self._outputs(source)

    def _one_observation(self) -> Iterable[str]:
        """Where it comes in several inputs: all of them behind each other."""
        facts = self._policy.metadata
        if not facts.input_names:
            return
        yield f"float {INPUT}[{self._widths[0]}];"
        first = 0
        for name, size in zip(facts.input_names, facts.input_sizes, strict=True):
            yield f"for (int k = 0; k < {size}; k++)"
            yield f"    {INPUT}[{first} + k] = in_{name}[k];"
            first += size

    def _layer(self, number: int, layer: DenseLayer, source: str, target: str) -> Iterable[str]:
        outputs, inputs = layer.weight.shape
        yield f"for (i = 0; i < {outputs}; i++) {{"
        yield f"    float x = {self._name}_bias_{number}[i];"
        yield f"    for (j = 0; j < {inputs}; j++)"
        yield f"        x += {self._name}_weight_{number}[i * {inputs} + j] * {source}[j];"
        yield f"    {target}[i] = {ACTIVATIONS.get(layer.activation, 'x')};"
        yield "}"

    def _outputs(self, source: str) -> Iterable[str]:
        policy = self._policy
        name = self._name
        yield f"for (i = 0; i < {self._widths[-1]}; i++) {{"
        yield f"    float x = {source}[i];"
        if math.isfinite(policy.mean_limit):
            limit = _number(policy.mean_limit)
            yield f"    x = x < -{limit} ? -{limit} : x > {limit} ? {limit} : x;"
        if policy.squash:
            yield f"    x = {name}_low[i] + (tanhf(x) + 1.0f) * {name}_half_range[i];"
        yield f"    x = x < {name}_low[i] ? {name}_low[i] : x > {name}_high[i] ? {name}_high[i] : x;"
        yield "    action[i] = x;"
        if policy.controls is not None:
            yield f"    x = {name}_ctrl_middle[i] + {name}_ctrl_half[i] * x;"
            low = f"{name}_ctrl_low[i]"
            high = f"{name}_ctrl_high[i]"
            yield f"    ctrl[i] = x < {low} ? {low} : x > {high} ? {high} : x;"
        yield "}"
        yield "return 0;"

    def _array(self, name: str, values: np.ndarray[Any, Any]) -> Iterable[str]:
        kind, suffix = ("double", "") if values.dtype == np.float64 else ("float", "f")
        numbers = [_number(number, suffix) for number in values.ravel()]
        if not numbers:  # C has no empty arrays
            return
        yield f"static const {kind} {self._name}_{name}[{len(numbers)}] = {{"
        for begin in range(0, len(numbers), PER_LINE):
            yield f"    {', '.join(numbers[begin : begin + PER_LINE])},"
        yield "};"

    def _strings(self, name: str, texts: Sequence[str]) -> Iterable[str]:
        if not texts:
            return
        yield f"static const char *const {self._name}_{name}[{len(texts)}] = {{"
        yield from (f"    {_string(text)}," for text in texts)
        yield "};"

    @staticmethod
    def _table(kind: str, names: Sequence[str], units: Sequence[str]) -> Iterable[str]:
        for number, (name, unit) in enumerate(zip(names, units, strict=True)):
            in_unit = f" [{_comment(unit)}]" if unit else ""
            yield f" *   {kind}[{number}]: {_comment(name)}{in_unit}"


def _number(value: Any, suffix: str = "f") -> str:
    """The shortest decimal that a compiler reads as the same number."""
    if not math.isfinite(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    return f"{np.float32(value) if suffix else np.float64(value)!s}{suffix}"


def _comment(text: str) -> str:
    """``text`` in a comment, which it must not end."""
    printable = "".join(character if character.isprintable() else "?" for character in text)
    return printable.replace("*/", "* /")


def _string(text: str) -> str:
    """A literal of ``text`` in UTF-8, whatever the compiler takes the file's encoding to be."""
    plain = set(range(32, 127)) - {*b'"\\?'}
    content = "".join(chr(byte) if byte in plain else f"\\{byte:03o}" for byte in text.encode())
    return f'"{content}"'
