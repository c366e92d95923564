"""Features: capabilities that some runs need, each a package that the kernel does not import.

A feature is a package below :mod:`orchestrator.features`, or one that others have installed with an
entry point in the group :data:`GROUP`::

    [project.entry-points."orchestrator.features"]
    mine = "my_package"

The package has a :class:`Feature` named ``FEATURE``. It imports next to nothing itself: what a plug
point needs is imported when the program asks. The program never asks for a feature by its name. It
asks for a plug point, by :func:`asked`, and every feature that has it answers.

A feature that cannot be loaded is left out, and :func:`problems` says why: no command is broken by
a feature that it does not need.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.core.environment import FEATURES_VARIABLE, TRACE_FEATURES_VARIABLE

API = 1
"""Version of the plug points. A feature of another version is not loaded."""
GROUP = "orchestrator.features"
"""The group of the entry points of installed features; and the package of the program's own."""

Point = TypeVar("Point")


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """What a feature adds to the program: a plug point that it does not use is None."""

    name: str
    """As in messages; no two features have the same."""
    about: str
    """What it is for, in a sentence."""
    api: int = API
    """:data:`API` of the program that it was written for."""
    commands: Callable[[], Any] | None = None
    """Makes a ``typer.Typer``, whose commands become commands of the program."""
    rank: int = 100
    """Where its commands stand among those of others in ``--help``: the lowest first."""
    belongings: tuple[str, ...] = ()
    """Files and folders of the repository that belong to it, besides its folder: its tests."""


_problems: list[str] = []


def problems() -> tuple[str, ...]:
    """What is wrong with features, a sentence for each; they are left out, in whole or in part."""
    features()
    return tuple(_problems)


def note_problem(feature: str, what: str) -> None:
    """Note that a feature, or a part of it, is left out."""
    _problems.append(f"the feature {feature} {what}")


def asked(point: Callable[[Feature], Point | None], what: str) -> Iterator[tuple[Feature, Point]]:
    """The features that have a plug point, and what they have there.

    :param what: the name of the plug point, for ``ORCHESTRATOR_TRACE_FEATURES``.
    """
    is_traced = bool(os.environ.get(TRACE_FEATURES_VARIABLE))
    for feature in features():
        answer = point(feature)
        if answer is not None:
            if is_traced:
                print(f"features: {feature.name} is asked for {what}", file=sys.stderr)
            yield feature, answer


@functools.cache
def features() -> tuple[Feature, ...]:
    """All features that can be loaded: the program's own, then those that others have installed."""
    loaded: dict[str, Feature] = {}
    for name, module in (*_own_modules(), *_installed_modules()):
        try:
            feature = importlib.import_module(module).FEATURE
            problem = _problem_of(feature, loaded)
        except Exception as error:  # whatever somebody else's package raises when it is imported
            problem = f"{type(error).__name__}: {error}"
        if problem:
            note_problem(f"{name} ({module})", f"cannot be loaded: {problem}")
        else:
            loaded[feature.name] = feature
    return tuple(loaded.values())


def _problem_of(feature: Any, others: dict[str, Feature]) -> str:
    """Why it cannot be used; empty where it can."""
    if not isinstance(feature, Feature):
        return "its FEATURE is no orchestrator.core.feature.Feature"
    if feature.api != API:
        return f"it is for plug points of version {feature.api}, and this program has {API}"
    if feature.name in others:
        return f"there is a feature named {feature.name} already"
    return ""


def _own_modules() -> Iterator[tuple[str, str]]:
    """Name and module of the program's own features."""
    folder = Path(__file__).parents[1] / "features"
    for name in sorted(os.listdir(folder)) if folder.is_dir() else ():
        if (folder / name / "__init__.py").is_file():
            yield name, f"{GROUP}.{name}"


def _installed_modules() -> Iterator[tuple[str, str]]:
    """Name and module of the features that others have installed, as far as they are wanted.

    :mod:`importlib.metadata` would take as long as half of ``--help``.
    """
    chosen = os.environ.get(FEATURES_VARIABLE)
    wanted = None if chosen is None else {name.strip() for name in chosen.split(",")}
    for name, module in dict.fromkeys(_entry_points()):  # one folder may be in the path twice
        if wanted is None or name in wanted:
            yield name, module


def _entry_points() -> Iterator[tuple[str, str]]:
    for folder in sys.path:
        try:
            names = sorted(os.listdir(folder or "."))
        except OSError:  # a zip file, or a folder that is gone
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                yield from _in_group(Path(folder, name, "entry_points.txt"))


def _in_group(file: Path) -> Iterator[tuple[str, str]]:
    """The entry points of :data:`GROUP` in an ``entry_points.txt``."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):  # most packages have none
        return
    is_in_group = False
    for line in map(str.strip, lines):
        if line.startswith("["):
            is_in_group = line == f"[{GROUP}]"
        elif is_in_group and "=" in line and not line.startswith("#"):
            name, _, module = line.partition("=")
            yield name.strip(), module.partition(":")[0].strip()
