"""Which MJCF files a job means."""

from __future__ import annotations

import glob
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import Problem
from orchestrator.spec.names import is_showable
from orchestrator.spec.words import quoted, suggestion


@dataclass(frozen=True, slots=True)
class Robot:
    name: str | None
    """None where neither the user nor a file names the job."""
    xml: Path | None
    """Absolute."""


class Robots:
    """Finds files relative to ``base``; each file is looked at once, however many jobs share it."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._known: dict[str, str] = {}

    def find(self, xml: str | None, name: str | None, where: str, problems: dict[Problem, None]) -> list[Robot]:
        """The robots of one entry; empty with a problem reported at ``where`` when there are none.

        A path that names an existing file is that file, whatever its characters; otherwise ``* ? [`` make it
        a pattern, whose files are sorted by path and named by their stems. Where two files of a pattern share
        a stem (``zoo/*/scene.xml``), they are named by their path below its fixed folder, ``ant/scene``.
        """
        if xml is None:
            return [Robot(name, None)]
        if not glob.has_magic(xml) or os.path.isfile(self._base / xml):
            path = os.path.normpath(self._base / xml)
            return [Robot(name or Path(path).stem, Path(path))] if self._usable(path, where, problems) else []
        matches = sorted(path for path in glob.glob(xml, root_dir=self._base, recursive=True))
        paths = [os.path.normpath(self._base / match) for match in matches if not os.path.isdir(self._base / match)]
        if not paths:
            problems[Problem(where=where, message=self._why_no_match(xml, bool(matches)))] = None
            return []
        stems = Counter(Path(path).stem for path in paths)
        fixed = os.path.normpath(self._base / _fixed_folder(xml))
        robots = []
        for path in paths:
            stem = Path(path).stem
            named = stem if stems[stem] == 1 else os.path.splitext(os.path.relpath(path, fixed))[0]
            if not is_showable(path):
                message = f"the file name {path!a} holds characters that cannot be shown; rename the file"
                problems[Problem(where=where, message=message)] = None
            elif self._usable(path, where, problems):
                robots.append(Robot(named, Path(path)))
        return robots

    def _usable(self, path: str, where: str, problems: dict[Problem, None]) -> bool:
        if path not in self._known:
            self._known[path] = _why_not(path)
        if self._known[path]:
            problems[Problem(where=where, message=self._known[path])] = None
        return not self._known[path]

    def _why_no_match(self, pattern: str, directories: bool) -> str:
        folder = self._base / _fixed_folder(pattern)
        text = f"no file matches {quoted(pattern)} in {os.path.normpath(folder)}"
        if directories:
            return f"{text}: only directories do"
        if not folder.is_dir():
            return f"{text}: there is no such folder"
        return f"{text}, which holds {_contents(folder)}"


def _fixed_folder(pattern: str) -> str:
    """The part of a pattern before its first wildcard: ``../zoo/*/x.xml`` → ``../zoo``."""
    head = pattern
    while glob.has_magic(head):
        head = os.path.dirname(head)
    return head


def _contents(folder: Path) -> str:
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        return f"nothing that can be listed ({error.strerror})"
    if not names:
        return "nothing"
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _why_not(path: str) -> str:
    """Why a file cannot be read as a robot; empty when it can."""
    if os.path.isdir(path):
        return f'{path} is a directory; name a file in it, or all of them: "{os.path.basename(path)}/*.xml"'
    if not os.path.isfile(path):
        if os.path.lexists(path) and not os.path.exists(path):
            return f"{path} is a link to nothing"
        if os.path.exists(path):
            return f"{path} is not a regular file"
        folder, name = os.path.split(path)
        if not os.path.isdir(folder):
            return f"no such file: {path} (there is no folder {folder})"
        try:
            meant = suggestion(name, os.listdir(folder))
        except OSError:
            meant = None
        return f"no such file: {path}" + (f"; did you mean {quoted(meant)}?" if meant else "")
    if not os.access(path, os.R_OK):
        return f"{path} cannot be read: permission denied"
    return ""
