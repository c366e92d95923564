"""A robot with changed attributes: ``model.*`` keys of the job file, applied to MuJoCo's MjSpec.

``{"geom.thigh.size": [0.05, 0.2], "actuator.*.gear": "*1.2", "option.timestep": 0.004}``: kind of
element, name or pattern (``fnmatch``), attribute as MJCF spells it; the kinds in :data:`SINGLE`
have no name. A list may be shorter where MJCF's may. ``"*1.2"``, alone or within a list, multiplies
the robot's value. Patterns are applied before names.

Where the pose of a keyframe is edited and its controls are not, those of position servos follow it,
so that they hold the new pose as they held the old one.

The edited robot is written as MJCF from the specification, with all digits (MuJoCo saves a compiled
model with six). What was written must compile to the edited robot.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from orchestrator.core.files.temporary_folder import TemporaryFolder
from orchestrator.worker.envs.model_loading import for_simulation
from orchestrator.worker.mjmodel.actuators import actuator_of_control, position_controls
from orchestrator.worker.mjmodel.joints import qpos_layout
from orchestrator.worker.mjspec.model_comparison import differing_fields
from orchestrator.worker.mjspec.spec_attributes import (
    AttributeEditError,
    attribute_names,
    set_attribute,
)
from orchestrator.worker.mjspec.spec_elements import (
    EditError,
    is_pattern,
    matching_elements,
    suggestion,
)
from orchestrator.worker.robots.bundle import Bundle, collect
from orchestrator.worker.robots.file_collector import BundleError


@dataclasses.dataclass(frozen=True, slots=True)
class EditedRobot:
    """A robot with edits, written as MJCF."""

    bundle: Bundle
    model: mujoco.MjModel = dataclasses.field(repr=False)
    """As compiled from the specification, with which the MJCF is to be compared."""

    def check(self, written: mujoco.MjModel) -> None:
        """Compare the robot with ``written``, which was compiled from a copy of the bundle.

        :raises EditError: it is another robot.
        """
        if differing := list(differing_fields(self.model, written)):
            lost = ", ".join(differing[:5])
            text = f"MuJoCo's MJCF writer loses {lost}; edit a copy by hand"
            raise EditError(f"the edited robot cannot be written: {text}")


class RobotVariants(contextlib.AbstractContextManager["RobotVariants"]):
    """A robot and what its variants share: its files are read and laid out once, and it is compiled
    once.
    """

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self._folder = TemporaryFolder()
        # At the user's own path below the folder: ".." may make names of parent folders part of the
        # bundle.
        self._main = bundle.write(
            Path(self._folder.name) / bundle.origin.relative_to(bundle.origin.anchor)
        )

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def edited_robot(self, edits: Mapping[str, Any]) -> EditedRobot:
        """The robot with ``edits``, which is to be checked when it is compiled. The same edits give
        the same bundle.

        :param edits: ``KIND.NAME.ATTRIBUTE`` → number, text, true or false, or a list.
        :raises EditError: an edit matches nothing, does not fit or changes nothing, or MuJoCo
            refuses the result.
        """
        with warnings.catch_warnings():
            # The examination of the edited robot repeats MuJoCo's warnings.
            warnings.simplefilter("ignore")
            # Patterns before names, so that the more specific edit wins; then by key, for
            # reproducible results.
            in_order = sorted(edits.items(), key=lambda edit: (not is_pattern(edit[0]), edit[0]))
            original = self._original
            spec = mujoco.MjSpec.from_file(str(self._main))
            model = self._apply_all(in_order, spec, original)
            if _let_controls_follow(edits, spec, original, model):
                model = spec.copy().compile()
            _name_files_of_attached(spec, model, self._main.parent)
            spec.compiler.savecompiled = spec.compiler.savecanonical = False
            return EditedRobot(self._bundle_of(spec.to_xml()), for_simulation(model))

    @functools.cached_property
    def source_hash(self) -> str:
        """Of the robot as it is."""
        return self.bundle.hash

    @functools.cached_property
    def _original(self) -> mujoco.MjModel:
        try:
            return mujoco.MjSpec.from_file(str(self._main)).compile()
        except ValueError as error:
            raise EditError(f"MuJoCo cannot compile it: {self._with_users_paths(error)}") from None

    def _apply_all(
        self, edits: Iterable[tuple[str, Any]], spec: mujoco.MjSpec, model: mujoco.MjModel
    ) -> mujoco.MjModel:
        """Apply ``edits`` to ``spec``, of which ``model`` was compiled; returns what it compiles to
        then.
        """
        written: dict[tuple[str, int, str], str] = {}
        for key, value in edits:
            has_changed = _apply(spec, key, value, written)
            here = f"model.{key} = {_value_text(value)}"
            if not has_changed and _multiplies(value):
                raise EditError(f"{here}: the robot has 0 there, so nothing changes; set a value")
            try:
                before = model
                model = spec.copy().compile()
            except ValueError as error:
                raise EditError(
                    f"{here}: MuJoCo refuses it: {self._with_users_paths(error)}"
                ) from None
            if has_changed and next(differing_fields(before, model), None) is None:
                raise EditError(
                    f"{here}: changes nothing in the compiled robot; another attribute overrides it (fromto overrides"
                    " pos and quat, mass density, <inertial> the geoms' masses), or nothing uses it"
                )
        return model

    def _bundle_of(self, xml: str) -> Bundle:
        """The bundle of the robot that ``xml`` describes, among the files of the original."""
        original = self.bundle
        self._main.write_text(xml, encoding="utf-8")
        try:
            robot = collect(self._main)
        except BundleError as error:
            raise EditError(
                f"the edited robot cannot be written as MJCF: {' '.join(str(error).split())}"
            ) from None
        finally:
            self._main.write_bytes(original.contents[original.main])
        users_main = original.origin / original.main
        return dataclasses.replace(
            robot, origin=users_main.parents[len(Path(robot.main).parts) - 1], moved={}
        )

    def _with_users_paths(self, error: Exception) -> str:
        folder = str(self._main)[: -len(self.bundle.main)]
        return " ".join(str(error).replace(folder, f"{self.bundle.origin}/").split())


def _let_controls_follow(
    edits: Iterable[str], spec: mujoco.MjSpec, before: mujoco.MjModel, after: mujoco.MjModel
) -> bool:
    """Move the controls of position servos, in keyframes whose pose was edited, with the pose.
    Returns whether any was moved.

    :param edits: the keys.
    """
    numbers: dict[str, set[int]] = {"qpos": set(), "ctrl": set()}
    keyframes: dict[int, Any] = {}
    for key in edits:
        attribute = key.rpartition(".")[2]
        if key.startswith("key.") and attribute in numbers:
            found = dict(matching_elements(spec, "model", key))
            keyframes |= found
            numbers[attribute] |= found.keys()
    has_moved = False
    for number in sorted(numbers["qpos"] - numbers["ctrl"]):
        moved = following_controls(before, after, number)
        if moved is not None:
            keyframes[number].ctrl = moved.tolist()
            has_moved = True
    return has_moved


def following_controls(
    before: mujoco.MjModel, after: mujoco.MjModel, keyframe: int
) -> NDArray[np.float64] | None:
    """``(nu,)`` controls of a keyframe whose pose has changed, moved so that position servos hold the
    new pose as they held the old one; None where they may stay as they are.

    :param keyframe: its number in both models, which have the same actuators.
    """
    given = after.key_ctrl[keyframe]
    moved: NDArray[np.float64] = (
        given + _lengths_of_servos(after, keyframe) - _lengths_of_servos(before, keyframe)
    )
    # Without any, tasks take those that hold the pose.
    may_stay = not given.any() or np.allclose(moved, given, rtol=0, atol=1e-9)
    return None if may_stay else moved


def _lengths_of_servos(model: mujoco.MjModel, keyframe: int) -> NDArray[np.float64]:
    """``(nu,)`` of target positions in the pose of a keyframe, as far as their joints have moved it:
    the controls that hold it; 0 for other actuators.
    """
    data = mujoco.MjData(model)
    data.qpos[:] = model.key_qpos[keyframe]
    mujoco.mj_fwdPosition(model, data)
    lengths = data.actuator_length[model.actuator_outadr[actuator_of_control(model)]]
    return np.where(position_controls(model), lengths, 0.0)


def _name_files_of_attached(spec: mujoco.MjSpec, model: mujoco.MjModel, folder: Path) -> None:
    """Give files of sub-models their full paths: written MJCF has one asset directory, but each
    sub-model its own.
    """
    paths: bytes = model.paths
    for assets, addresses, directory in (
        (spec.meshes, model.mesh_pathadr, spec.compiler.meshdir),
        (spec.hfields, model.hfield_pathadr, spec.compiler.meshdir),
        (spec.skins, model.skin_pathadr, spec.compiler.meshdir),
        (spec.textures, model.tex_pathadr, spec.compiler.texturedir),
    ):
        for asset, start in zip(assets, addresses, strict=False):
            if start < 0 or not asset.file:
                continue
            resolved = paths[start : paths.index(b"\0", start)].decode()
            is_found_by_name = (folder / directory / asset.file).exists()
            if resolved and not is_found_by_name and Path(resolved).exists():
                asset.file = resolved


def _apply(
    spec: mujoco.MjSpec, key: str, value: Any, written: dict[tuple[str, int, str], str]
) -> bool:
    """Apply one edit to ``spec``; return whether it changed a value.

    :param written: the pattern that has already set an attribute, by kind, number of the element
        and attribute.
    """
    kind = key.partition(".")[0]
    attribute = key.rpartition(".")[2]
    has_changed = False
    for number, element in matching_elements(spec, "model", key):
        here = f"model.{key}"
        if is_pattern(key):
            here = f"{here}: {kind} {element.name!r}"
            other = written.setdefault((kind, number, attribute), key)
            if other != key:
                raise EditError(
                    f"{here} is edited by model.{other} too; leave one of them out, or name the element"
                )
        try:
            has_changed |= set_attribute(element, kind, attribute, value)
        except AttributeEditError as problem:
            hint = ""
            if problem.is_unknown:
                hint = suggestion(attribute, attribute_names(element, kind))
            elif (kind, attribute) == ("key", "qpos"):
                hint = f"; they are {qpos_layout(spec.copy().compile())}"
            raise EditError(f"{here}: {problem}{hint}") from None
    return has_changed


def _multiplies(value: Any) -> bool:
    values = value if isinstance(value, list | tuple) else [value]
    return any(
        isinstance(number, str) and number[:1] == "*" and float(number[1:]) != 1
        for number in values
    )


def _value_text(value: Any) -> str:
    return repr(value) if isinstance(value, str) else str(value)
