"""Actor and critic of Stable-Baselines3's ``MlpPolicy``: matrices in one flat vector, with their
passes in NumPy.

A layer's bias is a row of its matrix, multiplied by a column of ones beside the layer's inputs, so
that a layer costs one matrix product forward and two backward. The first hidden layers of actor and
critic have the same inputs and share one matrix. Each hidden stage has one array for both networks,
``[1 | actor | critic | 1]``: the actor's next layer reads its left part, the critic's the right
part, and the activation is applied to all of it at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orchestrator.core.worker_spec import Activation as ActivationName

Array = NDArray[Any]
"""An array of float32 or float64."""
LEAST_COPIED = 16
MOST_COPIED = 64
"""Least and largest width of the layers whose weights are transposed by copying them. BLAS
multiplies by others faster as they lie."""
FIRST_ROW = 0
LAST_ROW = -1


class Activation(NamedTuple):
    forward: Callable[[Array, Array], object]
    """``(before, after)``: writes ``after``."""
    backward: Callable[[Array, Array, Array], object]
    """``(after, scratch, gradient)``: multiplies ``gradient`` by the derivative, a function of
    ``after``."""
    one: float
    """Input whose activation is 1: it fills the columns of ones before the activation."""


def _tanh_forward(before: Array, after: Array) -> None:
    np.tanh(before, out=after)


def _tanh_backward(after: Array, scratch: Array, gradient: Array) -> None:
    np.multiply(after, after, out=scratch)
    np.subtract(1.0, scratch, out=scratch)
    np.multiply(gradient, scratch, out=gradient)


def _relu_forward(before: Array, after: Array) -> None:
    np.maximum(before, 0.0, out=after)


def _relu_backward(after: Array, scratch: Array, gradient: Array) -> None:
    np.sign(after, out=scratch)
    np.multiply(gradient, scratch, out=gradient)


def _elu_forward(before: Array, after: Array) -> None:
    np.minimum(before, 0.0, out=after)
    np.expm1(after, out=after)
    np.maximum(before, after, out=after)  # expm1(x) is above x below zero, and zero above


def _elu_backward(after: Array, scratch: Array, gradient: Array) -> None:
    np.minimum(after, 0.0, out=scratch)
    np.add(scratch, 1.0, out=scratch)
    np.multiply(gradient, scratch, out=gradient)


ACTIVATIONS: Mapping[ActivationName, Activation] = {
    "tanh": Activation(_tanh_forward, _tanh_backward, one=100.0),
    "relu": Activation(_relu_forward, _relu_backward, one=1.0),
    "elu": Activation(_elu_forward, _elu_backward, one=1.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of both networks."""

    observation: int
    actor: tuple[int, ...]
    """Widths of the hidden layers; may be empty."""
    critic: tuple[int, ...]
    actions: int
    activation: ActivationName


class Layer(NamedTuple):
    """The place of a layer's matrix ``(inputs + 1, outputs)`` in the flat vector."""

    begin: int
    rows: int
    columns: int
    bias_row: int
    """:data:`FIRST_ROW` where the actor's hidden units are the inputs (``[1 | actor]``), else
    :data:`LAST_ROW`."""

    def matrix(self, flat: Array) -> Array:
        end = self.begin + self.rows * self.columns
        return flat[self.begin : end].reshape(self.rows, self.columns)

    def weights(self, flat: Array) -> Array:
        """``(inputs, outputs)``"""
        matrix = self.matrix(flat)
        return matrix[1:] if self.bias_row == FIRST_ROW else matrix[:-1]

    def bias(self, flat: Array) -> Array:
        bias: Array = self.matrix(flat)[self.bias_row]
        return bias


