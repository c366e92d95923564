"""What a key of ``[jobs.randomize]`` or ``[jobs.evaluate]`` changes in the compiled robot.

A key means what the same key of ``model`` means: the element's attribute as MJCF spells it. Which
fields of MjModel depend on it, and how, is found by compiling the robot with it: every field must
be an affine function of the value. What MuJoCo derives from these fields (inverse weights, masses
of subtrees …) is computed by ``Batch.set_const``. The result must equal the edited and compiled
robot; an attribute for which it does not is refused.

A pattern leaves free joints out where it matches others, too: what they have, such as damping, would
act on the base as a whole.

The mass of a body is the exception: ``body.NAME.mass`` scales mass and inertia of the body
together, as if the density of all its parts had changed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from mujoco.batch import MODEL_FIELDS, Batch
from numpy.typing import NDArray

from orchestrator.core.numbers.distributions import EACH, Distribution, disturbance, read_drawn
from orchestrator.core.numbers.evaluation_grid import EvaluationGrid
from orchestrator.core.numbers.terrain import TERRAIN
from orchestrator.worker.envs.model_loading import for_simulation
from orchestrator.worker.mjmodel.joints import FREE
from orchestrator.worker.mjmodel.structure import Floats
from orchestrator.worker.mjspec.model_comparison import differences, model_bytes
from orchestrator.worker.mjspec.mujoco_internals import set_const_inputs
from orchestrator.worker.mjspec.spec_attributes import (
    RENAMED,
    AttributeEditError,
    attribute_names,
    set_attribute,
)
from orchestrator.worker.mjspec.spec_elements import (
    SINGLE,
    EditError,
    is_pattern,
    matching_elements,
    suggestion,
)

OWN_VALUE = 1e-3
"""Of the distance of values of two elements, the part by which one may seem to be off."""
TABLE = "randomize"
GRID_TABLE = "evaluate"
_STATISTICS = "stat."
"""Begins the names of MuJoCo's statistics of a model, which scale the solver's tolerance. They stay
the robot's."""
_FIXED = {
    "option.timestep": "the number of physics steps in a control period depends on it",
    "compiler": "it has its effect while the robot is compiled",
    "key": "episodes start from it; see reset_noise_scale",
}

NEVER_NEGATIVE = frozenset(
    [
        "armature",
        "damping",
        "density",
        "diaginertia",
        "friction",
        "frictionloss",
        "inertia",
        "mass",
        "stiffness",
        "viscosity",
    ]
)
"""Attributes that MuJoCo compiles with a value below 0 as well, where the physics then makes no
sense."""

_INDEXED = re.compile(r"(.*)\[(\d{1,4})\]\Z")


class RandomizeError(ValueError):
    """A key of ``randomize`` or ``evaluate`` does not fit the robot; the message names it and what
    would fit.
    """


class NoChangeError(RandomizeError):
    """A key changes nothing in the compiled robot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """The entries of one field of MjModel that depend on a value: ``at_zero + slope · value``,
    without slope if it is not drawn.
    """

    name: str
    """As in MjModel; ``opt.gravity`` for a field of MjOption."""
    entries: NDArray[np.intp]
    """``(k,)`` places in the flat field."""
    at_zero: Floats
    """``(k,)``"""
    slope: Floats
    """``(k,)``"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomizedKey:
    """One key, what its value is drawn from, and what that changes."""

    table: str
    """Of the job file, that has the key: :data:`TABLE` or :data:`GRID_TABLE`."""
    declared: str
    """The key as the table has it."""
    key: str
    """That of one element where each of those of a pattern has a value of its own."""
    distribution: Distribution
    changes: Sequence[FieldChange] = ()
    """Empty as long as the robot is not examined."""
    places: frozenset[tuple[str, int]] = frozenset()
    """Attributes of elements, such as ``geom.floor.friction``, and the places in them that are set
    or drawn."""

    @property
    def where(self) -> str:
        """The key in messages."""
        return f"{self.table}.{self.declared}"


MOST_EXAMINED = 1_000
_EXAMINED: dict[tuple[Path, bytes, RandomizedKey], list[RandomizedKey]] = {}
"""File and hash of a robot, and a key without its changes → the key with them, or those of its
elements."""


