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

import mujoco
import numpy as np
from mujoco.batch import Batch
from numpy.typing import NDArray

from orchestrator.core.numbers.distributions import Distribution, disturbance, parse_distribution
from orchestrator.core.numbers.evaluation_grid import EvaluationGrid
from orchestrator.core.numbers.terrain import TERRAIN
from orchestrator.worker.mjmodel.actuators import actuator_kind
from orchestrator.worker.mjmodel.joints import FREE
from orchestrator.worker.mjmodel.structure import Floats
from orchestrator.worker.mjspec.spec_elements import suggestion

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
    only_factors: bool = False
    """Whether all of its numbers can only be multiplied together."""


SMALLEST = float(np.nextafter(0, 1))
"""Of what has to be above 0."""
PROPERTIES = {
    "body.mass": Property("body_mass", SMALLEST, scaled_with=("body_inertia",)),
    "body.diaginertia": Property("body_inertia", SMALLEST),
    "body.ipos": Property("body_ipos"),
    "body.pos": Property("body_pos"),
    "geom.friction": Property("geom_friction", 0, first_is_enough=True),
    "geom.size": Property(
        "geom_size", SMALLEST, scaled_with=("geom_rbound", "geom_aabb"), only_factors=True
    ),
    "joint.damping": Property("dof_damping", 0, scaled_with=("dof_dampingpoly",)),
    "joint.armature": Property("dof_armature", 0),
    "joint.stiffness": Property("jnt_stiffness", 0, scaled_with=("jnt_stiffnesspoly",)),
    "joint.frictionloss": Property("dof_frictionloss", 0),
    "joint.actuatorfrcrange": Property("jnt_actfrcrange", only_factors=True),
    "actuator.gear": Property("actuator_gear", first_is_enough=True),
    "actuator.gainprm": Property("actuator_gainprm", first_is_enough=True),
    "actuator.biasprm": Property("actuator_biasprm", first_is_enough=True),
    "actuator.kp": Property("actuator_gainprm", 0),
    "actuator.kv": Property("actuator_biasprm", 0),
    "actuator.forcerange": Property("actuator_forcerange", only_factors=True),
    "option.gravity": Property("opt.gravity"),
    "option.wind": Property("opt.wind"),
    "option.viscosity": Property("opt.viscosity", 0),
}
"""Kind of element and attribute as MJCF spells it → its property."""
SERVO_GAINS = (
    ("actuator.kp", ("position", "intvelocity"), "actuator_gainprm", 0, 1.0),
    ("actuator.kp", ("position", "intvelocity"), "actuator_biasprm", 1, -1.0),
    ("actuator.kv", ("position", "intvelocity", "velocity"), "actuator_biasprm", 2, -1.0),
    ("actuator.kv", ("velocity",), "actuator_gainprm", 0, 1.0),
)
"""Where servos have ``kp`` and ``kv``: property, kinds of actuators, field, column and sign. Their
force is kp · (ctrl - length) - kv · velocity, or kv · (ctrl - velocity)."""
SIZED = [
    int(getattr(mujoco.mjtGeom, f"mjGEOM_{shape}"))
    for shape in ("SPHERE", "CAPSULE", "ELLIPSOID", "CYLINDER", "BOX")
]
"""Types of geoms whose size may be drawn."""
_KEY = re.compile(r"(?P<kind>\w+)\.((?P<name>.*)\.)?(?P<attribute>\w+)(\[(?P<index>\d{1,4})\])?\Z")


@dataclass(frozen=True, slots=True)
class FieldChange:
    """The entries of a field of MjModel that depend on a value: ``own · value``."""

    field: str
    places: NDArray[np.intp]
    """``(k,)`` in the flat field."""
    own: Floats
    """``(k,)``"""


@dataclass(frozen=True, slots=True)
class RandomizedKey:
    """A key, what its value is drawn from, and what that changes."""

    key: str
    """That of one element where each of those of a pattern has a value of its own."""
    distribution: Distribution
    changes: Sequence[FieldChange]


