"""Which MJCF files a job means."""

from __future__ import annotations

import glob
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.errors import Problem
from orchestrator.core.text import listed
from orchestrator.jobfile.job_names import is_showable
from orchestrator.jobfile.validation_errors import quoted, suggestion


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
        self._known: dict[Path, str] = {}

    def find(self, xml: str | None, name: str | None, where: str, problems: dict[Problem, None]) -> list[Robot]:
        """The robots of one entry; empty with a problem reported at ``where`` when there are none.

        A path that names an existing file is that file, whatever its characters; otherwise ``* ? [`` make it
        a pattern, whose files are sorted by path and named by their stems. Where two files of a pattern share
        a stem (``zoo/*/scene.xml``), they are named by their path below its fixed folder, ``ant/scene``.
        """
        if xml is None:
            return [Robot(name, None)]
        path = self._absolute(xml)
        if not glob.has_magic(xml) or self._why_not(path) == "":
            return [Robot(name or path.stem, path)] if self._is_usable(path, where, problems) else []
        # Path.glob takes neither absolute patterns nor ".." in them.
        matches = sorted(map(self._absolute, glob.glob(xml, root_dir=self._base, recursive=True)))  # noqa: PTH207
        paths = [match for match in matches if not match.is_dir()]
        if not paths:
            problems[Problem(where=where, message=self._why_no_match(xml, only_folders=bool(matches)))] = None
            return []
        folder = self._absolute(_fixed_folder(xml))
        stems = Counter(path.stem for path in paths)
        return [
            Robot(path.stem if stems[path.stem] == 1 else str(path.relative_to(folder).with_suffix("")), path)
            for path in paths
            if self._is_usable(path, where, problems)
        ]

    def _absolute(self, path: str) -> Path:
        # Links are kept: an MJCF's own includes and meshes are relative to where the link lies.
        return Path(os.path.normpath(self._base / path))

    def _is_usable(self, path: Path, where: str, problems: dict[Problem, None]) -> bool:
        why_not = self._why_not(path)
        if why_not:
            problems[Problem(where=where, message=why_not)] = None
        return not why_not

    def _why_not(self, path: Path) -> str:
        if path not in self._known:
            try:
                self._known[path] = _why_not(path)
            except OSError as error:
                self._known[path] = f"{path} cannot be read: {(error.strerror or str(error)).lower()}"
        return self._known[path]

    def _why_no_match(self, pattern: str, *, only_folders: bool) -> str:
        folder = self._absolute(_fixed_folder(pattern))
        text = f"no file matches {quoted(pattern)} in {folder}"
        if only_folders:
            return f"{text}: only folders do"
        try:
            names = sorted(path.name for path in folder.iterdir())
        except FileNotFoundError:
            return f"{text}: there is no such folder"
        except OSError as error:
            return f"{text}: {(error.strerror or str(error)).lower()}"
        return f"{text}, which holds {listed(names, 5) or 'nothing'}"


def _fixed_folder(pattern: str) -> str:
    """The part of a pattern before its first wildcard: ``../zoo/*/x.xml`` → ``../zoo``."""
    head = Path(pattern)
    while glob.has_magic(str(head)):
        head = head.parent
    return str(head)


def _why_not(path: Path) -> str:
    """Why a file cannot be read as a robot; empty when it can.

    :raises OSError: when the system does not even say what it is.
    """
    if not is_showable(str(path)):
        return f"the file name {str(path)!a} holds characters that cannot be shown; rename the file"
    if path.is_file():
        return "" if os.access(path, os.R_OK) else f"{path} cannot be read: permission denied"
    if path.is_dir():
        return f'{path} is a folder; name a file in it, or all of them: "{path.name}/*.xml"'
    if path.exists():
        return f"{path} is not a regular file"
    if path.is_symlink():
        return f"{path} is a link to nothing"
    return f"no such file: {path}{_instead_of(path)}"


def _instead_of(path: Path) -> str:
    try:
        meant = suggestion(path.name, sorted(other.name for other in path.parent.iterdir()))
    except OSError:
        return f" (there is no folder {path.parent})"
    return f"; did you mean {quoted(meant)}?" if meant else ""