class Layout:
    """The positions of a policy's parameters in a flat vector, and of their gradients and moments
    in other ones.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.size = 0
        actor = shape.actor
        critic = shape.critic
        first_widths = (actor[:1] or (0,)) + (critic[:1] or (0,))
        self.first = self._layer(shape.observation, sum(first_widths), LAST_ROW)
        """The first hidden layers of both networks, side by side."""
        hidden_actor = [self._layer(*widths, FIRST_ROW) for widths in itertools.pairwise(actor)]
        hidden_critic = [self._layer(*widths, LAST_ROW) for widths in itertools.pairwise(critic)]
        bias_row = FIRST_ROW if actor else LAST_ROW
        mean = self._layer((shape.observation, *actor)[-1], shape.actions, bias_row)
        value = self._layer((shape.observation, *critic)[-1], 1, LAST_ROW)
        self.actor = [*hidden_actor, mean]
        """The layers behind the first hidden one."""
        self.critic = [*hidden_critic, value]
        self._log_std = slice(self.size, self.size + shape.actions)
        self.size = self._log_std.stop

    def _layer(self, inputs: int, outputs: int, bias_row: int) -> Layer:
        layer = Layer(self.size, inputs + 1, outputs, bias_row)
        self.size += layer.rows * layer.columns
        return layer

    def log_std(self, flat: Array) -> Array:
        """``(actions,)`` logarithms of the actions' standard deviations: a view of ``flat``."""
        return flat[self._log_std]

    def named_views(self, flat: Array) -> dict[str, Array]:
        """Views of ``flat`` by the parameters' names in Stable-Baselines3's policy, in their shapes
        there.
        """
        views = {"log_std": self.log_std(flat)}
        weights = self.first.weights(flat)
        bias = self.first.bias(flat)
        width = self.shape.actor[0] if self.shape.actor else 0
        for network, hidden, part, layers, output in (
            ("policy_net", self.shape.actor, slice(0, width), self.actor, "action_net"),
            ("value_net", self.shape.critic, slice(width, None), self.critic, "value_net"),
        ):
            if hidden:
                views[f"mlp_extractor.{network}.0.weight"] = weights[:, part].T
                views[f"mlp_extractor.{network}.0.bias"] = bias[part]
            names = [f"mlp_extractor.{network}.{2 * number}" for number in range(1, len(layers))]
            for name, layer in zip([*names, output], layers, strict=True):
                views[f"{name}.weight"] = layer.weights(flat).T
                views[f"{name}.bias"] = layer.bias(flat)
        return views


class _Product(NamedTuple):
    """The product of inputs and a layer's matrix, with all arrays that the two backward products
    need.
    """

    inputs: Array
    matrix: Array
    outputs: Array
    weight_t: Array
    copy_t: Array | None
    """Memory for a copy of ``weight_t``, where the product is faster with it."""
    matrix_gradient: Array
    outputs_gradient: Array
    inputs_gradient: Array | None
    """Gradient of the inputs; None where the inputs are observations."""


class _ActorLayer(NamedTuple):
    """A hidden layer of the actor alone, with arrays of its own: the activation is faster where
    there are no gaps.
    """

    matrix: Array
    outputs: Array
    """``before`` without its column of ones."""
    before: Array
    """``[1 | outputs]`` before the activation."""
    after: Array


class _Stage:
    """A hidden stage of both networks: arrays ``[1 | actor | critic | 1]`` before and after the
    activation.
    """

    def __init__(
        self, rows: int, actor: int, critic: int, one: float, dtype: np.dtype[Any]
    ) -> None:
        width = 1 + actor + critic + 1
        self.before = np.full((rows, width), one, dtype)
        self.after = np.ones((rows, width), dtype)
        self.gradient = np.zeros((rows, width), dtype)
        self.scratch = np.empty((rows, width), dtype)
        self.both = slice(1, width - 1)
        # The columns of each network, and with the column of ones: the inputs of its next layer.
        self.actor = slice(1, 1 + actor), slice(0, 1 + actor)
        self.critic = slice(1 + actor, width - 1), slice(1 + actor, width)
        self.products: list[_Product] = []
        """Their outputs are the inputs of this stage."""