def randomized_keys(
    model: mujoco.MjModel, randomize: Mapping[str, str], grid: EvaluationGrid | None = None
) -> list[RandomizedKey]:
    """What ``randomize`` and ``grid`` change in the robot, in the order in which it is written: keys
    of the grid last, otherwise by the alphabet, which has patterns before names. A name replaces the
    key of its element from a pattern with ``each``.

    :param randomize: dotted keys → distributions.
    :raises RandomizeError: a key is not in the table, matches nothing or does not fit, or changes
        the same numbers as one of another attribute.
    """
    axes = {axis.key: axis.range for axis in grid.axes} if grid else {}
    tables: dict[str, Mapping[str, Distribution | str]] = {TABLE: randomize, GRID_TABLE: axes}
    keys: list[RandomizedKey] = []
    for table, declared in tables.items():
        found: dict[str, RandomizedKey] = {}
        owners: dict[object, tuple[str, str]] = {}
        for name, value in sorted(declared.items()):
            if name == TERRAIN or disturbance(name) is not None:
                continue
            try:
                source = value if isinstance(value, Distribution) else parse_distribution(value)
                for key in _keys_of(model, name, source):
                    _claim_entries(key, name, owners)
                    found[key.key] = key
            except ValueError as error:
                raise RandomizeError(f"{table}.{name}: {error}") from None
        keys += [found[key] for key in sorted(found) if table == GRID_TABLE or key not in axes]
    return keys


def _claim_entries(
    key: RandomizedKey, declared: str, owners: dict[object, tuple[str, str]]
) -> None:
    """Add what ``key`` changes to ``owners``: field and place of an entry → key in the job file, and
    its attribute.

    :raises ValueError: an owner has another attribute.
    """
    attribute = declared.rpartition(".")[2].partition("[")[0]
    for change in key.changes:
        for place in change.places.tolist():
            owner, of_owner = owners.setdefault((change.field, place), (declared, attribute))
            if of_owner != attribute:
                raise ValueError(f"changes {change.field}, as {owner} does; leave one of them out")


def _keys_of(
    model: mujoco.MjModel, declared: str, distribution: Distribution
) -> list[RandomizedKey]:
    """The key with what it changes; with ``each``, a key for each element.

    :raises ValueError: it does not fit the robot.
    """
    match = _KEY.match(declared)
    kind, name, attribute, index = (
        match.group("kind", "name", "attribute", "index") if match else ("", None, "", None)
    )
    what = f"{kind}.{attribute}"
    if what not in PROPERTIES or (name is None) != (kind == "option"):
        known = [key if "option" in key else key.replace(".", ".NAME.") for key in PROPERTIES]
        raise ValueError(f"cannot be drawn for each episode; expected one of {', '.join(known)}")
    drawn = PROPERTIES[what]
    if drawn.only_factors and (index or not distribution.multiplies):
        raise ValueError("expected factors of all of its numbers, such as scale(0.8, 1.2)")
    low = distribution.extremes[0]
    least = max(0.0, drawn.least) if distribution.multiplies else drawn.least
    if low < least:
        expected = "above 0" if least == SMALLEST else "at least 0"
        raise ValueError(f"may be {low:g}; expected {expected}")
    elements = {0: ""} if name is None else _matching_elements(model, what, name)
    groups = {declared: list(elements)}
    if distribution.is_each and name is not None:
        suffix = declared.removeprefix(f"{kind}.{name}.")
        groups = {
            f"{kind}.{own or f'#{number}'}.{suffix}": [number] for number, own in elements.items()
        }
    keys: list[RandomizedKey] = []
    for key, numbers in groups.items():
        changes = _changes(model, what, numbers, index, distribution.multiplies)
        if any(change.own.any() for change in changes):
            keys.append(RandomizedKey(key, distribution, changes))
    if not keys:
        raise ValueError(
            "changes nothing: its value is 0, which no factor changes; draw the value itself"
        )
    return keys


def _matching_elements(model: mujoco.MjModel, what: str, name: str) -> dict[int, str]:
    """Numbers and names of the elements with this property that are called ``name``, or else match
    it as a pattern, which leaves out free joints.

    :raises ValueError: there are none.
    """
    kind, _, attribute = what.partition(".")
    count = getattr(model, {"joint": "njnt", "actuator": "nactuator"}.get(kind, f"n{kind}"))
    type_of = getattr(mujoco.mjtObj, f"mjOBJ_{kind.upper()}")
    names = {
        number: mujoco.mj_id2name(model, type_of, number) or ""
        for number in range(count)
        if _may_be_drawn(model, what, number)
    }
    matching = {number: own for number, own in names.items() if own == name}
    if not matching:
        free = np.flatnonzero(model.jnt_type == FREE) if kind == "joint" else ()
        matching = {
            number: own
            for number, own in names.items()
            if fnmatch.fnmatchcase(own, name) and number not in free
        }
    if not matching:
        raise ValueError(
            f"no {kind} with {attribute} to draw is called {name!r}"
            f"{suggestion(name, filter(None, names.values()))}"
        )
    return matching


