"""``check``: examines robots and job files, and reports what can be trained, how fast, and what is
wrong.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from orchestrator.core.errors import SpecError, UsageError
from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest, RobotSetting
from orchestrator.core.paths import RunPaths
from orchestrator.core.robot_sources import format_of, how_made, mjcf_format, robot_suffixes
from orchestrator.core.text import alternatives, count, storable
from orchestrator.examination import side_by_side
from orchestrator.examination.examination_requests import requests_of
from orchestrator.experiment.run_directory import is_run_directory
from orchestrator.machine import topology

CheckVerdict: TypeAlias = Literal["ok", "warning", "error", "fragment"]

SIMULATE_S = 0.4
TIME_LIMIT_S = 30.0
FIGURES = (
    "nq",
    "nv",
    "nu",
    "nbody",
    "ngeom",
    "root",
    "actuators",
    "mass_kg",
    "timestep_s",
    "steps_per_s",
    "control_period_s",
    "episode_steps",
)
"""Keys of a model's summary; see ``orchestrator/worker/robots/model_examination.py`` and
docs/check.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotCheck:
    """The result for one file, or for one pair of robot and task of a job file."""

    path: str
    verdict: CheckVerdict
    messages: Sequence[str] = ()
    """Problems, warnings and notes, the most severe first."""
    job: str | None = None
    """The first job that trains this robot on this task; None for a file that is checked alone."""
    where: str | None = None
    hash: str | None = None
    """SHA-256 over the MJCF and every file that it refers to; equal for copies under another
    name."""
    task: str | None = None
    task_reason: str | None = None
    """Why the task was chosen, or why none was."""
    included_by: str | None = None
    """The first examined file that includes this one; None also where both include each other."""
    outside: str | None = None
    """Which file lies outside of the folders of the robot and of the job file, so that a job needs
    ``allow_outside``; None for a job's robot."""
    chosen_settings: Sequence[RobotSetting] = ()
    """What a job of it has to set in the table of its format."""
    figures: Mapping[str, Any]

    def facts(self) -> dict[str, Any]:
        """The result as one flat object; unknown figures are None."""
        own = {
            name: getattr(self, name)
            for name in ("path", "verdict", "job", "where", "hash", "task", "task_reason")
        }
        figures = {name: _json_figure(self.figures.get(name)) for name in FIGURES}
        return {**own, "messages": list(self.messages), **figures}


def _json_figure(figure: Any) -> Any:
    """``figure``; None for NaN and infinite numbers, which JSON does not have."""
    is_unfit = isinstance(figure, float) and not math.isfinite(figure)
    return None if is_unfit else figure


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    """One thing to examine."""

    path: str
    request: ExaminationRequest
    is_named: bool = True
    job: str | None = None
    where: str | None = None
    """Job file and position in it; None for a file that is checked alone."""
    may_be_invalid: bool = False
    """An example of the jobs that a run would make: others may be valid."""


@dataclass(frozen=True, slots=True)
class _OfFiles:
    """What is given for files that no job file names: arguments of :func:`check`."""

    settings: Mapping[str, Mapping[str, Any]]
    job_folder: str


def check(
    paths: Sequence[Path],
    *,
    time_limit_s: float = TIME_LIMIT_S,
    watch: side_by_side.Watch = lambda *_: None,
    robot_settings: Mapping[str, Mapping[str, Any]] | None = None,
    job_folder: Path | None = None,
) -> list[RobotCheck]:
    """Examine files, all that may be robots by their names below folders, and the robots and tasks
    of job files.

    :param robot_settings: of files that no job file names, by the name of their format.
    :param job_folder: of a job file that will name them; None: the current directory.
    :raises UsageError: a path that does not exist, or a folder without such a file.
    """
    of_files = _OfFiles(robot_settings or {}, str(job_folder or Path.cwd()))
    items = list(_items(paths, time_limit_s, of_files))
    examined = [item for item in items if isinstance(item, _Item)]
    requests = [item.request for item in examined]
    processes = topology.detect().capacity
    answers = side_by_side.ask(
        requests, processes=processes, time_limit_s=time_limit_s, watch=watch
    )
    includers = _includers(zip(examined, answers, strict=True))
    first_with: dict[str, str] = {}
    answers_in_order = iter(answers)
    checks: list[RobotCheck] = []
    for item in items:
        if isinstance(item, RobotCheck):
            checks.append(item)
        else:
            answer = next(answers_in_order)
            checks.append(_check_of_answer(item, answer, includers, first_with))
    return checks


