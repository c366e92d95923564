"""What may be drawn for each episode: a table of properties of a robot and their fields of MjModel.

Values are written straight into the compiled model of an environment. What MuJoCo derives from them
(inverse weights, masses of subtrees …) is computed by ``Batch.set_const``.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
from mujoco.batch import Batch
from numpy.typing import NDArray

from orchestrator.core.numbers.distributions import Distribution, disturbance, read_drawn
from orchestrator.core.numbers.evaluation_grid import EvaluationGrid
from orchestrator.core.numbers.terrain import TERRAIN
from orchestrator.worker.mjmodel.actuators import actuator_kind
from orchestrator.worker.mjmodel.joints import FREE
from orchestrator.worker.mjmodel.structure import Floats
from orchestrator.worker.mjspec.spec_elements import is_pattern, suggestion

TABLE = "randomize"
GRID_TABLE = "evaluate"


class RandomizeError(ValueError):
    """A key of ``randomize`` or ``evaluate`` does not fit the robot; the message names it and what
    would fit.
    """


@dataclass(frozen=True, slots=True)
class Property:
    """Where MjModel holds a property of elements."""

    field: str
    """With a row for each element; ``opt.gravity`` for a field of MjOption."""
    least: float = -math.inf
    """The smallest value; factors are at least 0 always."""
    scaled_with: tuple[str, ...] = ()
    """Fields that a factor multiplies as well."""
    first_is_enough: bool = False
    """Whether a value without an index is that of the first of several numbers."""


SMALLEST = float(np.nextafter(0, 1))
"""Of what has to be above 0."""
PROPERTIES = {
    "body.mass": Property("body_mass", SMALLEST, scaled_with=("body_inertia",)),
    "body.diaginertia": Property("body_inertia", SMALLEST),
    "body.ipos": Property("body_ipos"),
    "body.pos": Property("body_pos"),
    "geom.friction": Property("geom_friction", 0, first_is_enough=True),
    "geom.size": Property("geom_size", SMALLEST, scaled_with=("geom_rbound", "geom_aabb")),
    "joint.damping": Property("dof_damping", 0, scaled_with=("dof_dampingpoly",)),
    "joint.armature": Property("dof_armature", 0),
    "joint.stiffness": Property("jnt_stiffness", 0, scaled_with=("jnt_stiffnesspoly",)),
    "joint.frictionloss": Property("dof_frictionloss", 0),
    "joint.actuatorfrcrange": Property("jnt_actfrcrange"),
    "actuator.gear": Property("actuator_gear", first_is_enough=True),
    "actuator.gainprm": Property("actuator_gainprm", first_is_enough=True),
    "actuator.biasprm": Property("actuator_biasprm", first_is_enough=True),
    "actuator.kp": Property("actuator_gainprm", 0),
    "actuator.kv": Property("actuator_biasprm", 0),
    "actuator.forcerange": Property("actuator_forcerange"),
    "option.gravity": Property("opt.gravity"),
    "option.wind": Property("opt.wind"),
    "option.viscosity": Property("opt.viscosity", 0),
}
"""Kind of element and attribute as MJCF spells it → its property."""
SERVO_GAINS = ("actuator.kp", "actuator.kv")
SIZED = [
    int(getattr(mujoco.mjtGeom, f"mjGEOM_{shape}"))
    for shape in ("SPHERE", "CAPSULE", "ELLIPSOID", "CYLINDER", "BOX")
]
"""Types of geoms whose size may be drawn."""
_KEY = re.compile(r"(?P<kind>\w+)\.((?P<name>.*)\.)?(?P<attribute>\w+)(\[(?P<index>\d{1,4})\])?\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """The entries of one field of MjModel that depend on a value: ``slope · value``."""

    name: str
    """As in MjModel; ``opt.gravity`` for a field of MjOption."""
    entries: NDArray[np.intp]
    """``(k,)`` places in the flat field."""
    slope: Floats
    """``(k,)``"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomizedKey:
    """A key, what its value is drawn from, and what that changes."""

    table: str
    """Of the job file, that has the key: :data:`TABLE` or :data:`GRID_TABLE`."""
    declared: str
    """The key as the table has it."""
    key: str
    """That of one element where each of those of a pattern has a value of its own."""
    distribution: Distribution
    changes: Sequence[FieldChange] = ()

    @property
    def where(self) -> str:
        """The key in messages."""
        return f"{self.table}.{self.declared}"

    def entries(self) -> list[tuple[str, int]]:
        """Fields, and places in them, that it changes."""
        return [(change.name, place) for change in self.changes for place in change.entries]

    def without(self, taken: Iterable[tuple[str, int]]) -> RandomizedKey:
        """The same key, which leaves the entries ``taken`` alone."""
        others = set(taken)
        changes = []
        for change in self.changes:
            is_left = [(change.name, place) not in others for place in change.entries]
            if any(is_left):
                left = dataclasses.replace(
                    change, entries=change.entries[is_left], slope=change.slope[is_left]
                )
                changes.append(left)
        return dataclasses.replace(self, changes=changes)


