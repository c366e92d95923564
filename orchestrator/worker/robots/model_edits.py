"""A robot with changed attributes: ``model.*`` keys of the job file, applied to MuJoCo's MjSpec.

``{"geom.thigh.size": [0.05, 0.2], "actuator.*.gear": "*1.2", "option.timestep": 0.004}``: kind of
element, name or pattern (``fnmatch``), attribute as MJCF spells it; ``option`` and ``compiler``
have no name. A list may be shorter where MJCF's may. ``"*1.2"``, alone or within a list, multiplies
the robot's value. Patterns are applied before names.

The edited robot is written as MJCF from the specification, with all digits (MuJoCo saves a compiled
model with six). What was written must compile to the edited robot.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mujoco

from orchestrator.core.files.temporary_folder import TemporaryFolder
from orchestrator.worker.envs.model_loading import for_simulation
from orchestrator.worker.mjspec.model_comparison import differing_fields
from orchestrator.worker.mjspec.spec_attributes import set_attribute
from orchestrator.worker.mjspec.spec_elements import EditError, is_pattern, matching_elements
from orchestrator.worker.robots.bundle import Bundle, collect
from orchestrator.worker.robots.unfit import UnfitError


def edit_robot(bundle: Bundle, edits: Mapping[str, Any]) -> tuple[Bundle, mujoco.MjModel]:
    """Edit a robot. Return it written as MJCF, and as compiled from the specification, with which a
    copy of that is to be compared. The same edits give the same bundle.

    :param edits: ``KIND.NAME.ATTRIBUTE`` → number, text, true or false, or a list.
    :raises EditError: an edit matches nothing, does not fit or changes nothing, or MuJoCo
        refuses the result.
    """
    # Patterns before names, so that the more specific edit wins; then by key, for reproducible
    # results.
    in_order = sorted(edits.items(), key=lambda edit: (not is_pattern(edit[0]), edit[0]))
    with TemporaryFolder() as folder, warnings.catch_warnings():
        # The examination of the edited robot repeats MuJoCo's warnings.
        warnings.simplefilter("ignore")
        main = bundle.write(Path(folder))
        try:
            spec = mujoco.MjSpec.from_file(str(main))
            model = spec.copy().compile()
            for key, value in in_order:
                model = _apply(spec, model, key, value)
            spec.compiler.savecompiled = spec.compiler.savecanonical = False
            main.write_text(spec.to_xml(), encoding="utf-8")
            written = collect(main)
        except (ValueError, UnfitError) as error:
            text = bundle.with_users_paths(str(error), main)
            raise EditError(f"the robot cannot be edited: {' '.join(text.split())}") from None
    return dataclasses.replace(written, xml=bundle.xml), for_simulation(model)


def check_written(edited: mujoco.MjModel, written: mujoco.MjModel) -> None:
    """Compare an edited robot with what was compiled from a copy of its MJCF.

    :raises EditError: it is another robot.
    """
    if lost := ", ".join(list(differing_fields(edited, written))[:5]):
        raise EditError(
            f"the edited robot cannot be written: MuJoCo's MJCF writer loses {lost}; edit a copy by hand"
        )


def _apply(spec: mujoco.MjSpec, before: mujoco.MjModel, key: str, value: Any) -> mujoco.MjModel:
    """Apply one edit to ``spec``, of which ``before`` was compiled; return what it compiles to
    then.
    """
    is_factor = isinstance(value, str) and value.startswith("*")
    must_change = is_factor and float(value[1:]) != 1
    for _, element in matching_elements(spec, "model", key):
        try:
            must_change |= set_attribute(
                element, key.partition(".")[0], key.rpartition(".")[2], value
            )
        except EditError as problem:
            raise EditError(f"model.{key}: {problem}") from None
        except (AttributeError, TypeError, ValueError):
            raise EditError(f"model.{key}: the attribute does not take {value!r}") from None
    try:
        model = spec.copy().compile()
    except ValueError as error:
        text = " ".join(str(error).split())
        raise EditError(f"model.{key} = {value!r}: MuJoCo refuses it: {text}") from None
    if must_change and next(differing_fields(before, model), None) is None:
        raise EditError(
            f"model.{key} = {value!r}: changes nothing in the compiled robot: it is 0 there, another attribute "
            "overrides it (fromto overrides pos and quat, mass density, <inertial> the geoms' masses), or nothing "
            "uses it"
        )
    return model
