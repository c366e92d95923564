"""Attributes of MjSpec's elements under their MJCF names: what they hold, how many values, and how
to set them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


RENAMED = dict(
    pair.split("=")
    for pair in _names("""
    actuatorfrclimited=actfrclimited actuatorfrcrange=actfrcrange actuatorgravcomp=actgravcomp diaginertia=inertia
    fluidcoef=fluid_coefs focal=focal_length focalpixel=focal_pixel hfield=hfieldname mesh=meshname
    principal=principal_length principalpixel=principal_pixel sensorsize=sensor_size solimpfriction=solimp_friction
    solimplimit=solimp_limit solreffriction=solref_friction solreflimit=solref_limit user=userdata
""")
)
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

Parameter = tuple[str, int, float]
"""``(vector, index, factor)``: an entry of an actuator's parameter vectors and the factor it is
stored with."""
_TIME: list[list[Parameter]] = [[("dynprm", 0, 1.0)]]
_POSITION: dict[str, list[list[Parameter]]] = {
    "kp": [[("gainprm", 0, 1.0), ("biasprm", 1, -1.0)]],
    "kv": [[("biasprm", 2, -1.0)]],
    "dampratio": [[("biasprm", 2, 1.0)]],
}
_MUSCLE: dict[str, list[list[Parameter]]] = {
    name: [[("gainprm", index, 1.0), ("biasprm", index, 1.0)]]
    for index, name in enumerate(("force", "scale", "lmin", "lmax", "vmax", "fpmax", "fvmax"), 2)
}
_ACTUATOR = mujoco.mjtActuator
SHORTCUTS: dict[Any, dict[str, list[list[Parameter]]]] = {
    _ACTUATOR.mjACTUATOR_POSITION: {**_POSITION, "timeconst": _TIME},
    _ACTUATOR.mjACTUATOR_INTVELOCITY: _POSITION,
    _ACTUATOR.mjACTUATOR_VELOCITY: {"kv": [[("gainprm", 0, 1.0), ("biasprm", 2, -1.0)]]},
    _ACTUATOR.mjACTUATOR_DAMPER: {"kv": [[("gainprm", 2, -1.0)]]},
    _ACTUATOR.mjACTUATOR_ADHESION: {"gain": [[("gainprm", 0, 1.0)]]},
    _ACTUATOR.mjACTUATOR_CYLINDER: {
        "area": [[("gainprm", 0, 1.0)]],
        "bias": [[("biasprm", index, 1.0)] for index in range(3)],
        "timeconst": _TIME,
    },
    _ACTUATOR.mjACTUATOR_MUSCLE: {
        **_MUSCLE,
        "range": [[("gainprm", index, 1.0), ("biasprm", index, 1.0)] for index in range(2)],
        "timeconst": [*_TIME, [("dynprm", 1, 1.0)]],
        "tausmooth": [[("dynprm", 2, 1.0)]],
    },
}
"""Attributes of an actuator that depend on its MJCF element; one list of parameters for each
value."""
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
    is_method = {name: callable(getattr(type(element), name)) for name in dir(type(element))}
    own = [name for name, is_one in is_method.items() if not is_one and not name.startswith("_")]
    names = [mjcf_names.get(name, name) for name in own if name not in HIDDEN or name in mjcf_names]
    names += ["type"] if kind in ("geom", "site") else []
    names += ORIENTATIONS if hasattr(element, "alt") else ()
    return sorted({*names, *_shortcuts(element, kind)})


def set_attribute(element: Any, kind: str, attribute: str, value: Any) -> bool:
    """Set an attribute of an MjSpec element; return whether its value changed.

    :raises AttributeEditError: there is no such attribute, or ``value`` does not fit it.
    """
    unknown = AttributeEditError(f"{kind} has no attribute {attribute!r} to edit", is_unknown=True)
    if attribute not in attribute_names(element, kind):
        raise unknown
    if parameters := _shortcuts(element, kind).get(attribute):
        return _write_parameters(element, parameters, attribute, value)
    if attribute in ORIENTATIONS or attribute == "quat":
        return _write_orientation(element, attribute, value)
    name = RENAMED.get(attribute, attribute)
    current = getattr(element, name)
    if type(current).__module__ == "mujoco._enums" or (kind == "option" and attribute in ENUMS):
        new = _choice(ENUMS[attribute] if kind == "option" else type(current), attribute, value)
    elif isinstance(current, bool | str):
        if type(value) is not type(current):
            expected = "true or false" if isinstance(current, bool) else "text"
            raise AttributeEditError(f"expected {expected}, found {value!r}")
        new = value
    elif isinstance(current, int | float):
        (new,) = _numbers([float(current)], attribute, value)
        if isinstance(current, int) and not (new.is_integer() and abs(new) < 2**31):
            raise AttributeEditError(
                f"{attribute} takes a whole number of 32 bits, found {new:.15g}"
            )
        new = type(current)(new)
    else:
        try:
            old = [float(number) for number in current]
            numbers = _numbers(old, attribute, value)
            setattr(element, name, numbers)
        except (AttributeError, TypeError, ValueError):  # it holds elements or texts
            raise unknown from None
        return not np.array_equal(numbers, old, equal_nan=True)
    setattr(element, name, new)
    return bool(new != current)


def _shortcuts(element: Any, kind: str) -> dict[str, list[list[Parameter]]]:
    return SHORTCUTS.get(element.type, {}) if kind == "actuator" else {}


def _write_parameters(
    element: Any, parameters: Sequence[Sequence[Parameter]], attribute: str, value: Any
) -> bool:
    old = [
        float(getattr(element, vector)[index]) * factor
        for ((vector, index, factor), *_) in parameters
    ]
    # MuJoCo stores kv and dampratio in one entry, distinguished by the sign.
    if len(old) == 1 and old[0] < 0:
        old = [math.nan]
    new = _numbers(old, attribute, value)
    for number, entries in zip(new, parameters, strict=True):
        for vector, index, factor in entries:
            getattr(element, vector)[index] = number * factor
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
    members = {name.rpartition("_")[2].lower(): member for name, member in kind.__members__.items()}  # type: ignore[attr-defined]
    text = str(value).lower() if isinstance(value, bool | str) else ""
    if text not in members:
        raise AttributeEditError(f"{attribute} is one of {', '.join(members)}; found {value!r}")
    return members[text] if attribute not in ENUMS else int(members[text])


def _numbers(old: list[float], attribute: str, value: Any) -> list[float]:
    """``value`` in place of ``old``; a text such as ``"*1.2"`` multiplies the old number."""
    if isinstance(value, str):
        values: list[Any] = [value] * len(old)
    else:
        values = list(value) if isinstance(value, list | tuple) else [value]
        least = 1 if attribute in SHORTER else len(old)
        if not least <= len(values) <= len(old):
            expected = (
                f"{least} to {len(old)} values"
                if least < len(old)
                else f"{len(old)} value{'s'[: len(old) > 1]}"
            )
            raise AttributeEditError(f"{attribute} takes {expected}, found {len(values)}")
    return [_number(*pair, attribute) for pair in zip(old, values, strict=False)] + old[
        len(values) :
    ]


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
