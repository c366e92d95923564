"""Pilots that a supervisor has left when it was killed: whether any still runs or waits, and how they are ended."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.errors import UsageError
from orchestrator.core.text import listed
from orchestrator.executors.slurm.batch_queue import PRESENT, cancel_named, queue_question
from orchestrator.executors.slurm.mailbox import has_sent
from orchestrator.executors.slurm.pilot_messages import PilotBye
from orchestrator.executors.slurm.session_file import Session, read_session, write_session

ANSWER_S = 10.0
"""So long an answer of ``squeue`` is awaited, by commands whose user waits for them."""
ASK_EVERY_S = 2.0
"""While the end of pilots is awaited."""
SILENT_S = 180.0
"""A pilot that has written nothing for so long counts as gone, where Slurm cannot be asked."""
SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftPilots:
    """Pilots without a supervisor."""

    name: str
    """Of the batch jobs, as ``squeue`` shows it."""
    tasks: tuple[str, ...] = ()
    """Those that run or wait (``100_0``). Where Slurm does not answer: those that have joined and not said good-bye."""
    problem: str = ""
    """Why Slurm could not be asked; empty where it has answered."""

    def __str__(self) -> str:
        """A clause: which batch jobs may still train."""
        which = f"batch jobs named {self.name}"
        if self.tasks:
            which = f"batch {'job' if len(self.tasks) == 1 else 'jobs'} {listed(self.tasks, SHOWN)}"
        unknown = f" (Slurm cannot be asked: {self.problem})" if self.problem else ""
        return f"{which} may still train{unknown}"


def joined_pilots(folder: Path) -> set[str]:
    """Names of the pilots that have joined the session in ``folder``."""
    return {path.name.partition(".events.")[0] for path in folder.glob("*.events.*")}


def unfinished_pilots(folder: Path) -> set[str]:
    """Names of the pilots that have joined the session in ``folder``, without those that have sent their last word."""
    return {name for name in joined_pilots(folder) if not has_sent(folder / f"{name}.events", PilotBye)}


def task_of(pilot: str) -> str:
    """The task of Slurm's array that a pilot's name begins with."""
    return pilot.partition(".")[0]


def named_by_files(folder: Path) -> LeftPilots | None:
    """Pilots that may be left according to the files alone, without their tasks: some have written lately, or none has
    joined yet.

    :param folder: ``slurm`` in a run directory that no supervisor holds.
    """
    session = _unended(folder)
    if session is None or (joined_pilots(folder / session.session) and not _heard_lately(folder / session.session)):
        return None
    return LeftPilots(name=session.batch_jobs)


def left_pilots(folders: Iterable[Path]) -> dict[Path, LeftPilots]:
    """The pilots that are left of the run directories of ``folders``; Slurm is asked once for all of them.

    :param folders: ``slurm`` in run directories that no supervisor holds.
    :returns: only folders with pilots that run or wait, or may, as Slurm could not be asked.
    """
    sessions = {folder: session for folder in folders if (session := _unended(folder)) is not None}
    if not sessions:
        return {}
    answer = _ask({session.batch_jobs for session in sessions.values()})
    found = {folder: _left(folder, session, answer) for folder, session in sessions.items()}
    return {folder: left for folder, left in found.items() if left is not None}


def end_left_pilots(folder: Path) -> str | None:
    """End the pilots that a killed supervisor has left. Returns what was done; None where there are none.

    :raises UsageError: Slurm does not obey, and the pilots cannot be told by a file either.
    """
    left, session = left_pilots([folder]).get(folder), read_session(folder)
    if left is None or session is None:
        return None
    answer = cancel_named(left.name)
    if answer.returncode == 0:
        which = listed(left.tasks, SHOWN) if left.tasks else f"named {left.name}"
        return f"cancelled the batch jobs {which}, which the supervisor before had left"
    try:
        write_session(folder, dataclasses.replace(session, ended=True))
    except OSError as error:
        advice = f"run `scancel --name={left.name}` on a login node"
        raise UsageError(f"{folder}: cannot be written ({error.strerror}), scancel failed; {advice}") from error
    return f"scancel failed ({answer.problem}); batch jobs {left.name} end by themselves as soon as they run"


def wait_for_pilots(folder: Path) -> None:
    """Return when no pilot of the last supervisor runs or waits any more, or when another supervisor has taken over.

    :param folder: ``slurm`` in a run directory; it may be missing.
    """
    first = read_session(folder)
    while first is not None and first.batch_jobs:
        now = read_session(folder)
        if now is None or now.session != first.session:
            return
        tasks = _ask({first.batch_jobs}).tasks
        if tasks is None:
            is_any_left = bool(_heard_lately(folder / first.session))
        else:
            is_any_left = bool(_training(folder, first, tasks))
        if not is_any_left:
            return
        time.sleep(ASK_EVERY_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    tasks: Mapping[str, Mapping[str, str]] | None
    """Name of batch jobs → task → state; None where Slurm does not answer."""
    problem: str = ""


def _ask(names: Collection[str]) -> _Answer:
    if shutil.which("squeue") is None:
        return _Answer(tasks=None, problem="squeue not found")
    answer = queue_question(*sorted(names), columns="%i|%T|%j", patience_s=ANSWER_S).wait()
    if answer.returncode:
        return _Answer(tasks=None, problem=answer.problem)
    tasks: dict[str, dict[str, str]] = {name: {} for name in names}
    for row in (line.strip().split("|", 2) for line in answer.output.splitlines()):
        if len(row) == 3 and row[2] in tasks:
            tasks[row[2]][row[0]] = row[1]
    return _Answer(tasks=tasks)


def _left(folder: Path, session: Session, answer: _Answer) -> LeftPilots | None:
    if answer.tasks is None:
        heard = sorted({task_of(name) for name in _heard_lately(folder / session.session)})
        return LeftPilots(name=session.batch_jobs, tasks=tuple(heard), problem=answer.problem)
    tasks = _training(folder, session, answer.tasks)
    return LeftPilots(name=session.batch_jobs, tasks=tasks) if tasks else None


def _training(folder: Path, session: Session, tasks: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    """The tasks that wait or run; of those that Slurm ends just now, the ones whose pilot is not done yet."""
    of_session = tasks[session.batch_jobs]
    unfinished = {task_of(name) for name in unfinished_pilots(folder / session.session)}
    return tuple(
        task
        for task, state in sorted(of_session.items())
        if state in PRESENT or (state == "COMPLETING" and task in unfinished)
    )


def _heard_lately(folder: Path) -> set[str]:
    """Pilots of the session in ``folder`` that have not said good-bye, and have written something lately."""
    return {name for name in unfinished_pilots(folder) if time.time() - _last_write(folder, name) < SILENT_S}


def _last_write(folder: Path, pilot: str) -> float:
    times = [0.0]
    for path in folder.glob(f"{pilot}.events.*"):
        with contextlib.suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times)


def _unended(folder: Path) -> Session | None:
    """The session whose supervisor has not ended its pilots; None where there is none."""
    session = read_session(folder)
    return None if session is None or session.ended or not session.batch_jobs else session