def table_of(key: str, randomize: Mapping[str, str]) -> str:
    """The table of the job file that has ``key``, for messages."""
    return TABLE if key in randomize else GRID_TABLE


def randomized_keys(
    model: mujoco.MjModel,
    randomize: Mapping[str, str | float],
    grid: EvaluationGrid | None = None,
) -> list[RandomizedKey]:
    """What ``randomize`` and ``grid`` change in the robot, sorted by key. A value that both set or
    draw is that of the grid.

    :param randomize: dotted keys → distributions, or numbers of lists, as :func:`by_number` gives
        them.
    :raises RandomizeError: a key is not in the table, matches nothing or does not fit.
    """
    keys: list[RandomizedKey] = []
    for axis in grid.axes if grid else ():
        if disturbance(axis.key) is None:
            keys += _keys_of(model, GRID_TABLE, axis.key, axis.range)
    taken = [entry for key in keys for entry in key.entries()]
    for name, value in randomize.items():
        if name == TERRAIN or disturbance(name) is not None:
            continue
        try:
            distribution = read_drawn(value)
        except ValueError as error:
            raise RandomizeError(f"{TABLE}.{name}: {error}") from None
        drawn = [key.without(taken) for key in _keys_of(model, TABLE, name, distribution)]
        keys += [key for key in drawn if key.changes]
    owners: dict[tuple[str, int], RandomizedKey] = {}
    for key in keys:
        for entry in key.entries():
            other = owners.setdefault(entry, key)
            if other is not key:
                raise RandomizeError(
                    f"{key.where}: {other.where} sets or draws the same value of {entry[0]}; leave one of them "
                    "out, or name other elements"
                )
    return sorted(keys, key=lambda key: key.key)


def _keys_of(
    model: mujoco.MjModel, table: str, declared: str, distribution: Distribution
) -> list[RandomizedKey]:
    """The key with what it changes; with ``each``, a key for each element.

    :raises RandomizeError: it does not fit the robot.
    """
    where = f"{table}.{declared}"
    match = _KEY.match(declared)
    kind, name = match.group("kind", "name") if match else ("", None)
    what = f"{kind}.{match['attribute']}" if match else ""
    if match is None or what not in PROPERTIES or (name is None) != (kind == "option"):
        known = [key if "option" in key else key.replace(".", ".NAME.") for key in PROPERTIES]
        raise RandomizeError(
            f"{where}: cannot be drawn for each episode; expected one of {', '.join(known)}"
        )
    _check_values(where, what, distribution)
    names = [""] if name is None else _names(model, kind)
    numbers = [0] if name is None else _matching_elements(model, where, what, name, names)
    changes = {
        number: _element_changes(model, where, what, number, match["index"], distribution)
        for number in numbers
    }
    if distribution.multiplies:
        scaled = {number: change for number, change in changes.items() if any(change.values())}
        if not scaled:
            raise RandomizeError(
                f"{where}: changes nothing: its value is 0, which no factor changes; draw the value itself"
            )
        changes = scaled
    key = RandomizedKey(table=table, declared=declared, key=declared, distribution=distribution)
    if not distribution.is_each:
        return [dataclasses.replace(key, changes=_field_changes(changes.values()))]
    suffix = declared.removeprefix(f"{kind}.{name}.")
    return [
        dataclasses.replace(
            key,
            key=f"{kind}.{names[number] or f'#{number}'}.{suffix}",
            changes=_field_changes([change]),
        )
        for number, change in changes.items()
    ]


