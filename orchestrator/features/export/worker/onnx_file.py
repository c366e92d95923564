"""Writes and reads ``.onnx`` files: a dozen nodes of a standard that runtimes have had since
2021.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.core.text import install_extra
from orchestrator.features.export.worker.exported_policy import (
    ACTION,
    CTRL,
    INPUT,
    LEAKY_SLOPE,
    ExportedPolicy,
    ExportError,
    Floats,
    with_commas,
)
from orchestrator.worker.training.trained_policy import Observation

OPSET = 17
"""That of ONNX 1.12, as is the next."""
IR_VERSION = 8
FLOAT = 1
"""ONNX's number of the type float32."""
DOUBLE = 11
"""ONNX's number of the type float64."""


def content(policy: ExportedPolicy) -> bytes:
    """:raises ExportError: the package onnx is not installed."""
    onnx = _package("onnx")
    helper = onnx.helper
    graph = _Graph(onnx)
    facts = policy.metadata
    inputs = dict(zip(facts.input_names, facts.input_sizes, strict=True))
    x = graph.add("Concat", *inputs, axis=1) if inputs else INPUT
    if (limits := policy.limits) is not None:
        x = graph.add("Max", x, limits.low.astype(np.float32))
        x = graph.add("Min", x, limits.high.astype(np.float32))
    if (scaling := policy.normalization) is not None:
        x = graph.add("Cast", x, to=DOUBLE)
        x = graph.add("Div", graph.add("Sub", x, scaling.mean), scaling.std)
        x = graph.add("Clip", x, np.float64(-scaling.clip), np.float64(scaling.clip))
        x = graph.add("Cast", x, to=FLOAT)
    for layer in policy.layers:
        x = graph.add("Gemm", x, layer.weight, layer.bias, transB=1)
        x = _add_activation(graph, x, layer.activation)
    if math.isfinite(policy.mean_limit):
        x = graph.add("Clip", x, np.float32(-policy.mean_limit), np.float32(policy.mean_limit))
    if policy.squash:
        shifted = graph.add("Add", graph.add("Tanh", x), np.float32(1))
        x = graph.add("Add", graph.add("Mul", shifted, policy.half_range), policy.low)
    x = graph.add("Max", x, policy.low)
    graph.add("Min", x, policy.high, output=ACTION)
    outputs = [ACTION]
    if (controls := policy.controls) is not None:
        half = controls.half.astype(np.float32)
        middle = controls.middle.astype(np.float32)
        x = graph.add("Add", graph.add("Mul", ACTION, half), middle)
        x = graph.add("Max", x, controls.low.astype(np.float32))
        graph.add("Min", x, controls.high.astype(np.float32), output=CTRL)
        outputs.append(CTRL)

    def value(name: str, width: int) -> Any:
        return helper.make_tensor_value_info(name, FLOAT, ["batch", width])

    actions = len(policy.low)
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            policy.metadata.job,
            [
                value(name, width)
                for name, width in (inputs or {INPUT: policy.layers[0].weight.shape[1]}).items()
            ],
            [value(name, actions) for name in outputs],
            graph.constants,
        ),
        producer_name="mujoco-orchestrator",
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    helper.set_model_props(model, _metadata(policy))
    onnx.checker.check_model(model, full_check=True)
    file: bytes = model.SerializeToString()
    return file


def _metadata(policy: ExportedPolicy) -> dict[str, str]:
    """The facts of every format; those that mjlab writes, too, in its own terms and form."""
    facts = policy.facts_as_text()
    facts["observation_elements"] = facts["observation_names"]
    for name, values in (policy.mjlab_terms or {}).items():
        facts[name] = with_commas(values)
    return facts


class OnnxPolicy:
    """A policy in ONNX Runtime, on the CPU, in the thread that calls it.

    :raises ExportError: the package onnxruntime is not installed.
    """

    def __init__(self, path: Path) -> None:
        runtime = _package("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        self._session = runtime.InferenceSession(
            path.read_bytes(), options, providers=["CPUExecutionProvider"]
        )
        inputs = {value.name: int(value.shape[1]) for value in self._session.get_inputs()}
        outputs = {value.name: int(value.shape[1]) for value in self._session.get_outputs()}
        metadata = self._session.get_modelmeta().custom_metadata_map
        self.inputs: Sequence[str] = tuple(json.loads(metadata.get("input_names", "[]")))
        self.observations = sum(inputs.values())
        self.actions = outputs[ACTION]
        self._outputs = [name for name in (ACTION, CTRL) if name in outputs]

    def __call__(self, observation: Observation) -> Mapping[str, Floats]:
        given = observation if isinstance(observation, Mapping) else {INPUT: observation}
        inputs = {name: values.astype(np.float32) for name, values in given.items()}
        values = self._session.run(self._outputs, inputs)
        return dict(zip(self._outputs, values, strict=True))


class _Graph:
    """Nodes and constants of a graph; each node has one output. Their names begin with ``_``, as no
    input's does.
    """

    def __init__(self, onnx: Any) -> None:
        self._onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(
        self, kind: str, *inputs: str | Any, output: str | None = None, **attributes: Any
    ) -> str:
        """A node of this kind; arrays among its inputs become constants. Returns the name of its
        output.
        """
        names = [value if isinstance(value, str) else self._constant(value) for value in inputs]
        name = output or f"_{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(self._onnx.helper.make_node(kind, names, [name], **attributes))
        return name

    def _constant(self, values: Any) -> str:
        name = f"_constant_{len(self.constants)}"
        self.constants.append(self._onnx.numpy_helper.from_array(np.asarray(values), name))
        return name


def _add_activation(graph: _Graph, x: str, activation: str) -> str:
    match activation:
        case "":
            return x
        case "leaky_relu":
            return graph.add("LeakyRelu", x, alpha=LEAKY_SLOPE)
        case "silu":
            return graph.add("Mul", x, graph.add("Sigmoid", x))
        case "gelu":
            erf = graph.add("Erf", graph.add("Div", x, np.float32(math.sqrt(2))))
            return graph.add(
                "Mul", x, graph.add("Mul", graph.add("Add", erf, np.float32(1)), np.float32(0.5))
            )
        case _:
            return graph.add(activation.capitalize(), x)  # Tanh, Relu and Elu


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ExportError(
            f".onnx needs the package {name}, which is not installed ({error}): {install_extra('export')}"
        ) from None
