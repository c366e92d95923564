"""What may be drawn for each episode: a table of properties of a robot and their fields of MjModel.

Values are written straight into the compiled model of an environment. What MuJoCo derives from them
(inverse weights, masses of subtrees …) is computed by ``Batch.set_const``.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

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


Entries: TypeAlias = dict[tuple[str, int], float]
"""Field of MjModel, and place in the flat field → what it is for the value 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomizedKey:
    """A key, what its value is drawn from, and what that changes."""

    table: str
    """Of the job file, that has the key: :data:`TABLE` or :data:`GRID_TABLE`."""
    key: str
    """That of one element where each of those of a pattern has a value of its own."""
    distribution: Distribution
    entries: Entries

    def changes(self) -> list[FieldChange]:
        """What it changes, by fields."""
        return [
            FieldChange(
                name=field,
                entries=np.array([place for name, place in self.entries if name == field]),
                slope=np.array(
                    [slope for (name, _), slope in self.entries.items() if name == field]
                ),
            )
            for field in dict.fromkeys(name for name, _ in self.entries)
        ]


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
    declared: list[tuple[str, str, object]] = [
        (GRID_TABLE, axis.key, axis.range)
        for axis in (grid.axes if grid else ())
        if disturbance(axis.key) is None
    ]
    declared += [
        (TABLE, key, value)
        for key, value in randomize.items()
        if key != TERRAIN and disturbance(key) is None
    ]
    of_grid = {axis.key for axis in (grid.axes if grid else ())}
    keys: list[RandomizedKey] = []
    owners: dict[tuple[str, int], RandomizedKey] = {}
    """Of each entry, the key that changes it."""
    for table, name, value in declared:
        try:
            found = _keys_of(model, table, name, value)
        except ValueError as error:
            raise RandomizeError(f"{table}.{name}: {error}") from None
        if table == TABLE:
            found = [key for key in found if key.key not in of_grid]
        for key in found:
            for entry in list(key.entries):
                owner = owners.setdefault(entry, key)
                if owner.table != key.table:
                    del key.entries[entry]
                elif owner is not key:
                    raise RandomizeError(
                        f"{table}.{name}: {owner.key} sets or draws the same value of {entry[0]}; leave one of them "
                        "out, or name other elements"
                    )
        keys += [key for key in found if key.entries]
    return sorted(keys, key=lambda key: key.key)


def _keys_of(
    model: mujoco.MjModel, table: str, declared: str, value: object
) -> list[RandomizedKey]:
    """The key with what it changes; with ``each``, a key for each element.

    :raises ValueError: it does not fit the robot.
    """
    distribution = value if isinstance(value, Distribution) else read_drawn(value)
    match = _KEY.match(declared)
    kind, name = match.group("kind", "name") if match else ("", None)
    what = f"{kind}.{match['attribute']}" if match else ""
    if match is None or what not in PROPERTIES or (name is None) != (kind == "option"):
        known = [key if "option" in key else key.replace(".", ".NAME.") for key in PROPERTIES]
        raise RandomizeError(
            f"cannot be drawn for each episode; expected one of {', '.join(known)}"
        )
    _check_values(what, distribution)
    names = _names(model, kind)
    numbers = [0] if name is None else _matching_elements(model, what, name, names)
    entries = {
        number: _entries_of(model, what, number, match["index"], distribution.multiplies)
        for number in numbers
    }
    if distribution.multiplies:
        entries = {number: part for number, part in entries.items() if any(part.values())}
        if not entries:
            raise RandomizeError(
                "changes nothing: its value is 0, which no factor changes; draw the value itself"
            )
    if distribution.is_each and name is not None:
        suffix = declared.removeprefix(f"{kind}.{name}.")
        parts = {
            f"{kind}.{names[number] or f'#{number}'}.{suffix}": part
            for number, part in entries.items()
        }
    else:
        parts = {declared: {entry: part[entry] for part in entries.values() for entry in part}}
    return [
        RandomizedKey(table=table, key=key, distribution=distribution, entries=part)
        for key, part in parts.items()
    ]


def _check_values(what: str, distribution: Distribution) -> None:
    """:raises RandomizeError: a value makes no sense, or all are the same."""
    low, high = distribution.extremes
    least = PROPERTIES[what].least
    if distribution.multiplies:
        least = max(0.0, least)
    elif what == "geom.size":
        raise RandomizeError("expected factors, such as scale(0.8, 1.2)")
    if low < least:
        expected = "above 0" if least == SMALLEST else "at least 0"
        raise RandomizeError(f"may be {low:g}; expected {expected}")
    if low == high and not distribution.is_constant:
        raise RandomizeError(f"always draws {low:g}; set it in model, or give it a range")