def _check_values(where: str, what: str, distribution: Distribution) -> None:
    """:raises RandomizeError: a value makes no sense, or all are the same."""
    low, high = distribution.extremes
    least = PROPERTIES[what].least
    if distribution.multiplies:
        least = max(0.0, least)
    elif what == "geom.size":
        raise RandomizeError(f"{where}: expected factors, such as scale(0.8, 1.2)")
    if low < least:
        expected = "above 0" if least == SMALLEST else "at least 0"
        raise RandomizeError(f"{where}: may be {low:g}; expected {expected}")
    if low == high and not distribution.is_constant:
        raise RandomizeError(f"{where}: always draws {low:g}; set it in model, or give it a range")


def _names(model: mujoco.MjModel, kind: str) -> list[str]:
    """The names of the elements of a kind, empty where they have none."""
    count = getattr(model, {"joint": "njnt", "actuator": "nactuator"}.get(kind, f"n{kind}"))
    type_of = getattr(mujoco.mjtObj, f"mjOBJ_{kind.upper()}")
    return [mujoco.mj_id2name(model, type_of, number) or "" for number in range(count)]


def _matching_elements(
    model: mujoco.MjModel, where: str, what: str, name: str, names: Sequence[str]
) -> list[int]:
    """The numbers of the elements that have this name, or else match it as a pattern, which leaves
    out elements that do not have the property.

    :raises RandomizeError: there are none.
    """
    kind = what.partition(".")[0]
    matching = [number for number, own in enumerate(names) if own == name]
    is_named = bool(matching)
    if not is_named:
        matching = [number for number, own in enumerate(names) if fnmatch.fnmatchcase(own, name)]
    if not matching:
        verb = "matches" if is_pattern(name) else "is called"
        raise RandomizeError(
            f"{where}: no {kind} of the robot {verb} {name!r}{suggestion(name, filter(None, names))}"
        )
    reasons = {number: _reason_against(model, what, number, is_named) for number in matching}
    fitting = [number for number, reason in reasons.items() if not reason]
    if not fitting:
        number = matching[0]
        raise RandomizeError(f"{where}: the {kind} {names[number]!r} {reasons[number]}")
    return fitting


def _reason_against(model: mujoco.MjModel, what: str, number: int, is_named: bool) -> str:
    """Why the property of an element cannot be drawn; empty if it can.

    :param is_named: whether its own name is the key's, and no pattern.
    """
    kind, _, attribute = what.partition(".")
    if attribute in ("mass", "diaginertia", "ipos") and not model.body_mass[number]:
        return "has no mass of its own"
    if attribute == "ipos" and model.body_simple[number]:
        return "moves alone about its centre of mass, which MuJoCo takes as fixed"
    if what == "body.pos":
        joint = model.body_jntadr[number]
        if number == 0 or (joint >= 0 and model.jnt_type[joint] == FREE):
            return "moves freely or not at all; draw start.height of a robot's base"
    if kind == "joint" and not is_named and model.jnt_type[number] == FREE:
        return "is a free joint, which patterns leave out"
    limited = {
        "joint.actuatorfrcrange": model.jnt_actfrclimited,
        "actuator.forcerange": model.actuator_forcelimited,
    }
    if what in limited and not limited[what][number]:
        return f"has no {attribute}"
    if attribute == "size" and model.geom_type[number] not in SIZED:
        return "is no sphere, capsule, ellipsoid, cylinder or box"
    if attribute == "gear" and model.actuator_gaintype[number] == mujoco.mjtGain.mjGAIN_MUSCLE:
        return "is a muscle, whose range of lengths follows from its gear"
    if what in SERVO_GAINS and not _servo_places(model, attribute, number):
        return f"has no {attribute}: it is no such servo"
    return ""


