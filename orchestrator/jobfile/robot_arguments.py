"""The robots that a Python program gives: files, patterns, folders, MJCF text and
``mujoco.MjSpec``.
"""

from __future__ import annotations

import dataclasses
import glob
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, TypeAlias, runtime_checkable

from orchestrator.core.errors import UsageError, disk_full_explained
from orchestrator.core.paths import absolute
from orchestrator.core.text import plain, storable
from orchestrator.jobfile.robot_globs import file_fault, matching_paths
from orchestrator.keys.names import is_showable
from orchestrator.keys.value_types import is_maker

EXPECTED = "expected a path, a pattern, a folder, MJCF text or a mujoco.MjSpec"
NO_FUNCTIONS = (
    "functions that make robots are for a job file and orchestrator.Search; call yours, and give the "
    "file or the MJCF text that it makes"
)
LONGEST_NAME = 40
UNNAMED = ("", "MuJoCo Model")
"""Names of a model that has none; the second is what MuJoCo writes then."""
_MODEL_NAME = re.compile(r"<mujoco\b[^>]*?\smodel\s*=\s*(?:\"([^\"]*)\"|'([^']*)')")


@runtime_checkable
class Spec(Protocol):
    """What is used of ``mujoco.MjSpec``: this side of the program does not import MuJoCo."""

    meshdir: str
    texturedir: str
    assets: dict[str, bytes | str]

    @property
    def modelfiledir(self) -> str: ...
    def copy(self) -> Spec: ...
    def to_xml(self) -> str: ...


RobotLike: TypeAlias = str | os.PathLike[str] | Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotArgument:
    """One robot."""

    name: str
    """Name of its jobs; different from that of every other robot."""
    file: Path
    """Its MJCF."""
    index: int
    """Position in what the program gave; that of a pattern or folder for each of its files."""
    label: str = ""
    """How messages name it if it was not given as a file: ``xmls[3]``; empty for a file."""
    allow_outside: bool = False
    """Whether it was read from a folder other than that of ``file``, which its assets are still
    in."""
    fault: str = ""
    """Why it cannot be trained, where a job file could not even name it; empty otherwise."""

    @property
    def xml(self) -> str | None:
        """The user's file, if it is one."""
        return None if self.label else str(self.file)

    def entry(self) -> dict[str, Any]:
        """Return its table of ``[[jobs]]``."""
        xml = str(self.file) if self.file.exists() else glob.escape(str(self.file))
        outside = {"allow_outside": True} if self.allow_outside else {}
        return {"name": self.name, "xml": xml, **outside}

    def with_label(self, error: str) -> str:
        """Return ``error`` with the robot's label in place of a file that the user does not know."""
        text = error.replace(str(self.file), self.label)
        folder = str(self.file.parent)
        if folder not in text:
            return text
        advice = "what is given as text or MjSpec has no folder: add files to MjSpec.assets"
        return f"{text.replace(folder + os.sep, '').replace(folder, 'its folder')}; {advice}"