class Passes:
    """Forward and backward passes for a fixed number of rows, without allocating memory.

    :param parameters: ``(size,)`` flat vector, read at every pass.
    :param gradients: ``(size,)`` flat vector that :meth:`backward` writes, except for ``log_std``.
    """

    def __init__(self, layout: Layout, parameters: Array, gradients: Array, rows: int) -> None:
        shape = layout.shape
        dtype = parameters.dtype
        one = ACTIVATIONS[shape.activation].one
        self._parameters = parameters
        self._gradients = gradients
        self._activation = ACTIVATIONS[shape.activation]
        self.x = np.ones((rows, shape.observation + 1), dtype)
        """``(rows, observation + 1)``: the caller writes the observations; the last column is 1."""
        self.mean, self.mean_gradient = np.empty((2, rows, shape.actions), dtype)
        """``(rows, actions)``: the actor's output for ``x``, and the loss's gradient with respect
        to it."""
        self.value, self.value_gradient = np.empty((2, rows, 1), dtype)
        """``(rows, 1)``: the critic's output for ``x``, and the loss's gradient with respect to
        it."""
        self._stages = [
            _Stage(rows, actor, critic, one, dtype)
            for actor, critic in itertools.zip_longest(shape.actor, shape.critic, fillvalue=0)
        ]
        for stage in self._stages[:1]:
            outputs = stage.before[:, stage.both]
            gradient = stage.gradient[:, stage.both]
            stage.products.append(self._product(layout.first, self.x, None, outputs, gradient))
        self._to_mean = self._connect(
            [(stage, *stage.actor) for stage in self._stages[: len(shape.actor)]],
            layout.actor,
            self.mean,
            self.mean_gradient,
        )
        self._to_value = self._connect(
            [(stage, *stage.critic) for stage in self._stages[: len(shape.critic)]],
            layout.critic,
            self.value,
            self.value_gradient,
        )
        self._actor_layers = []
        for width, layer in zip(shape.actor, [layout.first, *layout.actor], strict=False):
            before, after = np.full((2, rows, 1 + width), one, dtype)
            matrix = layer.matrix(parameters)[:, :width]
            self._actor_layers.append(_ActorLayer(matrix, before[:, 1:], before, after))

    def _connect(
        self,
        stages: Sequence[tuple[_Stage, slice, slice]],
        layers: Sequence[Layer],
        result: Array,
        result_gradient: Array,
    ) -> _Product:
        """Append the products of one network behind the first stage to the stages', and return its
        last one.

        :param stages: each with the columns of this network, without and with the ones.
        :param layers: those behind the first stage.
        """
        inputs = self.x
        inputs_gradient = None
        for number, (stage, units, units_and_one) in enumerate(stages):
            gradient = stage.gradient[:, units]
            if number > 0:
                layer = layers[number - 1]
                outputs = stage.before[:, units]
                product = self._product(layer, inputs, inputs_gradient, outputs, gradient)
                stage.products.append(product)
            inputs = stage.after[:, units_and_one]
            inputs_gradient = gradient
        return self._product(layers[-1], inputs, inputs_gradient, result, result_gradient)

    def _product(
        self,
        layer: Layer,
        inputs: Array,
        inputs_gradient: Array | None,
        outputs: Array,
        outputs_gradient: Array,
    ) -> _Product:
        weight_t = layer.weights(self._parameters).T
        is_copied = min(weight_t.shape) >= LEAST_COPIED and max(weight_t.shape) <= MOST_COPIED
        copy_t = None
        if is_copied and inputs_gradient is not None:
            copy_t = np.empty(weight_t.shape, weight_t.dtype)
        return _Product(
            inputs=inputs,
            matrix=layer.matrix(self._parameters),
            outputs=outputs,
            weight_t=weight_t,
            copy_t=copy_t,
            matrix_gradient=layer.matrix(self._gradients),
            outputs_gradient=outputs_gradient,
            inputs_gradient=inputs_gradient,
        )

    def act(self, x: Array) -> Array:
        """Forward pass of the actor alone. :param x: ``(rows, observation + 1)``, used in the place
        of :attr:`x`.
        """
        activate = self._activation.forward
        inputs = x
        for layer in self._actor_layers:
            np.matmul(inputs, layer.matrix, out=layer.outputs)
            activate(layer.before, layer.after)
            inputs = layer.after
        np.matmul(inputs, self._to_mean.matrix, out=self.mean)
        return self.mean

    def forward(self) -> None:
        """Forward pass of both networks: ``x`` → ``mean`` and ``value``."""
        activate = self._activation.forward
        for stage in self._stages:
            for product in stage.products:
                np.matmul(product.inputs, product.matrix, out=product.outputs)
            activate(stage.before, stage.after)
        for product in (self._to_mean, self._to_value):
            np.dot(product.inputs, product.matrix, out=product.outputs)

    def backward(self) -> None:
        """After :meth:`forward`: ``mean_gradient`` and ``value_gradient`` → the gradient of every
        matrix.
        """
        for product in (self._to_mean, self._to_value):
            _backward(product)
        derive = self._activation.backward
        for stage in reversed(self._stages):
            derive(stage.after, stage.scratch, stage.gradient)
            for product in stage.products:
                _backward(product)


def _backward(product: _Product) -> None:
    np.dot(product.inputs.T, product.outputs_gradient, out=product.matrix_gradient)
    inputs_gradient = product.inputs_gradient
    weight_t = product.weight_t
    if inputs_gradient is None:
        return
    # A single output, such as the critic's: the same numbers in half the time.
    if len(weight_t) == 1:
        np.multiply(product.outputs_gradient, weight_t, out=inputs_gradient)
        return
    if product.copy_t is not None:
        np.copyto(product.copy_t, weight_t)
        weight_t = product.copy_t
    np.matmul(product.outputs_gradient, weight_t, out=inputs_gradient)
