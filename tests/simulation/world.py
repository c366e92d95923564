"""The simulated world: one clock, an agenda of what happens when, and the points of a supervisor's
work at which it may die.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import math
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.simulation.disk import Disk, full_error, sqlite_error
from tests.simulation.scenario import Scenario, Trouble

if TYPE_CHECKING:
    from tests.simulation.play import Player

BEGAN = 1_800_000_000.0
"""Seconds since the epoch when the world begins."""
BOOTED = 5_000.0
"""What the monotonic clock says then."""
HERE = "here"
MOST_POLLS = 4000
"""Of one supervisor. One that needs more is stuck."""
MOST_SLEEPS = 1000
"""Of another process, likewise."""
FREE_MIB = 10_000
LITTLE_MIB = 100
"""Free while the disk has less space than jobs ask for."""


class DeathError(BaseException):
    """The process of the supervisor is gone."""


class Violation(BaseException):
    """Something that must hold does not."""


@dataclass(slots=True, kw_only=True)
class World:
    root: Path
    scenario: Scenario
    now: float = 0.0
    """Seconds since the beginning."""
    host: str = HERE
    """Where what runs now believes to run."""
    is_own_work: bool = False
    """Whether the simulation itself is at work."""
    is_supervised: bool = False
    """Whether a supervisor lives."""
    is_dead: bool = False
    """Whether the supervisor has died; what its stack still does must have no effect."""
    is_full: bool = False
    is_failing: bool = False
    """Whether the file system fails to write the ledger."""
    free_mib: int = FREE_MIB
    short_since: float = -math.inf
    short_until: float = -math.inf
    """Since and until when the disk has less space than jobs ask for."""
    locked_until: float = -math.inf
    """Until when another program locks the ledger."""
    disturbed_at: float = -math.inf
    """When the supervisor was last held up or handled an error: limits may be late until then."""
    has_erred: bool = False
    """Whether the supervisor that lives has met an error that may end the run."""
    failed_power: Trouble | None = None
    counts: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)
    disk: Disk = field(init=False)
    player: Player = field(init=False)
    """Does what is not the world's own."""
    lives: dict[int, float] = field(default_factory=dict)
    """Processes, with their start."""
    points: int = 0
    polls: int = 0
    errors_due: int = 0
    """Calls of the executor that are to raise."""
    boot: float = BOOTED
    wall_offset: float = BEGAN
    _boots: int = 0
    _others: int = 0
    """Depth of processes other than the supervisor that are at work at this moment."""
    _sleeps: int = 0
    _agenda: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _tickets: Iterator[int] = field(default_factory=itertools.count)
    _pids: Iterator[int] = field(default_factory=lambda: itertools.count(100))
    _at_point: dict[int, list[Trouble]] = field(default_factory=lambda: defaultdict(list))
    _at_event: dict[int, list[Trouble]] = field(default_factory=lambda: defaultdict(list))
    _waiting: list[Trouble] = field(default_factory=list)
    """Troubles whose time has come, and that come at a point of a certain kind."""
    _events: int = 0
    _put_back: Callable[[], None] | None = None

    def __post_init__(self) -> None:
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
        return self.boot + self.now

    @property
    def wall(self) -> float:
        return self.wall_offset + self.now

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
            with self.other_process():
                what()
        if not until():
            self.now = max(self.now, end)

    def sleep(self, seconds: float) -> None:
        if self._others or not self.is_supervised:
            self._sleeps += 1
            if self._sleeps > MOST_SLEEPS:
                raise Violation("a command does not come to an end")
            self.now += seconds  # what is due meanwhile happens when it has returned
            return
        self.point("sleep")
        self.pass_time(max(seconds, 0.001))

    # -- processes

    def new_pid(self) -> int:
        pid = next(self._pids)
        self.lives[pid] = round(self.monotonic, 2) + self._boots / 1024
        return pid

    @contextlib.contextmanager
    def other_process(self, host: str = HERE) -> Iterator[None]:
        """Within the block a worker or a client is at work, while the supervisor is not."""
        before, self.host = self.host, host
        self._others += 1
        self._sleeps = 0
        try:
            yield
        finally:
            self.host = before
            self._others -= 1

    @contextlib.contextmanager
    def own_work(self) -> Iterator[None]:
        """What the simulation itself does to files within the block is not the program's."""
        before, self.is_own_work = self.is_own_work, True
        try:
            yield
        finally:
            self.is_own_work = before

    @property
    def is_supervisor_at_work(self) -> bool:
        return self.is_supervised and not self._others and not self.is_own_work

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
        due = self._at_point.pop(self.points, [])
        due += [trouble for trouble in self._waiting if what.startswith(trouble.at_what)]
        for trouble in due:
            if trouble in self._waiting:
                self._waiting.remove(trouble)
            with self.other_process():
                self.happens(trouble)

    def changes(self, what: str) -> None:
        """A file is about to be changed. Raises what the change ends with, if it does."""
        self.point(what)
        if self.is_full and not what.startswith(("remove", "rmdir", "rename", "open")):
            self._disturb()
            raise full_error()

    def before_commit(self) -> None:
        self.point("commit")
        if self.is_full:
            self._disturb()
            raise sqlite_error(sqlite3.SQLITE_FULL, "database or disk is full")

    def before_write(self, patience_s: float) -> None:
        """A transaction is about to begin: wait for the lock of the ledger."""
        wait_s = min(self.locked_until - self.now, patience_s)
        if wait_s > 0:
            if self.is_supervisor_at_work:
                self.pass_time(wait_s)
            else:
                self.now += wait_s
            self.disturbed_at = self.now
        if self.locked_until > self.now:
            self._disturb()
            raise sqlite_error(sqlite3.SQLITE_BUSY, "database is locked")
        if self.is_failing:
            self._disturb()
            raise sqlite_error(sqlite3.SQLITE_IOERR, "disk I/O error")

    def _disturb(self) -> None:
        """The supervisor meets an error."""
        self.disturbed_at = self.now
        self.has_erred |= self.is_supervisor_at_work

    def after_commit(self, connection: sqlite3.Connection) -> None:
        with self.own_work():
            self.disk.committed()
            self.player.committed(connection)
        self.point("committed")

    def polled(self) -> None:
        """The supervisor waits for events."""
        self.point("poll")
        self.polls += 1
        self.now += 0.001  # a turn takes a moment
        if self.polls > MOST_POLLS:
            raise Violation("the supervisor does not come to an end")

    def of_next_event(self) -> list[Trouble]:
        """Return what happens to the next event of the executor on its way."""
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
        self.log(f"trouble: {kind} {trouble.what} {trouble.job}".rstrip())
        match kind:
            case "lock":
                self.locked_until = self.now + trouble.for_s
            case "full" | "io":
                name = "is_full" if kind == "full" else "is_failing"
                setattr(self, name, True)
                self.after(trouble.for_s, lambda: setattr(self, name, False))
            case "jump":
                self.wall_offset += trouble.for_s
            case "suspend":
                self.boot += trouble.for_s
            case "error":
                self.errors_due += self.is_supervised
            case "fills":
                self.free_mib = LITTLE_MIB
                self.short_since = self.now
                self.short_until = self.now + trouble.for_s
                self.after(trouble.for_s, self._make_space)
            case _:
                self.player.happens(trouble)

    def _make_space(self) -> None:
        if self.now >= self.short_until:
            self.free_mib = FREE_MIB

    # -- death

    def begin_life(self) -> None:
        self.is_supervised = True
        self.is_dead = self.has_erred = False
        self.polls = 0
        self.errors_due = 0
        self.counts["lives"] += 1

    def _die(self, trouble: Trouble) -> None:
        if not self.is_supervised or self.is_dead:
            return
        self.counts[trouble.kind] += 1
        self.log(f"the supervisor dies: {trouble.kind}")
        self.is_dead = True
        self.failed_power = trouble if trouble.kind == "power" else None
        with self.own_work():
            self._put_back = self.disk.kept_ledger()
        raise DeathError

    def end_life(self, close: Callable[[], None]) -> bool:
        """Put the disk in order when the stack of a supervisor is unwound. Return whether it died.

        :param close: closes its connections.
        """
        has_died = self.is_dead
        with self.own_work():
            close()
            if self._put_back is not None:
                self._put_back()
                self._put_back = None
            if self.failed_power is not None:
                self.disk.lose_power(self.failed_power.number)
                self._boots += 1
                self.boot = 100.0 - self.now
        self.is_supervised = self.is_dead = False
        return has_died

    # -- the trace

    def log(self, text: str) -> None:
        self.trace.append(f"{self.now:.3f} {text}".replace(str(self.root), ""))
