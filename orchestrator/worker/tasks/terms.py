"""Terms of observations. Each is declared once, with names, units and a function; names, units,
clipping and values of a whole observation follow from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import mujoco
import numpy as np
from numpy.typing import DTypeLike, NDArray

from orchestrator.core.text import joined
from orchestrator.worker.mjmodel.structure import Floats, Numbers
from orchestrator.worker.tasks.actions import RepeatedRows
from orchestrator.worker.tasks.input_names import (
    NUMBER,
    Labels,
    activations,
    controls,
    positions,
    velocities,
)

if TYPE_CHECKING:
    from orchestrator.worker.tasks.base import States

LAST_ACTION = "last_action"
"""In :attr:`States.fields` what the policy gave last, ``(n_envs, nu)`` in the bounds of its actions,
whenever that takes effect; 0 when an episode begins. The simulation keeps it for tasks and terms
that name it among their fields; it is no field of ``MjData``."""
Columns: TypeAlias = slice | NDArray[np.intp]
ALL = slice(None)
MAX_OBSERVED_VELOCITY = 10.0
UNLIMITED = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A part of an observation."""

    names: Sequence[str]
    units: Sequence[str]
    """One for each name: ``rad``, ``m/s``, ``1`` for plain numbers, empty where it is not known."""
    values: Callable[[States], Numbers]
    """``(n_envs, len(names))`` of a batch of states, whose row i depends on environment i alone."""
    limit: float | tuple[float, float] = MAX_OBSERVED_VELOCITY
    """Values are clipped to ± this, or between two bounds."""
    fields: tuple[str, ...] = ()
    """What ``values`` needs of :attr:`States.fields`, as in :attr:`Task.fields`."""

    @property
    def bounds(self) -> tuple[float, float]:
        """Least and greatest value."""
        return (-self.limit, self.limit) if isinstance(self.limit, (int, float)) else self.limit


def labelled(
    labels: Labels,
    values: Callable[[States], Numbers],
    limit: float | tuple[float, float] = MAX_OBSERVED_VELOCITY,
    fields: tuple[str, ...] = (),
) -> Term:
    """Return the term of numbers with these labels."""
    return Term(names=labels.names, units=labels.units, values=values, limit=limit, fields=fields)


def position_term(model: mujoco.MjModel, columns: Columns) -> Term:
    """Return the term of these columns of ``qpos``, unclipped."""
    labels = positions(model).take(columns)
    return labelled(labels, lambda states: states.qpos[:, columns], UNLIMITED)


def offset_term(model: mujoco.MjModel, columns: NDArray[np.intp], start: Floats) -> Term:
    """Return the term of these columns of ``qpos`` against ``start``, the same columns at first."""
    labels = positions(model).take(columns).prefixed("offset of")
    return labelled(labels, lambda states: states.qpos.take(columns, axis=1) - start)


def velocity_term(
    model: mujoco.MjModel, columns: Columns, limit: float = MAX_OBSERVED_VELOCITY
) -> Term:
    """Return the term of these columns of ``qvel``."""
    labels = velocities(model).take(columns)
    return labelled(labels, lambda states: states.qvel[:, columns], limit)


def turns(model: mujoco.MjModel, columns: NDArray[np.intp]) -> list[Term]:
    """Return the terms of sine and cosine of these columns of ``qpos``."""
    labels = positions(model).take(columns)

    def sines(states: States) -> Floats:
        return np.sin(states.qpos.take(columns, axis=1))

    def cosines(states: States) -> Floats:
        return np.cos(states.qpos.take(columns, axis=1))

    return [
        labelled(labels.prefixed("sin", NUMBER), sines, UNLIMITED),
        labelled(labels.prefixed("cos", NUMBER), cosines, UNLIMITED),
    ]


def last_action(model: mujoco.MjModel) -> Term:
    """Return the term of what the policy gave last."""
    labels = Labels(controls(model).tolist(), [NUMBER] * model.nu).prefixed("last action")
    return labelled(labels, lambda states: states.fields[LAST_ACTION], fields=(LAST_ACTION,))


def activation_terms(model: mujoco.MjModel, limit: float = MAX_OBSERVED_VELOCITY) -> Sequence[Term]:
    """Return the term of actuators such as muscles; none where a robot has none with activations."""
    if not model.na:
        return ()
    labels = activations(model)
    return (labelled(labels, lambda states: states.fields["act"], limit, fields=("act",)),)


class Terms:
    """An observation that consists of terms, in the order of its columns.

    :param dtype: of its values.
    :raises ValueError: two numbers have the same name, or a term has not one unit for each.
    """

    def __init__(self, terms: Iterable[Term], dtype: DTypeLike = np.float32) -> None:
        self.all = tuple(terms)
        labels = [pair for term in self.all for pair in zip(term.names, term.units, strict=True)]
        self.names = [name for name, _ in labels]
        twice = Counter(self.names) - Counter(set(self.names))
        if twice:
            raise ValueError(
                f"names come twice: {joined(sorted(twice))}; leave out the second term, or give its numbers other names"
            )
        self.units = [unit for _, unit in labels]
        self.fields = tuple(dict.fromkeys(name for term in self.all for name in term.fields))
        bounds = [term.bounds for term in self.all for _ in term.names]
        self.limits: Numbers = np.array(bounds, dtype).reshape(-1, 2).T
        """``(2, len(names))`` lower and upper bounds of the values, ∓inf where they have none."""
        self._dtype = np.dtype(dtype)
        self._is_limited = bool(np.isfinite(self.limits).any())
        self._bounds = RepeatedRows(*self.limits)

    def observe(self, states: States) -> Numbers:
        """``(n_envs, len(names))``, a new array."""
        parts = [term.values(states) for term in self.all]
        observed: Numbers = np.concatenate(parts, axis=1, dtype=self._dtype, casting="same_kind")
        if self._is_limited:
            lowest, highest = self._bounds.of(len(observed))
            np.minimum(observed, highest, out=observed)
            np.maximum(observed, lowest, out=observed)
        return observed