def exit_code(rows: Sequence[RobotCheck]) -> int:
    return int(any(row.verdict == "error" for row in rows))


def _items(
    paths: Sequence[Path],
    time_limit_s: float,
    of_files: _OfFiles,
) -> Iterator[_Item | RobotCheck]:
    """What to examine, and what is a result already."""
    seen: set[str] = set()
    for path in paths:
        if not os.path.lexists(path):
            raise UsageError(
                f"{path}: no such file or folder; expected a job file, an MJCF, or a folder of them"
            )
        if path.suffix == ".toml" and not path.is_dir():
            yield from _of_job_file(path, time_limit_s)
            continue
        is_folder = path.is_dir()
        below = _below(path, of_files) if is_folder else [_file(str(path), of_files)]
        items = list(below)
        if not items:
            raise UsageError(f"{path}: {_no_robots(path)}")
        for item in items:
            if (absolute := str(Path(item.path).absolute())) not in seen:
                seen.add(absolute)
                yield item


def _file(path: str, of_files: _OfFiles, *, folder: Path | None = None) -> _Item:
    """:param folder: of the user, in which it was found; None: the user names the file."""
    robot_format = format_of(path) or mjcf_format()
    given = {} if robot_format is None else of_files.settings.get(robot_format.name, {})
    request = ExaminationRequest(
        xml=str(Path(path).absolute()),
        robot_settings=given,
        alone=True,
        job_folder=of_files.job_folder,
        user_folders=() if folder is None else (str(folder.absolute()),),
        simulate_s=SIMULATE_S,
    )
    return _Item(path=path, request=request, is_named=folder is None)


def _below(folder: Path, of_files: _OfFiles) -> Iterator[_Item | RobotCheck]:
    unreadable: list[OSError] = []
    for path in robot_files(folder, unreadable.append):
        yield _file(path, of_files, folder=folder)
    for error in unreadable:
        messages = (f"cannot be read: {error.strerror}",)
        yield RobotCheck(path=str(error.filename), verdict="error", messages=messages, figures={})


def robot_files(
    folder: Path,
    report: Callable[[OSError], object] = lambda _: None,
    *,
    most_folders: int | None = None,
) -> Iterator[str]:
    """Every file below ``folder`` that may be a robot by its name (``*.xml``, and the formats of
    features), except in hidden folders and run directories, which hold copies.

    Links are followed; no folder is visited twice.

    :param report: called with the error of a folder that cannot be read.
    :param most_folders: how many folders are looked into; None: all.
    """
    suffixes = robot_suffixes()
    for path in _files(folder, report, most_folders=most_folders):
        if path.lower().endswith(suffixes):
            yield path


def _files(
    folder: Path,
    report: Callable[[OSError], object] = lambda _: None,
    *,
    most_folders: int | None = None,
) -> Iterator[str]:
    """Every file below ``folder`` but for those that :func:`robot_files` leaves out."""
    entered = {os.path.realpath(folder)}
    walk = os.walk(folder, followlinks=True, onerror=report)
    for where, folders, files in itertools.islice(walk, most_folders):
        inner = {name: os.path.realpath(Path(where, name)) for name in sorted(folders)}
        unseen = [name for name, real in inner.items() if name[0] != "." and real not in entered]
        folders[:] = [name for name in unseen if not _is_run_directory(Path(where, name))]
        entered.update(inner[name] for name in folders)
        for name in sorted(files):
            yield str(Path(where, name))


def _no_robots(folder: Path) -> str:
    """Why there is nothing to examine below ``folder``, and what makes robots of what lies there."""
    names = alternatives(f"*{suffix}" for suffix in robot_suffixes())
    text = f"no {names} in this folder or below it"
    sources = [path for path in _files(folder) if how_made(path) is not None]
    if not sources:
        return text
    # Of parts and a whole, the latter has the name of what is made of it.
    whole = [path for path in sources if format_of(Path(path).stem) is not None]
    first = (whole or sources)[0]
    return f"{text}, but {count(len(sources), 'file')} of which one is made. {first}: {how_made(first)}"


def _is_run_directory(folder: Path) -> bool:
    try:
        return is_run_directory(RunPaths(folder))
    except OSError:  # that it cannot be read is reported when it is entered
        return False