def robot_arguments(
    given: RobotLike | Sequence[RobotLike],
    folder: Callable[[], Path],
    *,
    caller: str = "train",
    argument: str | None = None,
) -> list[RobotArgument]:
    """Return the robots of ``given``, patterns and folders replaced by their files.

    :param folder: makes a folder for robots that are not files yet; called only if there is such a
        one.
    :param caller: the function that they are arguments of, for messages.
    :param argument: name of that argument, where it is a single robot.
    :raises UsageError: a pattern or folder without files, a function that makes a robot, something
        that is none, or a file that cannot be read.
    :raises DiskFullError: the temporary folder has no room for robots that are not files yet.
    """
    robots: list[RobotArgument] = []
    items: Iterable[object] = [given]
    if isinstance(given, Iterable) and not isinstance(given, str | os.PathLike | Spec):
        items = given
    for index, item in enumerate(items):
        what = f"{caller}: {argument or f'xmls[{index}]'}"
        is_text = isinstance(item, str) and item.lstrip("\ufeff \t\r\n").startswith("<")
        try:
            with disk_full_explained(Path(tempfile.gettempdir()), "make the same call again"):
                if isinstance(item, str) and is_text:
                    robots.append(_from_text(item, len(robots), index, folder()))
                elif isinstance(item, str | os.PathLike) and str(item).strip():
                    files = _files(item, what)
                    robots += [
                        _from_file(file, n, index) for n, file in enumerate(files, len(robots))
                    ]
                elif isinstance(item, Spec):
                    robots.append(_from_spec(item, len(robots), index, folder(), what))
                else:
                    raise UsageError(f"{what} is {item!r:.60}; {EXPECTED}")
        except OSError as error:
            file = plain(str(error.filename or ""))
            raise UsageError(f"{what}: {file}: {error.strerror or error}") from error
    return robots


def _files(item: str | os.PathLike[str], what: str) -> Sequence[Path]:
    """Return one file, or all that a pattern or a folder stands for, sorted.

    :param what: the argument, for messages.
    """
    path = absolute(Path(item))
    if path.is_dir():
        found = [file for file in path.iterdir() if file.suffix.lower() == ".xml"]
    elif not isinstance(item, str) or os.path.lexists(path):
        return [path]
    elif glob.has_magic(item):
        found = [absolute(Path(match)) for match in matching_paths(item, Path())]
    elif is_maker(item):
        raise UsageError(f'{what}: "{item}" names no file but a function: {NO_FUNCTIONS}')
    else:
        return [path]
    files = sorted(file for file in found if not file.is_dir())
    if not files:
        raise UsageError(
            f"{what}: no robot in {plain(str(path))}; expected a folder or a pattern of *.xml"
        )
    return files


def _from_file(file: Path, number: int, index: int) -> RobotArgument:
    fault = "" if is_showable(str(file)) else file_fault(file)
    return RobotArgument(name=_name(number, file.stem), file=file, index=index, fault=fault)


def _from_text(text: str, number: int, index: int, folder: Path) -> RobotArgument:
    match = _MODEL_NAME.search(text)
    in_text = "" if match is None else match[1] or match[2] or ""
    name = "robot" if in_text in UNNAMED else plain(in_text)[:LONGEST_NAME]
    file = folder / str(number) / "robot.xml"
    file.parent.mkdir()
    file.write_bytes(storable(text).encode())
    return RobotArgument(name=_name(number, name), file=file, index=index, label=f"xmls[{index}]")


def _from_spec(spec: Spec, number: int, index: int, folder: Path, what: str) -> RobotArgument:
    assets = dict(spec.assets)
    from_folder = spec.modelfiledir
    is_outside = bool(from_folder) and not assets
    spec = spec.copy()
    if is_outside:
        spec.meshdir = str(absolute(Path(from_folder) / spec.meshdir))
        spec.texturedir = str(absolute(Path(from_folder) / spec.texturedir))
    try:
        text = spec.to_xml()
    except ValueError as error:  # MuJoCo's
        robot = _from_text("", number, index, folder)
        fault = f"{robot.label}: MuJoCo cannot write it as XML: {error}"
        return dataclasses.replace(robot, fault=fault)
    robot = _from_text(text, number, index, folder)
    for name, content in assets.items():
        data = content if isinstance(content, bytes) else content.encode()
        for below in {"", spec.meshdir, spec.texturedir}:
            path = PurePosixPath(below, name)
            if path.is_absolute() or ".." in path.parts:
                raise UsageError(f"{what}: its asset {plain(name)} has a path out of its folder")
            target = robot.file.parent / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    return dataclasses.replace(robot, allow_outside=is_outside)


def _name(number: int, name: str) -> str:
    """Return a name that is unique even where two robots have the same one."""
    return f"{number:03d}-{name}"
