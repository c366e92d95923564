"""Finds the robots of a job: one file, those of a pattern, or one of a collection."""

from __future__ import annotations

import glob
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.errors import UsageError
from orchestrator.core.robot_sources import RobotFormat, collection_of, format_of
from orchestrator.keys.names import is_showable
from orchestrator.keys.problems import Problems, quoted, suggestion
from orchestrator.keys.value_types import is_maker


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


def find_robots(
    xml: str | None,
    name: str | None,
    where: str,
    problems: Problems,
    *,
    base: Path,
    skip_invalid: bool = False,
) -> list[Robot]:
    """Return the robots of one entry of the job file, relative to ``base``. What is none is a problem.

    A path that names an existing file is that file, even if it holds ``* ? [``; otherwise these make
    it a pattern, whose files are sorted by path and named by their stems. Where two files of a
    pattern share a stem (``zoo/*/scene.xml``), they are named by their path below its fixed folder,
    ``ant/scene``.

    :param where: place of the key.
    :param skip_invalid: whether a file that cannot be read is no problem here: preflight finds it
        again, and its jobs are FAILED.
    """
    if xml is None:
        return [Robot(name, None)]
    if is_maker(xml):
        return [Robot(name or xml.partition(":")[2], None, xml)]
    if (collection := collection_of(xml)) is not None:
        try:
            found = collection.find(xml.removeprefix(collection.prefix))
        except UsageError as error:
            problems.add(where, str(error))
            return []
        return [Robot(name or found.name, found.xml)]
    path = _absolute(xml, base)
    robots = {path: name or path.stem}
    if glob.has_magic(xml) and not os.path.lexists(path):
        folder, paths = matching_files(xml, base)
        stems = Counter(path.stem for path in paths)
        robots = {path: path.stem for path in paths}
        for path in paths:
            if stems[path.stem] > 1:
                robots[path] = str(path.relative_to(folder).with_suffix(""))
        if not robots:
            problems.add(where, f"no file matches {quoted(xml)} in {base}")
    for path in robots:
        fault = file_fault(path)
        if fault and not (skip_invalid and is_showable(str(path))):
            problems.add(where, fault)
    return [Robot(name, path) for path, name in robots.items()]


def _absolute(path: str | Path, base: Path) -> Path:
    # Links are kept: an MJCF's own includes and meshes are relative to where the link lies.
    return Path(os.path.normpath(base / path))


def matching_files(pattern: str, base: Path) -> tuple[Path, list[Path]]:
    """Return the folder before the first wildcard of ``pattern``, and the files that match it, sorted.
    Nothing hidden matches, and ``**`` enters no links.
    """
    fixed = Path(pattern)
    while glob.has_magic(str(fixed)):
        fixed = fixed.parent
    folder = _absolute(fixed, base)
    try:
        found = sorted(folder.glob(str(Path(pattern).relative_to(fixed))))
    except ValueError:  # such as a**b
        found = []
    shown = [path for path in found if "/." not in f"/{path.relative_to(folder)}"]
    return folder, [path for path in shown if not path.is_dir()]


def file_fault(path: Path) -> str:
    """Return why a file cannot be read as a robot; empty if it can."""
    if not is_showable(str(path)):
        return f"the file name {str(path)!a} has characters that cannot be printed; rename the file"
    if os.access(path, os.R_OK) and path.is_file():
        return ""
    if os.path.lexists(path):
        return f'{path} is no file that can be read; expected one, or a pattern such as "zoo/*.xml"'
    near = suggestion(path.name, [other.name for other in path.parent.glob("*")])
    return f"no such file: {path}" + (f"; did you mean {quoted(near)}?" if near else "")
