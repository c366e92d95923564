"""A robot with changed attributes: ``model.*`` keys of the job file, applied to MuJoCo's MjSpec.

``{"geom.thigh.size": [0.05, 0.2], "actuator.*.gear": "*1.2", "option.timestep": 0.004}``: kind of element, name or
pattern (``fnmatch``), attribute as MJCF spells it; the kinds in :data:`SINGLE` have no name. A list may be shorter
where MJCF's may. ``"*1.2"``, alone or within a list, multiplies the robot's value. Patterns are applied before names.

The edited robot is written as MJCF from the specification, with all digits (MuJoCo saves a compiled model with six).
What was written must compile to the edited robot.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import fnmatch
import functools
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from orchestrator.core.temporary_folder import TemporaryFolder
from orchestrator.worker.envs.model_loading import for_simulation
from orchestrator.worker.robots.bundle import Bundle, collect
from orchestrator.worker.robots.file_collector import BundleError
from orchestrator.worker.robots.spec_attributes import AttributeEditError, attribute_names, set_attribute

SINGLE = ("option", "compiler")
RELATIVE_TOLERANCE = 1e-9
_NOT_THE_ROBOT = re.compile(r"_|n?paths|nbuffer|\w+_pathadr|\w+_matid")
"""Fields that say where files were read from, and materials, for which MuJoCo's MJCF writer cannot write "none"."""
_PLURALS = {"body": "bodies", "equality": "equalities", "mesh": "meshes"}
_KINDS = "actuator body camera equality geom hfield joint key light material mesh pair sensor site tendon"
LISTS = {kind: _PLURALS.get(kind, f"{kind}s") for kind in _KINDS.split()}
"""Kind of element → the MjSpec's list of them."""


class EditError(Exception):
    """The edits do not fit the robot; the message names the key and what would fit."""


@dataclasses.dataclass(frozen=True, slots=True)
class EditedRobot:
    """A robot with edits, written as MJCF."""

    bundle: Bundle
    model: mujoco.MjModel = dataclasses.field(repr=False)
    """As compiled from the specification, with which the MJCF is to be compared."""

    def check(self, written: mujoco.MjModel) -> None:
        """:raises EditError: ``written``, which was compiled from a copy of the bundle, is another robot."""
        if differing := list(differing_fields(self.model, written)):
            lost = ", ".join(differing[:5])
            text = f"MuJoCo's MJCF writer loses {lost}; edit a copy by hand"
            raise EditError(f"the edited robot cannot be written: {text}")


