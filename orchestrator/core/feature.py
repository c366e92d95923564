"""Features: capabilities that some runs need, each a package that the kernel does not import.

A feature is a package below :mod:`orchestrator.features`, or one that others have installed with an
entry point in the group :data:`GROUP`::

    [project.entry-points."orchestrator.features"]
    mine = "my_package"

The package has a :class:`Feature` named ``FEATURE``. It imports next to nothing itself: what a plug
point needs is imported when the program asks. The program never asks for a feature by its name. It
asks for a plug point, by :func:`answers` or :func:`ask`, and every feature that has it answers.

A feature that cannot be loaded is left out, and :func:`problems` says why: no command is broken by
a feature that it does not need.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from orchestrator.core.errors import OrchestratorError
from orchestrator.core.processes.environment_variables import (
    FEATURES_VARIABLE,
    TRACE_FEATURES_VARIABLE,
)
from orchestrator.core.text import plain

if TYPE_CHECKING:  # each of them belongs to the package that asks
    from orchestrator.core.job_parts import JobPart
    from orchestrator.core.paths import RunPaths
    from orchestrator.core.robot_sources import RobotSource
    from orchestrator.executors.kinds import ExecutorKind
    from orchestrator.experiment.begun_source import BegunSource
    from orchestrator.experiment.beside_run import BesideRun, RunFacts
    from orchestrator.experiment.from_outside.run_watch import RunWatch
    from orchestrator.experiment.processes.policy_process import PlayRequest
    from orchestrator.keys.feature_tables import FeatureTable, JobKey, JobTable
    from orchestrator.ledger import Ledger
    from orchestrator.machine.doctor_checks import Finding
    from orchestrator.machine.topology import Machine
    from orchestrator.report.document import AddedSections, Document

API = 1
"""Version of the plug points. A feature of another version is not loaded."""
GROUP = "orchestrator.features"
"""The group of the entry points of installed features; and the package of the program's own."""
NAME = re.compile("[a-z][a-z0-9_]*")
"""Of what features add by name, such as an option or a table."""
PlugPoint = Literal[
    "commands",
    "executors",
    "job_file",
    "job_tables",
    "job_keys",
    "job_parts",
    "robot_sources",
    "beside_run",
    "begun_source",
    "watch",
    "doctor",
    "report",
    "report_sections",
    "policy_readers",
    "play_all",
    "python",
]


class Named(Protocol):
    """What a feature adds by name."""

    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=Named)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """What a feature adds to the program: a plug point that it does not use is None."""

    name: str
    """As in messages; that of the entry point, where there is one. No two features have the same."""
    about: str
    """What it is for, in a sentence."""
    api: int = API
    """:data:`API` of the program that it was written for."""
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
    job_keys: Callable[[], Iterable[JobKey]] | None = None
    """Keys of jobs and of ``[defaults]`` that are no tables, for facts of :class:`.WorkerSpec` that
    decide no result; asked for at the same time."""
    job_parts: Callable[[], Iterable[JobPart]] | None = None
    """What it adds to single trainings. Workers ask, too: what gives them imports
    :mod:`orchestrator.core` alone."""
    robot_sources: Callable[[], Iterable[RobotSource]] | None = None
    """Where robots come from that are no MJCF files: formats of files, and collections with names.
    Workers ask, too: what gives them imports :mod:`orchestrator.core` alone."""
    beside_run: Callable[[RunFacts], BesideRun | None] | None = None
    """What it has beside a run; None where the run needs nothing of it."""
    begun_source: Callable[[RunPaths, Ledger], BegunSource | None] | None = None
    """What it says of a run directory whose jobs it makes, or lets go on: of one where the job
    source of a table of its has begun (:mod:`orchestrator.jobfile.job_source`). None for others. An
    ``OrchestratorError`` refuses ``run`` and ``reload``; commands that only look go on without it."""
    watch: Callable[[RunPaths], RunWatch | None] | None = None
    """What ``run``, ``attach``, ``status`` and pages say of a run directory besides its jobs; None
    where that is nothing so far: it is asked again."""
    doctor: Callable[[Machine], Iterable[Finding]] | None = None
    """What ``doctor`` says of a machine for it."""
    report: Callable[[Path], Callable[[], Document] | None] | None = None
    """Makes the report of a run directory that is no experiment's; None for those of others. What
    other features add stands after its first section, which says what it is about, and before its
    last one, which is about the machine. An ``OrchestratorError`` of it is shown in place of the
    report."""
    report_sections: Callable[[Path, Sequence[Path]], AddedSections | None] | None = None
    """What the report of a run directory has of it; None where that is nothing. The second argument
    are run directories that the report was asked to compare with it: where there are some, an
    ``OrchestratorError`` is shown in place of the report. A ``LedgerError`` always is."""
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
    belongings: tuple[str, ...] = ()
    """Of the program's own features only, for ``.ci/without-a-feature``: what of the repository
    belongs to it besides its folder. That is its tests, job files, benchmarks, and pages of
    ``docs/`` that no other page needs."""
    extras: tuple[str, ...] = ()
    """Likewise: extras of ``pyproject.toml`` with packages that it alone needs."""


