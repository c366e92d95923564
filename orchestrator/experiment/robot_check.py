"""``check``: which of these robots can be trained, how fast they run, and what is wrong with the others."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from orchestrator.core.errors import SpecError, UsageError
from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest
from orchestrator.experiment import preflight
from orchestrator.experiment.preflight import requests_of
from orchestrator.machine import topology

CheckVerdict: TypeAlias = Literal["ok", "warning", "error", "fragment"]

SIMULATE_S = 0.4
"""CPU seconds that trying out one robot's physics may take."""
TIME_LIMIT_S = 30.0
"""For one robot, everything included."""
FIGURES = (
    *("nq", "nv", "nu", "na", "nbody", "ngeom", "nmesh", "root", "actuators", "keyframes", "sensors", "cameras"),
    *("mass_kg", "timestep_s", "integrator", "steps_per_s", "model_mib", "data_mib", "bytes_per_env"),
)
"""Of every model; see ``orchestrator/worker/robots/model_summary.py`` and docs/check.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotCheck:
    """What became of one file, or of one robot-and-task of a job file."""

    path: str
    """As it was given or found."""
    verdict: CheckVerdict
    messages: Sequence[str] = ()
    """The worst first."""
    job: str | None = None
    """The first job that trains this robot on this task; None for a file checked for its own sake."""
    where: str | None = None
    """Its place in the job file."""
    hash: str | None = None
    """SHA-256 over the MJCF and everything it pulls in; the same for copies under another name."""
    task: str | None = None
    task_reason: str | None = None
    """Why this task was chosen; None where the job file names it."""
    figures: Mapping[str, Any]

    def facts(self) -> dict[str, Any]:
        """One flat object; a figure that is not known is None."""
        own = {name: getattr(self, name) for name in ("path", "verdict", "job", "where", "hash", "task", "task_reason")}
        return {**own, "messages": list(self.messages), **{name: _finite(self.figures.get(name)) for name in FIGURES}}


def _finite(figure: Any) -> Any:
    """JSON has no other numbers."""
    return None if isinstance(figure, float) and not math.isfinite(figure) else figure


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    """One thing to be examined; without a request its answer is known already."""

    path: str
    request: ExaminationRequest | None
    found: bool = False
    """In a folder, rather than named by the user."""
    job: str | None = None
    where: str | None = None
    """Job file and place in it; None for a file checked for its own sake."""
    problems: Sequence[str] = ()


def check(
    paths: Sequence[Path],
    *,
    time_limit_s: float = TIME_LIMIT_S,
    told: Callable[[int, int], None] = lambda *_: None,
    stop: Callable[[], None] = lambda: None,
) -> list[RobotCheck]:
    """Examine files, all ``*.xml`` below folders, and the robots and tasks of job files.

    :param told: called with the numbers of robots examined and to be examined.
    :param stop: called again and again meanwhile; what it raises ends the examination.
    :raises UsageError: a path that does not exist, or a folder without any ``*.xml``.
    """
    items = list(_items(paths))
    asked = [item for item in items if item.request is not None]
    answers = preflight.ask(
        [item.request for item in asked if item.request is not None],
        at_once=topology.detect().capacity,
        time_limit_s=time_limit_s,
        check=stop,
        on_answer=lambda count: told(count, len(asked)),
    )
    answered = dict(zip(map(id, asked), answers, strict=True))
    includers = _includers((item, answer) for item, answer in zip(asked, answers, strict=True) if item.where is None)
    twins: dict[str, str] = {}
    return [_checked(item, answered.get(id(item)), includers, twins) for item in items]


def exit_code(rows: Sequence[RobotCheck]) -> int:
    return int(any(row.verdict == "error" for row in rows))


def _items(paths: Sequence[Path]) -> Iterator[_Item]:
    seen: set[str] = set()
    for path in paths:
        if not os.path.lexists(path):
            raise UsageError(f"{path}: no such file or folder; expected a job file, an MJCF, or a folder of them")
        if path.is_dir():
            found = list(_below(path))
            if not found:
                raise UsageError(f"{path}: no *.xml in it or below")
            items = found
        else:
            items = list(_of_job_file(path)) if path.suffix == ".toml" else [_file(str(path), found=False)]
        for item in items:
            if item.where is None:
                absolute = str(Path(item.path).absolute())
                if absolute in seen:
                    continue
                seen.add(absolute)
            yield item


def _file(path: str, *, found: bool) -> _Item:
    request = ExaminationRequest(xml=str(Path(path).absolute()), alone=True, simulate_s=SIMULATE_S)
    return _Item(path=path, request=request, found=found)


def _below(folder: Path) -> Iterator[_Item]:
    """Every ``*.xml`` below ``folder``, hidden folders left out; links are followed, each real folder entered once."""
    unreadable: list[OSError] = []
    entered = {os.path.realpath(folder)}
    for where, folders, files in os.walk(folder, followlinks=True, onerror=unreadable.append):
        inner = {name: os.path.realpath(Path(where, name)) for name in sorted(folders)}
        folders[:] = [name for name, real in inner.items() if name[0] != "." and real not in entered]
        entered.update(inner[name] for name in folders)
        for name in sorted(files):
            if name.lower().endswith(".xml"):
                yield _file(str(Path(where, name)), found=True)
    for error in unreadable:
        yield _Item(path=str(error.filename), request=None, problems=(f"cannot be read: {error.strerror}",))


def _of_job_file(path: Path) -> Iterator[_Item]:
    from orchestrator.jobfile import load

    try:
        jobs = load(path).jobs
    except SpecError as error:
        yield _Item(
            path=str(path), request=None, where=str(path), problems=[str(problem) for problem in error.problems]
        )
        return
    for request, job in requests_of(jobs)[0].values():
        named = str(path) if request.xml is None else os.path.relpath(request.xml)
        yield _Item(path=named, request=request, job=job.job_id, where=f"{path}: {job.where}")


def _includers(examined: Iterable[tuple[_Item, ExaminationAnswer]]) -> dict[str, str]:
    """Real path of an included file → who includes it, cycles aside."""
    path_of: dict[str, str] = {}
    parts: dict[str, Sequence[str]] = {}
    for item, answer in examined:
        real = os.path.realpath(item.path)
        path_of[real], parts[real] = item.path, answer.includes
    found: dict[str, str] = {}
    for real, included in parts.items():
        for part in included:
            if real not in _reachable(part, parts):
                found.setdefault(part, path_of[real])
    return found


def _reachable(start: str, parts: Mapping[str, Sequence[str]]) -> set[str]:
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        here = waiting.pop()
        if here not in reached:
            reached.add(here)
            waiting += parts.get(here, ())
    return reached


def _checked(
    item: _Item, answer: ExaminationAnswer | None, includers: Mapping[str, str], twins: dict[str, str]
) -> RobotCheck:
    """:param twins: hash → the first file that has it; added to."""
    if answer is None:
        return RobotCheck(path=item.path, verdict="error", messages=tuple(item.problems), figures={})
    fragment = answer.fragment if item.found or answer.problem is None else None
    if item.where is None and answer.problem is not None and (includer := includers.get(os.path.realpath(item.path))):
        fragment = f"a part of {includer}, no robot of its own"
    if fragment is not None:
        return RobotCheck(path=item.path, verdict="fragment", messages=(fragment,), figures={})
    notes = list(answer.notes)
    if item.where is None and answer.hash is not None:
        twin = twins.setdefault(answer.hash, item.path)
        notes += [f"the same robot as {twin}"] if twin != item.path else []
    problem = [] if answer.problem is None else [_local(answer.problem, item)]
    verdict: CheckVerdict = "error" if problem else "warning" if answer.warnings else "ok"
    return RobotCheck(
        path=item.path,
        verdict=verdict,
        messages=(*problem, *answer.warnings, *notes),
        job=item.job,
        where=item.where,
        hash=answer.hash,
        task=answer.task,
        task_reason=answer.task_reason,
        figures=answer.figures,
    )


def _local(problem: str, item: _Item) -> str:
    """Without the path that the row has anyway."""
    assert item.request is not None
    path = item.request.xml or item.path
    return problem.removeprefix(f"{path}: ").removeprefix(f"{path}, ")
