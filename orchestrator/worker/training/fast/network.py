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
"""Which row of a layer's matrix is the bias: the first where the actor's hidden units are the inputs
(``[1 | actor]``), the last elsewhere."""


class Activation(NamedTuple):
    forward: Callable[[Array, Array], object]
    """``(before, after)``: writes ``after``."""
    backward: Callable[[Array, Array, Array], object]
    """``(after, scratch, gradient)``: multiplies ``gradient`` by the derivative, a function of
    ``after``."""
    one: float
    """Input whose activation is 1: it fills the columns of ones before the activation."""


def _tanh_backward(after: Array, scratch: Array, gradient: Array) -> None:
    np.multiply(after, after, out=scratch)
    np.subtract(1.0, scratch, out=scratch)
    np.multiply(gradient, scratch, out=gradient)


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
    "tanh": Activation(lambda before, after: np.tanh(before, out=after), _tanh_backward, one=100.0),
    "relu": Activation(
        lambda before, after: np.maximum(before, 0.0, out=after), _relu_backward, one=1.0
    ),
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


class Block(NamedTuple):
    """A matrix in the flat vector, ``(inputs + 1, outputs)``: one row is the bias."""

    begin: int
    rows: int
    columns: int

    def of(self, flat: Array) -> Array:
        return flat[self.begin : self.begin + self.rows * self.columns].reshape(
            self.rows, self.columns
        )


class Layout:
    """The positions of a policy's parameters in a flat vector, and of their gradients and moments
    in other ones.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._size = 0
        actor = shape.actor
        critic = shape.critic
        self.first = self._block(
            shape.observation, actor[0] if actor else 0, critic[0] if critic else 0
        )
        """The first hidden layers of both networks, side by side."""
        self.actor = [self._block(*widths) for widths in itertools.pairwise(actor)]
        self.critic = [self._block(*widths) for widths in itertools.pairwise(critic)]
        self.mean = self._block(actor[-1] if actor else shape.observation, shape.actions)
        self.value = self._block(critic[-1] if critic else shape.observation, 1)
        self._log_std = slice(self._size, self._size + shape.actions)
        self.size = self._log_std.stop

    def _block(self, inputs: int, *outputs: int) -> Block:
        block = Block(self._size, inputs + 1, sum(outputs))
        self._size += block.rows * block.columns
        return block

    def log_std(self, flat: Array) -> Array:
        """``(actions,)`` logarithms of the actions' standard deviations: a view of ``flat``."""
        return flat[self._log_std]

    def named_views(self, flat: Array) -> dict[str, Array]:
        """Views of ``flat`` by the parameters' names in Stable-Baselines3's policy, in their shapes
        there.
        """
        views = {"log_std": self.log_std(flat)}
        first = self.first.of(flat)
        split = self.shape.actor[0] if self.shape.actor else 0

        def add_layer(name: str, matrix: Array, bias_row: int) -> None:
            views[f"{name}.weight"] = _without_bias(matrix, bias_row).T
            views[f"{name}.bias"] = matrix[bias_row]

        def add_network(name: str, first: Array, later: Sequence[Block], bias_row: int) -> None:
            if first.shape[1]:
                add_layer(f"mlp_extractor.{name}.0", first, LAST_ROW)
            for number, block in enumerate(later, start=1):
                add_layer(f"mlp_extractor.{name}.{2 * number}", block.of(flat), bias_row)

        add_network("policy_net", first[:, :split], self.actor, FIRST_ROW)
        add_network("value_net", first[:, split:], self.critic, LAST_ROW)
        add_layer("action_net", self.mean.of(flat), FIRST_ROW if self.shape.actor else LAST_ROW)
        add_layer("value_net", self.value.of(flat), LAST_ROW)
        return views


def _without_bias(matrix: Array, bias_row: int) -> Array:
    return matrix[1:] if bias_row == FIRST_ROW else matrix[:-1]


class _Product(NamedTuple):
    """The product of inputs and a layer's matrix, with all arrays that the two backward products
    need.
    """

    inputs: Array
    matrix: Array
    outputs: Array
    inputs_t: Array
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


class _Part(NamedTuple):
    """The columns of one network in the arrays of a stage."""

    units: slice
    units_and_one: slice
    """With the column of ones: the inputs of its next layer."""


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
        self.actor = _Part(slice(1, 1 + actor), slice(0, 1 + actor))
        self.critic = _Part(slice(1 + actor, width - 1), slice(1 + actor, width))
        self.both = slice(1, width - 1)