class RobotVariants(contextlib.AbstractContextManager["RobotVariants"]):
    """A robot and what its variants share: its files are read and laid out once, and it is compiled once."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self._folder = TemporaryFolder()
        # At the user's own path below the folder: ".." may make names of parent folders part of the bundle.
        self._main = bundle.write(Path(self._folder.name) / bundle.origin.relative_to(bundle.origin.anchor))

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def edited(self, edits: Mapping[str, Any]) -> EditedRobot:
        """The robot with ``edits``, which is to be checked when it is compiled. The same edits give the same bundle.

        :param edits: ``KIND.NAME.ATTRIBUTE`` → number, text, true or false, or a list.
        :raises EditError: an edit matches nothing, does not fit or changes nothing, or MuJoCo refuses the result.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the examination of the edited robot repeats MuJoCo's warnings
            # Patterns before names, so that the more specific edit wins; then by key, for reproducible results.
            in_order = sorted(edits.items(), key=lambda edit: (not _is_pattern(edit[0]), edit[0]))
            original, spec = self._original, mujoco.MjSpec.from_file(str(self._main))
            model = self._apply_all(in_order, spec, original)
            _name_files_of_attached(spec, model, self._main.parent)
            spec.compiler.savecompiled = spec.compiler.savecanonical = False
            return EditedRobot(self._written(spec.to_xml()), for_simulation(model))

    @functools.cached_property
    def _original(self) -> mujoco.MjModel:
        try:
            return mujoco.MjSpec.from_file(str(self._main)).compile()
        except ValueError as error:
            raise EditError(f"MuJoCo cannot compile it: {self._with_users_paths(error)}") from None

    def _apply_all(
        self, edits: Iterable[tuple[str, Any]], spec: mujoco.MjSpec, model: mujoco.MjModel
    ) -> mujoco.MjModel:
        """Apply ``edits`` to ``spec``, of which ``model`` was compiled; returns what it compiles to then."""
        written: dict[tuple[str, int, str], str] = {}
        for key, value in edits:
            has_changed, here = _apply(spec, key, value, written), f"model.{key} = {_shown(value)}"
            if not has_changed and _multiplies(value):
                raise EditError(f"{here}: the robot has 0 there, so nothing changes; set a value")
            try:
                before, model = model, spec.copy().compile()
            except ValueError as error:
                raise EditError(f"{here}: MuJoCo refuses it: {self._with_users_paths(error)}") from None
            if has_changed and next(differing_fields(before, model), None) is None:
                raise EditError(
                    f"{here}: changes nothing in the compiled robot; another attribute overrides it (fromto overrides"
                    " pos and quat, mass density, <inertial> the geoms' masses), or nothing uses it"
                )
        return model

    def _written(self, xml: str) -> Bundle:
        """The bundle of the robot that ``xml`` describes, among the files of the original."""
        original = self.bundle
        self._main.write_text(xml, encoding="utf-8")
        try:
            robot = collect(self._main)
        except BundleError as error:
            raise EditError(f"the edited robot cannot be written as MJCF: {' '.join(str(error).split())}") from None
        finally:
            self._main.write_bytes(original.contents[original.main])
        users_main = original.origin / original.main
        return dataclasses.replace(robot, origin=users_main.parents[len(Path(robot.main).parts) - 1], moved={})

    def _with_users_paths(self, error: Exception) -> str:
        folder = str(self._main)[: -len(self.bundle.main)]
        return " ".join(str(error).replace(folder, f"{self.bundle.origin}/").split())


def _name_files_of_attached(spec: mujoco.MjSpec, model: mujoco.MjModel, folder: Path) -> None:
    """Give files of sub-models their full paths: written MJCF has one asset directory, but each sub-model its own."""
    paths: bytes = model.paths
    for assets, addresses, directory in (
        (spec.meshes, model.mesh_pathadr, spec.compiler.meshdir),
        (spec.hfields, model.hfield_pathadr, spec.compiler.meshdir),
        (spec.skins, model.skin_pathadr, spec.compiler.meshdir),
        (spec.textures, model.tex_pathadr, spec.compiler.texturedir),
    ):
        for asset, start in zip(assets, addresses, strict=False):
            resolved = paths[start : paths.index(b"\0", start)].decode() if start >= 0 else ""
            if resolved and asset.file and not (folder / directory / asset.file).exists() and Path(resolved).exists():
                asset.file = resolved


def _is_pattern(key: str) -> bool:
    return any(character in key for character in "*?[")


def differing_fields(first: mujoco.MjModel, second: mujoco.MjModel) -> Iterator[str]:
    """Names of the fields of MjModel (and its ``opt``, ``vis``, ``stat``) that differ by more than rounding."""
    if _as_bytes(first) == _as_bytes(second):  # usually, and much faster than field by field
        return
    yield from (name for name, value, other in _fields(first, second, "") if not _equal(value, other))


def _as_bytes(model: mujoco.MjModel) -> bytes:
    buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return buffer.tobytes()


@functools.cache
def _names(kind: Any) -> Sequence[str]:
    return [name for name in dir(kind) if not _NOT_THE_ROBOT.match(name)]


