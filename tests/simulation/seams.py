"""What of the program is replaced in a simulated world. Everything else is the real program: the
supervisor with its jobs, attempts, requests and answers, the ledger, and what users do offline.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import socket
import sqlite3
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from orchestrator.core.errors import Problem
from orchestrator.core.files import atomic_files
from orchestrator.core.processes import procfs
from orchestrator.examination.preflight import JobVerdict
from orchestrator.features.search import begun_search  # noqa: F401 - otherwise imported too late
from orchestrator.jobfile import job_table_rules, toml_models  # noqa: F401 - likewise
from orchestrator.ledger import database_file
from orchestrator.machine import process_identity, provenance
from orchestrator.server import offline, requests
from orchestrator.server.examiner import AbortedExamination, Examination, Examined
from tests.simulation import disk
from tests.simulation.disk import UnsimulatedError
from tests.simulation.machine import Machine
from tests.simulation.world import FREE_MIB, World

os.environ.setdefault("ORCHESTRATOR_FEATURES", "")  # none of others takes part
EXAMINATION_S = 0.15
WRITES = ("INSERT", "UPDATE", "DELETE", "CREATE", "BEGIN")


def changed(module: ModuleType, **names: Any) -> SimpleNamespace:
    """Return what stands in the place of a module: the same, but for some names."""
    return SimpleNamespace(**{**vars(module), **names})


def changed_time(world: World) -> SimpleNamespace:
    def strftime(form: str, moment: time.struct_time | None = None) -> str:
        return time.strftime(form, moment or time.gmtime(world.wall))

    return changed(
        time,
        monotonic=lambda: world.monotonic,
        time=lambda: world.wall,
        time_ns=lambda: int(world.wall * 1e9),
        sleep=world.sleep,
        strftime=strftime,
    )


def changed_os(machine: Machine) -> SimpleNamespace:
    world = machine.world

    def killpg(pid: int, _signal: int) -> None:
        world.point(f"kill what is left of {pid}")
        if pid not in world.lives:
            raise ProcessLookupError
        machine.kill(pid)

    def statvfs(_path: Any) -> os.statvfs_result:
        free = world.free_mib
        mib = 1 << 20
        return os.statvfs_result((mib, mib, 2 * FREE_MIB, free, free, 0, 0, 0, 0, 255))

    return changed(os, getpid=lambda: 1, fsync=world.disk.fsync, killpg=killpg, statvfs=statvfs)


class SimulatedSqlite:
    """Opens the connections to ledgers, and closes those that a dead process leaves open."""

    def __init__(self, world: World) -> None:
        class Connection(sqlite3.Connection):
            """Each commit is a point of the supervisor, and what begins to write may have to wait."""

            patience_s = 10.0

            def __init__(self, *arguments: Any, **options: Any) -> None:
                super().__init__(*arguments, **options)
                self._cursors = weakref.WeakSet[sqlite3.Cursor]()

            def execute(self, *arguments: Any) -> sqlite3.Cursor:
                sql = arguments[0]
                if sql.startswith("PRAGMA busy_timeout="):
                    self.patience_s = int(sql.partition("=")[2]) / 1000
                    return super().execute("PRAGMA busy_timeout")
                self._may_wait(sql)
                cursor = super().execute(*arguments)
                self._cursors.add(cursor)
                return cursor

            def executemany(self, *arguments: Any) -> sqlite3.Cursor:
                self._may_wait(arguments[0])
                return super().executemany(*arguments)

            def _may_wait(self, sql: str) -> None:
                if not self.in_transaction and sql.startswith(WRITES) and not world.is_own_work:
                    world.before_write(self.patience_s)

            def close(self) -> None:
                """Close it as the end of a process does: what the traceback of an error still has
                of a query would keep the files open.
                """
                for cursor in list(self._cursors):
                    cursor.close()
                self._cursors.clear()
                super().close()

            def commit(self) -> None:
                if not self.in_transaction:
                    return
                world.before_commit()
                super().commit()
                if self.row_factory is not None:  # it is not made just now
                    world.after_commit(self)

        self._factory = Connection
        self._opened: list[sqlite3.Connection] = []

    def connect(self, *arguments: Any, **options: Any) -> sqlite3.Connection:
        waits = {**options, "timeout": 0.0}
        connection = sqlite3.connect(*arguments, factory=self._factory, **waits)
        self._opened.append(connection)
        return connection

    def close(self) -> None:
        """Close every connection that is left open, as the end of its process does."""
        for connection in self._opened:
            connection.close()
        self._opened.clear()


class SimulatedExaminer:
    """In the place of :class:`orchestrator.server.examiner.Examiner`."""

    progress = (0, 0)

    def __init__(self, machine: Machine | None = None, **_: Any) -> None:
        self._machine = machine
        self._open: list[tuple[float, Examination]] = []
        self._is_aborted = False

    @property
    def is_busy(self) -> bool:
        return bool(self._open)

    def begin(self, examination: Examination) -> None:
        assert self._machine is not None
        begun = self._open[-1][0] if self._open else self._machine.world.now
        self._open.append((begun + EXAMINATION_S, examination))

    def take(self) -> list[Examined]:
        if not self._open:
            return []
        assert self._machine is not None
        now = self._machine.world.now
        taken = [entry for entry in self._open if self._is_aborted or entry[0] <= now]
        self._open = [entry for entry in self._open if entry not in taken]
        return [self._examined(examination) for _, examination in taken]

    def _examined(self, examination: Examination) -> Examined:
        if self._is_aborted:
            return Examined(examination=examination, error=AbortedExamination())
        assert self._machine is not None
        verdicts = {}
        for job in examination.jobs:
            is_invalid = self._machine.jobs[job.job_id].is_invalid
            problem = Problem(where=job.where, message="its robot is invalid")
            verdicts[job.job_id] = JobVerdict(problem=problem if is_invalid else None)
        return Examined(examination=examination, verdicts=verdicts)

    def abort(self) -> None:
        self._is_aborted = True

    def close(self) -> None:
        """It has no processes."""


@contextlib.contextmanager
def installed(machine: Machine) -> Iterator[SimulatedSqlite]:
    """The program sees the simulated world within the block, and no other files than its own."""
    world = machine.world
    provenance.installed_versions()
    sqlite = SimulatedSqlite(world)

    def process_start(pid: int) -> float | None:
        return world.lives.get(pid)

    def same_process(pid: int, start: float) -> bool:
        return world.lives.get(pid) == start

    def sync_trees(folders: Sequence[Path]) -> None:
        for folder in folders:
            atomic_files._sync_tree(folder)

    replacements: Mapping[Any, Any] = {
        time: changed_time(world),
        os: changed_os(machine),
        socket: changed(socket, gethostname=lambda: world.host),
        process_identity.process_start: process_start,
        process_identity.same_process: same_process,
        process_identity.writes_elsewhere: lambda _pid, _log: False,
        procfs.is_zombie: lambda pid: False,
        atomic_files.sync_trees: sync_trees,
    }
    with contextlib.ExitStack() as stack:
        replaced = functools.partial(replace, stack)
        for module, name, original in _uses(tuple(replacements), len(sys.modules)):
            replaced(module, name, replacements[original])
        replaced(database_file, "sqlite3", changed(sqlite3, connect=sqlite.connect))
        replaced(offline, "Examiner", SimulatedExaminer)
        replaced(requests, "_numbers", itertools.count())
        before = set(sys.modules)
        disk.watch(world.disk)
        stack.callback(disk.unwatch)
        yield sqlite
        late = [name for name in set(sys.modules) - before if name.startswith("orchestrator.")]
        if late:
            raise UnsimulatedError(f"imported too late to see the simulated world: {late}")


@functools.lru_cache(maxsize=1)
def _uses(originals: tuple[Any, ...], _modules: int) -> Sequence[tuple[Any, str, Any]]:
    """Return where the program has any of ``originals``, while no further module is imported."""
    by_id = {id(original): original for original in originals}
    return [
        (module, name, by_id[id(value)])
        for module_name, module in list(sys.modules.items())
        if module_name.startswith("orchestrator.")
        for name, value in list(vars(module).items())
        if id(value) in by_id
    ]


def replace(
    stack: contextlib.ExitStack, owner: Any, name: str, value: Callable[..., Any] | Any
) -> None:
    """Replace ``owner.name`` until ``stack`` is left."""
    before = getattr(owner, name)  # raises if it is gone
    setattr(owner, name, value)
    stack.callback(setattr, owner, name, before)