def _servo_places(
    model: mujoco.MjModel, attribute: str, number: int
) -> list[tuple[str, int, float]]:
    """Fields and columns that hold ``kp`` or ``kv`` of an actuator, and their signs. Empty for others
    than servos: force = kp · (ctrl - length) - kv · velocity, or kv · (ctrl - velocity).
    """
    kind = actuator_kind(model, number)
    if attribute == "kp" and kind in ("position", "intvelocity"):
        return [("actuator_gainprm", 0, 1.0), ("actuator_biasprm", 1, -1.0)]
    if attribute == "kv" and kind in ("position", "intvelocity"):
        return [("actuator_biasprm", 2, -1.0)]
    if attribute == "kv" and kind == "velocity":
        return [("actuator_gainprm", 0, 1.0), ("actuator_biasprm", 2, -1.0)]
    return []


def _element_changes(
    model: mujoco.MjModel,
    where: str,
    what: str,
    number: int,
    index: str | None,
    distribution: Distribution,
) -> dict[tuple[str, int], float]:
    """Fields and places in them that a value of an element changes → what they are for the value 1.

    :param index: of one of several numbers.
    :raises RandomizeError: there is no such number, or one is needed.
    """
    found = PROPERTIES[what]
    multiplies = distribution.multiplies
    if what in SERVO_GAINS:
        places = _servo_places(model, what.partition(".")[2], number)
    else:
        columns = range(_rows(model, found.field).shape[1])
        if index is not None:
            columns = columns[int(index) : int(index) + 1]
        elif found.first_is_enough and not multiplies:
            columns = columns[:1]
        if not columns or (len(columns) > 1 and not multiplies):
            size = _rows(model, found.field).shape[1]
            raise RandomizeError(
                f"{where}: has {size} numbers; name one from {what}[0] to {what}[{size - 1}], or draw a factor"
            )
        places = [(found.field, column, 1.0) for column in columns]
    rows = [number]
    if found.field.startswith("dof_"):
        rows = np.flatnonzero(model.dof_jntid == number).tolist()
    elif found.field == "actuator_gear":
        first = model.actuator_outadr[number]
        rows = list(range(first, first + model.actuator_outnum[number]))
    changes: dict[tuple[str, int], float] = {}
    for row in rows:
        for name, column, sign in places:
            values = _rows(model, name)
            own = float(values[row, column])
            changes[name, row * values.shape[1] + column] = own if multiplies else sign
        if multiplies or what == "body.mass":
            share = 1.0 if multiplies else 1.0 / model.body_mass[row]
            for name in found.scaled_with:
                values = _rows(model, name)
                for column, own in enumerate(values[row].tolist()):
                    changes[name, row * values.shape[1] + column] = own * share
    return changes


def _rows(model: mujoco.MjModel, name: str) -> Floats:
    """``(elements, numbers)`` a field of MjModel or MjOption."""
    if name.startswith("opt."):
        return np.reshape(getattr(model.opt, name.removeprefix("opt.")), (1, -1))
    field: Floats = getattr(model, name)
    return field.reshape(len(field), -1)


def _field_changes(parts: Iterable[Mapping[tuple[str, int], float]]) -> list[FieldChange]:
    slopes: dict[str, dict[int, float]] = {}
    for part in parts:
        for (name, place), slope in part.items():
            slopes.setdefault(name, {})[place] = slope
    return [
        FieldChange(
            name=name,
            entries=np.array(list(of_field), np.intp),
            slope=np.array(list(of_field.values())),
        )
        for name, of_field in slopes.items()
    ]


def prepare_model(model: mujoco.MjModel, keys: Iterable[RandomizedKey]) -> None:
    """Switch off MuJoCo's shortcuts that the changes of ``keys`` make invalid."""
    for key in keys:
        for change in key.changes:
            if change.name == "body_ipos":  # frames that coincide in the file
                bodies = change.entries // 3
                model.body_sameframe[bodies] = 0
                model.geom_sameframe[np.isin(model.geom_bodyid, bodies)] = 0
                model.site_sameframe[np.isin(model.site_bodyid, bodies)] = 0
            elif change.name == "geom_size":  # bounding boxes of bodies
                model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_MIDPHASE)


def write(batch: Batch, env: int, changes: Iterable[FieldChange], value: float) -> None:
    """Give environment ``env`` of ``batch`` the drawn value; ``set_const`` has to follow."""
    for change in changes:
        field = batch.expand(change.name).reshape(batch.nsim, -1)
        field[env, change.entries] = change.slope * value
