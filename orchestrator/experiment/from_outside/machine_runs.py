"""The experiments of all users of this machine, as far as this user may read them: `list --all-users`
and `serve --all-users`.

Who holds CPUs says so for all users to read (:mod:`orchestrator.machine.cpu_holders`). Root sees
what is in the indexes of the others, too: a process reads a user's files that has the rights of this
user alone, within limits of size and time. So it is with root's own experiments where another user
decides what lies there (:func:`orchestrator.machine.users.user_who_decides`). Nothing is loaded that
could run code: no ledger, no pickle, but JSON files of known form. What the kernel says of processes
is believed only of those that belong to the user.
"""

from __future__ import annotations

import dataclasses
import math
import os
import pwd
import stat
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

from orchestrator.core.decoding import FilePath, Message, checked_values, parsed_json
from orchestrator.core.errors import OrchestratorError
from orchestrator.core.files.file_status import status_of
from orchestrator.core.files.regular_files import read_regular
from orchestrator.core.job import Cause
from orchestrator.core.messages import JsonLine
from orchestrator.core.paths import RunPaths
from orchestrator.core.processes.procfs import TICKS_PER_S, process_stat
from orchestrator.experiment.directory import run_directory, run_index
from orchestrator.experiment.directory.run_index import RunEntry
from orchestrator.experiment.processes.done_by_owner import UnfinishedError, done_by
from orchestrator.ledger import SummaryRow
from orchestrator.machine.cpu_holders import CpuHolders, Holder, holders_folder
from orchestrator.machine.process_tree import resident_mib, with_descendants
from orchestrator.machine.topology import MIB
from orchestrator.machine.users import sudo_name, user_name, user_who_decides
from orchestrator.supervisor.remaining_time import NOTHING_ENDED

MOST_USERS = 1024
"""Homes of further users are not looked at."""
LARGEST_SUMMARY_BYTES = 32 * MIB
MOST_FILES = 20_000
"""Of a run directory whose disk space is counted."""
LIMIT_S = 20.0
"""So long the run directories of one user may take."""
READ_SHARE = 0.75
"""Of that time: then what has been read is answered, and the rest is left out, disk space first."""
LATE_LIMIT_S = 1.0
"""So long they may take from a moment on when those who were late have taken :data:`LIMIT_S`."""
REST_S = 300.0
"""Who was late is not waited for again within this time."""
MEASURED_S = 0.5
"""Over this time the load of processes is measured."""
BLOCK_BYTES = 512
"""The unit of ``st_blocks`` (stat(2))."""

NO_TIME = (
    "not read: this or another run directory of the user has taken the time that each user has"
)
KEYS = ("state", "cause", "env_steps", "total_timesteps", "env_steps_per_s")
"""Of a row of ``summary.json``, which are read."""

