"""Where robots come from that are no MJCF file of the user: features say so.

A **format** is a kind of file, known by the end of its name. The worker's part of its feature writes
such a file as MJCF, which is then examined and trained like any. A table of jobs with the name of
the format says what its files lack; what the table means is the part of the job with that name
(:mod:`orchestrator.core.job_parts`).

One format may be MJCF itself: its module adds what such a file lacks, where the table of a job says so.

A **collection** has robots by name. Its names begin with a prefix, as in ``collection:name``.

Both are recognised by the text alone: a job file is read without opening robots.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

from orchestrator.core.decoding import Table
from orchestrator.core.feature import added

MJCF_SUFFIX = ".xml"
MJCF_ROOT = "mujoco"


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotFormat:
    """A kind of file that is made into MJCF."""

    name: str
    """Of its table of jobs, if it has one, and of their part, which a job has whose robot is such a
    file."""
    title: str
    """What people call such a file, without an article: ``"SDF"``."""
    suffix: str
    """Of the names of its files, in lower case; case does not matter there. ``.xml`` for what is added
    to an MJCF, where there are settings."""
    root: str
    """The root element of its files: one of another name is told from an MJCF by it."""
    worker: str
    """Module of the worker with ``make_robot(request, folder)``, which gives a
    :class:`orchestrator.worker.robots.converted_robot.ConvertedRobot`. It is imported only in
    processes that examine such a file."""

    made_of: Mapping[str, str] = field(default_factory=dict, hash=False)
    """End of the names of files of which such a file is made → the command, with ``{file}`` and
    ``{made}``."""
    adds_actuators: str = ""
    """How a job lets actuators be added to a file without any, as in "add them, or …"; empty: it
    does not."""


class NamedRobot(NamedTuple):
    """A robot of a collection."""

    name: str
    """Of its jobs, unless the user names them."""
    xml: Path
    """Its file, absolute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotCollection:
    """Robots that ``xml`` of a job names, and that lie somewhere on this machine."""

    name: str
    title: str
    """What one of them is, with an article: ``"a robot of our zoo"``."""
    prefix: str
    """Of ``xml``, with the colon at its end."""
    find: Callable[[str], NamedRobot]
    """The robot of a name, without the prefix. It needs no network.

    :raises UsageError: there is no such robot here; the message says what to do."""


RobotSource: TypeAlias = RobotFormat | RobotCollection


@functools.cache
def robot_sources() -> Mapping[str, RobotSource]:
    """Return all sources by name."""
    return added("robot_sources")


def robot_formats() -> tuple[RobotFormat, ...]:
    """Return the formats, without MJCF."""
    sources = robot_sources().values()
    formats = (one for one in sources if isinstance(one, RobotFormat))
    return tuple(one for one in formats if one.suffix != MJCF_SUFFIX)


def mjcf_format() -> RobotFormat | None:
    """Return what adds to an MJCF what it lacks, or None if nothing does."""
    for one in robot_sources().values():
        if isinstance(one, RobotFormat) and one.suffix == MJCF_SUFFIX:
            return one
    return None


def robot_collections() -> tuple[RobotCollection, ...]:
    return tuple(one for one in robot_sources().values() if isinstance(one, RobotCollection))


def format_of(file: str) -> RobotFormat | None:
    """Return what the file of this name, or every file of this pattern, is; None for an MJCF."""
    name = file.lower()
    return next((one for one in robot_formats() if name.endswith(one.suffix)), None)


def converter_of(file: str, settings: Table) -> RobotFormat | None:
    """Return what makes the MJCF of a file that has such settings; None: it is one, and taken as it
    is.
    """
    return format_of(file) or (mjcf_format() if settings else None)


def collection_of(xml: str) -> RobotCollection | None:
    """Return the collection that ``xml`` of a job names a robot of; None for a file or a function."""
    return next((one for one in robot_collections() if xml.startswith(one.prefix)), None)


def robot_suffixes() -> tuple[str, ...]:
    """Return the ends of the names of files that may be robots, in lower case."""
    return MJCF_SUFFIX, *(one.suffix for one in robot_formats())


def how_made(file: str) -> str | None:
    """Return how a robot is made of a file of this name, which is none; None if that is not known."""
    name = Path(file).name
    for one in robot_formats():
        for suffix, command in one.made_of.items():
            if name.lower().endswith(suffix):
                made = f"{name[: -len(suffix)].removesuffix(one.suffix)}{one.suffix}"
                text = command.format(file=name, made=made)
                return f"is no {one.title} yet, but makes one: {text}, then take {made}"
    return None
