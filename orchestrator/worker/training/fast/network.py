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
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import nn

Array = NDArray[Any]
"""An array of float32 or float64."""
LEAST_COPIED = 16
MOST_COPIED = 64
"""Least and largest width of the layers whose weights are transposed by copying them. BLAS
multiplies by others faster as they lie."""


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


ACTIVATIONS: Mapping[type[nn.Module], Activation] = {
    nn.Tanh: Activation(_tanh_forward, _tanh_backward, one=100.0),
    nn.ReLU: Activation(_relu_forward, _relu_backward, one=1.0),
    nn.ELU: Activation(_elu_forward, _elu_backward, one=1.0),
}


class Shape(NamedTuple):
    """The sizes of both networks."""

    observation: int
    actor: tuple[int, ...]
    """Widths of the hidden layers; may be empty."""
    critic: tuple[int, ...]
    actions: int
    activation: type[nn.Module]


class Matrices(NamedTuple):
    """The matrix ``(inputs + 1, outputs)`` of each layer: views of a flat vector."""

    first: Array
    """The first hidden layers of actor and critic, side by side."""
    actor: list[Array]
    """The actor's layers behind the first hidden one."""
    critic: list[Array]
    log_std: Array
    """``(actions,)`` logarithms of the actions' standard deviations."""


class Layout:
    """The positions of a policy's parameters in a flat vector, and of their gradients and moments
    in other ones.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        actor = shape.actor
        critic = shape.critic
        widths = [
            (shape.observation, sum(actor[:1] + critic[:1])),
            *itertools.pairwise(actor),
            *itertools.pairwise(critic),
            ((shape.observation, *actor)[-1], shape.actions),
            ((shape.observation, *critic)[-1], 1),
        ]
        self._shapes = [(inputs + 1, outputs) for inputs, outputs in widths]
        self.size = sum(rows * columns for rows, columns in self._shapes) + shape.actions

    def matrices(self, flat: Array) -> Matrices:
        parts = []
        begin = 0
        for rows, columns in self._shapes:
            end = begin + rows * columns
            parts.append(flat[begin:end].reshape(rows, columns))
            begin = end
        first, *hidden, mean, value = parts
        n_actor = len(self.shape.actor[1:])
        return Matrices(
            first, [*hidden[:n_actor], mean], [*hidden[n_actor:], value], log_std=flat[begin:]
        )

    def parameters(self, flat: Array) -> list[Array]:
        """Views of ``flat`` in the order and shapes of ``policy.parameters()`` in
        Stable-Baselines3.
        """
        matrices = self.matrices(flat)
        *hidden_actor, mean = matrices.actor
        *hidden_critic, value = matrices.critic
        width = sum(self.shape.actor[:1])
        layers = []  # with whether the first row has the biases, instead of the last
        if self.shape.actor:
            layers.append((matrices.first[:, :width], False))
        layers += [(matrix, True) for matrix in hidden_actor]
        if self.shape.critic:
            layers.append((matrices.first[:, width:], False))
        layers += [(matrix, False) for matrix in hidden_critic]
        layers += [(mean, bool(self.shape.actor)), (value, False)]
        views = [matrices.log_std]
        for matrix, is_bias_first in layers:
            views += [matrix[1:].T, matrix[0]] if is_bias_first else [matrix[:-1].T, matrix[-1]]
        return views


class _Inputs(NamedTuple):
    """The inputs of a layer."""

    values: Array
    gradient: Array | None
    """None where the inputs are observations."""
    weights: slice
    """The rows of the layer's matrix without the biases: they follow them or, for the actor's
    hidden units ``[1 | actor]``, precede them."""


class _Product:
    """The product of inputs and a layer's matrix, with its two backward products."""

    def __init__(
        self,
        inputs: _Inputs,
        matrix: Array,
        matrix_gradient: Array,
        outputs: Array,
        outputs_gradient: Array,
    ) -> None:
        self.inputs = inputs.values
        self.matrix = matrix
        self.outputs = outputs
        self._inputs_gradient = inputs.gradient
        self._matrix_gradient = matrix_gradient
        self._outputs_gradient = outputs_gradient
        self._weight_t = matrix[inputs.weights].T
        sizes = sorted(self._weight_t.shape)
        self._copy_t = None
        if sizes[0] >= LEAST_COPIED and sizes[1] <= MOST_COPIED:
            self._copy_t = np.empty(self._weight_t.shape, matrix.dtype)

    def backward(self) -> None:
        np.dot(self.inputs.T, self._outputs_gradient, out=self._matrix_gradient)
        inputs_gradient = self._inputs_gradient
        weight_t = self._weight_t
        if inputs_gradient is None:
            return
        # A single output, such as the critic's: the same numbers in half the time.
        if len(weight_t) == 1:
            np.multiply(self._outputs_gradient, weight_t, out=inputs_gradient)
            return
        if self._copy_t is not None:
            np.copyto(self._copy_t, weight_t)
            weight_t = self._copy_t
        np.matmul(self._outputs_gradient, weight_t, out=inputs_gradient)