def _of_job_file(path: Path, time_limit_s: float) -> Iterator[_Item | RobotCheck]:
    from orchestrator.jobfile import load

    try:
        experiment = load(path)
    except SpecError as error:
        yield RobotCheck(
            path=str(path), verdict="error", messages=tuple(map(str, error.problems)), figures={}
        )
        return
    if experiment.warnings:
        yield RobotCheck(
            path=str(path), verdict="warning", messages=tuple(experiment.warnings), figures={}
        )
    if (source := experiment.job_source) is not None:
        found = source.examine(experiment, time_limit_s=time_limit_s, turn=lambda: None)
        if found.problem is not None:
            text = str(found.problem)
            yield RobotCheck(path=str(path), verdict="error", messages=(text,), figures={})
        if found.warnings:
            yield RobotCheck(
                path=str(path), verdict="warning", messages=tuple(found.warnings), figures={}
            )
        if lines := source.lines(experiment):
            yield RobotCheck(path=str(path), verdict="ok", messages=tuple(lines), figures={})
    declared = experiment.jobs_to_examine
    for request, job in requests_of(declared)[0].values():
        named = request.robot or str(path)
        if request.xml is not None:
            named = os.path.relpath(request.xml)
        may_be_invalid = experiment.makes_jobs and job is not declared[0]
        where = f"{path}: {job.where}"
        yield _Item(
            path=named, request=request, job=job.job_id, where=where, may_be_invalid=may_be_invalid
        )


def _includers(examined: Iterable[tuple[_Item, ExaminationAnswer]]) -> dict[str, str]:
    """Real path of an included file → the first file that includes it, of those that are checked
    alone; without cycles.
    """
    paths: dict[str, str] = {}
    included_by: dict[str, Sequence[str]] = {}
    for item, answer in examined:
        if item.where is None:
            real = os.path.realpath(item.path)
            paths[real] = item.path
            included_by[real] = answer.includes
    includers: dict[str, str] = {}
    for real, included in included_by.items():
        for part in included:
            if real not in _reachable_from(part, included_by):
                includers.setdefault(part, paths[real])
    return includers


def _reachable_from(file: str, included_by: Mapping[str, Sequence[str]]) -> set[str]:
    """``file``, what it includes, and what that includes."""
    reachable = {file}
    waiting = [file]
    while waiting:
        for inner in included_by.get(waiting.pop(), ()):
            if inner not in reachable:
                reachable.add(inner)
                waiting.append(inner)
    return reachable


def _check_of_answer(
    item: _Item, answer: ExaminationAnswer, includers: Mapping[str, str], first_with: dict[str, str]
) -> RobotCheck:
    """:param first_with: hash → the first file that has it; this function adds to it."""
    includer = includers.get(os.path.realpath(item.path)) if item.where is None else None
    fragment = _why_fragment(item, answer, includer)
    if fragment is not None:
        return RobotCheck(path=item.path, verdict="fragment", messages=(fragment,), figures={})
    notes = list(answer.notes)
    if item.where is None and answer.hash is not None:
        first = first_with.setdefault(answer.hash, item.path)
        if first != item.path:
            notes.append(f"the same robot as {first}")
    problem: list[str] = []
    if answer.problem is not None:
        path = storable(item.request.robot or item.path)  # which the row shows already
        text = answer.problem.removeprefix(f"{path}: ").removeprefix(f"{path}, ")
        problem = [f"{text}; give a larger --time-limit" if answer.is_late else text]
    verdict: CheckVerdict = "ok"
    if problem and not item.may_be_invalid:
        verdict = "error"
    elif problem or answer.warnings:
        verdict = "warning"
    return RobotCheck(
        path=item.path,
        verdict=verdict,
        messages=(*problem, *answer.warnings, *notes),
        job=item.job,
        where=item.where,
        hash=answer.hash,
        task=answer.task,
        task_reason=answer.task_reason,
        included_by=includer,
        outside=answer.outside,
        chosen_settings=answer.chosen_settings,
        figures=answer.figures,
    )


def _why_fragment(item: _Item, answer: ExaminationAnswer, includer: str | None) -> str | None:
    """Why a file is not a robot, but a part of one or no MJCF; None where it is to be judged as one:
    also where the user names it, and it has a problem.
    """
    if answer.problem is not None and includer is not None:
        return f"a part of {includer}, not a robot by itself"
    if answer.problem is not None and item.is_named:
        return None
    return answer.fragment