def _fields(first: Any, second: Any, prefix: str) -> Iterator[tuple[str, Any, Any]]:
    for name in _names(first.__class__) if prefix.count(".") <= 2 else ():
        value = getattr(first, name)
        if isinstance(value, np.ndarray | int | float | bytes):
            yield prefix + name, value, getattr(second, name)
        elif type(value).__module__.startswith("mujoco") and not callable(value):
            yield from _fields(value, getattr(second, name), f"{prefix}{name}.")


def _equal(value: Any, other: Any) -> bool:
    if not isinstance(value, np.ndarray) and (value == other or isinstance(value, bytes)):
        return bool(value == other)
    array, other = np.asarray(value), np.asarray(other)
    if array.shape != other.shape:
        return False
    if (array == other).all():  # nearly always, and much faster than the comparison below
        return True
    scale = float(np.abs(array).max(initial=0.0)) if array.dtype.kind == "f" else 0.0
    return bool(np.allclose(array, other, rtol=RELATIVE_TOLERANCE, atol=RELATIVE_TOLERANCE * scale, equal_nan=True))


def _apply(spec: mujoco.MjSpec, key: str, value: Any, written: dict[tuple[str, int, str], str]) -> bool:
    """Apply one edit to ``spec``; return whether it changed a value.

    :param written: the pattern that has already set an attribute, by kind, number of the element and attribute.
    """
    kind, _, rest = key.partition(".")
    name, _, attribute = rest.rpartition(".")
    has_changed = False
    for number, element in _matching(spec, key, kind, name):
        here = f"model.{key}" + (f": {kind} {element.name!r}" if _is_pattern(key) else "")
        other = written.setdefault((kind, number, attribute), key) if _is_pattern(key) else key
        if other != key:
            raise EditError(f"{here} is edited by model.{other} too; leave one of them out, or name the element")
        try:
            has_changed |= set_attribute(element, kind, attribute, value)
        except AttributeEditError as problem:
            hint = _suggested(attribute, attribute_names(element, kind)) if problem.is_unknown else ""
            raise EditError(f"{here}: {problem}{hint}") from None
    return has_changed


def _matching(spec: mujoco.MjSpec, key: str, kind: str, name: str) -> list[tuple[int, Any]]:
    """The elements that an edit applies to, with their numbers among those of their kind."""
    if kind in SINGLE:
        if name:
            raise EditError(f"model.{key}: there is one {kind} only; write model.{kind}.{key.rpartition('.')[2]}")
        return [(0, getattr(spec, kind))]
    if kind not in LISTS:
        raise EditError(f"model.{key}: unknown kind of element{_suggested(kind, (*SINGLE, *LISTS))}")
    elements = list(enumerate(getattr(spec, LISTS[kind])))
    named = [(number, element) for number, element in elements if element.name == name]
    matches = named or [pair for pair in elements if fnmatch.fnmatchcase(pair[1].name, name)]
    if not matches:
        what = "matches" if _is_pattern(name) else "is called"
        names = [element.name for _, element in elements if element.name]
        braces = " (braces are no pattern; * ? and [ ] are)" if "{" in name else ""
        raise EditError(f"model.{key}: no {kind} of the robot {what} {name!r}{braces}{_suggested(name, names)}")
    return matches


def _suggested(word: str, valid: Iterable[str]) -> str:
    """A hint with similar names, or with all names where none is similar."""
    names = list(dict.fromkeys(valid))
    plain = re.sub(r"[*?\[\]]", "", word)
    near = difflib.get_close_matches(word, names, n=3, cutoff=0.5)
    near += [name for name in names if plain and plain in name and name not in near][: 3 - len(near)]
    if near:
        return f"; did you mean {' or '.join(map(repr, near))}?"
    return f"; there are {', '.join(names[:40])}{' …' if len(names) > 40 else ''}" if names else "; there is none"


def _multiplies(value: Any) -> bool:
    values = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(number, str) and number[:1] == "*" and float(number[1:]) != 1 for number in values)


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str) else str(value)
