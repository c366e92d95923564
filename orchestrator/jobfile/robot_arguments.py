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
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from orchestrator.core.errors import UsageError, disk_full_explained
from orchestrator.core.paths import absolute
from orchestrator.core.text import plain, storable
from orchestrator.jobfile.robot_globs import file_fault, matching_files
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
        outside = {"allow_outside": True} if self.allow_outside else {}
        return {"name": self.name, "xml": str(self.file), **outside}


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
        try:
            with disk_full_explained(Path(tempfile.gettempdir()), "make the same call again"):
                robots += _robots_of(item, len(robots), index, folder, what)
        except OSError as error:
            file = plain(str(error.filename or ""))
            raise UsageError(f"{what}: {file}: {error.strerror or error}") from error
    return robots


def _robots_of(
    item: object, first: int, index: int, folder: Callable[[], Path], what: str
) -> list[RobotArgument]:
    """Return the robots that one item of what was given stands for.

    :param first: number of the first of them.
    :param what: the argument, for messages; the other parameters are those of
        :func:`robot_arguments`.
    """
    if isinstance(item, Spec):
        return [_from_spec(item, first, index, folder())]
    if not isinstance(item, str | os.PathLike) or not str(item).strip():
        raise UsageError(f"{what} is {item!r:.60}; {EXPECTED}")
    if isinstance(item, str) and item.lstrip("\ufeff \t\r\n").startswith("<"):
        return [_from_text(item, first, index, folder())]
    path = absolute(Path(item))
    files = [path]
    if path.is_dir():
        files = [file for file in path.iterdir() if file.suffix.lower() == ".xml"]
    elif isinstance(item, str) and not os.path.lexists(path):
        if is_maker(item):
            raise UsageError(f'{what}: "{item}" names no file but a function: {NO_FUNCTIONS}')
        if glob.has_magic(item):
            files = matching_files(item, Path.cwd())[1]
    files = sorted(file for file in files if not file.is_dir())
    if not files:
        raise UsageError(f"{what}: no robot in {plain(str(path))}")
    return [_from_file(file, number, index) for number, file in enumerate(files, first)]


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


def _from_spec(spec: Spec, number: int, index: int, folder: Path) -> RobotArgument:
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
            target = robot.file.parent / below / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    return dataclasses.replace(robot, allow_outside=is_outside)


def _name(number: int, name: str) -> str:
    """Return a name that is unique even where two robots have the same one."""
    return f"{number:03d}-{name}"
