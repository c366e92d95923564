"""The least time of PPO's matrix products on this core: their shapes, and the measured rate for
each shape."""

from __future__ import annotations

import functools
import itertools
import timeit
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

BLOCK_S = 0.002
"""Seconds for which a product is repeated; the fastest of ``BLOCKS`` such blocks counts."""
BLOCKS = 30


class Product(NamedTuple):
    """A float32 product ``(rows, inner) @ (inner, columns)``."""

    rows: int
    inner: int
    columns: int
    transposed: str = ""
    """Which of the two lies transposed in memory: ``"left"``, ``"right"`` or neither."""

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.rows * self.inner * self.columns


Products = Mapping[Product, int]
"""Product → how often it is computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Networks:
    """Two separate perceptrons over one observation, as in Stable-Baselines3's ``MlpPolicy``."""

    observation: int
    actions: int
    hidden: Sequence[int]
    """Hidden layers of each."""

    @property
    def actor(self) -> list[tuple[int, int]]:
        """``(inputs, outputs)`` of the layers of one perceptron."""
        return list(itertools.pairwise((self.observation, *self.hidden, self.actions)))

    @property
    def critic(self) -> list[tuple[int, int]]:
        return list(itertools.pairwise((self.observation, *self.hidden, 1)))

    @property
    def joined(self) -> list[tuple[int, int]]:
        """The layers of both. The first layers share their inputs and are one product, which is
        faster than two."""
        inputs, of_actor = self.actor[0]
        _, of_critic = self.critic[0]
        return [(inputs, of_actor + of_critic), *self.actor[1:], *self.critic[1:]]


def minibatch(networks: Networks, rows: int) -> Products:
    """The products of a forward and a backward pass. The observations need no gradient."""
    products: Counter[Product] = Counter()
    for number, (inputs, outputs) in enumerate(networks.joined):
        products[Product(rows, inputs, outputs)] += 1
        products[Product(inputs, rows, outputs, "left")] += 1
        if number:
            products[Product(rows, outputs, inputs, "right")] += 1
    return products


def iteration(
    networks: Networks, *, n_envs: int, n_steps: int, batch_size: int, n_epochs: int
) -> Products:
    """Actions step by step, values of the whole rollout at once, then the minibatches of every
    epoch.

    Log-probabilities need no product: they follow from the noise and the means that made the
    actions.
    """
    products: Counter[Product] = Counter()
    for inputs, outputs in networks.actor:
        products[Product(n_envs, inputs, outputs)] += n_steps
    for inputs, outputs in networks.critic:
        products[Product(n_envs * n_steps, inputs, outputs)] += 1
    whole, rest = divmod(n_envs * n_steps, batch_size)
    for rows, count in ((batch_size, whole), (rest, 1)):
        if rows:
            for product, times in minibatch(networks, rows).items():
                products[product] += n_epochs * count * times
    return products


def flops(products: Products) -> int:
    return sum(count * product.flops for product, count in products.items())


def seconds(products: Products) -> float:
    """Seconds of all products on this core, each repeated alone with its operands in the cache."""
    return sum(count * fastest_s(product) for product, count in products.items())


@functools.cache
def fastest_s(product: Product) -> float:
    """Seconds of one such product by NumPy's BLAS, the call from Python included."""
    import numpy as np

    rng = np.random.default_rng(0)

    def matrix(rows: int, columns: int, *, transposed: bool) -> np.ndarray:
        values = rng.standard_normal((columns, rows) if transposed else (rows, columns), np.float32)
        return values.T if transposed else values

    left = matrix(product.rows, product.inner, transposed=product.transposed == "left")
    right = matrix(product.inner, product.columns, transposed=product.transposed == "right")
    out = np.empty((product.rows, product.columns), np.float32)
    timer = timeit.Timer(functools.partial(np.dot, left, right, out))
    number = max(1, round(BLOCK_S / max(timer.timeit(3) / 3, 1e-7)))
    return min(timer.repeat(BLOCKS, number)) / number


def in_words(products: Products, per: int) -> str:
    """``0.93 MFLOP at 45 GFLOP/s``, for each of ``per`` env_steps."""
    total = flops(products)
    return f"{total / per / 1e6:.3g} MFLOP at {total / seconds(products) / 1e9:.0f} GFLOP/s"