def _may_be_drawn(model: mujoco.MjModel, what: str, number: int) -> bool:
    """Whether an element has the property, and nothing but it depends on the value."""
    may_be = True
    if what in ("body.mass", "body.diaginertia"):
        may_be = model.body_mass[number] > 0
    elif what == "body.ipos":  # MuJoCo takes the centre of mass of a lone body as fixed
        may_be = model.body_mass[number] > 0 and not model.body_simple[number]
    elif what == "body.pos":
        joint = model.body_jntadr[number]
        is_free = joint >= 0 and model.jnt_type[joint] == FREE
        may_be = number > 0 and not is_free and model.body_mocapid[number] < 0
    elif what == "geom.size":
        may_be = model.geom_type[number] in SIZED
    elif what == "actuator.gear":  # from which the compiler computed the lengths of a muscle
        may_be = model.actuator_gaintype[number] != mujoco.mjtGain.mjGAIN_MUSCLE
    elif what in ("actuator.kp", "actuator.kv"):
        kinds = [kind for gain, of_gain, *_ in SERVO_GAINS if gain == what for kind in of_gain]
        may_be = actuator_kind(model, number) in kinds
    return bool(may_be)


def _changes(
    model: mujoco.MjModel, what: str, elements: Sequence[int], index: str | None, multiplies: bool
) -> list[FieldChange]:
    """What a value of elements changes.

    :param index: of one of several numbers.
    :raises ValueError: there is no such number, or one is needed.
    """
    drawn = PROPERTIES[what]
    rows = np.array(elements)
    if drawn.field.startswith("dof_"):
        rows = np.flatnonzero(np.isin(model.dof_jntid, elements))
    elif drawn.field == "actuator_gear":
        owners = np.repeat(np.arange(model.nactuator), model.actuator_outnum)
        rows = np.flatnonzero(np.isin(owners, elements))
    values = _rows(model, drawn.field)
    columns = np.arange(values.shape[1])
    if index is not None:
        columns = columns[int(index) : int(index) + 1]
    elif drawn.first_is_enough and not multiplies:
        columns = columns[:1]
    if what in ("actuator.kp", "actuator.kv"):
        changes: list[FieldChange] = []
        for gain, kinds, field, column, sign in SERVO_GAINS:
            servos = [number for number in elements if actuator_kind(model, number) in kinds]
            if gain == what and servos:
                own = None if multiplies else np.array([[sign]])
                changes.append(_change(model, field, np.array(servos), np.array([column]), own))
        return changes
    if not len(columns) or (len(columns) > 1 and not multiplies):
        raise ValueError(
            f"has {values.shape[1]} numbers; name one by its index, such as {what}[0], or draw a factor"
        )
    own = None if multiplies else np.ones((1, 1))
    changes = [_change(model, drawn.field, rows, columns, own)]
    for field in drawn.scaled_with if multiplies or what == "body.mass" else ():
        scaled = _rows(model, field)
        own = None if multiplies else scaled[rows] / model.body_mass[rows, None]
        changes.append(_change(model, field, rows, np.arange(scaled.shape[1]), own))
    return changes


def _change(
    model: mujoco.MjModel,
    field: str,
    rows: NDArray[np.intp],
    columns: NDArray[np.intp],
    own: Floats | None,
) -> FieldChange:
    """:param own: for the value 1, as broadcast; None: the robot's own."""
    values = _rows(model, field)
    places = rows[:, None] * values.shape[1] + columns
    own = values.ravel()[places] if own is None else np.broadcast_to(own, places.shape)
    return FieldChange(field, places.ravel(), own.ravel())


def _rows(model: mujoco.MjModel, name: str) -> Floats:
    """``(elements, numbers)`` a field of MjModel or MjOption."""
    if name.startswith("opt."):
        return np.reshape(getattr(model.opt, name.removeprefix("opt.")), (1, -1))
    field: Floats = getattr(model, name)
    return field.reshape(len(field), -1)


def prepare_model(model: mujoco.MjModel, keys: Iterable[RandomizedKey]) -> None:
    """Switch off MuJoCo's shortcuts that the changes of ``keys`` make invalid."""
    for change in [change for key in keys for change in key.changes]:
        if change.field == "body_ipos":  # frames that coincide in the file
            bodies = change.places // 3
            model.body_sameframe[bodies] = 0
            model.geom_sameframe[np.isin(model.geom_bodyid, bodies)] = 0
            model.site_sameframe[np.isin(model.site_bodyid, bodies)] = 0
        elif change.field == "geom_size":  # bounding boxes of bodies
            model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_MIDPHASE)


def write(batch: Batch, env: int | np.intp, key: RandomizedKey, value: float) -> None:
    """Give environment ``env`` of ``batch`` the drawn value; ``set_const`` has to follow."""
    for change in key.changes:
        batch.expand(change.field).reshape(batch.nsim, -1)[env, change.places] = change.own * value