_problems: dict[tuple[str, str], str] = {}
"""By the feature, and what is left out: one that fails often, each time otherwise, is one problem."""
_told: set[str] = set()
"""Those that :func:`untold_problems` has given."""
_owners: dict[tuple[PlugPoint, str], str] = {}
"""The features of what :func:`add_named` has added."""


def problems() -> tuple[str, ...]:
    """What is wrong with features, a line for each; they are left out, in whole or in part."""
    features()
    return tuple(_problems.values())


def untold_problems() -> Iterator[str]:
    """Those of :func:`problems` that this has not given before."""
    for problem in problems():
        if problem not in _told:
            _told.add(problem)
            yield problem


def note_problem(feature: str, what: str, why: str = "") -> None:
    """Note that a feature, or a part of it, is left out; ``why``, for the first time that it is."""
    text = f"{what}: {why}" if why else what
    cure = f"correct or uninstall it, or leave it out of {FEATURES_VARIABLE}"
    problem = plain(" ".join(f"the feature {feature} {text}; {cure}".split()))
    _problems.setdefault((feature, what), problem)


@contextlib.contextmanager
def problems_of(
    feature: str, what: str, *, passing: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """In the block, code of a feature runs: what it prints goes to standard error, and an error, or
    that it exits, is noted.

    In other threads than the main one, prints are left alone: all threads have one standard output.

    :param what: what is left out then, such as "adds no command".
    :param passing: errors that are raised here, and not noted: they are for the user, or for who
        asks.
    """
    prints: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if threading.current_thread() is threading.main_thread():
        prints = contextlib.redirect_stdout(sys.stderr)
    try:
        with prints:
            yield
    except passing:
        raise
    except (Exception, SystemExit) as error:
        if is_traced():
            traceback.print_exc()
        note_problem(feature, what, f"{type(error).__name__}: {error}")


@functools.cache
def features() -> tuple[Feature, ...]:
    """All features that can be loaded: the program's own, then those that others have installed."""
    loaded: dict[str, Feature] = {}
    for name, module in (*_own_modules(), *_installed_modules()):
        with problems_of(f"{name} ({module})", "cannot be loaded"):
            feature = importlib.import_module(module).FEATURE
            if problem := _problem_of(feature, name, loaded):
                note_problem(f"{name} ({module})", f"cannot be loaded: {problem}")
            else:
                loaded[name] = feature
    return tuple(loaded.values())


def is_own(feature: Feature) -> bool:
    """Whether it is one of the program's, and not of an installed package."""
    return feature.name in dict(_own_modules())


def having(point: PlugPoint) -> Iterator[Feature]:
    """The features that have a plug point."""
    return (feature for feature in features() if getattr(feature, point) is not None)


def answers(point: PlugPoint, *arguments: Any) -> Iterator[tuple[Feature, Any]]:
    """The features that have a plug point, and what they give there; one that fails is left out.

    :param arguments: those of the plug point.
    """
    for feature in having(point):
        given = None
        with problems_of(feature.name, f"adds no {point}"):
            given = ask(feature, point, *arguments)
        if given is not None:
            yield feature, given


def ask(feature: Feature, point: PlugPoint, *arguments: Any) -> Any:
    """What one feature gives at a plug point; None where it does not have it. To be called in
    :func:`problems_of`: whatever the feature raises is passed on.
    """
    plug = getattr(feature, point)
    if plug is None:
        return None
    if is_traced():
        print(f"features: {feature.name} is asked for {point}", file=sys.stderr)
    given = plug(*arguments)
    return tuple(given) if isinstance(given, Iterator) else given


def add_named(
    found: dict[str, N],
    point: PlugPoint,
    what: str,
    shown: str,
    problem_of: Callable[[N, dict[str, N]], str],
    read: Callable[[Feature, Any], Iterable[N]] = lambda _, given: given,
) -> None:
    """Add to ``found`` what features give at a plug point, by name; what cannot be used is left
    out.

    :param what: one of them, for messages: ``"table"``.
    :param shown: the same with its name in place of ``{}``: ``"table [{}]"``.
    :param problem_of: why one cannot be used beside those that are found; empty where it can.
    :param read: makes them of what a feature gives.
    """
    for feature, given in answers(point):
        with problems_of(feature.name, f"adds no {what}"):
            for one in read(feature, given):
                if problem := problem_of(one, found):
                    note_problem(feature.name, f"adds no {shown.format(one.name)}: {problem}")
                else:
                    found[one.name] = one
                    _owners[point, one.name] = feature.name


def owner(point: PlugPoint, name: str) -> str:
    """The feature that has added what has this name at a plug point, for messages; ``of NAME``
    where that is not known.
    """
    return _owners.get((point, name), f"of {name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureModule:
    """A module of a feature, imported when something in it is first used."""

    name: str
    """What the feature names it for."""
    module: str
    feature: str

    def load(self, name: str) -> Any:
        """What is called ``name`` in it.

        :raises ImportError: it cannot be imported, or has no such name; the message names the
            feature.
        :raises OrchestratorError: it says so itself, for example that it needs an extra.
        """
        try:
            return getattr(importlib.import_module(self.module), name)
        except OrchestratorError:
            raise
        except (Exception, SystemExit) as error:
            what = f"the feature {self.feature} cannot load {name} of {self.module}"
            raise ImportError(f"{what}: {type(error).__name__}: {error}") from error


def named_modules(
    point: PlugPoint,
    what: str,
    shown: str,
    problem_of: Callable[[FeatureModule, dict[str, FeatureModule]], str],
) -> dict[str, FeatureModule]:
    """What features give at a plug point that is a mapping of names to modules, by name; what cannot
    be used is left out.

    Parameters are those of :func:`add_named`.
    """
    found: dict[str, FeatureModule] = {}
    add_named(found, point, what, shown, problem_of, _modules)
    return found


def _modules(feature: Feature, given: Mapping[str, str]) -> Iterator[FeatureModule]:
    for name, module in given.items():
        yield FeatureModule(name=name, module=module, feature=feature.name)


def is_traced() -> bool:
    """Whether tracebacks of errors in features are printed."""
    return bool(os.environ.get(TRACE_FEATURES_VARIABLE))


def _problem_of(feature: Any, name: str, others: dict[str, Feature]) -> str:
    """Why it cannot be used; empty where it can."""
    if not isinstance(feature, Feature):
        return "its FEATURE is no orchestrator.core.feature.Feature"
    if feature.api != API:
        return f"it is for plug points of version {feature.api}, and this program has {API}"
    if feature.name != name:
        return f"its FEATURE has the name {feature.name}; expected that of its entry point"
    if name in others:
        return "there is a feature of this name already"
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
    wanted = {name.strip() for name in (chosen or "").split(",")} - {""}
    if chosen is not None and not wanted:
        return
    installed: dict[str, str] = {}
    for name, module in _entry_points():
        installed.setdefault(name, module)  # as an import, the first one in the path counts
    for name in sorted(wanted - installed.keys()):
        note_problem(name, f"is not installed, and {FEATURES_VARIABLE} names it")
    for name, module in installed.items():
        if chosen is None or name in wanted:
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
