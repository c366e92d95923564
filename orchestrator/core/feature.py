"""Features: capabilities that some runs need, each a package that the kernel does not import.

A feature is a package below :mod:`orchestrator.features`, or one that others have installed with an
entry point in the group :data:`GROUP`::

    [project.entry-points."orchestrator.features"]
    mine = "my_package"

The package has a :class:`Feature` named ``FEATURE``. It imports next to nothing itself: what a plug
point needs is imported when the program asks. The program never asks for a feature by its name. It
asks for a plug point, by :func:`answers`, and every feature that has it answers.

What a feature raises is raised to whoever asks.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.core.errors import UsageError
from orchestrator.core.processes.environment_variables import FEATURES_VARIABLE

if TYPE_CHECKING:  # each of them belongs to the package that asks
    from orchestrator.client.run_watch import RunWatch
    from orchestrator.core.job_parts import JobPart
    from orchestrator.core.paths import RunPaths
    from orchestrator.core.robot_sources import RobotSource
    from orchestrator.executors.kinds import ExecutorKind
    from orchestrator.experiment.begun_source import BegunSource
    from orchestrator.experiment.policy_process import PlayRequest
    from orchestrator.keys.feature_tables import FeatureTable, JobTable
    from orchestrator.ledger import Ledger
    from orchestrator.machine.doctor import Finding
    from orchestrator.machine.topology import Machine
    from orchestrator.report.document import Section
    from orchestrator.server.companions import Companion, RunFacts

GROUP = "orchestrator.features"
"""The group of the entry points of installed features; and the package of the program's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """What a feature adds to the program: a plug point that it does not use is None."""

    name: str
    """As in messages; that of the entry point, where there is one. No two features have the same."""
    about: str
    """What it is for, in a sentence."""
    commands: Callable[[], Any] | None = None
    """A ``typer.Typer``, whose commands, and groups of commands, become those of the program."""
    rank: int = 100
    """Where its commands stand among those of others in ``--help``: the lowest first."""
    executors: Callable[[], Iterable[ExecutorKind]] | None = None
    """What ``--executor`` can name."""
    job_file: Callable[[], Iterable[FeatureTable]] | None = None
    """Further tables at the top of a job file. They are asked for while :mod:`orchestrator.jobfile` is
    imported: nothing that gives them imports that. One of them may decide which jobs there are."""
    job_tables: Callable[[], Iterable[JobTable]] | None = None
    """Further tables of jobs and of ``[defaults]``, each with a part of jobs of the same name; asked
    for at the same time."""
    job_parts: Callable[[], Iterable[JobPart]] | None = None
    """What it adds to single trainings. Workers ask, too: what gives them imports
    :mod:`orchestrator.core` alone."""
    robot_sources: Callable[[], Iterable[RobotSource]] | None = None
    """Where robots come from that are no MJCF files: formats of files, and collections with names.
    Workers ask, too: what gives them imports :mod:`orchestrator.core` alone."""
    companions: Callable[[RunFacts], Iterable[Companion]] | None = None
    """Processes that the supervisor starts beside a run, watches, restarts and ends."""
    begun_source: Callable[[RunPaths, Ledger], BegunSource | None] | None = None
    """What it says of a run directory whose jobs it makes, or lets go on: of one where the job
    source of a table of its has begun (:mod:`orchestrator.jobfile.job_source`). None for others."""
    watch: Callable[[RunPaths], RunWatch | None] | None = None
    """What ``run``, ``attach``, ``status`` and pages say of a run directory besides its jobs; None
    where that is nothing so far: it is asked again."""
    doctor: Callable[[Machine], Iterable[Finding]] | None = None
    """What ``doctor`` says of a machine for it."""
    report_sections: Callable[[Path], Iterable[Section] | None] | None = None
    """What the report of a run directory has of it: a directory that is no experiment has these
    sections alone. An ``OrchestratorError`` is shown in place of the report."""
    policy_readers: Callable[[], Mapping[str, str]] | None = None
    """Modules that read policies from files, by the ends of the names of these files, such as
    ``".onnx"``: ``read(path)`` gives a ``ReadPolicy`` of
    :mod:`orchestrator.worker.training.trained_policy`, which ``play --policy`` plays, or raises a
    ``UsageError`` that says what is wrong with the file."""
    play_all: Callable[[Path, PlayRequest, bool, Callable[[str], object]], list[Path]] | None = None
    """Shows the policies of all robots of a run directory together, for ``play --all``: writes files,
    and returns them. The third argument is whether there is to be an animated GIF as well; the last
    one takes messages. Whatever it raises ends the command. The first feature that has it is asked."""
    python: Callable[[], Mapping[str, str]] | None = None
    """Further names of ``import orchestrator``, and the modules that define them, which are
    imported when a name is first used."""


@functools.cache
def features() -> tuple[Feature, ...]:
    """Load all features: the program's own, then those that others have installed."""
    modules = (*_own_modules(), *_installed_modules())
    return tuple(importlib.import_module(module).FEATURE for module in modules)


def answers(point: str, *arguments: Any) -> Iterator[tuple[Feature, Any]]:
    """Yield each feature that has a plug point, with what it gives there, unless that is None."""
    for feature in features():
        plug = getattr(feature, point)
        given = None if plug is None else plug(*arguments)
        if given is not None:
            yield feature, given


def added(point: str) -> dict[str, Any]:
    """Return what features give at a plug point, by name."""
    return {one.name: one for _, given in answers(point) for one in given}


def named_modules(point: str) -> dict[str, str]:
    """Return what features give at a plug point that is a mapping of names to modules."""
    return {name: module for _, given in answers(point) for name, module in given.items()}


def _own_modules() -> Iterator[str]:
    """Yield the modules of the program's own features."""
    folder = Path(__file__).parents[1] / "features"
    for name in sorted(os.listdir(folder)) if folder.is_dir() else ():
        if (folder / name / "__init__.py").is_file():
            yield f"{GROUP}.{name}"


def _installed_modules() -> Iterator[str]:
    """Yield the modules of the features that others have installed, as far as they are wanted.

    :mod:`importlib.metadata` would take as long as half of ``--help``.

    :raises UsageError: one that is wanted is not installed.
    """
    chosen = os.environ.get(FEATURES_VARIABLE)
    wanted = None if chosen is None else {name.strip() for name in chosen.split(",")} - {""}
    if wanted == set():
        return
    installed: dict[str, str] = {}
    for folder in sys.path:
        for file in sorted(Path(folder or ".").glob("*.*-info/entry_points.txt")):
            # As an import, the first one in the path counts.
            installed = _entry_points(file) | installed
    if missing := sorted((wanted or set()) - installed.keys()):
        raise UsageError(f"{FEATURES_VARIABLE}: the feature {missing[0]} is not installed")
    for name, module in installed.items():
        if wanted is None or name in wanted:
            yield module


def _entry_points(file: Path) -> dict[str, str]:
    """Return the entry points of :data:`GROUP` of a package, by name."""
    text = file.read_text(encoding="utf-8", errors="replace")
    _, _, group = text.partition(f"[{GROUP}]\n")
    lines = (line.partition("=") for line in group.partition("\n[")[0].splitlines())
    return {name.strip(): module.strip() for name, sign, module in lines if sign}
