"""Attributes of MjSpec's elements under their MJCF names: what they hold, how many values, and how
to set them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import mujoco
import numpy as np

from orchestrator.core.text import count


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


RENAMED = {
    "actuatorfrclimited": "actfrclimited",
    "actuatorfrcrange": "actfrcrange",
    "actuatorgravcomp": "actgravcomp",
    "diaginertia": "inertia",
    "fluidcoef": "fluid_coefs",
    "focal": "focal_length",
    "focalpixel": "focal_pixel",
    "hfield": "hfieldname",
    "mesh": "meshname",
    "principal": "principal_length",
    "principalpixel": "principal_pixel",
    "sensorsize": "sensor_size",
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
class Parameter:
    """An entry of an actuator's parameter vectors."""

    vector: str
    index: int
    factor: float = 1.0
    """What the value of the attribute is multiplied by in it."""


Parameters: TypeAlias = list[list[Parameter]]
"""For each value of an attribute, the entries that hold it."""


def _muscle(index: int) -> list[Parameter]:
    """Muscles have equal parameters of gain and bias."""
    return [Parameter("gainprm", index), Parameter("biasprm", index)]


_TIME: Parameters = [[Parameter("dynprm", 0)]]
_POSITION: dict[str, Parameters] = {
    "kp": [[Parameter("gainprm", 0), Parameter("biasprm", 1, factor=-1.0)]],
    "kv": [[Parameter("biasprm", 2, factor=-1.0)]],
    "dampratio": [[Parameter("biasprm", 2)]],
}
_ACTUATOR = mujoco.mjtActuator
SHORTCUTS: dict[Any, dict[str, Parameters]] = {
    _ACTUATOR.mjACTUATOR_POSITION: {**_POSITION, "timeconst": _TIME},
    _ACTUATOR.mjACTUATOR_INTVELOCITY: _POSITION,
    _ACTUATOR.mjACTUATOR_VELOCITY: {
        "kv": [[Parameter("gainprm", 0), Parameter("biasprm", 2, factor=-1.0)]]
    },
    _ACTUATOR.mjACTUATOR_DAMPER: {"kv": [[Parameter("gainprm", 2, factor=-1.0)]]},
    _ACTUATOR.mjACTUATOR_ADHESION: {"gain": [[Parameter("gainprm", 0)]]},
    _ACTUATOR.mjACTUATOR_CYLINDER: {
        "area": [[Parameter("gainprm", 0)]],
        "bias": [[Parameter("biasprm", index)] for index in range(3)],
        "timeconst": _TIME,
    },
    _ACTUATOR.mjACTUATOR_MUSCLE: {
        "range": [_muscle(0), _muscle(1)],
        "force": [_muscle(2)],
        "scale": [_muscle(3)],
        "lmin": [_muscle(4)],
        "lmax": [_muscle(5)],
        "vmax": [_muscle(6)],
        "fpmax": [_muscle(7)],
        "fvmax": [_muscle(8)],
        "timeconst": [*_TIME, [Parameter("dynprm", 1)]],
        "tausmooth": [[Parameter("dynprm", 2)]],
    },
}
"""Attributes of an actuator that depend on its MJCF element."""
ENUMS = {
    name: getattr(mujoco, f"mjt{name.title()}")
    for name in ("cone", "integrator", "jacobian", "solver")
}
"""Options that MjOption stores as numbers."""


class AttributeEditError(Exception):
    """The element has no such attribute, or the value does not fit it."""

    def __init__(self, message: str, *, is_unknown: bool = False) -> None:
        super().__init__(message)
        self.is_unknown = is_unknown


def attribute_names(element: Any, kind: str) -> list[str]:
    """Every attribute that can be edited, as MJCF spells it."""
    mjcf_names = {spec: name for name, spec in RENAMED.items()}
    names = set(_shortcuts(element, kind))
    for name in dir(type(element)):
        is_method = callable(getattr(type(element), name))
        if is_method or name.startswith("_"):
            continue
        if name in mjcf_names:
            names.add(mjcf_names[name])
        elif name not in HIDDEN:
            names.add(name)
    if kind in ("geom", "site"):
        names.add("type")
    if hasattr(element, "alt"):
        names.update(ORIENTATIONS)
    return sorted(names)


