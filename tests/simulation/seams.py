"""What of the program is replaced in a simulated world, name by name.

Everything else is the real program: :func:`orchestrator.experiment.session.run` with its run
directory, lock, ledger, plan, reconcile, recovery and supervisor, and the commands of
:mod:`orchestrator.experiment.from_outside.control`.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import functools
import importlib
import json
import os
import platform
import random
import socket
import sqlite3
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from orchestrator.core.files import atomic_files
from orchestrator.core.job import Job
from orchestrator.executors.kinds import ExecutorKind
from orchestrator.experiment import session
from orchestrator.experiment.directory import left_batch_jobs, run_directory
from orchestrator.experiment.examination import preflight
from orchestrator.experiment.examination.preflight import JobVerdict
from orchestrator.experiment.from_outside import reload
from orchestrator.experiment.planning import run_executor, run_plan
from orchestrator.experiment.resuming import reconcile, recovery
from orchestrator.ledger import Ledger, database_file
from orchestrator.machine import provenance, topology
from orchestrator.supervisor import job_directory, recorder, stop_signals
from orchestrator.supervisor.supervisor import Supervisor
from tests.simulation import disk
from tests.simulation.disk import UnsimulatedError
from tests.simulation.executor import machine
from tests.simulation.signals import SimulatedSignal
from tests.simulation.world import FREE_MIB, World

os.environ.setdefault("ORCHESTRATOR_FEATURES", "")  # none of others takes part
for module in ("pictures.after_run", "search.begun_search", "search.search_process"):
    importlib.import_module(f"orchestrator.features.{module}")

PACKAGES = ("core", "executors", "experiment", "keys", "ledger", "machine", "supervisor", "jobfile")


class SimulatedTime:
    """In the place of the module ``time``."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic(self) -> float:
        return self._world.monotonic

    def time(self) -> float:
        return self._world.wall

    def time_ns(self) -> int:
        return int(self._world.wall * 1e9)

    def perf_counter(self) -> float:
        return self._world.monotonic

    def thread_time(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        self._world.sleep(seconds)

    def localtime(self, seconds: float | None = None) -> time.struct_time:
        return time.gmtime(self._world.wall if seconds is None else seconds)

    gmtime = localtime

    def strftime(self, form: str, moment: time.struct_time | None = None) -> str:
        return time.strftime(form, self.localtime() if moment is None else moment)


class SimulatedOs:
    """In the place of the module ``os``."""

    def __init__(self, world: World) -> None:
        self._world = world
        _add_names(self, os)

    def getpid(self) -> int:
        return self._world.pid

    def fsync(self, descriptor: int) -> None:
        self._world.disk.fsync(descriptor)

    def killpg(self, pid: int, _signal: int) -> None:
        self._world.point(f"kill what is left of {pid}")
        if pid not in self._world.lives:
            raise ProcessLookupError
        self._world.processes.kill(pid)

    def statvfs(self, _path: Any) -> os.statvfs_result:
        free = 0 if self._world.is_full else self._world.free_mib
        if free is None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        mib = 1 << 20
        return os.statvfs_result((mib, mib, 2 * FREE_MIB, free, free, 0, 0, 0, 0, 255))


class SimulatedSocket:
    """In the place of the module ``socket``."""

    def __init__(self, world: World) -> None:
        self._world = world

    def gethostname(self) -> str:
        return self._world.host


class SimulatedDatetime:
    """In the place of the module ``datetime``, of which a lock needs ``datetime.now()``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.datetime = self

    def now(self) -> datetime.datetime:
        moment = datetime.datetime.fromtimestamp(self._world.wall, datetime.UTC)
        return moment.replace(tzinfo=None)


class SimulatedSqlite:
    """In the place of the module ``sqlite3`` where ledgers are opened."""

    def __init__(self, world: World) -> None:
        self._world = world

        class Connection(sqlite3.Connection):
            """Each commit is a point of the supervisor. A statement may fail, as a commit may."""

            def __init__(self, *arguments: Any, **options: Any) -> None:
                super().__init__(*arguments, **options)
                self._cursors = weakref.WeakSet[sqlite3.Cursor]()

            def execute(self, *arguments: Any) -> sqlite3.Cursor:
                self._may_fail()
                cursor = super().execute(*arguments)
                self._cursors.add(cursor)
                return cursor

            def executemany(self, *arguments: Any) -> sqlite3.Cursor:
                self._may_fail()
                return super().executemany(*arguments)

            def _may_fail(self) -> None:
                try:
                    world.before_statement()
                except sqlite3.OperationalError:
                    if world.rolls_back:
                        self.rollback()
                    raise

            def close(self) -> None:
                """As the end of a process does: what the traceback of an error still has of a query
                would keep the files open.
                """
                for cursor in list(self._cursors):
                    cursor.close()
                self._cursors.clear()  # it may be closed once more
                super().close()

            def commit(self) -> None:
                if not self.in_transaction or world.is_own_work:
                    super().commit()
                    return
                world.before_commit()
                super().commit()
                world.after_commit()

        self._factory = Connection
        self.opened: list[sqlite3.Connection] = []
        _add_names(self, sqlite3)

    def connect(self, *arguments: Any, **options: Any) -> sqlite3.Connection:
        waits = {**options, "timeout": 0.0}
        connection = sqlite3.connect(*arguments, factory=self._factory, **waits)
        self.opened.append(connection)
        return connection


def _add_names(replacement: object, module: ModuleType) -> None:
    """Give what stands in the place of a module the names that it does not define itself."""
    defined = vars(type(replacement))
    for name, value in vars(module).items():
        if name not in defined and not name.startswith("__"):
            setattr(replacement, name, value)


class PlainJson:
    """In the place of the module ``json`` where what a run is made with is recorded: without
    indentation, which Python's encoder writes much more slowly.
    """

    def __init__(self) -> None:
        _add_names(self, json)

    def dumps(self, value: Any, *, indent: int) -> str:
        return json.dumps(value)


class NoRepository:
    """In the place of what asks git about the job file's folder, in a process of its own."""

    def __init__(self, base: Path) -> None:
        pass

    def facts(self) -> None:
        return None

    def close(self) -> None:
        pass


@contextlib.contextmanager
def installed(world: World, kind: ExecutorKind) -> Iterator[SimulatedSqlite]:
    """The program sees ``world`` within the block, and no other files than its own."""
    with contextlib.ExitStack() as stack:
        replaced = functools.partial(replace, stack)
        modules: Mapping[ModuleType, Any] = {
            time: SimulatedTime(world),
            os: SimulatedOs(world),
            socket: SimulatedSocket(world),
            random: random.Random(0),
            datetime: SimulatedDatetime(world),
        }
        for module, original in _imports(tuple(modules), len(sys.modules)):
            replaced(module, original.__name__, modules[original])
        sqlite = SimulatedSqlite(world)
        replaced(database_file, "sqlite3", sqlite)
        for replacement in replacements(world, kind):
            replaced(*replacement)
        platform.platform()  # found out once, by a process
        provenance.installed_versions()
        before = set(sys.modules)
        disk.watch(world.disk)
        stack.callback(disk.unwatch)
        yield sqlite
        late = [name for name in set(sys.modules) - before if _is_ours(name)]
        if late:
            raise UnsimulatedError(f"imported too late to see the simulated world: {late}")


@functools.lru_cache(maxsize=1)
def _imports(
    originals: tuple[ModuleType, ...], _modules: int
) -> Sequence[tuple[ModuleType, ModuleType]]:
    """Which modules of the program have which of ``originals``, while no further one is imported."""
    return [
        (module, original)
        for name, module in list(sys.modules.items())
        if _is_ours(name) and name.split(".")[1] in PACKAGES
        for original in originals
        if getattr(module, original.__name__, None) is original
    ]


def examine(jobs: Sequence[Job], **_: Any) -> dict[str, JobVerdict]:
    """Replaces what examines robots: no job has one."""
    return {job.job_id: JobVerdict() for job in jobs}


def replacements(
    world: World, kind: ExecutorKind
) -> Sequence[tuple[object, str, Callable[..., Any] | Any]]:
    """Every name that is replaced beside modules of the standard library: where, which, by what."""

    def process_start(pid: int) -> float | None:
        return world.lives.get(pid)

    def same_process(pid: int, start: float) -> bool:
        return world.lives.get(pid) == start

    def wait_for_lock(ledger: Ledger, _seconds: float = 0.0) -> None:
        """Nothing waits within SQLite: its clock is the real one."""

    def sync_trees(folders: Sequence[Path]) -> None:
        for folder in folders:
            atomic_files._sync_tree(folder)

    def supervisor(**arguments: Any) -> Supervisor:
        world.monitor.queued(arguments["rows"])
        made = Supervisor(now=lambda: world.monotonic, **arguments)
        world.supervisors.append(made)
        return made

    return (
        (session, "Supervisor", supervisor),
        (stop_signals, "signal", SimulatedSignal(world)),
        (provenance, "Repository", NoRepository),
        (provenance, "json", PlainJson()),
        (preflight, "examine", examine),
        (reload, "_declared_experiment", lambda *_: world.commands.files.declared()),
        (run_plan, "kind_named", lambda _: kind),
        (run_executor, "kind_named", lambda _: kind),
        (run_executor, "executor_kinds", lambda: {kind.name: kind}),
        (left_batch_jobs, "executor_kinds", lambda: {kind.name: kind}),
        (run_plan, "_restriction", lambda _: ""),
        (topology, "detect", lambda with_gpus=False: machine(world.scenario.cpus)),
        (run_directory, "process_start", process_start),
        (recovery, "same_process", same_process),
        (recovery, "is_zombie", lambda pid: False),
        (Ledger, "wait_for_lock", wait_for_lock),
        (reconcile, "sync_trees", sync_trees),
        (job_directory, "sync_trees", sync_trees),
        (recorder, "PAGE_ROWS", world.scenario.page_rows or recorder.PAGE_ROWS),
    )


def replace(stack: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    """Replace ``owner.name`` until ``stack`` is left."""
    before = getattr(owner, name)  # raises if it is gone
    setattr(owner, name, value)
    stack.callback(setattr, owner, name, before)


def _is_ours(name: str) -> bool:
    return name.startswith("orchestrator.")
