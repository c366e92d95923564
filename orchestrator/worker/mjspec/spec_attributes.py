"""Attributes of MjSpec's elements under their MJCF names: what they hold, how many values, and how
to set them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np

from orchestrator.worker.mjspec.spec_elements import EditError, suggestion


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


RENAMED = {
    "actuatorfrclimited": "actfrclimited",
    "actuatorfrcrange": "actfrcrange",
    "actuatorgravcomp": "actgravcomp",
    "diaginertia": "inertia",
    "fluidcoef": "fluid_coefs",
    "hfield": "hfieldname",
    "mesh": "meshname",
    "solimpfriction": "solimp_friction",
    "solimplimit": "solimp_limit",
    "solreffriction": "solref_friction",
    "solreflimit": "solref_limit",
    "user": "userdata",
}
"""MJCF's name → MjSpec's, where they differ."""
ORIENTATIONS = ("axisangle", "euler", "xyaxes", "zaxis")
SHORTER = _names("""
    size friction gear solref solimp solreflimit solimplimit solreffriction solimpfriction o_solref o_solimp
    o_friction gainprm biasprm dynprm stiffness damping fluidcoef data
""")
"""Attributes for which MJCF accepts fewer values than there are; the remaining values stay."""
HIDDEN = _names("""
    alt ialt authored classname compiler explicitinertial frame id info inertia name parent plugin signature type
    delete meshdir texturedir LRopt passthrough savecanonical savecompiled saveinertial
""")
"""Members of MjSpec elements that are not attributes to edit (or, like inertia, have another name
in MJCF)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of an actuator's parameter vectors that holds the value of an attribute."""

    vector: str
    index: int
    factor: float = 1.0
    """What the value of the attribute is multiplied by in it."""


_KP = (Entry("gainprm", 0), Entry("biasprm", 1, factor=-1.0))
_KV = (Entry("biasprm", 2, factor=-1.0),)
_DAMPRATIO = (Entry("biasprm", 2),)
SHORTCUTS: dict[Any, dict[str, tuple[Entry, ...]]] = {
    mujoco.mjtActuator.mjACTUATOR_POSITION: {"kp": _KP, "kv": _KV, "dampratio": _DAMPRATIO},
    mujoco.mjtActuator.mjACTUATOR_VELOCITY: {"kv": (Entry("gainprm", 0), *_KV)},
}
"""Attributes of an actuator that depend on its MJCF element. Those of other elements are edited as
entries of gainprm, biasprm and dynprm."""
ENUMS = {
    "cone": mujoco.mjtCone,
    "integrator": mujoco.mjtIntegrator,
    "jacobian": mujoco.mjtJacobian,
    "solver": mujoco.mjtSolver,
}
"""Options that MjOption stores as numbers."""


def attribute_names(element: Any, kind: str) -> list[str]:
    """Every attribute that can be edited, as MJCF spells it."""
    mjcf_names = {spec: name for name, spec in RENAMED.items()}
    members = {
        name
        for name in dir(type(element))
        if not name.startswith("_") and not callable(getattr(type(element), name))
    }
    names = {mjcf_names.get(name, name) for name in members} - HIDDEN
    names.update(_shortcuts(element, kind))
    if kind in ("geom", "site"):
        names.add("type")
    if "alt" in members:
        names.update(ORIENTATIONS)
    return sorted(names)


def set_attribute(element: Any, kind: str, attribute: str, value: Any) -> bool:
    """Set an attribute of an MjSpec element; return whether its value changed.

    :raises EditError: there is no such attribute, or ``value`` does not fit it.
    """
    names = attribute_names(element, kind)
    if attribute not in names:
        hint = suggestion(attribute, names)
        raise EditError(f"{kind} has no attribute {attribute!r} to edit{hint}")
    if entries := _shortcuts(element, kind).get(attribute):
        return _set_entries(element, entries, attribute, value)
    if attribute in ORIENTATIONS or attribute == "quat":
        return _set_orientation(element, attribute, value)
    name = RENAMED.get(attribute, attribute)
    current = getattr(element, name)
    old: Any = current
    new: Any
    if kind == "option" and attribute in ENUMS:
        new = int(_choice(ENUMS[attribute], attribute, value))
    elif type(current).__module__ == "mujoco._enums":
        new = _choice(type(current), attribute, value)
    elif isinstance(current, bool | str):
        if type(value) is not type(current):
            expected = "true or false" if isinstance(current, bool) else "text"
            raise EditError(f"expected {expected}, found {value!r}")
        new = value
    elif isinstance(current, int | float):
        [number] = _numbers([float(current)], attribute, value)
        if isinstance(current, int) and not number.is_integer():
            raise EditError(f"{attribute} takes a whole number, found {number:g}")
        new = type(current)(number)
    else:
        old = np.ravel(current).astype(float).tolist()
        new = _numbers(old, attribute, value)
    setattr(element, name, new)
    return bool(new != old)


def _shortcuts(element: Any, kind: str) -> dict[str, tuple[Entry, ...]]:
    return SHORTCUTS.get(element.type, {}) if kind == "actuator" else {}


def _set_entries(element: Any, entries: tuple[Entry, ...], attribute: str, value: Any) -> bool:
    first = entries[0]
    old = float(getattr(element, first.vector)[first.index]) * first.factor
    # MuJoCo stores kv and dampratio in one entry, distinguished by the sign.
    [new] = _numbers([math.nan if old < 0 else old], attribute, value)
    for entry in entries:
        getattr(element, entry.vector)[entry.index] = new * entry.factor
    return bool(new != old)


def _set_orientation(element: Any, attribute: str, value: Any) -> bool:
    kind = getattr(mujoco.mjtOrientation, f"mjORIENTATION_{attribute.upper()}")
    holder = element if attribute == "quat" else element.alt
    is_given = element.alt.type == kind
    old = [float(number) if is_given else math.nan for number in getattr(holder, attribute)]
    new = _numbers(old, attribute, value)
    setattr(holder, attribute, new)
    element.alt.type = kind
    return new != old


def _choice(kind: Any, attribute: str, value: Any) -> Any:
    """The member of a MuJoCo enumeration that has the name ``value`` in MJCF."""
    members = {name.rpartition("_")[2].lower(): member for name, member in kind.__members__.items()}
    text = str(value).lower()
    if text not in members:
        raise EditError(f"{attribute} is one of {', '.join(members)}; found {value!r}")
    return members[text]


def _numbers(old: list[float], attribute: str, value: Any) -> list[float]:
    """``value`` in place of ``old``; a text such as ``"*1.2"`` multiplies the old number."""
    values = [value] * len(old) if isinstance(value, str) else value
    if not isinstance(values, list | tuple):
        values = [values]
    least = 1 if attribute in SHORTER else len(old)
    if not least <= len(values) <= len(old):
        expected = f"{least} to {len(old)}" if least < len(old) else len(old)
        raise EditError(f"{attribute} takes {expected} values, found {len(values)}")
    new = list(old)
    for index, given in enumerate(values):
        if isinstance(given, str) and given.startswith("*"):
            if math.isnan(old[index]):
                raise EditError(
                    f"{attribute} is not given in the robot: nothing to multiply; set a value"
                )
            new[index] *= float(given[1:])
        elif isinstance(given, bool | str):
            raise EditError(
                f'{attribute} takes numbers, or "*1.2" to multiply what it has; found {given!r}'
            )
        else:
            new[index] = float(given)
    return new