def table_of(key: str, randomize: Mapping[str, str]) -> str:
    """The table of the job file that has ``key``, for messages."""
    return TABLE if key in randomize else GRID_TABLE


def randomized_keys(
    xml: Path,
    model: mujoco.MjModel,
    randomize: Mapping[str, str | float],
    grid: EvaluationGrid | None = None,
) -> list[RandomizedKey]:
    """What ``randomize`` and ``grid`` change, sorted by key. A value that both set or draw is that of
    the grid.

    :param xml: the robot's MJCF.
    :param model: compiled from it.
    :param randomize: dotted keys → distributions, or numbers of lists, as :func:`by_number` gives
        them.
    :raises RandomizeError: a key matches nothing, does not fit or changes nothing, or MuJoCo
        refuses a value.
    """
    drawn: dict[str, RandomizedKey] = {}
    for key, value in randomize.items():
        if key != TERRAIN and disturbance(key) is None:
            try:
                distribution = read_drawn(value)
            except ValueError as error:
                raise RandomizeError(f"{TABLE}.{key}: {error}") from None
            drawn[key] = _declared(TABLE, key, distribution)
    for axis in grid.axes if grid else ():
        if disturbance(axis.key) is None:
            drawn[axis.key] = _declared(GRID_TABLE, axis.key, axis.range)
    examined = _examine_all(xml, model, [drawn[key] for key in sorted(drawn)])
    kept = _without_values_of_grid(examined)
    _refuse_overlaps(kept)
    return kept


def _declared(table: str, key: str, distribution: Distribution) -> RandomizedKey:
    return RandomizedKey(table=table, declared=key, key=key, distribution=distribution)


def _without_values_of_grid(keys: Sequence[RandomizedKey]) -> list[RandomizedKey]:
    """``keys``, of which those of ``randomize`` change nothing that those of the grid set."""
    of_grid = [one for one in keys if one.table == GRID_TABLE]
    taken = {entry for one in of_grid for entry in _entries(one)}
    places = frozenset(place for one in of_grid for place in one.places)
    names = {one.key for one in of_grid}
    kept = list(of_grid)
    for one in keys:
        if one.table == GRID_TABLE or one.key in names:
            continue
        parts = [_without(change, taken) for change in one.changes]
        changes = [part for part in parts if len(part.entries)]
        if changes or not one.changes:
            kept.append(dataclasses.replace(one, changes=changes, places=one.places - places))
    return sorted(kept, key=lambda one: one.key)


def _entries(key: RandomizedKey) -> list[tuple[str, int]]:
    """Fields, and places in them, that ``key`` changes."""
    return [(change.name, entry) for change in key.changes for entry in change.entries.tolist()]


def _without(change: FieldChange, taken: Set[tuple[str, int]]) -> FieldChange:
    """``change`` of other entries than those that are ``taken``."""
    is_left = [(change.name, entry) not in taken for entry in change.entries.tolist()]
    return _of_entries(change, np.array(is_left, bool))


def _of_entries(change: FieldChange, left: NDArray[np.bool_]) -> FieldChange:
    """``change`` of these entries alone. :param left: ``(k,)``"""
    return dataclasses.replace(
        change,
        entries=change.entries[left],
        at_zero=change.at_zero[left],
        slope=change.slope[left],
    )


def _refuse_overlaps(keys: Sequence[RandomizedKey]) -> None:
    """:raises RandomizeError: two of them set or draw the same value."""
    owner: dict[tuple[str, int], RandomizedKey] = {}
    for one in keys:
        for name, place in [*sorted(one.places), *_entries(one)]:
            other = owner.setdefault((name, place), one)
            if other is not one:
                cure = "leave one of them out, or name other elements"
                raise RandomizeError(
                    f"{one.where}: {other.where} sets or draws the same value of {name}; {cure}"
                )


