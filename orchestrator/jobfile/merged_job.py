"""The settings of a job from all places where they are written, as checks of several keys see
them.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from orchestrator.core.decoding import Table
from orchestrator.jobfile.validation import Layer
from orchestrator.keys.problems import Problems


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryLayers:
    """The layers of an entry, above the built-in defaults and the preset."""

    where: str
    """The place of the entry."""
    shared: Layer
    """``[defaults]``."""
    entry: Layer
    given: Layer
    """What was given with ``--set``."""
    settled: Table
    """These three layers together."""
    invalid: Set[str]
    """Keys that are invalid by themselves: they have the values of other layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedJob:
    """The jobs of an entry at one point of its matrix."""

    settings: Table
    """Of all layers together; of a key in several of them, the value of the last one."""
    layers: EntryLayers
    point: Layer
    """The point of the entry's matrix."""
    problems: Problems
    """Receives what is found."""

    def sets(self, key: str) -> bool:
        """Return whether the job itself sets this dotted key: ``[defaults]`` and ``--set`` are for
        other jobs, too.
        """
        return self.layers.entry.has(key) or self.point.has(key)

    def report(self, keys: Sequence[str], message: str) -> None:
        """Note a problem where the value was written last, so that a wrong default is one problem,
        not one per job; none if it may be due to a key that is invalid already.

        :param keys: the dotted keys that may be at fault, the likeliest first.
        """
        below = self.layers
        if not below.invalid.isdisjoint(key.partition(".")[0] for key in keys):
            return
        layers = (self.point, below.given, below.entry, below.shared)
        places = [layer.where(key) for layer in layers for key in keys if layer.has(key)]
        self.problems.add(places[0] if places else below.where, message)
