"""Finds the robots of a job: one file, those of a pattern, or one of a collection."""

from __future__ import annotations

import functools
import glob
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.errors import UsageError
from orchestrator.core.robot_sources import RobotCollection, RobotFormat, collection_of, format_of
from orchestrator.core.text import listed
from orchestrator.keys.names import is_showable
from orchestrator.keys.problems import Problems, quoted, suggestion
from orchestrator.keys.value_types import is_maker

_RECURSIVE = re.compile(r"(?:^|(?<=/))\*\*(?:/|\Z)")
"""A part of a pattern that stands for a folder and all folders below it."""


@dataclass(frozen=True, slots=True)
class Robot:
    """A job's robot, or what stands in for one in a job without MJCF."""

    name: str | None
    """Name of the job; None where neither the user nor a file gives one."""
    xml: Path | None
    """Absolute path."""
    maker: str | None = None
    """A function that makes the MJCF, as ``"module:function"``."""

    @property
    def format(self) -> RobotFormat | None:
        """The kind of its file; None for an MJCF, and without a file."""
        return None if self.xml is None else format_of(self.xml.name)


class Robots:
    """Finds files relative to ``base``; examines each file once, however many jobs share it.

    :param skip_invalid: whether a file that cannot be read is no problem here: preflight finds it
        again, and its jobs are FAILED.
    """

    def __init__(self, base: Path, *, skip_invalid: bool) -> None:
        self._base = base
        self._skip_invalid = skip_invalid
        self._fault = functools.cache(file_fault)

    def find(
        self, xml: str | None, name: str | None, job_index: int, problems: Problems
    ) -> list[Robot]:
        """The robots of one entry of the job file; empty, and a problem noted, when there are none.

        A path that names an existing file is that file, even if it holds ``* ? [``; otherwise these
        make it a pattern, whose files are sorted by path and named by their stems. Where two files
        of a pattern share a stem (``zoo/*/scene.xml``), they are named by their path below its
        fixed folder, ``ant/scene``.
        """
        if xml is None:
            return [Robot(name, None)]
        if is_maker(xml):
            return [Robot(name or xml.partition(":")[2], None, xml)]
        collection = collection_of(xml)
        if collection is not None:
            return _of_collection(collection, xml, name, f"jobs[{job_index}].xml", problems)
        path = self._absolute(xml)
        if not glob.has_magic(xml) or not self._fault(path):
            is_usable = self._is_usable(path, job_index, problems)
            return [Robot(name or path.stem, path)] if is_usable else []
        matches = sorted(map(self._absolute, matching_paths(xml, self._base)))
        paths = [match for match in matches if not match.is_dir()]
        if not paths and name is not None and self._skip_invalid:
            return [Robot(name, path)]
        if not paths:
            message = self._no_match(xml, only_folders=bool(matches))
            problems.add(f"jobs[{job_index}].xml", message)
            return []
        folder = self._absolute(_fixed_folder(xml))
        stems = Counter(path.stem for path in paths)
        robots: list[Robot] = []
        for path in paths:
            own_name = path.stem
            if stems[path.stem] > 1:
                own_name = str(path.relative_to(folder).with_suffix(""))
            if self._is_usable(path, job_index, problems):
                robots.append(Robot(own_name, path))
        return robots

    def _absolute(self, path: str) -> Path:
        # Links are kept: an MJCF's own includes and meshes are relative to where the link lies.
        return Path(os.path.normpath(self._base / path))

    def _is_usable(self, path: Path, job_index: int, problems: Problems) -> bool:
        fault = self._fault(path)
        if not fault or (self._skip_invalid and is_showable(str(path))):
            return True
        problems.add(f"jobs[{job_index}].xml", fault)
        return False

    def _no_match(self, pattern: str, *, only_folders: bool) -> str:
        folder = self._absolute(_fixed_folder(pattern))
        text = f"no file matches {quoted(pattern)} in {folder}{_about_braces(pattern)}"
        if only_folders:
            return f"{text}: only folders match"
        try:
            names = sorted(path.name for path in folder.iterdir())
        except FileNotFoundError:
            return f"{text}: the folder does not exist"
        except OSError as error:
            return f"{text}: {(error.strerror or str(error)).lower()}"
        return f"{text}, which holds {listed(names, 5) or 'nothing'}"


def _of_collection(
    collection: RobotCollection, xml: str, name: str | None, where: str, problems: Problems
) -> list[Robot]:
    try:
        found = collection.find(xml.removeprefix(collection.prefix))
    except UsageError as error:
        problems.add(where, str(error))
        return []
    return [Robot(name or found.name, found.xml)]


def matching_paths(pattern: str, base: Path) -> set[str]:
    """What ``pattern`` matches, below ``base`` if it is relative. ``**`` enters no link that leads
    back up.
    """
    # Path.glob takes neither absolute patterns nor ".." in them; glob.glob enters such links again
    # and again.
    recursive = _RECURSIVE.search(pattern)
    if recursive is None:
        return {str(base / match) for match in glob.glob(pattern, root_dir=base)}  # noqa: PTH207
    head = pattern[: recursive.start()]
    tail = pattern[recursive.end() :] or "*"
    tops = matching_paths(head, base) if head else {str(base)}
    matches: set[str] = set()
    for top in tops:
        for folder in _folders(top):
            matches |= matching_paths(tail, folder)
    return matches


def _folders(top: str) -> Iterator[Path]:
    """``top`` and all folders below it, but for hidden ones."""
    for where, inner, _ in os.walk(top, followlinks=True):
        folder = Path(where)
        inner[:] = [
            name for name in inner if name[0] != "." and not _leads_back_up(folder / name, top)
        ]
        yield folder


def _leads_back_up(folder: Path, top: str) -> bool:
    if not folder.is_symlink():
        return False
    target = folder.resolve()
    entered = (parent for parent in folder.parents if parent.is_relative_to(top))
    return any(parent.resolve().is_relative_to(target) for parent in entered)


def _about_braces(pattern: str) -> str:
    if "{" not in pattern:
        return ""
    return ": braces are no pattern; * ? and [ ] are, or write several [[jobs]] tables"


def _fixed_folder(pattern: str) -> str:
    """The part of a pattern before its first wildcard: ``../zoo/*/x.xml`` → ``../zoo``."""
    head = Path(pattern)
    while glob.has_magic(str(head)):
        head = head.parent
    return str(head)


def file_fault(path: Path) -> str:
    """Why a file cannot be read as a robot; empty when it can."""
    if not is_showable(str(path)):
        return (
            f"the file name {str(path)!a} holds characters that cannot be printed; rename the file"
        )
    try:
        if path.is_file():
            return "" if os.access(path, os.R_OK) else f"{path} cannot be read: permission denied"
        if path.is_dir():
            return (
                f'{path} is a folder; name a file in it, or all of its files: "{path.name}/*.xml"'
            )
        if path.exists():
            return f"{path} is not a regular file"
    except OSError as error:
        return f"{path} cannot be read: {(error.strerror or str(error)).lower()}"
    if path.is_symlink():
        return f"{path} is a broken symbolic link"
    return f"no such file: {path}{_about_braces(path.name) or _suggested_file(path)}"


def _suggested_file(path: Path) -> str:
    try:
        suggested = suggestion(path.name, sorted(other.name for other in path.parent.iterdir()))
    except (FileNotFoundError, NotADirectoryError):
        return f" (the folder {path.parent} does not exist)"
    except OSError:  # what is in it cannot be listed
        return ""
    return f"; did you mean {quoted(suggested)}?" if suggested else ""