def _examine_all(
    xml: Path, model: mujoco.MjModel, drawn: Sequence[RandomizedKey]
) -> list[RandomizedKey]:
    """``drawn`` with what each key changes. What was found is kept: a process makes environments of
    the same robot several times.
    """
    if not drawn:
        return []
    digest = hashlib.sha256(model_bytes(model)).digest()
    spec: mujoco.MjSpec | None = None
    examined_keys: list[RandomizedKey] = []
    for key in drawn:
        examined = _EXAMINED.get((xml, digest, key))
        if examined is None:
            if spec is None:
                spec = mujoco.MjSpec.from_file(str(xml))
            examine = _examine_each if key.distribution.is_each else _examine_all_at_once
            examined = examine(spec, model, key)
            if len(_EXAMINED) >= MOST_EXAMINED:
                _EXAMINED.clear()
            _EXAMINED[xml, digest, key] = examined
        examined_keys += examined
    return examined_keys


def _examine_all_at_once(
    spec: mujoco.MjSpec, model: mujoco.MjModel, drawn: RandomizedKey
) -> list[RandomizedKey]:
    return [_examine(spec, model, drawn)]


def _examine_each(
    spec: mujoco.MjSpec, model: mujoco.MjModel, drawn: RandomizedKey
) -> list[RandomizedKey]:
    """A key for each element that ``drawn`` names, with what it changes; of those alone in which it
    changes anything.
    """
    kind, _, rest = drawn.key.partition(".")
    pattern, _, attribute = rest.rpartition(".")
    if kind in SINGLE or not is_pattern(pattern):
        raise RandomizeError(
            f'{drawn.where}: "{EACH.strip()}" draws a value for each element of a pattern such as '
            f'"{kind}.*.{attribute}", and this key names one; leave it out'
        )
    try:
        names = [element.name for _, element in _elements(spec, drawn)]
    except EditError as error:
        raise RandomizeError(str(error)) from None
    if (kind, attribute) == ("body", "mass"):
        names = [name for name in names if _has_mass(model, name)]
    if not all(names):
        raise RandomizeError(
            f"{drawn.where}: a {kind} that it matches has no name of its own, so that it cannot be drawn by "
            f'itself; name it in the MJCF, or leave "{EACH.strip()}" out'
        )
    ones = [dataclasses.replace(drawn, key=f"{kind}.{name}.{attribute}") for name in names]
    return _examine_together(spec, model, ones) or _examine_one_by_one(spec, model, ones)


def _examine_together(
    spec: mujoco.MjSpec, model: mujoco.MjModel, ones: Sequence[RandomizedKey]
) -> list[RandomizedKey]:
    """The same as :func:`_examine_one_by_one`, with three compilations whatever their number: of all
    at their lowest, at their highest, and each at a value of its own, by which it is known what
    depends on which. Empty where that does not tell, or one cannot be drawn.
    """
    if not ones or ones[0].distribution.is_constant:
        return []
    low, high = ones[0].distribution.extremes
    own = low + (high - low) * _irregular(len(ones))
    nearest = float(np.diff([low, *own, high]).min())
    try:
        for one in ones:
            _refuse_fixed(one)
            _refuse_values(one)
        at_low = _compile_with(spec, model, [(one, low) for one in ones])
        at_high = _compile_with(spec, model, [(one, high) for one in ones])
        expected = _compile_with(spec, model, list(zip(ones, own.tolist(), strict=True)))
        changes = _changes(ones[0], at_low, at_high)
    except RandomizeError:
        return []
    given = _try_changes(model, [(changes, low)]).changes[0]
    fields = {name: np.ravel(value) for name, _, value in differences(at_low, expected)}
    parts: list[list[FieldChange]] = [[] for _ in ones]
    for change in given:
        if change.name not in fields:
            return []
        values = (fields[change.name][change.entries] - change.at_zero) / change.slope
        owners = np.abs(values[:, None] - own).argmin(axis=1)
        if (np.abs(values - own[owners]) > OWN_VALUE * nearest).any():
            return []
        for number, part in enumerate(parts):
            if (is_own := owners == number).any():
                part.append(_of_entries(change, is_own))
    tried = _try_changes(model, list(zip(parts, own.tolist(), strict=True)))
    if _wrong_fields(tried.model, expected):
        return []
    return [
        dataclasses.replace(one, places=_places(spec, one), changes=part)
        for one, part in zip(ones, tried.changes, strict=True)
        if part
    ]


