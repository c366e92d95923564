"""Pilots that a supervisor has left when it was killed: whether any still runs or waits, and how
they are ended.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.core.errors import UsageError
from orchestrator.core.files.file_status import status_of
from orchestrator.core.text import listed
from orchestrator.executors.kinds import SHOWN, LeftBatchJobs
from orchestrator.features.slurm.command_runner import SlurmCommand
from orchestrator.features.slurm.mailbox import has_sent
from orchestrator.features.slurm.pilot_messages import PilotBye
from orchestrator.features.slurm.pilot_names import events_of, joined_pilots, parsed_name
from orchestrator.features.slurm.session_file import (
    Session,
    read_own_session,
    session_owner,
    write_session,
)
from orchestrator.features.slurm.submission import (
    PRESENT,
    cancel_named,
    queue_question,
    user_name,
)

ANSWER_S = 10.0
"""So long an answer of ``squeue`` is awaited, by commands whose user waits for them."""
ASK_EVERY_S = 2.0
"""While the end of pilots is awaited."""
SILENT_S = 180.0
"""A pilot that has written nothing for so long counts as gone, where Slurm cannot be asked."""


def _left_batch_jobs(
    session: Session, *, tasks: tuple[str, ...] = (), user: str = "", problem: str = ""
) -> LeftBatchJobs:
    """The pilots of a session as what a supervisor has left."""
    return LeftBatchJobs(
        executor="slurm",
        cluster="Slurm",
        name=session.batch_jobs,
        tasks=tasks,
        user=user,
        problem=problem,
    )


def unfinished_pilots(folder: Path) -> set[str]:
    """Names of the pilots that have joined the session in ``folder``, without those that have sent
    their last word.
    """
    return {
        name for name in joined_pilots(folder) if not has_sent(events_of(folder, name), PilotBye)
    }


def named_by_files(folder: Path) -> LeftBatchJobs | None:
    """Pilots that may be left according to the files alone, without their tasks: some have written
    lately, or none has joined yet.

    :param folder: ``slurm`` in a run directory that no supervisor holds.
    """
    session = _unended_session(folder)
    if session is None or (
        joined_pilots(folder / session.session) and not _heard_lately(folder / session.session)
    ):
        return None
    return _left_batch_jobs(session)


def left_pilots(folders: Iterable[Path]) -> dict[Path, LeftBatchJobs]:
    """The pilots that are left of the run directories of ``folders``; Slurm is asked once for all
    of them.

    :param folders: ``slurm`` in run directories that no supervisor holds.
    :returns: only folders with pilots that run or wait, or may, as Slurm could not be asked.
    """
    sessions = {
        folder: session for folder in folders if (session := _unended_session(folder)) is not None
    }
    if not sessions:
        return {}
    answer = _ask(sessions)
    found = {folder: _left_jobs(folder, session, answer) for folder, session in sessions.items()}
    return {folder: left for folder, left in found.items() if left is not None}


def end_left_pilots(folder: Path) -> str | None:
    """End the pilots that a killed supervisor has left. Returns what was done; None where there are
    none.

    :raises UsageError: Slurm does not obey, and the pilots cannot be told by a file either.
    """
    left = left_pilots([folder]).get(folder)
    session = read_own_session(folder)
    if left is None or session is None:
        return None
    answer = cancel_named(left.name, user=left.user)
    if answer.returncode == 0:
        which = listed(left.tasks, SHOWN) if left.tasks else f"named {left.name}"
        return f"cancelled the batch jobs {which}, which the supervisor before had left"
    try:
        write_session(folder, dataclasses.replace(session, ended=True))
    except OSError as error:
        advice = f"run `scancel --name={left.name}` on a login node"
        raise UsageError(
            f"{folder}: cannot be written ({error.strerror}), scancel failed; {advice}"
        ) from error
    return f"scancel failed ({answer.problem}); batch jobs {left.name} end by themselves as soon as they run"


def wait_for_pilots(folder: Path) -> None:
    """Return when no pilot of the last supervisor runs or waits any more, or when another
    supervisor has taken over.

    :param folder: ``slurm`` in a run directory; it may be missing.
    """
    first = read_own_session(folder)
    while first is not None and first.batch_jobs:
        now = read_own_session(folder)
        if now is None or now.session != first.session:
            return
        left = _left_jobs(folder, first, _ask({folder: first}))
        if left is None or (left.problem and not left.tasks):
            return
        time.sleep(ASK_EVERY_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    tasks: Sequence[_Task] = ()
    owners: Mapping[Path, int] = field(default_factory=dict)
    """Folder → the uid of the owner of its session's file."""
    problem: str = ""
    """Why Slurm has not answered; empty where it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """As Slurm shows it."""

    task: str
    state: str
    uid: int
    name: str
    """Of its batch job."""


def _ask(sessions: Mapping[Path, Session]) -> _Answer:
    """The tasks of ``sessions``, by folder, that belong to the owners of their files or to the user
    who asks.

    The user who asks counts, too: some file systems give every file the same owner.
    """
    try:
        owners = {folder: session_owner(folder) for folder in sessions}
    except OSError as error:
        return _Answer(problem=f"{error.filename}: {error.strerror}")
    if shutil.which("squeue") is None:
        return _Answer(owners=owners, problem="squeue not found")
    names = {session.batch_jobs for session in sessions.values()}
    users = sorted({user_name(uid) for uid in (os.geteuid(), *owners.values())})
    answer = queue_question(
        *sorted(names), users=users, columns="%i|%T|%U|%j", patience_s=ANSWER_S
    ).wait()
    if answer.returncode:
        return _Answer(owners=owners, problem=answer.problem)
    rows = [line.strip().split("|", 3) for line in answer.output.splitlines()]
    tasks = [
        _Task(task=row[0], state=row[1], uid=int(row[2]), name=row[3])
        for row in rows
        if len(row) == 4 and row[2].isdecimal()
    ]
    return _Answer(tasks=tasks, owners=owners)


def _left_jobs(folder: Path, session: Session, answer: _Answer) -> LeftBatchJobs | None:
    this = os.geteuid()
    owner = answer.owners.get(folder, this)
    own = [
        task
        for task in answer.tasks
        if task.name == session.batch_jobs and task.uid in (owner, this)
    ]
    problem = answer.problem
    if not own and not problem and owner != this and not _are_others_shown():
        problem = f"it may hide the batch jobs of {user_name(owner)}, who can ask"
    if problem:
        heard = sorted({parsed_name(name).task for name in _heard_lately(folder / session.session)})
        return _left_batch_jobs(session, tasks=tuple(heard), user=user_name(owner), problem=problem)
    training = _training_tasks(folder, session, own)
    if not training:
        return None
    tasks = tuple(sorted(task.task for task in training))
    return _left_batch_jobs(session, tasks=tasks, user=user_name(training[0].uid))


def _are_others_shown() -> bool:
    """Whether ``squeue`` shows this user the batch jobs of others, whom it otherwise passes over in
    silence.
    """
    if os.geteuid() == 0:
        return True
    if shutil.which("scontrol") is None:
        return False
    answer = SlurmCommand("scontrol", "show", "config", patience_s=ANSWER_S).wait()
    if answer.returncode:
        return False
    private = re.search(r"^PrivateData\s*=(.*)$", answer.output, re.MULTILINE)
    return private is not None and "jobs" not in private[1].strip().split(",")


def _training_tasks(folder: Path, session: Session, tasks: Iterable[_Task]) -> list[_Task]:
    """Those that wait or run; of those that Slurm ends just now, the ones whose pilot is not done
    yet.
    """
    unfinished = {parsed_name(name).task for name in unfinished_pilots(folder / session.session)}
    return [
        task
        for task in tasks
        if task.state in PRESENT or (task.state == "COMPLETING" and task.task in unfinished)
    ]


def _heard_lately(folder: Path) -> set[str]:
    """Pilots of the session in ``folder`` that have not said good-bye, and have written something
    lately.
    """
    return {
        name
        for name in unfinished_pilots(folder)
        if time.time() - _last_write(folder, name) < SILENT_S
    }


def _last_write(folder: Path, pilot: str) -> float:
    files = map(status_of, folder.glob(f"{events_of(folder, pilot).name}.*"))
    # Of those that its supervisor has not just removed.
    return max((status.st_mtime for status in files if status is not None), default=0.0)


def _unended_session(folder: Path) -> Session | None:
    """The session whose supervisor has not ended its pilots; None where there is none."""
    session = read_own_session(folder)
    return None if session is None or session.ended or not session.batch_jobs else session