def set_attribute(element: Any, kind: str, attribute: str, value: Any) -> bool:
    """Set an attribute of an MjSpec element; return whether its value changed.

    :raises AttributeEditError: there is no such attribute, or ``value`` does not fit it.
    """
    if attribute not in attribute_names(element, kind):
        raise _unknown(kind, attribute)
    parameters = _shortcuts(element, kind).get(attribute)
    if parameters is not None:
        return _write_parameters(element, parameters, attribute, value)
    if attribute in ORIENTATIONS or attribute == "quat":
        return _write_orientation(element, attribute, value)
    name = RENAMED.get(attribute, attribute)
    current = getattr(element, name)
    new: Any
    if kind == "option" and attribute in ENUMS:
        new = int(_choice(ENUMS[attribute], attribute, value))
    elif type(current).__module__ == "mujoco._enums":
        new = _choice(type(current), attribute, value)
    elif isinstance(current, bool | str):
        if type(value) is not type(current):
            expected = "true or false" if isinstance(current, bool) else "text"
            raise AttributeEditError(f"expected {expected}, found {value!r}")
        new = value
    elif isinstance(current, int | float):
        [number] = _numbers([float(current)], attribute, value)
        if isinstance(current, int) and not (number.is_integer() and abs(number) < 2**31):
            raise AttributeEditError(
                f"{attribute} takes a whole number of 32 bits, found {number:.15g}"
            )
        new = type(current)(number)
    else:
        try:
            old = [float(number) for number in current]
            numbers = _numbers(old, attribute, value)
            setattr(element, name, numbers)
        except (AttributeError, TypeError, ValueError):  # it holds elements or texts
            raise _unknown(kind, attribute) from None
        return not np.array_equal(numbers, old, equal_nan=True)
    setattr(element, name, new)
    return bool(new != current)


def _unknown(kind: str, attribute: str) -> AttributeEditError:
    return AttributeEditError(f"{kind} has no attribute {attribute!r} to edit", is_unknown=True)


def _shortcuts(element: Any, kind: str) -> dict[str, Parameters]:
    return SHORTCUTS.get(element.type, {}) if kind == "actuator" else {}


def _write_parameters(element: Any, parameters: Parameters, attribute: str, value: Any) -> bool:
    old = [
        float(getattr(element, first.vector)[first.index]) * first.factor
        for first, *_ in parameters
    ]
    # MuJoCo stores kv and dampratio in one entry, distinguished by the sign.
    if len(old) == 1 and old[0] < 0:
        old = [math.nan]
    new = _numbers(old, attribute, value)
    for number, entries in zip(new, parameters, strict=True):
        for entry in entries:
            getattr(element, entry.vector)[entry.index] = number * entry.factor
    return new != old


def _write_orientation(element: Any, attribute: str, value: Any) -> bool:
    kind = getattr(mujoco.mjtOrientation, f"mjORIENTATION_{attribute.upper()}")
    holder = element if attribute == "quat" else element.alt
    is_active = element.alt.type == kind
    old = [float(number) if is_active else math.nan for number in getattr(holder, attribute)]
    new = _numbers(old, attribute, value)
    setattr(holder, attribute, new)
    element.alt.type = kind
    return new != old


def _choice(kind: type, attribute: str, value: Any) -> Any:
    """The member of a MuJoCo enumeration that has the name ``value`` in MJCF."""
    enumeration: Any = kind
    members = {
        name.rpartition("_")[2].lower(): member for name, member in enumeration.__members__.items()
    }
    text = str(value).lower() if isinstance(value, bool | str) else ""
    if text not in members:
        raise AttributeEditError(f"{attribute} is one of {', '.join(members)}; found {value!r}")
    return members[text]


def _numbers(old: list[float], attribute: str, value: Any) -> list[float]:
    """``value`` in place of ``old``; a text such as ``"*1.2"`` multiplies the old number."""
    if isinstance(value, str):
        values: list[Any] = [value] * len(old)
    else:
        values = list(value) if isinstance(value, list | tuple) else [value]
        least = 1 if attribute in SHORTER else len(old)
        if not least <= len(values) <= len(old):
            expected = count(len(old), "value")
            if least < len(old):
                expected = f"{least} to {expected}"
            raise AttributeEditError(f"{attribute} takes {expected}, found {len(values)}")
    new = [_number(*pair, attribute) for pair in zip(old, values, strict=False)]
    return new + old[len(values) :]


def _number(old: float, value: Any, attribute: str) -> float:
    if isinstance(value, str) and value.startswith("*"):
        try:
            factor = float(value[1:])
        except ValueError:
            factor = math.nan
        if not math.isfinite(factor):
            raise AttributeEditError(
                f'{value!r}: expected a finite factor after the asterisk, as in "*1.2"'
            )
        if math.isnan(old):
            raise AttributeEditError(
                f"{attribute} is not given in the robot: nothing to multiply; set a value"
            )
        return old * factor
    if (
        isinstance(value, bool | str)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
    ):
        raise AttributeEditError(
            f'{attribute} takes numbers, or "*1.2" to multiply what it has; found {value!r}'
        )
    return float(value)
