"""Terms of observations. Each is declared once, with names, units and a function; names, units,
frames, clipping and values of a whole observation follow from them.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.core.text import count, joined
from orchestrator.worker.mjmodel.structure import Floats
from orchestrator.worker.tasks import input_names, units
from orchestrator.worker.tasks.base import States, Task

MAX_OBSERVED_VELOCITY = 10.0
UNLIMITED = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A part of an observation."""

    names: Sequence[str]
    units: Sequence[str]
    """One for each name: ``rad``, ``m/s``, ``1`` for plain numbers, empty where it is not known."""
    values: Callable[[States], NDArray[Any]]
    """``(n_envs, len(names))`` of a batch of states, whose row i depends on environment i alone."""
    limit: float = MAX_OBSERVED_VELOCITY
    """Values are clipped to ± this."""
    frame: str | Sequence[str] = ""
    """The body, or site, in whose axes a vector is, or one for each name; empty: those of the world,
    or it is none."""
    fields: tuple[str, ...] = ()
    """What ``values`` needs of :attr:`States.fields`, as in :attr:`Task.fields`."""

    def __post_init__(self) -> None:
        if len(self.names) != len(self.units):
            raise ValueError(
                f"the term {list(self.names)} has {len(self.units)} units; expected one for each name"
            )
        if len(self.names) != len(self.frames):
            given = count(len(self.frames), "frame")
            raise ValueError(
                f"the term {list(self.names)} has {given}; expected one for each name, or one text for all"
            )

    @property
    def frames(self) -> Sequence[str]:
        """``frame`` for each name."""
        return [self.frame] * len(self.names) if isinstance(self.frame, str) else self.frame


def turns(
    function: str, positions: Iterable[str], values: Callable[[States], NDArray[Any]]
) -> Term:
    """``sin`` or ``cos`` of the positions with these names."""
    names = list(input_names.prefixed(function, positions))
    return Term(names=names, units=[units.NUMBER] * len(names), values=values, limit=UNLIMITED)


class Terms:
    """An observation that consists of terms, in the order of its columns.

    :raises ValueError: two numbers have the same name.
    """

    def __init__(self, terms: Iterable[Term]) -> None:
        self.all = tuple(terms)
        self.names = [name for term in self.all for name in term.names]
        twice = [name for name, times in Counter(self.names).items() if times > 1]
        if twice:
            raise ValueError(
                f"names come twice: {joined(sorted(twice))}; leave out the second term, or give its numbers other names"
            )
        self.units = [unit for term in self.all for unit in term.units]
        self.frames = [frame for term in self.all for frame in term.frames]
        self.fields = tuple(dict.fromkeys(name for term in self.all for name in term.fields))
        highest = np.array([term.limit for term in self.all for _ in term.names], np.float32)
        self.limits: Floats = np.stack((-highest, highest))
        """``(2, len(names))`` lower and upper bounds of the values."""
        self._functions = [term.values for term in self.all]
        self._bounds: dict[int, tuple[Floats, Floats]] = {}
        """Rows → bounds of as many: arrays of equal shapes are compared faster."""

    def observe(self, states: States) -> NDArray[np.float32]:
        """``(n_envs, len(names))``, a new array."""
        parts = [values(states) for values in self._functions]
        observed: NDArray[np.float32] = np.concatenate(
            parts, axis=1, dtype=np.float32, casting="same_kind"
        )
        rows = len(observed)
        lowest, highest = self._bounds.get(rows) or self._add_bounds(rows)
        np.minimum(observed, highest, out=observed)
        return np.maximum(observed, lowest, out=observed)

    def _add_bounds(self, rows: int) -> tuple[Floats, Floats]:
        """``(rows, len(names))`` lower and upper bounds, which share the memory of those of more
        rows.
        """
        most = max(self._bounds, default=0)
        if rows > most:
            self._bounds.clear()
            lowest, highest = np.repeat(self.limits[:, None], rows, axis=1)
        else:
            lowest, highest = (bounds[:rows] for bounds in self._bounds[most])
        self._bounds[rows] = (lowest, highest)
        return lowest, highest


class TaskOfTerms(Task):
    """A task that declares what it observes as terms, from which names, bounds and values follow:
    implement :meth:`make_observation_terms` in place of :meth:`observe`.
    """

    def make_observation_terms(self) -> Sequence[Term]:
        """The terms, in the order of their columns."""
        raise NotImplementedError

    @functools.cached_property
    def observation_terms(self) -> Terms:
        """:raises ValueError: see :class:`Terms`."""
        return Terms(self.make_observation_terms())

    @property
    def all_fields(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*super().all_fields, *self.observation_terms.fields)))

    def observe(self, states: States) -> NDArray[Any]:
        return self.observation_terms.observe(states)

    def observation_names(self) -> Sequence[str] | None:
        return list(self.observation_terms.names)

    def observation_limits(self) -> Floats | None:
        return self.observation_terms.limits

    def _activations(self, limit: float = MAX_OBSERVED_VELOCITY) -> Sequence[Term]:
        """A term of actuators such as muscles; none where a robot has none with activations."""
        names = list(input_names.activations(self.model))
        if not names:
            return ()
        term = Term(
            names=names,
            units=[units.NUMBER] * len(names),
            values=lambda states: states.fields["act"],
            limit=limit,
            fields=("act",),
        )
        return (term,)
