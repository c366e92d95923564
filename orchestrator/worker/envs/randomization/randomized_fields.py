"""What a key of ``[jobs.randomize]`` changes in the compiled robot.

A key means what the same key of ``model`` means: the element's attribute as MJCF spells it. Which fields of MjModel
depend on it, and how, is found by compiling the robot with it: every field must be an affine function of the value.
What MuJoCo derives from these fields (inverse weights, masses of subtrees …) is computed by ``Batch.set_const``. The
result must equal the edited and compiled robot; an attribute for which it does not is refused.

The mass of a body is the exception: ``body.NAME.mass`` scales mass and inertia of the body together, as if the
density of all its parts had changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from mujoco.batch import MODEL_FIELDS, Batch
from numpy.typing import NDArray

from orchestrator.core.distributions import DISTURBANCES, Distribution, parse_distribution
from orchestrator.worker.envs.model_loading import for_simulation
from orchestrator.worker.model.model_comparison import differences
from orchestrator.worker.model.spec_attributes import AttributeEditError, attribute_names, set_attribute
from orchestrator.worker.model.spec_elements import EditError, matching, suggested
from orchestrator.worker.tasks.actions import Floats

TABLE = "randomize"
_STATISTICS = "stat."
"""Begins the names of MuJoCo's statistics of a model, which scale the solver's tolerance. They stay the robot's."""
_FIXED = {
    "option.timestep": "the number of physics steps in a control period depends on it",
    "compiler": "it has its effect while the robot is compiled",
    "key": "episodes start from it; see reset_noise_scale",
}


class RandomizeError(ValueError):
    """A key of ``[jobs.randomize]`` does not fit the robot; the message names it and what would fit."""


@dataclass(frozen=True, slots=True)
class FieldChange:
    """The entries of one field of MjModel that depend on a drawn value: ``at_zero + slope · value``."""

    name: str
    """As in MjModel; ``opt.gravity`` for a field of MjOption."""
    entries: NDArray[np.intp]
    """``(k,)`` places in the flat field."""
    at_zero: Floats
    """``(k,)``"""
    slope: Floats
    """``(k,)``"""


@dataclass(frozen=True, slots=True)
class RandomizedKey:
    """One key, what its value is drawn from, and what that changes."""

    key: str
    distribution: Distribution
    changes: Sequence[FieldChange]


def randomized_keys(xml: Path, model: mujoco.MjModel, randomize: Mapping[str, str]) -> list[RandomizedKey]:
    """What ``randomize`` changes, sorted by key.

    :param xml: the robot's MJCF.
    :param model: compiled from it.
    :param randomize: dotted keys → distributions, as the job file has them.
    :raises RandomizeError: a key matches nothing, does not fit or changes nothing, or MuJoCo refuses a value.
    """
    spec = mujoco.MjSpec.from_file(str(xml))
    drawn = {key: parse_distribution(text) for key, text in sorted(randomize.items()) if key not in DISTURBANCES}
    found = [_examined(spec, model, key, distribution) for key, distribution in drawn.items()]
    owner: dict[tuple[str, int], str] = {}
    for one in found:
        for change in one.changes:
            for entry in change.entries.tolist():
                other = owner.setdefault((change.name, entry), one.key)
                if other != one.key:
                    raise RandomizeError(
                        f"{TABLE}.{one.key}: {TABLE}.{other} draws the same value of {change.name}; leave one of them "
                        "out, or name other elements"
                    )
    return found