def _irregular(count: int) -> Floats:
    """``(count,)`` increasing numbers above 0 and below 1, of which none is the mean of others, as
    evenly spaced ones are: what depends on several elements alike has the mean of their values, and
    must not be taken for what depends on one. The powers of 0.7 of the numbers up to 1023 are linearly
    independent over the rational numbers.
    """
    return (np.arange(1, count + 1) / (count + 1)) ** 0.7


def _examine_one_by_one(
    spec: mujoco.MjSpec, model: mujoco.MjModel, ones: Sequence[RandomizedKey]
) -> list[RandomizedKey]:
    found = []
    nothing: RandomizeError | None = None
    for one in ones:
        try:
            found.append(_examine(spec, model, one))
        except NoChangeError as error:
            nothing = error
    if not found and nothing is not None:
        raise nothing
    return found


def _examine(spec: mujoco.MjSpec, model: mujoco.MjModel, drawn: RandomizedKey) -> RandomizedKey:
    """``drawn`` with what it changes.

    :raises NoChangeError: it changes nothing.
    """
    _refuse_fixed(drawn)
    _refuse_values(drawn)
    low, high = drawn.distribution.extremes
    is_constant = drawn.distribution.is_constant
    at_low = model if is_constant else _compile_with(spec, model, [(drawn, low)])
    at_high = _compile_with(spec, model, [(drawn, high)])
    drawn = dataclasses.replace(drawn, places=_places(spec, drawn))
    changes = _changes(drawn, at_low, at_high)
    if not changes and is_constant:
        return drawn  # it is the robot's own
    if not changes:
        why = "another attribute overrides it"
        if drawn.distribution.multiplies and _are_zero(spec, drawn):
            why = "its value is 0, which no factor changes; draw the value itself"
        raise NoChangeError(f"{drawn.where}: changes nothing in the compiled robot; {why}")
    middle = low + (high - low) * 0.382  # anywhere between them
    tried = _try_changes(model, [(changes, middle)])
    expected = _compile_with(spec, model, [(drawn, middle)])
    wrong = _wrong_fields(tried.model, expected)
    if wrong:
        depend = "depends" if len(wrong) == 1 else "depend"
        raise RandomizeError(
            f"{drawn.where}: {', '.join(wrong[:3])} of the compiled robot {depend} on it in a way that cannot be "
            f"drawn for each episode; vary it with a matrix of model.{drawn.key}"
        )
    return dataclasses.replace(drawn, changes=tried.changes[0])


def _are_zero(spec: mujoco.MjSpec, drawn: RandomizedKey) -> bool:
    """Whether all elements that a key names have 0 there."""
    attribute, index = _split_index(drawn.key.rpartition(".")[2])
    if drawn.key.startswith("body.") and attribute == "mass":
        return False  # it is 0 wherever it follows from the geoms
    for _, element in _elements(spec, drawn):
        numbers = np.ravel(getattr(element, RENAMED.get(attribute, attribute), np.nan))
        if np.any(numbers if index is None else numbers[index]):
            return False
    return True


def _wrong_fields(tried: mujoco.MjModel, expected: mujoco.MjModel) -> list[str]:
    """Fields of a robot as a batch has it that differ from those of the compiled one."""
    names = [name for name, _, _ in differences(tried, expected)]
    return [name for name in names if not name.startswith(_STATISTICS)]


def _refuse_fixed(drawn: RandomizedKey) -> None:
    """:raises RandomizeError: what the key names stays the same in all episodes."""
    key = drawn.key
    for fixed, why in _FIXED.items():
        if key == fixed or key.startswith(f"{fixed}."):
            raise RandomizeError(
                f"{drawn.where}: cannot be drawn for each episode: {why}; vary it with a matrix of model.{key}"
            )


def _refuse_values(drawn: RandomizedKey) -> None:
    """:raises RandomizeError: a value makes no sense, or all are the same."""
    low, high = drawn.distribution.extremes
    is_constant = drawn.distribution.is_constant
    attribute, _ = _split_index(drawn.key.rpartition(".")[2])
    if low < 0 and attribute in NEVER_NEGATIVE:
        be = "is" if is_constant else "may be"
        raise RandomizeError(
            f"{drawn.where}: {be} {low:g}, and {attribute} is never below 0; expected at least 0"
        )
    if low == high and not is_constant:
        raise RandomizeError(
            f"{drawn.where}: always draws {low:g}; write model.{drawn.key} instead, or give it a range"
        )


