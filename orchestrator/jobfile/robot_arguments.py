"""The robots that a Python program gives: files, patterns, folders, MJCF text and
``mujoco.MjSpec``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
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
        """Its table of ``[[jobs]]``."""
        xml = str(self.file) if self.file.exists() else glob.escape(str(self.file))
        entry: dict[str, Any] = {"name": self.name, "xml": xml}
        if self.allow_outside:
            entry["allow_outside"] = True
        return entry

    def with_label(self, error: str) -> str:
        """``error`` with the robot's label in the place of a file that the user does not know."""
        text = error.replace(str(self.file), self.label)
        folder = str(self.file.parent)
        if folder not in text:
            return text
        for unknown in (f" in {folder}", folder + os.sep, folder):
            text = text.replace(unknown, "")
        return (
            f"{text}; what is given as text or MjSpec has no folder: add "
            "files to MjSpec.assets, or write it to a file"
        )


def robot_arguments(
    given: RobotLike | Sequence[RobotLike],
    folder: Callable[[], Path],
    *,
    caller: str = "train",
    argument: str | None = None,
) -> list[RobotArgument]:
    """The robots of ``given``, patterns and folders replaced by their files.

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
    for position, item in enumerate(items):
        what = f"{caller}: {argument or _label(position)}"
        if not isinstance(item, str | os.PathLike | Spec):
            raise UsageError(f"{what} is of type {type(item).__name__}; {EXPECTED}")
        if isinstance(item, str) and not item.strip():
            raise UsageError(f"{what} is empty; {EXPECTED}")
        with _files_explained(what):
            robots += _robots_of(item, len(robots), position, folder, caller)
    return robots


def _robots_of(
    item: RobotLike, first: int, position: int, folder: Callable[[], Path], caller: str
) -> list[RobotArgument]:
    """The robots that one item of what was given stands for.

    :param first: number of the first of them.
    :param position: of the item; the other parameters are those of :func:`robot_arguments`.
    """
    if isinstance(item, str) and item.lstrip("\ufeff \t\r\n").startswith("<"):
        return [_from_text(item, first, position, folder())]
    if isinstance(item, str | os.PathLike):
        return [
            _from_file(file, number, position)
            for number, file in enumerate(_files(item, caller), first)
        ]
    return [_from_spec(item, first, position, folder(), caller)]


@contextlib.contextmanager
def _files_explained(what: str) -> Iterator[None]:
    """Raise errors of files in the block as errors that name the argument.

    :param what: the argument, for messages.
    :raises UsageError: a file cannot be read, or not be written to the temporary folder.
    :raises DiskFullError: that folder has no room.
    """
    try:
        with disk_full_explained(Path(tempfile.gettempdir()), "make the same call again"):
            yield
    except OSError as error:
        raise UsageError(
            f"{what}: {plain(str(error.filename or ''))}: {error.strerror or error}"
        ) from error


def _files(item: str | os.PathLike[str], caller: str) -> Iterator[Path]:
    """One file, or all that a pattern or a folder stands for, sorted."""
    path = absolute(Path(item))
    if path.is_dir():
        files = sorted(
            file for file in path.iterdir() if file.suffix.lower() == ".xml" and not file.is_dir()
        )
        if not files:
            advice = f'the pattern "{path.name}/**/*.xml" finds those in the folders below it'
            raise UsageError(f"{caller}: {plain(str(path))}: no *.xml in this folder; {advice}")
        yield from files
    elif isinstance(item, str) and glob.has_magic(item) and not os.path.lexists(path):
        matches = sorted(absolute(Path(match)) for match in matching_paths(item, Path()))
        files = [match for match in matches if not match.is_dir()]
        if not files:
            raise UsageError(f"{caller}: no file matches the pattern {plain(str(path))}")
        yield from files
    elif isinstance(item, str) and is_maker(item) and not os.path.lexists(path):
        raise UsageError(f'{caller}: "{item}" names no file but a function: {NO_FUNCTIONS}')
    else:
        yield path


def _label(position: int) -> str:
    return f"xmls[{position}]"


def _from_file(file: Path, number: int, position: int) -> RobotArgument:
    fault = "" if is_showable(str(file)) else file_fault(file)
    return RobotArgument(name=_name(number, file.stem), file=file, index=position, fault=fault)


def _from_text(text: str, number: int, position: int, folder: Path) -> RobotArgument:
    match = _MODEL_NAME.search(text)
    in_text = "" if match is None else match[1] or match[2] or ""
    name = "robot" if in_text in UNNAMED else plain(in_text)[:LONGEST_NAME]
    own_folder = folder / str(number)
    own_folder.mkdir()
    file = own_folder / "robot.xml"
    file.write_bytes(storable(text).encode())
    return RobotArgument(
        name=_name(number, name), file=file, index=position, label=_label(position)
    )


def _from_spec(spec: Spec, number: int, position: int, folder: Path, caller: str) -> RobotArgument:
    label = _label(position)
    assets = dict(spec.assets)
    from_folder = spec.modelfiledir
    is_outside = bool(from_folder) and not assets
    spec = spec.copy()
    try:
        if is_outside:
            spec.meshdir = str(absolute(Path(from_folder) / spec.meshdir))
            spec.texturedir = str(absolute(Path(from_folder) / spec.texturedir))
        robot = _from_text(spec.to_xml(), number, position, folder)
    except ValueError as error:  # MuJoCo's
        fault = f"{label}: MuJoCo cannot write it as XML: {error}"
        name = _name(number, "robot")
        file = folder / str(number)
        return RobotArgument(name=name, file=file, index=position, label=label, fault=fault)
    for name, content in assets.items():
        data = content if isinstance(content, bytes) else content.encode()
        for below in {"", spec.meshdir, spec.texturedir}:
            path = PurePosixPath(below, name)
            if path.is_absolute() or ".." in path.parts:
                raise UsageError(
                    f"{caller}: {label}: its asset {plain(name)} has a path that leads out of a folder"
                )
            target = robot.file.parent / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    return dataclasses.replace(robot, allow_outside=is_outside)


def _name(number: int, name: str) -> str:
    """A name that is unique even where two robots have the same one."""
    return f"{number:03d}-{name}"