def _names(model: mujoco.MjModel, kind: str) -> list[str]:
    """The names of the elements of a kind, empty where they have none."""
    if kind == "option":
        return [""]
    count = getattr(model, {"joint": "njnt", "actuator": "nactuator"}.get(kind, f"n{kind}"))
    type_of = getattr(mujoco.mjtObj, f"mjOBJ_{kind.upper()}")
    return [mujoco.mj_id2name(model, type_of, number) or "" for number in range(count)]


def _matching_elements(
    model: mujoco.MjModel, what: str, name: str, names: Sequence[str]
) -> list[int]:
    """The numbers of the elements that have this name, or else match it as a pattern, which leaves
    out elements that do not have the property.

    :raises RandomizeError: there are none.
    """
    kind = what.partition(".")[0]
    is_named = name in names
    if is_named:
        matching = [names.index(name)]
    else:
        matching = [number for number, own in enumerate(names) if fnmatch.fnmatchcase(own, name)]
    if not matching:
        verb = "matches" if is_pattern(name) else "is called"
        raise RandomizeError(
            f"no {kind} of the robot {verb} {name!r}{suggestion(name, filter(None, names))}"
        )
    reasons = {number: _reason_against(model, what, number, is_named) for number in matching}
    fitting = [number for number, reason in reasons.items() if not reason]
    if not fitting:
        raise RandomizeError(f"the {kind} {names[matching[-1]]!r} {reasons[matching[-1]]}")
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
        if model.body_mocapid[number] >= 0:
            return "is a mocap body, which its environment places"
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
    holds_position = actuator_kind(model, number) in ("position", "intvelocity")
    if attribute == "kp" and holds_position:
        return [("actuator_gainprm", 0, 1.0), ("actuator_biasprm", 1, -1.0)]
    if attribute == "kv" and holds_position:
        return [("actuator_biasprm", 2, -1.0)]
    if attribute == "kv" and actuator_kind(model, number) == "velocity":
        return [("actuator_gainprm", 0, 1.0), ("actuator_biasprm", 2, -1.0)]
    return []


def _entries_of(
    model: mujoco.MjModel, what: str, number: int, index: str | None, multiplies: bool
) -> Entries:
    """The entries that a value of an element changes.

    :param index: of one of several numbers.
    :raises RandomizeError: there is no such number, or one is needed.
    """
    found = PROPERTIES[what]
    size = _rows(model, found.field).shape[1]
    columns = range(size)
    if index is not None:
        columns = columns[int(index) : int(index) + 1]
    elif found.first_is_enough and not multiplies:
        columns = columns[:1]
        if what == "geom.size":
            raise RandomizeError("takes no index: all numbers of a size are scaled together")
    places = [(found.field, column, 1.0) for column in columns]
    if what in SERVO_GAINS:
        places = _servo_places(model, what.partition(".")[2], number)
    elif not places or (len(places) > 1 and not multiplies):
        raise RandomizeError(
            f"has {size} numbers; name one from {what}[0] to {what}[{size - 1}], or draw a factor"
        )
    rows = [number]
    if found.field.startswith("dof_"):
        rows = np.flatnonzero(model.dof_jntid == number).tolist()
    elif found.field == "actuator_gear":
        first = model.actuator_outadr[number]
        rows = list(range(first, first + model.actuator_outnum[number]))
    entries: Entries = {}
    for row in rows:
        for name, column, sign in places:
            values = _rows(model, name)
            own = float(values[row, column])
            entries[name, row * values.shape[1] + column] = own if multiplies else sign
        if multiplies or what == "body.mass":
            share = 1.0 if multiplies else 1.0 / model.body_mass[row]
            for name in found.scaled_with:
                values = _rows(model, name)
                for column, own in enumerate(values[row].tolist()):
                    entries[name, row * values.shape[1] + column] = own * share
    return entries


def _rows(model: mujoco.MjModel, name: str) -> Floats:
    """``(elements, numbers)`` a field of MjModel or MjOption."""
    if name.startswith("opt."):
        return np.reshape(getattr(model.opt, name.removeprefix("opt.")), (1, -1))
    field: Floats = getattr(model, name)
    return field.reshape(len(field), -1)


def prepare_model(model: mujoco.MjModel, keys: Iterable[RandomizedKey]) -> None:
    """Switch off MuJoCo's shortcuts that the changes of ``keys`` make invalid."""
    for name, place in [entry for key in keys for entry in key.entries]:
        if name == "body_ipos":  # frames that coincide in the file
            body = place // 3
            model.body_sameframe[body] = 0
            model.geom_sameframe[model.geom_bodyid == body] = 0
            model.site_sameframe[model.site_bodyid == body] = 0
        elif name == "geom_size":  # bounding boxes of bodies
            model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_MIDPHASE)


def write(batch: Batch, env: int, changes: Iterable[FieldChange], value: float) -> None:
    """Give environment ``env`` of ``batch`` the drawn value; ``set_const`` has to follow."""
    for change in changes:
        field = batch.expand(change.name).reshape(batch.nsim, -1)
        field[env, change.entries] = change.slope * value