class Passes:
    """Forward and backward passes for a fixed number of rows, without allocating memory.

    :param parameters: ``(size,)`` flat vector, read at every pass.
    :param gradients: ``(size,)`` flat vector that :meth:`backward` writes, except for ``log_std``.
    """

    def __init__(self, layout: Layout, parameters: Array, gradients: Array, rows: int) -> None:
        shape = layout.shape
        dtype = parameters.dtype
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
        widths = itertools.zip_longest(shape.actor, shape.critic, fillvalue=0)
        self._stages = [
            _Stage(rows, actor, critic, self._activation.one, dtype) for actor, critic in widths
        ]
        self._products: list[list[_Product]] = [[] for _ in self._stages]
        """Products whose outputs are the inputs of each stage."""
        if self._stages:
            first = self._stages[0]
            shared = self._product(
                inputs=self.x,
                inputs_gradient=None,
                block=layout.first,
                outputs=first.before[:, first.both],
                outputs_gradient=first.gradient[:, first.both],
                bias_row=LAST_ROW,
            )
            self._products[0].append(shared)
        self._to_mean = self._add_network(
            [stage.actor for stage in self._stages[: len(shape.actor)]],
            [*layout.actor, layout.mean],
            result=self.mean,
            result_gradient=self.mean_gradient,
            bias_row=FIRST_ROW,
        )
        self._to_value = self._add_network(
            [stage.critic for stage in self._stages[: len(shape.critic)]],
            [*layout.critic, layout.value],
            result=self.value,
            result_gradient=self.value_gradient,
            bias_row=LAST_ROW,
        )
        self._actor_layers = [
            self._actor_layer(number, rows, width) for number, width in enumerate(shape.actor)
        ]

    def _add_network(
        self,
        parts: Sequence[_Part],
        blocks: Sequence[Block],
        *,
        result: Array,
        result_gradient: Array,
        bias_row: int,
    ) -> _Product:
        """Append the products of one network behind the first stage to the stages', and return its
        last one.

        :param parts: its columns in each of its stages.
        :param blocks: the matrices behind the first stage.
        :param bias_row: of the layers behind the first stage.
        """
        inputs = self.x
        inputs_gradient = None
        last_bias_row = LAST_ROW
        for number, (stage, part) in enumerate(zip(self._stages, parts, strict=False)):
            if number > 0:
                product = self._product(
                    inputs=inputs,
                    inputs_gradient=inputs_gradient,
                    block=blocks[number - 1],
                    outputs=stage.before[:, part.units],
                    outputs_gradient=stage.gradient[:, part.units],
                    bias_row=bias_row,
                )
                self._products[number].append(product)
            inputs = stage.after[:, part.units_and_one]
            inputs_gradient = stage.gradient[:, part.units]
            last_bias_row = bias_row
        return self._product(
            inputs=inputs,
            inputs_gradient=inputs_gradient,
            block=blocks[-1],
            outputs=result,
            outputs_gradient=result_gradient,
            bias_row=last_bias_row,
        )

    def _product(
        self,
        *,
        inputs: Array,
        inputs_gradient: Array | None,
        block: Block,
        outputs: Array,
        outputs_gradient: Array,
        bias_row: int,
    ) -> _Product:
        matrix = block.of(self._parameters)
        weight_t = _without_bias(matrix, bias_row).T
        is_copied = min(weight_t.shape) >= LEAST_COPIED and max(weight_t.shape) <= MOST_COPIED
        copy_t = None
        if is_copied and inputs_gradient is not None:
            copy_t = np.empty(weight_t.shape, matrix.dtype)
        return _Product(
            inputs=inputs,
            matrix=matrix,
            outputs=outputs,
            inputs_t=inputs.T,
            weight_t=weight_t,
            copy_t=copy_t,
            matrix_gradient=block.of(self._gradients),
            outputs_gradient=outputs_gradient,
            inputs_gradient=inputs_gradient,
        )

    def _actor_layer(self, number: int, rows: int, width: int) -> _ActorLayer:
        # The actor's product comes before the critic's.
        matrix = self._products[number][0].matrix[:, :width]
        before, after = np.full((2, rows, 1 + width), self._activation.one, matrix.dtype)
        return _ActorLayer(matrix=matrix, outputs=before[:, 1:], before=before, after=after)

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
        for stage, products in zip(self._stages, self._products, strict=True):
            for product in products:
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
        for stage, products in zip(reversed(self._stages), reversed(self._products), strict=True):
            derive(stage.after, stage.scratch, stage.gradient)
            for product in products:
                _backward(product)


def _backward(product: _Product) -> None:
    np.dot(product.inputs_t, product.outputs_gradient, out=product.matrix_gradient)
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
