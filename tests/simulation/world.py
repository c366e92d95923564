"""The simulated world: one clock, an agenda of what happens when, and the points of a supervisor's
work at which it may die.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import heapq
import itertools
import math
import os
import signal
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.simulation.disk import Disk, full_error, sqlite_error
from tests.simulation.scenario import Scenario, Trouble

if TYPE_CHECKING:
    from tests.simulation.commands import Commands
    from tests.simulation.executor import Processes
    from tests.simulation.monitor import Monitor

BEGAN = 1_800_000_000.0
"""Seconds since the epoch when the world begins."""
BOOTED = 5_000.0
"""What the monotonic clock says then."""
HOST = "here"
LEDGER_FULL = 13
"""SQLite's code for a full disk."""
LEDGER_FAILS = 10
"""Its code for a file system that fails."""
FAILS = "disk I/O error"
"""What it says then."""
IO_OF_USERS = "io refusals of users"
"""Counts how often a command has met that; ``io refusals`` are those of the supervisor."""
MOST_POLLS = 4000
"""Of one supervisor. One that needs more is stuck."""
MOST_SLEEPS = 200
"""Of one command. One that needs more waits for ever."""
FREE_MIB = 10_000
LITTLE_MIB = 100
"""Free while the disk has less space than jobs ask for."""


class DeathError(BaseException):
    """The process of the supervisor is gone."""


class GaveUpError(BaseException):
    """A command has waited for so long that its user ends it."""


class Violation(BaseException):
    """Something that must hold does not."""


