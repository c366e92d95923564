"""Groups robots into the entries of a job file: a pattern where one matches exactly these files,
otherwise a file each.

A pattern is tried as the job file will read it, so that it matches neither more nor fewer files.
"""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.jobfile.robot_globs import find_robots
from orchestrator.keys.names import is_showable
from orchestrator.keys.problems import Problems

LEAST = 3
"""Files that are worth a pattern."""
MOST_BY_NAME = 12
"""Files of a folder that get an entry each where only patterns with parts of their names would
match them."""
_SERIES = re.compile(r"(.+[-_. ])[^-_. ]+|(.+?)[0-9]+")
"""Names with a part that others of a series have in common: ``cart_heavy``, ``cart7``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotEntry:
    """One ``[[jobs]]`` table."""

    xml: str
    """The path or the pattern, relative to the folder of the job file."""
    name: str | None
    """None for a pattern: its jobs have the names of their files."""
    paths: Sequence[Path]
    """The absolute paths of its robots."""


def entries(kinds: Mapping[Path, str], base: Path, folders: Iterable[Path]) -> list[RobotEntry]:
    """Entries that hold each robot once, in the order of the robots; every job gets a name of its
    own.

    :param kinds: absolute path of each robot → what must be the same for all robots of an entry.
    :param base: folder of the job file, absolute and without links.
    :param folders: absolute paths of folders of which every file may be looked at.
    """
    left = dict(kinds)
    names = set[str]()
    made = list[RobotEntry]()
    for find in (_whole_folders, _parts_of_folders):
        for pattern in find(dict(left), base, list(folders)):
            problems = Problems()
            robots = find_robots(pattern, None, "", problems, base=base)
            if problems or len(robots) < LEAST:
                continue
            paths = [robot.xml for robot in robots if robot.xml in left]
            is_exact = len(paths) == len(robots)
            is_of_one_kind = len({left[path] for path in paths}) == 1
            own = {str(robot.name) for robot in robots}
            if not is_exact or not is_of_one_kind or own & names:
                continue
            made.append(RobotEntry(xml=pattern, name=None, paths=paths))
            names |= own
            for path in paths:
                del left[path]
    common = Path(os.path.commonpath([path.parent for path in kinds])) if kinds else base
    stems = Counter(path.stem for path in left)
    for path in left:
        name = _name(path, common, names, is_only=stems[path.stem] == 1)
        names.add(name)
        made.append(RobotEntry(xml=os.path.relpath(path, base), name=name, paths=[path]))
    order = {path: number for number, path in enumerate(kinds)}
    return sorted(made, key=lambda entry: min(order[path] for path in entry.paths))


def _name(path: Path, common: Path, taken: set[str], *, is_only: bool) -> str:
    """The stem where no other robot has it, otherwise the path below ``common``."""
    below = path.relative_to(common)
    numbered = (f"{below} {number}" for number in itertools.count(2))
    candidates = itertools.chain(
        [path.stem] if is_only else [], [str(below.with_suffix("")), str(below)], numbered
    )
    return next(
        name for name in candidates if name.strip() and is_showable(name) and name not in taken
    )


def _whole_folders(kinds: Mapping[Path, str], base: Path, folders: Sequence[Path]) -> list[str]:
    """Patterns for all files of a folder, a series of them, or the folders in it: those for most
    robots first.
    """
    counts: Counter[str] = Counter()
    of_kind: Counter[tuple[str, str]] = Counter()
    for path, kind in kinds.items():
        parent = path.parent
        every = f"*{path.suffix}"
        patterns = [_pattern(base, parent, every)]
        if series := _SERIES.fullmatch(path.stem):
            patterns.append(_pattern(base, parent, f"{glob.escape(series[1] or series[2])}{every}"))
        if any(parent.is_relative_to(folder) and parent != folder for folder in folders):
            patterns += [
                _pattern(base, parent.parent, "*", end) for end in (glob.escape(path.name), every)
            ]
        patterns += [
            _pattern(base, folder, "**", every)
            for folder in folders
            if parent.is_relative_to(folder)
        ]
        for pattern in patterns:
            of_kind[kind, pattern] += 1
    for (_kind, pattern), count in of_kind.items():
        counts[pattern] = max(count, counts[pattern])
    worth = [pattern for pattern, count in counts.items() if count >= LEAST]
    return sorted(worth, key=lambda pattern: (-counts[pattern], pattern.count("*"), pattern))


def _parts_of_folders(kinds: Mapping[Path, str], base: Path, _: Sequence[Path]) -> Iterator[str]:
    """Patterns with the beginnings of names, in folders with many robots of one kind beside other
    files.
    """
    grouped: defaultdict[tuple[str, Path], set[str]] = defaultdict(set)
    for path, kind in kinds.items():
        if path.suffix == ".xml":
            grouped[kind, path.parent].add(path.name)
    for (_kind, folder), names in grouped.items():
        if len(names) > MOST_BY_NAME:
            others = {name for name in os.listdir(folder) if name.endswith(".xml")} - names
            yield from (_pattern(base, folder, part) for part in _beginnings("", names, others))


def _beginnings(prefix: str, names: set[str], others: set[str]) -> Iterator[str]:
    """Patterns of the form ``prefix*.xml`` that together match ``names``, which begin with it, and
    none of ``others``.

    Names that only a pattern for themselves would match are left out.
    """
    if len(names) < LEAST:
        return
    if not others:
        yield f"{glob.escape(prefix)}*.xml"
        return
    by_next: defaultdict[str, set[str]] = defaultdict(set)
    for name in names:
        by_next[name[len(prefix) : len(prefix) + 1]].add(name)
    shared = {name[len(prefix) : len(prefix) + 1] for name in others}
    free = [letter for letter in sorted(by_next) if letter not in shared and letter.isalnum()]
    if len(free) > 1:
        yield f"{glob.escape(prefix)}[{''.join(free)}]*.xml"
    for letter in sorted(by_next.keys() - set(free if len(free) > 1 else ())):
        if letter:
            begins = prefix + letter
            yield from _beginnings(
                begins, by_next[letter], {name for name in others if name.startswith(begins)}
            )


def _pattern(base: Path, folder: Path, *parts: str) -> str:
    relative = os.path.relpath(folder, base)
    return os.path.join(*([] if relative == "." else [glob.escape(relative)]), *parts)  # noqa: PTH118 - no Path yet