def _examined(spec: mujoco.MjSpec, model: mujoco.MjModel, key: str, distribution: Distribution) -> RandomizedKey:
    here = f"{TABLE}.{key}"
    for fixed, why in _FIXED.items():
        if key == fixed or key.startswith(f"{fixed}."):
            raise RandomizeError(
                f"{here}: cannot be drawn for each episode: {why}; vary it with a matrix of model.{key}"
            )
    low, high = distribution.extremes
    if low == high:
        raise RandomizeError(f"{here}: always draws {low:g}; write model.{key} instead, or give it a range")
    at_low, at_high = (_compiled(spec, model, key, value, distribution) for value in (low, high))
    inputs: list[FieldChange] = []
    others: list[FieldChange] = []
    for name, of_low, of_high in differences(at_low, at_high):
        if name.startswith(_STATISTICS):
            continue
        if name not in MODEL_FIELDS or np.asarray(of_low).dtype.kind != "f":
            raise RandomizeError(
                f"{here}: changes {name} of the compiled robot, which MuJoCo cannot vary between environments; vary it "
                f"with a matrix of model.{key}"
            )
        first, second = np.ravel(of_low), np.ravel(of_high)
        entries = np.flatnonzero(first != second)
        slope = (second[entries] - first[entries]) / (high - low)
        change = FieldChange(name, entries, first[entries] - slope * low, slope)
        (inputs if name in mujoco.MjModel._setconst_inputs else others).append(change)
    if not inputs and not others:
        raise RandomizeError(f"{here}: changes nothing in the compiled robot; another attribute overrides it")
    middle = low + (high - low) * 0.382  # anywhere between them
    batch = Batch(model, 1, nthread=1)
    write(batch, 0, inputs, middle)
    batch.set_const()
    changes = [*inputs, *(change for change in others if batch.expanded(change.name) is None)]
    write(batch, 0, changes, middle)
    expected = _compiled(spec, model, key, middle, distribution)
    wrong = [name for name, _, _ in differences(batch.get_model(0), expected) if not name.startswith(_STATISTICS)]
    if wrong:
        raise RandomizeError(
            f"{here}: {', '.join(wrong[:3])} of the compiled robot depend{'s' * (len(wrong) == 1)} on it in a way that "
            f"cannot be drawn for each episode; vary it with a matrix of model.{key}"
        )
    return RandomizedKey(key, distribution, changes)


def write(batch: Batch, env: int, changes: Iterable[FieldChange], value: float) -> None:
    """Give environment ``env`` of ``batch`` the drawn value; ``set_const`` has to follow."""
    for change in changes:
        field = batch.expand(change.name).reshape(batch.nsim, -1)
        field[env, change.entries] = change.at_zero + change.slope * value


def _compiled(
    spec: mujoco.MjSpec, model: mujoco.MjModel, key: str, value: float, distribution: Distribution
) -> mujoco.MjModel:
    """The robot with the value, or multiplied by it."""
    edited = spec.copy()
    kind, attribute = key.partition(".")[0], key.rpartition(".")[2]
    written = f"*{value!r}" if distribution.multiplies else value
    try:
        for _, element in matching(edited, TABLE, key):
            if (kind, attribute) == ("body", "mass"):
                _scale_mass(element, value if distribution.multiplies else value / _mass(model, element.name))
            else:
                set_attribute(element, kind, attribute, written)
    except AttributeEditError as error:
        hint = suggested(attribute, attribute_names(element, kind)) if error.is_unknown else ""
        raise RandomizeError(f"{TABLE}.{key}: {error}{hint}") from None
    except EditError as error:
        raise RandomizeError(str(error)) from None
    try:
        return for_simulation(edited.compile())
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise RandomizeError(
            f"{TABLE}.{key}: MuJoCo refuses the value {written}, which it may draw: {reason}"
        ) from None


def _mass(model: mujoco.MjModel, name: str) -> float:
    number = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, name)
    if number < 0:
        raise AttributeEditError(f"the body {name!r} is part of its parent in the compiled robot (fusestatic)")
    if model.body_mass[number] == 0:
        raise AttributeEditError(f"the body {name!r} has no mass of its own; name bodies that have")
    return float(model.body_mass[number])


def _scale_mass(body: Any, factor: float) -> None:
    """Multiply the densities of a body's parts, or its given mass and inertia."""
    if factor <= 0:
        raise AttributeEditError(f"may draw a mass that is not above 0 for the body {body.name!r}")
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