FoundState: TypeAlias = Literal["running", "paused", "interrupted", "unreadable", "finished"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts(JsonLine):
    """What the files of a run directory say."""

    run_dir: FilePath
    name: str
    state: FoundState
    """By ``summary.json``, which may be a second old, and the lock of the supervisor."""
    pid: int | None = None
    """Of the supervisor."""
    jobs: Mapping[str, int] = field(default_factory=dict)
    """Number of jobs by state."""
    eta_s: float | None = None
    """Seconds until all are trained, at the present speed."""
    disk_mib: float | None = None
    """What the run directory takes; None where it has more than :data:`MOST_FILES` files, or there was
    no time to count them."""
    problem: Message = ""
    """Why its jobs cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRun:
    """An experiment of a user of this machine."""

    uid: int
    facts: RunFacts
    cpus: tuple[int, ...] = ()
    """Those that its jobs hold, rising."""
    load: float | None = None
    """CPU seconds per second of all of its processes; None where none is seen."""
    memory_mib: float | None = None
    """Resident memory of all of its processes."""

    @property
    def user(self) -> str:
        return user_name(self.uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRuns(JsonLine):
    """What was found."""

    runs: Sequence[MachineRun]
    problems: Sequence[Message]
    """What could not be looked at, a sentence each."""


@dataclass(slots=True, kw_only=True)
class _Places:
    """Where to look for the experiments of one user."""

    home: Path | None = None
    """Whose index is read; None: the index may not be read."""
    holders: list[Holder] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finding(JsonLine):
    """What is read of a run directory. The last finding of each one counts."""

    run_dir: FilePath
    facts: RunFacts | None
    """None: it is not there."""


_Reading: TypeAlias = Callable[[float], Iterator[_Finding]]
"""Called with the moment (monotonic) by which it is to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _UserLook:
    """What is read of the experiments of one user by one process."""

    facts: Mapping[str, RunFacts] = field(default_factory=dict)
    """By run directory."""
    problem: str = ""
    """Why not all is read; empty where it is."""
    is_late: bool = False
    """Whether it has taken too long."""


class LateUsers:
    """Those who have kept root waiting. They are not waited for again for a while.

    Root's run directories that are read as a user, and those of this user, are waited for apart: they
    are different directories, and only some may be on a disk that does not answer.
    """

    def __init__(self) -> None:
        self._waited_s = 0.0
        """In this look."""
        self._resting: dict[tuple[int, int], tuple[float, _UserLook]] = {}
        """By owner and reader: until when (monotonic), and what was read."""

    def begin_look(self) -> None:
        self._waited_s = 0.0

    @property
    def limit_s(self) -> float:
        """How long one user may take now."""
        return LIMIT_S if self._waited_s < LIMIT_S else LATE_LIMIT_S

    def look_of_resting(self, uid: int, reader: int) -> _UserLook | None:
        """What was read of a user who was late a short while ago; None of others."""
        until, look = self._resting.get((uid, reader), (-math.inf, None))
        return look if time.monotonic() < until else None

    def note(self, uid: int, reader: int, look: _UserLook, limit_s: float) -> None:
        self._waited_s += limit_s
        if limit_s == LIMIT_S:
            self._resting[uid, reader] = time.monotonic() + REST_S, look


def all_runs(late: LateUsers | None = None) -> MachineRuns:
    """The experiments of all users. Takes half a second, and longer where there are many.

    :param late: of the looks before, for who looks again and again.
    """
    late = late or LateUsers()
    late.begin_look()
    found: list[MachineRun] = []
    problems = []
    for uid, place in sorted(_places().items()):
        facts: dict[str, RunFacts] = {}
        for reader, reading in _readings(uid, place):
            look = _look(uid, reader, reading, late)
            facts |= look.facts
            if look.problem:
                what = "are not all read" if look.facts else "cannot be read"
                problems.append(f"The experiments of {user_name(uid)} {what}: {look.problem}.")
        found += _with_holders(uid, list(facts.values()), place.holders)
    if passed_over := run_index.passed_over():
        problems.append(f"{passed_over}.")
    return MachineRuns(runs=_measured(found), problems=problems)


def _places() -> dict[int, _Places]:
    """By the number of the user."""
    own = os.geteuid()
    places = {own: _Places()}
    if own == 0:
        for account in islice(pwd.getpwall(), MOST_USERS):
            home = Path(account.pw_dir)
            if account.pw_uid != 0 and home != Path("/"):
                places.setdefault(account.pw_uid, _Places(home=home))
    for holder in CpuHolders(holders_folder()).others():
        places.setdefault(holder.uid, _Places()).holders.append(holder)
    return places


def _readings(uid: int, place: _Places) -> Iterator[tuple[int | None, _Reading]]:
    """What is to be read of a user: as whom (None: as who this process is), and what does it."""
    own = os.geteuid()
    if own == 0 and uid != 0:
        # The user's own process looks at the home, too: it may be on a disk that does not answer.
        yield uid, partial(_read_home, place)
        return
    names = _names(place, run_index.entries() if uid == own else [])
    by_reader: dict[int | None, dict[str, str]] = defaultdict(dict)
    for run_dir, name in names.items():
        by_reader[user_who_decides(Path(run_dir))][run_dir] = name
    for reader, some in by_reader.items():
        yield reader, partial(_read, place, some)


def _look(uid: int, reader: int | None, reading: _Reading, late: LateUsers) -> _UserLook:
    """What ``reading`` finds of a user, with the rights of ``reader``; of one who was late a short
    while ago what it found then.
    """
    if reader is None:
        return _look_here(reading)
    if (before := late.look_of_resting(uid, reader)) is not None:
        return before
    limit_s = late.limit_s
    look = _look_as(reader, reading, limit_s)
    if look.is_late:
        late.note(uid, reader, look, limit_s)
    return look


def _look_here(reading: _Reading) -> _UserLook:
    try:
        return _UserLook(facts=_latest(reading(math.inf)))
    except (OrchestratorError, OSError, ValueError) as error:
        return _UserLook(problem=str(error))


def _look_as(reader: int, reading: _Reading, limit_s: float) -> _UserLook:
    """By a child process with the rights of ``reader`` alone."""
    end_by = time.monotonic() + READ_SHARE * limit_s

    def lines() -> Iterator[str]:
        return (finding.to_line().decode() for finding in reading(end_by))

    problem = ""
    is_late = False
    try:
        try:
            done: Sequence[str] = done_by(reader, lines, limit_s=limit_s)
        except UnfinishedError as error:
            done = error.done
            is_late = error.is_late
            problem = _with_advice(error, reader) if is_late else str(error)
        facts = _latest(_Finding.from_line(line.encode()) for line in done)
    except (OrchestratorError, OSError, ValueError) as error:
        return _UserLook(problem=str(error), is_late=is_late)
    return _UserLook(facts=facts, problem=problem, is_late=is_late)


def _with_advice(late: UnfinishedError, reader: int) -> str:
    """When it was, and what to do."""
    at = time.strftime("at %H:%M:%S")
    listing = f"`sudo -u {sudo_name(reader)} orchestrator list`"
    return f"{at}, {late}: a disk may not answer; {listing} waits for it"


def _latest(findings: Iterable[_Finding]) -> dict[str, RunFacts]:
    """By run directory, what was found of it last; without those that are not there."""
    latest = {finding.run_dir: finding.facts for finding in findings}
    return {run_dir: facts for run_dir, facts in latest.items() if facts is not None}


def _names(place: _Places, entries: Iterable[RunEntry]) -> dict[str, str]:
    """Run directory → the name of its experiment."""
    held = {str(Path(one.run_dir)): one.experiment for one in place.holders}
    names = {run_dir: name for run_dir, name in held.items() if run_dir[:1] == "/"}
    return names | {str(Path(entry.run_dir)): entry.name for entry in entries}


def _read_home(place: _Places, end_by: float) -> Iterator[_Finding]:
    noted = [] if place.home is None else run_index.noted_in_home(place.home)
    yield from _read(place, _names(place, noted), end_by)


def _read(place: _Places, names: Mapping[str, str], end_by: float) -> Iterator[_Finding]:
    """Each run directory is named before the first one is touched, which may never end. One that is
    only noted, and that is gone, is found to be so.

    :param names: run directory → the name of its experiment.
    """
    for run_dir, name in names.items():
        unread = RunFacts(run_dir=run_dir, name=name, state="unreadable", problem=NO_TIME)
        yield _Finding(run_dir=run_dir, facts=unread)
    held = {str(Path(one.run_dir)) for one in place.holders}
    read = []
    for run_dir, name in names.items():
        if time.monotonic() < end_by:
            is_gone = run_dir not in held and run_index.is_gone(Path(run_dir))
            facts = None if is_gone else _facts(Path(run_dir), name)
            yield _Finding(run_dir=run_dir, facts=facts)
            if facts is not None and not facts.problem:
                read.append(facts)
    for facts in read:
        disk_mib = _disk_mib(Path(facts.run_dir), end_by)
        measured = dataclasses.replace(facts, disk_mib=disk_mib)
        yield _Finding(run_dir=facts.run_dir, facts=measured)


def _facts(run_dir: Path, name: str) -> RunFacts:
    paths = RunPaths(run_dir)
    holder = run_directory.holder(paths)
    pid = None if holder is None or holder.is_elsewhere else holder.pid
    try:
        rows = _rows(paths)
        is_underway = os.path.lexists(paths.underway)
    except (OSError, ValueError) as error:
        state: FoundState = "unreadable" if holder is None else "running"
        reason = getattr(error, "strerror", None) or str(error)
        return RunFacts(
            run_dir=str(run_dir), name=name, state=state, pid=pid, problem=f"summary.json: {reason}"
        )
    jobs = _jobs(rows, is_supervised=holder is not None)
    at_rungs = sum(row["state"] == "PAUSED" and row["cause"] == Cause.RUNG for row in rows)
    left_as = run_index.unsupervised_state(jobs, at_rungs, is_underway=is_underway)
    return RunFacts(
        run_dir=str(run_dir),
        name=name,
        state=left_as if holder is None else "running",
        pid=pid,
        jobs=jobs,
        eta_s=None if holder is None else _eta_s(rows),
    )


def _rows(paths: RunPaths) -> list[Mapping[str, Any]]:
    """Empty where there is no ``summary.json`` yet: the robots are examined first.

    :raises OSError, ValueError: it may not be read, or has another form.
    """
    try:
        content = parsed_json(read_regular(paths.summary_json, LARGEST_SUMMARY_BYTES))
    except FileNotFoundError:
        if not os.path.lexists(paths.lock):  # the run directory is not there, as seen from here
            raise
        return []
    if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        raise ValueError("expected a list of jobs")
    return [checked_values(SummaryRow, {key: row.get(key) for key in KEYS}) for row in content]


def _jobs(rows: Collection[Mapping[str, Any]], *, is_supervised: bool) -> dict[str, int]:
    """Number of jobs by state. Without a supervisor none runs: it was killed."""
    jobs = Counter(row["state"] for row in rows)
    if not is_supervised and "RUNNING" in jobs:
        jobs["PENDING"] += jobs.pop("RUNNING")
    return dict(jobs)


def _eta_s(rows: Collection[Mapping[str, Any]]) -> float | None:
    """Seconds until all jobs are trained that run or are queued."""
    to_go = [row for row in rows if row["state"] in ("PENDING", "RUNNING")]
    running = [row for row in to_go if row["state"] == "RUNNING"]
    return NOTHING_ENDED.remaining_s(
        steps_to_go=sum(max(0, row["total_timesteps"] - row["env_steps"]) for row in to_go),
        env_steps_per_s=sum(row["env_steps_per_s"] or 0.0 for row in running),
        running=len(running),
    )


def _disk_mib(folder: Path, end_by: float) -> float | None:
    """What the files below ``folder`` take on its disk; no link is followed."""
    taken = 0
    for number, status in enumerate(_statuses(folder)):
        if number == MOST_FILES or time.monotonic() >= end_by:
            return None
        taken += status.st_blocks * BLOCK_BYTES
    return taken / MIB


def _statuses(folder: Path) -> Iterator[os.stat_result]:
    folders = [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as found:
                for one in found:
                    status = one.stat(follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode):
                        folders.append(Path(one.path))
                    yield status
        except OSError:  # it may not be read, or is gone
            continue


def _with_holders(
    uid: int, found: Sequence[RunFacts], holders: Collection[Holder]
) -> Iterator[MachineRun]:
    """The experiments of a user with the CPUs that they hold, and what else holds some."""
    left = list(holders)
    for facts in found:
        own = [one for one in left if one.pid == facts.pid or one.run_dir == facts.run_dir]
        left = [one for one in left if one not in own]
        if own and facts.pid is None:  # its lock may not be read
            running = dataclasses.replace(facts, state="running", pid=own[0].pid)
            yield MachineRun(uid=uid, facts=running, cpus=_cpus(own))
        else:
            yield MachineRun(uid=uid, facts=facts, cpus=_cpus(own))
    for holder in left:
        facts = RunFacts(
            run_dir=holder.run_dir, name=holder.experiment, state="running", pid=holder.pid
        )
        yield MachineRun(uid=uid, facts=facts, cpus=_cpus([holder]))


def _cpus(holders: Collection[Holder]) -> tuple[int, ...]:
    return tuple(sorted({cpu for holder in holders for cpu in holder.cpus}))


def _measured(runs: Sequence[MachineRun]) -> list[MachineRun]:
    """With the load and the memory of their processes."""
    pids = {number: _processes(run) for number, run in enumerate(runs)}
    if not any(pids.values()):
        return list(runs)
    begun = time.monotonic()
    before = {pid: _cpu_ticks(pid) for members in pids.values() for pid in members}
    time.sleep(MEASURED_S)
    used = {pid: max(0, _cpu_ticks(pid) - ticks) for pid, ticks in before.items()}
    passed_ticks = (time.monotonic() - begun) * TICKS_PER_S
    measured = list(runs)
    for number, members in pids.items():
        if members:
            measured[number] = dataclasses.replace(
                runs[number],
                load=sum(used[pid] for pid in members) / passed_ticks,
                memory_mib=resident_mib(members[0]),
            )
    return measured


def _processes(run: MachineRun) -> list[int]:
    """The supervisor and its descendants, if the process is the user's: its pid is what a file
    says.
    """
    pid = run.facts.pid
    if run.facts.state != "running" or not pid:
        return []
    status = status_of(f"/proc/{pid}")
    is_of_user = status is not None and status.st_uid == run.uid
    return with_descendants(pid) if is_of_user else []


def _cpu_ticks(pid: int) -> int:
    found = process_stat(pid)
    return 0 if found is None else found.own_ticks