@dataclass(slots=True, kw_only=True)
class World:
    root: Path
    scenario: Scenario
    now: float = 0.0
    """Seconds since the beginning."""
    host: str = HOST
    """Where what runs now believes to run."""
    pid: int = 0
    """Of what runs now."""
    is_own_work: bool = False
    is_dead: bool = False
    """Whether the supervisor has died; what its stack still does must have no effect."""
    is_full: bool = False
    is_failing: bool = False
    """Whether the file system fails to read and write the ledger."""
    fails_after: int = 0
    """How many statements succeed before that."""
    fails_once: bool = False
    """Whether only one statement fails."""
    free_mib: int | None = FREE_MIB
    """On the disk, as far as it is not full; None while that cannot be found out."""
    short_since: float | None = None
    """When the disk came to have less space than jobs ask for; None while it has enough."""
    is_unremovable: bool = False
    """Whether files of requests cannot be removed."""
    points: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)
    disk: Disk = field(init=False)
    monitor: Monitor = field(init=False)
    processes: Processes = field(init=False)
    commands: Commands = field(init=False)
    signalled: Callable[[int], None] | None = None
    """Delivers a signal to the supervisor that runs."""
    supervisors: list[Any] = field(default_factory=list)
    """Made by the process that lives."""
    lives: dict[int, float] = field(default_factory=dict)
    """Processes, with their start."""
    has_erred: bool = False
    """Whether a call of the executor has raised for the supervisor that lives."""
    errors_due: int = 0
    """Calls of the executor that are to raise."""
    _is_supervised: bool = False
    _others: int = 0
    """Processes other than the supervisor that are at work at this moment."""
    _is_users: bool = False
    """Whether one of them is a command."""
    _is_alone: bool = False
    """Whether a command has the run directory for itself."""
    _sleeps: int = 0
    _polls: int = 0
    _boot: float = BOOTED
    _wall: float = BEGAN
    _boots: int = 0
    _agenda: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _tickets: Iterator[int] = field(default_factory=itertools.count)
    _pids: Iterator[int] = field(default_factory=lambda: itertools.count(100))
    _at_point: dict[int, list[Trouble]] = field(default_factory=lambda: defaultdict(list))
    _at_event: dict[int, list[Trouble]] = field(default_factory=lambda: defaultdict(list))
    _waiting: list[Trouble] = field(default_factory=list)
    """Troubles whose time has come, and that come at a point of a certain kind."""
    _events: int = 0
    _lockers: list[Any] = field(default_factory=list)
    unlocked_at: float = -math.inf
    """When a lock of the ledger last ended."""
    _put_back: Callable[[], None] | None = None
    _note: Any = None
    """Of the last commit."""
    _noted_in: int = 0
    """Number of the run directory that the note is of."""
    _failed_power: Trouble | None = None
    _root_text: str = field(init=False)

    def __post_init__(self) -> None:
        self._root_text = str(self.root)
        self.disk = Disk(self.root, self)
        for trouble in self.scenario.troubles:
            if trouble.at_point is not None:
                self._at_point[trouble.at_point].append(trouble)
            elif trouble.at_event is not None:
                self._at_event[trouble.at_event].append(trouble)
            elif trouble.at_s is not None:
                come = self._waiting.append if trouble.at_what else self.happens
                self.at(trouble.at_s, functools.partial(come, trouble))

    # -- time

    @property
    def monotonic(self) -> float:
        return self._boot + self.now

    @property
    def wall(self) -> float:
        return self._wall + self.now

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (when, next(self._tickets), what))

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        self.at(self.now + seconds, what)

    def pass_time(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Let happen what is due within ``seconds``, or ``until`` something has come about."""
        end = self.now + seconds
        while not until() and self._agenda and self._agenda[0][0] <= end:
            when, _, what = heapq.heappop(self._agenda)
            self.now = max(self.now, when)
            what()
        if not until():
            self.now = max(self.now, end)

    def sleep(self, seconds: float) -> None:
        if self._others:
            self._sleeps += 1
            if self._sleeps > MOST_SLEEPS:
                raise GaveUpError
            self.now += seconds  # what is due meanwhile happens when it has returned
            return
        self.point("sleep")
        self.pass_time(max(seconds, 0.001))  # the rest of a rounded number would take no time

    # -- processes

    def new_pid(self) -> int:
        pid = next(self._pids)
        self.lives[pid] = self._start()
        return pid

    def _start(self) -> float:
        return round(self.monotonic, 2) + self._boots / 1024

    @contextlib.contextmanager
    def supervised(self) -> Iterator[None]:
        """A supervisor lives within the block."""
        self.pid = pid = self.new_pid()
        self.is_dead = False
        self._is_supervised = True
        self._polls = 0
        self.counts["lives"] += 1
        self.log(f"supervisor {pid} starts")
        try:
            yield
        finally:
            self._is_supervised = False
            self.signalled = None
            self.errors_due = 0
            self.has_erred = False
            self.lives.pop(pid, None)

    @contextlib.contextmanager
    def other_process(self, pid: int, host: str = HOST) -> Iterator[None]:
        """Within the block a worker or a command is at work, at a moment when the supervisor is
        not.
        """
        before = self.pid, self.host
        self.pid = pid
        self.host = host
        self._others += 1
        self._sleeps = 0
        try:
            yield
        finally:
            self.pid, self.host = before
            self._others -= 1

    @contextlib.contextmanager
    def users_process(self, pid: int, host: str = HOST) -> Iterator[None]:
        """Likewise with a command, for which the file system may fail, too."""
        before = self._is_users
        with self.other_process(pid, host):
            self._is_users = True
            try:
                yield
            finally:
                self._is_users = before

    @contextlib.contextmanager
    def perhaps_alone(self, is_alone: bool) -> Iterator[None]:
        """:param is_alone: whether the run directory belongs to the command that is at work within
        the block: the supervisor, if it lives, has left there all that it will.
        """
        if is_alone and self._is_supervised:
            self.fall_back()
        self._is_alone = is_alone
        try:
            yield
        finally:
            self._is_alone = False

    @contextlib.contextmanager
    def own_work(self) -> Iterator[None]:
        """What the simulation itself does to files is not the program's."""
        before = self.is_own_work
        self.is_own_work = True
        try:
            yield
        finally:
            self.is_own_work = before

    @property
    def is_supervised(self) -> bool:
        """Whether a supervisor lives."""
        return self._is_supervised and not self.is_dead

    @property
    def is_supervisor_at_work(self) -> bool:
        return self._is_supervised and not self._others

    # -- points

    def point(self, what: str) -> None:
        """The supervisor is about to do something that others can see, or has just done it."""
        if not self.is_supervisor_at_work:
            return
        if self.is_dead:
            raise DeathError
        self.points += 1
        self.counts["points"] += 1
        self.log(what)
        for trouble in self._at_point.pop(self.points, ()):
            self.happens(trouble)
        if self._waiting:
            for trouble in [one for one in self._waiting if what.startswith(one.at_what)]:
                self._waiting.remove(trouble)
                self.happens(trouble)

    def changes(self, what: str) -> None:
        """See :class:`.disk.Observer`."""
        self.point(what)
        if self.is_unremovable and what.startswith("remove requests/"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self.is_full and not what.startswith(("remove", "rmdir", "rename", "open")):
            self.counts["full refusals"] += 1
            raise full_error()

    def before_commit(self) -> None:
        self.point("commit")
        if self.is_full:
            self.counts["full refusals"] += 1
            raise sqlite_error(LEDGER_FULL, "database or disk is full")
        self.before_statement()

    def before_statement(self) -> None:
        """The supervisor, or a process of a user, is about to read the ledger, or to write it."""
        may_fail = self.is_supervisor_at_work or self._is_users
        if not self.is_failing or not may_fail or self.is_own_work:
            return
        self.fails_after -= 1
        if self.fails_after < 0:
            self.is_failing = not self.fails_once
            self.counts["io refusals" if self.is_supervisor_at_work else IO_OF_USERS] += 1
            self.has_erred |= self.is_supervisor_at_work
            raise sqlite_error(LEDGER_FAILS, FAILS)

    @property
    def rolls_back(self) -> bool:
        """Whether SQLite has ended the open transaction with the error that it raises."""
        return (self.counts["io refusals"] + self.counts[IO_OF_USERS]) % 2 == 1

    def after_commit(self) -> None:
        with self.own_work():
            is_beside = self._others and self._is_supervised and not self._is_alone
            directory = self.disk.directory_number()
            is_noted = self._note is not None and directory == self._noted_in
            if not (is_beside and is_noted):  # what the supervisor keeps is not in it
                self._note = self.monitor.noted()
                self._noted_in = directory
            self.disk.committed(self._note)
        self.point("committed")

    def polled(self) -> None:
        """The supervisor waits for events."""
        self.point("poll")
        self._polls += 1
        self.now += 0.001  # a turn takes a moment
        if self._polls > MOST_POLLS:
            raise Violation("the supervisor does not come to an end")

    def of_next_event(self) -> list[Trouble]:
        """What happens to the next event on its way."""
        self._events += 1
        found = self._at_event.pop(self._events, [])
        for trouble in found:
            self.counts[trouble.kind] += 1
            self.log(f"trouble: {trouble.kind}")
        return found

    # -- troubles

    def happens(self, trouble: Trouble) -> None:
        kind = trouble.kind
        if kind in ("kill", "power"):
            self._die(trouble)
            return
        self.counts[kind] += 1
        self.log(f"trouble: {kind} {trouble.job}".rstrip())
        match kind:
            case "lock":
                self._lock(trouble.for_s)
            case "full":
                self.is_full = True
                self.after(trouble.for_s, self._make_room)
            case "io":
                self.is_failing = True
                self.fails_after = trouble.number
                self.fails_once = trouble.for_s == 0.0
                if not self.fails_once:
                    self.after(trouble.for_s, self._make_readable)
            case "unremoved":
                self.is_unremovable = True
                self.after(trouble.for_s, self._make_removable)
            case "jump":
                self._wall += trouble.for_s
            case "signal" | "checkpoints":
                if self.signalled is not None:
                    self.monitor.asked_to_stop(kind == "signal")
                    self.signalled(signal.SIGTERM if kind == "signal" else signal.SIGUSR1)
            case "error":
                self.errors_due += self._is_supervised
                self.has_erred |= self._is_supervised
            case "hangup":
                if self.signalled is not None:
                    self.monitor.hung_up()
                    self.signalled(signal.SIGHUP)
            case "fills":
                self.free_mib = None if trouble.what else LITTLE_MIB
                self.short_since = None if trouble.what else self.now
                self.after(trouble.for_s, self._make_space)
            case _:
                self.commands.give(trouble)

    def _make_space(self) -> None:
        self.free_mib, self.short_since = FREE_MIB, None
        self.log("the disk has space again")

    def _make_room(self) -> None:
        self.is_full = False
        self.log("the disk has room again")

    def _make_readable(self) -> None:
        self.is_failing = False
        self.log("the ledger can be read and written again")

    def _make_removable(self) -> None:
        self.is_unremovable = False

    def _lock(self, for_s: float) -> None:
        with self.own_work():
            path = self.disk.run_dir / "ledger.sqlite3"
            if not path.exists() or self._lockers:
                return
            locker = sqlite3.connect(path, isolation_level=None, timeout=0)
            try:
                locker.execute("BEGIN IMMEDIATE")
            except sqlite3.DatabaseError:  # the supervisor writes at this moment; or it is damaged
                locker.close()
                return
        self._lockers.append(locker)
        self.after(for_s, lambda: self._unlock(locker))

    def _unlock(self, locker: Any) -> None:
        if locker in self._lockers:
            self._lockers.remove(locker)
            with self.own_work():
                locker.close()
            self.unlocked_at = self.now
            self.log("the ledger is no longer locked")

    @property
    def is_locked(self) -> bool:
        return bool(self._lockers)

    # -- death

    def _die(self, trouble: Trouble) -> None:
        if not self._is_supervised or self.is_dead:
            return
        self.counts["deaths"] += 1
        self.counts[trouble.kind] += 1
        self.log(f"the supervisor dies: {trouble.kind}")
        self.is_dead = True
        with self.own_work():
            for locker in list(self._lockers):
                self._unlock(locker)
            self._put_back = self.disk.kept_ledger()
        self._failed_power = trouble if trouble.kind == "power" else None
        raise DeathError

    def bury(self) -> None:
        """The stack of the supervisor that died is unwound: put the disk in order."""
        assert self._put_back is not None
        left = None
        with self.own_work():
            self._put_back()
            self._put_back = None
            if (cut := self._failed_power) is not None:
                left = self.disk.lose_power(cut.choice)
                self._boots += 1
                self._boot = 100.0 - self.now
        if left is not None:
            self._note = left
        self.fall_back(is_less=left is not None)
        self.processes.supervisor_died(
            is_power_cut=self._failed_power is not None, recorded=self.monitor.recorded_pids()
        )

    def forget_supervisors(self) -> None:
        """What they have left half done stays so: closing it would do what no dead process does."""
        self.is_dead = True
        self._is_supervised = True
        for supervisor in self.supervisors:
            if supervisor._recorder._writing is not None:
                with contextlib.suppress(DeathError):
                    supervisor._recorder._writing.close()
        self.supervisors.clear()
        self._is_supervised = False

    def fall_back(self, *, is_less: bool = False) -> None:
        """What was not committed is gone. :param is_less: whether commits are gone, too."""
        self.monitor.fell_back(self._note, is_less)

    # -- the trace

    def log(self, text: str) -> None:
        self.trace.append(f"{self.now:.3f} {text}".replace(self._root_text, ""))