class _Stage:
    """A hidden stage of both networks: arrays ``[1 | actor | critic | 1]`` before and after the
    activation.
    """

    def __init__(self, shape: tuple[int, int], one: float, dtype: np.dtype[Any]) -> None:
        self.before = np.full(shape, one, dtype)
        self.after = np.ones(shape, dtype)
        self.gradient = np.zeros(shape, dtype)
        self.scratch = np.empty(shape, dtype)
        self.products: list[_Product] = []
        """Their outputs are the inputs of this stage."""

    def add(self, inputs: _Inputs, matrix: Array, matrix_gradient: Array, columns: slice) -> None:
        """Make some columns of the stage the product of ``inputs`` and a layer's matrix."""
        outputs = self.before[:, columns]
        gradient = self.gradient[:, columns]
        self.products.append(_Product(inputs, matrix, matrix_gradient, outputs, gradient))


class Passes:
    """Forward and backward passes for a fixed number of rows, without allocating memory.

    :param parameters: ``(size,)`` flat vector, read at every pass.
    :param gradients: ``(size,)`` flat vector that :meth:`backward` writes, except for ``log_std``.
    """

    def __init__(self, layout: Layout, parameters: Array, gradients: Array, rows: int) -> None:
        shape = layout.shape
        dtype = parameters.dtype
        self._activation = ACTIVATIONS[shape.activation]
        one = self._activation.one
        self.x = np.ones((rows, shape.observation + 1), dtype)
        """``(rows, observation + 1)``: the caller writes the observations; the last column is 1."""
        self.mean, self.mean_gradient = np.empty((2, rows, shape.actions), dtype)
        """``(rows, actions)``: the actor's output for ``x``, and the loss's gradient with respect
        to it."""
        self.value, self.value_gradient = np.empty((2, rows, 1), dtype)
        """``(rows, 1)``: the critic's output for ``x``, and the loss's gradient with respect to
        it."""
        ours = layout.matrices(parameters)
        theirs = layout.matrices(gradients)
        actor_layers = zip(ours.actor, theirs.actor, strict=True)
        critic_layers = zip(ours.critic, theirs.critic, strict=True)
        actor = critic = _Inputs(self.x, None, slice(0, -1))
        self._stages = []
        widths = itertools.zip_longest(shape.actor, shape.critic, fillvalue=0)
        for number, (actor_width, critic_width) in enumerate(widths):
            middle = 1 + actor_width
            stage = _Stage((rows, middle + critic_width + 1), one, dtype)
            self._stages.append(stage)
            if number == 0:
                stage.add(actor, ours.first, theirs.first, slice(1, -1))
            if actor_width:
                columns = slice(1, middle)
                if number > 0:
                    stage.add(actor, *next(actor_layers), columns)
                actor = _Inputs(stage.after[:, :middle], stage.gradient[:, columns], slice(1, None))
            if critic_width:
                columns = slice(middle, -1)
                if number > 0:
                    stage.add(critic, *next(critic_layers), columns)
                critic = _Inputs(stage.after[:, middle:], stage.gradient[:, columns], slice(0, -1))
        self._to_mean = _Product(actor, *next(actor_layers), self.mean, self.mean_gradient)
        self._to_value = _Product(critic, *next(critic_layers), self.value, self.value_gradient)
        self._actor_layers = []
        """Of each hidden layer: matrix, outputs, ``[1 | outputs]`` before and after the activation.
        It is faster in arrays without gaps."""
        for width, matrix in zip(shape.actor, [ours.first, *ours.actor], strict=False):
            before, after = np.full((2, rows, 1 + width), one, dtype)
            self._actor_layers.append((matrix[:, :width], before[:, 1:], before, after))

    def act(self, x: Array) -> Array:
        """Forward pass of the actor alone. :param x: ``(rows, observation + 1)``, used in the place
        of :attr:`x`.
        """
        activate = self._activation.forward
        inputs = x
        for matrix, outputs, before, after in self._actor_layers:
            np.matmul(inputs, matrix, out=outputs)
            activate(before, after)
            inputs = after
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
            product.backward()
        derive = self._activation.backward
        for stage in reversed(self._stages):
            derive(stage.after, stage.scratch, stage.gradient)
            for product in stage.products:
                product.backward()
