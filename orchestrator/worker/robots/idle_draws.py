"""Draws of ``[jobs.randomize]`` and ``[jobs.evaluate]`` that do nothing: frictions that contacts do
not have.

Of the two geoms of a contact the one with the higher ``priority`` decides; of equal ones each friction is
the larger of both. A contact of condim 1 has none, of 3 the sliding one, of 4 the spinning one, too, and
of 6 all three. A ``<pair>`` decides in place of its geoms. (Documentation of MuJoCo, chapter Modeling,
section Contact parameters.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import mujoco

from orchestrator.core.numbers.distributions import by_number
from orchestrator.core.numbers.evaluation_grid import EvaluationGrid
from orchestrator.worker.envs.randomization.randomized_fields import (
    GRID_TABLE,
    RandomizedKey,
    randomized_keys,
)
from orchestrator.worker.mjmodel.contacts import overridden_pairs, possible_pairs
from orchestrator.worker.mjmodel.structure import Floats, fixed_geoms
from orchestrator.worker.robots.model_checks import geom_label, shown

FIELD = "geom_friction"
FRICTIONS = 3
"""Of a geom: against sliding, spinning and rolling."""
HAS_FRICTION = {1: 0, 3: 1, 4: 2, 6: 3}
"""condim of a contact → how many of the frictions it has."""
MOST_PAIRS = 500_000
CURE = 'draw both by one key, such as "geom.*.friction"'


class Effect(IntEnum):
    """Of a draw, on one contact."""

    NONE = 0
    ABOVE = 1
    """Only what lies above the friction of the other geom counts."""
    FULL = 2


def draws_without_effect(
    xml: Path, model: mujoco.MjModel, randomize: Mapping[str, Any], evaluate: Mapping[str, Any]
) -> Iterator[str]:
    """Warnings of what ``randomize`` and ``evaluate``, which fit the robot, draw or set in vain.

    :param xml: the robot's MJCF. :param model: compiled from it.
    """
    declared = by_number(randomize)
    drawn = randomized_keys(model, declared)
    yield from frictions_without_effect(model, drawn)
    grid = EvaluationGrid.parse(evaluate)
    if grid is not None:
        with_grid = randomized_keys(model, declared, grid)
        of_grid = [key for key in with_grid if key.table == GRID_TABLE]
        yield from frictions_without_effect(model, with_grid, reported=of_grid)


def frictions_without_effect(
    model: mujoco.MjModel,
    keys: Sequence[RandomizedKey],
    reported: Sequence[RandomizedKey] | None = None,
) -> Iterator[str]:
    """A warning for each key of the job file that draws frictions of geoms which contacts do not have.

    There is none where the geoms of the robot make more than :data:`MOST_PAIRS` pairs.

    :param keys: all that change the robot.
    :param reported: those of them that warnings are about; None: all.
    """
    geoms_of: dict[str, set[int]] = {}
    for key in keys if reported is None else reported:
        geoms = {entry // FRICTIONS for entry in _entries(key)}
        if geoms and not key.distribution.is_constant:
            geoms_of.setdefault(key.where, set()).update(geoms)
    if not geoms_of or math.comb(model.ngeom, 2) > MOST_PAIRS:
        return
    contacts = _Contacts.of(model, keys)
    for where, geoms in geoms_of.items():
        if warning := contacts.warning(sorted(geoms)):
            yield f"{where} {warning}"


def _entries(key: RandomizedKey) -> list[int]:
    """Places in the flat field of frictions that it changes."""
    return [
        entry for change in key.changes if change.name == FIELD for entry in change.entries.tolist()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contacts:
    """Contacts that a robot may make, and the frictions that its geoms may have."""

    model: mujoco.MjModel
    low: Floats
    high: Floats
    """``(ngeom, 3)`` each."""
    drawn_by: Mapping[int, str]
    """Place in the flat field of frictions → the key by whose value it is."""
    partners: Mapping[int, Sequence[int]]
    """Geom → the others that it may touch, without those of a ``<pair>``."""

    @classmethod
    def of(cls, model: mujoco.MjModel, keys: Iterable[RandomizedKey]) -> _Contacts:
        low = model.geom_friction.copy()
        high = model.geom_friction.copy()
        drawn_by: dict[int, str] = {}
        for key in keys:
            ends = key.distribution.extremes
            for change in key.changes:
                if change.name != FIELD:
                    continue
                values = [change.slope * end for end in ends]
                low.flat[change.entries] = values[0]
                high.flat[change.entries] = values[1]
                if not key.distribution.is_constant:
                    drawn_by |= dict.fromkeys(change.entries.tolist(), key.key)
        partners: dict[int, list[int]] = {}
        for pair in sorted(set(possible_pairs(model)) - overridden_pairs(model)):
            for one, other in (pair, pair[::-1]):
                partners.setdefault(one, []).append(other)
        return cls(model=model, low=low, high=high, drawn_by=drawn_by, partners=partners)

    def warning(self, geoms: Sequence[int]) -> str:
        """What is wrong with a draw of the frictions of ``geoms``; empty if nothing is."""
        judged = [(geom, other) for geom in geoms for other in self._judged(geom)]
        if not judged:
            return self._without_contacts(geoms)
        if not any(self._drawn(geom, other) for geom, other in judged):
            return "has no effect: contacts of these geoms have a condim without this friction"
        effects = {pair: self._effect(*pair) for pair in judged}
        outranked = [
            other for geom, other in judged if self._priority(other) > self._priority(geom)
        ]
        if outranked:
            return (
                f"has no effect on contacts with {self._named(outranked)}, whose priority is higher; draw theirs, or"
                " give both one priority"
            )
        if Effect.FULL in effects.values():
            return ""  # it counts somewhere, as at feet where it does not at a trunk
        if partly := [pair for pair, effect in effects.items() if effect == Effect.ABOVE]:
            others = self._named([other for _, other in partly])
            place = self._place(*partly[0])
            least = min(self.low[geom, place] for geom, _ in partly)
            limit = max(self.low[other, place] for _, other in partly)
            return (
                f"has no effect on contacts with {others} at frictions from {least:g} to {limit:g}: the larger one of"
                f" the two geoms counts; {CURE}"
            )
        others = self._named([other for _, other in judged])
        return (
            f"has no effect on contacts with {others}, whose friction is larger, and counts; {CURE}"
        )

    def _priority(self, geom: int) -> int:
        return int(self.model.geom_priority[geom])

    def _place(self, geom: int, other: int) -> int:
        """The first of its frictions of which only what lies above that of ``other`` counts."""
        places = self._drawn(geom, other)
        return next(one for one in places if self._effect_of(geom, other, one) == Effect.ABOVE)

    def _judged(self, geom: int) -> Sequence[int]:
        """Those of its partners that say whether a draw has an effect: fixed geoms, such as a floor,
        if it may touch any, as feet seldom touch each other.
        """
        partners = self.partners.get(geom, ())
        is_fixed = fixed_geoms(self.model)
        return [other for other in partners if is_fixed[other]] or partners

    def _without_contacts(self, geoms: Sequence[int]) -> str:
        if self.model.nflex:  # flexes touch geoms, too
            return ""
        if set(geoms) & {geom for pair in overridden_pairs(self.model) for geom in pair}:
            return "has no effect: contacts of these geoms have the friction of their <pair>"
        return "has no effect: these geoms can touch nothing (contype, conaffinity, exclude)"

    def _drawn(self, geom: int, other: int) -> list[int]:
        """The frictions of ``geom`` that are drawn and that its contact with ``other`` has."""
        priorities = self.model.geom_priority[[geom, other]]
        condims = self.model.geom_condim[[geom, other]]
        condim = condims[priorities == priorities.max()].max()
        places = range(HAS_FRICTION[int(condim)])
        return [place for place in places if geom * FRICTIONS + place in self.drawn_by]

    def _effect(self, geom: int, other: int) -> Effect:
        """The greatest of those of its frictions; where the contact has none of them, none."""
        effects = [self._effect_of(geom, other, place) for place in self._drawn(geom, other)]
        return max(effects, default=Effect.NONE)

    def _effect_of(self, geom: int, other: int, place: int) -> Effect:
        if self._priority(geom) != self._priority(other):
            decides = self._priority(geom) > self._priority(other)
            return Effect.FULL if decides else Effect.NONE
        mine = self.drawn_by[geom * FRICTIONS + place]
        if self.drawn_by.get(other * FRICTIONS + place) == mine:
            return Effect.FULL
        least = self.low[other, place]
        if self.high[geom, place] <= least:
            return Effect.NONE
        return Effect.ABOVE if self.low[geom, place] < least else Effect.FULL

    def _named(self, geoms: Iterable[int]) -> str:
        return shown([geom_label(self.model, geom) for geom in dict.fromkeys(geoms)])