def _changes(
    drawn: RandomizedKey, at_low: mujoco.MjModel, at_high: mujoco.MjModel
) -> list[FieldChange]:
    """What differs between the robots with the lowest and the highest value, as a function of the
    value.

    :raises RandomizeError: MuJoCo cannot vary it between environments.
    """
    low, high = drawn.distribution.extremes
    changes = []
    for name, of_low, of_high in differences(at_low, at_high):
        if name.startswith(_STATISTICS):
            continue
        if name not in MODEL_FIELDS or np.asarray(of_low).dtype.kind != "f":
            raise RandomizeError(
                f"{drawn.where}: changes {name} of the compiled robot, which MuJoCo cannot vary between environments; "
                f"vary it with a matrix of model.{drawn.key}"
            )
        first = np.ravel(of_low)
        second = np.ravel(of_high)
        entries = np.flatnonzero(first != second)
        if drawn.distribution.is_constant:
            slope = np.zeros(len(entries))
            at_zero = second[entries]
        else:
            slope = (second[entries] - first[entries]) / (high - low)
            at_zero = first[entries] - slope * low
        changes.append(FieldChange(name=name, entries=entries, at_zero=at_zero, slope=slope))
    return changes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tried:
    """The robot with changes, as a batch has it."""

    model: mujoco.MjModel
    changes: Sequence[Sequence[FieldChange]]
    """Of each value, without those of fields that MuJoCo derives from the others."""


def _try_changes(
    model: mujoco.MjModel, drawn: Sequence[tuple[Sequence[FieldChange], float]]
) -> _Tried:
    """Make changes, each for its value, in a batch of one environment."""
    batch = Batch(model, 1, nthread=1)
    for changes, value in drawn:
        write(batch, 0, [one for one in changes if one.name in set_const_inputs()], value)
    batch.set_const()
    derived = {
        one.name
        for changes, _ in drawn
        for one in changes
        if one.name not in set_const_inputs() and batch.expanded(one.name) is not None
    }
    needed = [[one for one in changes if one.name not in derived] for changes, _ in drawn]
    for kept, (_, value) in zip(needed, drawn, strict=True):
        write(batch, 0, kept, value)
    return _Tried(model=batch.get_model(0), changes=needed)


def write(batch: Batch, env: int, changes: Iterable[FieldChange], value: float) -> None:
    """Give environment ``env`` of ``batch`` the drawn value; ``set_const`` has to follow."""
    for change in changes:
        field = batch.expand(change.name).reshape(batch.nsim, -1)
        field[env, change.entries] = change.at_zero + change.slope * value


def _compile_with(
    spec: mujoco.MjSpec, model: mujoco.MjModel, values: Sequence[tuple[RandomizedKey, float]]
) -> mujoco.MjModel:
    """The robot with the values of keys, or multiplied by them.

    :raises RandomizeError: it cannot have them; with one key, the message is about that.
    """
    edited = spec.copy()
    for drawn, value in values:
        _set_value(edited, model, drawn, value)
    try:
        return for_simulation(edited.compile())
    except ValueError as error:
        drawn, value = values[0]
        written = _written(drawn, value)
        reason = " ".join(str(error).split())
        raise RandomizeError(
            f"{drawn.where}: MuJoCo refuses the value {written}, which it may draw: {reason}"
        ) from None


def _written(drawn: RandomizedKey, value: float) -> Any:
    """As ``model`` has it."""
    return f"*{value!r}" if drawn.distribution.multiplies else value


def _set_value(
    edited: mujoco.MjSpec, model: mujoco.MjModel, drawn: RandomizedKey, value: float
) -> None:
    """Give the elements that a key names the value."""
    key = drawn.key
    multiplies = drawn.distribution.multiplies
    kind = key.partition(".")[0]
    attribute, index = _split_index(key.rpartition(".")[2])
    written = _written(drawn, value)
    try:
        for _, element in _elements(edited, drawn):
            if (kind, attribute, index) == ("body", "mass", None):
                factor = value if multiplies else value / _mass(model, element.name)
                _scale_mass(element, factor)
            elif index is None:
                set_attribute(element, kind, attribute, written)
            else:
                numbers = _with_others(element, attribute, index, written)
                set_attribute(element, kind, attribute, numbers)
    except AttributeEditError as error:
        hint = suggestion(attribute, attribute_names(element, kind)) if error.is_unknown else ""
        raise RandomizeError(f"{drawn.where}: {error}{hint}") from None
    except EditError as error:
        raise RandomizeError(str(error)) from None


def _elements(spec: mujoco.MjSpec, drawn: RandomizedKey) -> list[tuple[int, Any]]:
    """The elements that a key names, with their numbers; of a pattern that matches other joints, too,
    without free ones.

    :raises EditError: there are none.
    """
    found = matching_elements(spec, drawn.table, drawn.key)
    if not drawn.key.startswith("joint."):
        return found
    others = [(number, joint) for number, joint in found if int(joint.type) != FREE]
    return others or found


def _places(spec: mujoco.MjSpec, drawn: RandomizedKey) -> frozenset[tuple[str, int]]:
    """:attr:`RandomizedKey.places` of a key that fits the robot."""
    kind = drawn.key.partition(".")[0]
    attribute, index = _split_index(drawn.key.rpartition(".")[2])
    places: set[tuple[str, int]] = set()
    for number, element in _elements(spec, drawn):
        name = attribute if kind in SINGLE else f"{element.name or f'#{number}'}.{attribute}"
        numbers = getattr(element, RENAMED.get(attribute, attribute), None)
        if index is not None:
            in_it: Iterable[int] = [index]
        elif drawn.distribution.multiplies and isinstance(numbers, np.ndarray):
            in_it = range(len(numbers))
        else:
            in_it = [0]
        places |= {(f"{kind}.{name}", place) for place in in_it}
    return frozenset(places)


def _split_index(attribute: str) -> tuple[str, int | None]:
    """``"wind[1]"`` → ``("wind", 1)``; None without an index."""
    match = _INDEXED.match(attribute)
    return (attribute, None) if match is None else (match[1], int(match[2]))


def _with_others(element: Any, attribute: str, index: int, written: Any) -> list[Any]:
    """``written`` in the place ``index`` of an attribute of several numbers; the others stay."""
    numbers = getattr(element, RENAMED.get(attribute, attribute), None)
    size = len(numbers) if isinstance(numbers, np.ndarray) else 0
    if index >= size:
        has = "is no attribute of several numbers"
        if size:
            has = f"has {size} numbers, counted from 0"
        raise AttributeEditError(f"there is no {attribute}[{index}]: {attribute} {has}")
    return [written if place == index else "*1" for place in range(size)]


def _has_mass(model: mujoco.MjModel, name: str) -> bool:
    """Whether the body ``name`` is one of its own, with a mass: the world has none."""
    number = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, name)
    return number >= 0 and float(model.body_mass[number]) > 0


def _mass(model: mujoco.MjModel, name: str) -> float:
    """Of the body ``name`` in kilograms.

    :raises AttributeEditError: it has none.
    """
    number = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, name)
    if number < 0:
        raise AttributeEditError(
            f"the body {name!r} is part of its parent in the compiled robot (fusestatic)"
        )
    if model.body_mass[number] == 0:
        raise AttributeEditError(f"the body {name!r} has no mass of its own; name bodies that have")
    return float(model.body_mass[number])


def _scale_mass(body: Any, factor: float) -> None:
    """Multiply the densities of a body's parts, or its given mass and inertia.

    :raises AttributeEditError: the mass would not be above 0.
    """
    if factor <= 0:
        raise AttributeEditError(
            f"may draw a mass that is not above 0 for the body {body.name!r}; expected more"
        )
    if body.explicitinertial:
        body.mass *= factor
        body.inertia = [number * factor for number in body.inertia]
        body.fullinertia = [number * factor for number in body.fullinertia]
        return
    for geom in body.geoms:
        if np.isnan(geom.mass):
            geom.density *= factor
        else:
            geom.mass *= factor
