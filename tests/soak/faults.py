"""The faults: how each is applied to a running command, and what the command may do then."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from orchestrator.core.paths import RunPaths
from orchestrator.core.processes.child_process import send_signal
from orchestrator.core.text import last_line
from orchestrator.features.bench.runner import await_end
from orchestrator.machine.process_tree import with_descendants
from tests.soak.commands import CommandRun, Output, Role
from tests.soak.experiment import EDIT, EDITED, OF_ONE_PROCESS, OF_RANKS

STOPPED_S = (0.3, 3.0)
"""Shortest and longest time for which a process is stopped."""
LOCKED_S = (0.5, 5.0)
"""Shortest and longest time for which the ledger is locked."""
DISK_MIB = 48
LEFT_FREE = (0, 1 << 12, 1 << 16)
"""Bytes that are left on a disk when it counts as full."""
FILE_LIMITS = (1 << 10, 1 << 14, 1 << 17)
"""Bytes that a file may have."""


class NotApplicableError(Exception):
    """The machine does not allow a fault; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A kind of fault."""

    name: str
    apply: Callable[[CommandRun, Random], bool]
    """Applies it, and returns when it is over. False: there is nothing yet that it could be applied
    to."""
    may_end: bool = False
    """Whether the command may end before its jobs do."""
    may_fail: bool = False
    """Whether jobs may fail and an error of the supervisor may be reported, so that jobs are
    retried."""
    jobs: Sequence[str] = ()
    """The jobs by whose progress its moment is chosen; all if none is named."""
    has_failing_job: bool = False
    output: Output = "log"
    on_small_disk: bool = False
    is_important: bool = False
    """Whether it comes before the others: it is frequent where trainings run, or costs most if it
    is not survived."""


def _send(role: Role, number: signal.Signals, run: CommandRun, rng: Random) -> bool:
    pids = run.pids(role)
    if not pids:
        return False
    pid = rng.choice(pids)
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    if number == signal.SIGSTOP:
        run.pause(rng.uniform(*STOPPED_S))
        send_signal(pid, signal.SIGCONT)
    return True


def _fill_disk(run: CommandRun, rng: Random) -> bool:
    if not run.paths.lock.exists():
        return False
    ballast = run.paths.root / "ballast"
    with ballast.open("wb", buffering=0) as file:
        with contextlib.suppress(OSError):  # ENOSPC
            while file.write(bytes(1 << 16)):
                pass
        file.truncate(max(0, file.tell() - rng.choice(LEFT_FREE)))
    run.wait()
    ballast.unlink()
    return True


def _limit_files(run: CommandRun, rng: Random) -> bool:
    limit = rng.choice(FILE_LIMITS)
    for pid in with_descendants(run.popen.pid):
        with contextlib.suppress(ProcessLookupError):  # it has ended
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, hard))
    return True


def _lock_ledger(run: CommandRun, rng: Random) -> bool:
    if not run.paths.ledger.exists():
        return False
    with contextlib.closing(
        sqlite3.connect(run.paths.ledger, timeout=0.0, isolation_level=None)
    ) as connection:
        try:
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:  # the supervisor is writing
            return False
        run.pause(rng.uniform(*LOCKED_S))
    return True


def _begin_to_read(run: CommandRun, _: Random) -> bool:
    run.read()
    return True


def _unfinished_jobs(paths: RunPaths) -> list[Path]:
    """Directories of the jobs that have no policy yet."""
    return sorted(path for path in paths.jobs.glob("*") if not (path / "model.zip").exists())


def _newest_checkpoints(paths: RunPaths) -> list[Path]:
    names = [sorted(path.glob("checkpoints/checkpoint-*.pt")) for path in _unfinished_jobs(paths)]
    return [checkpoints[-1] for checkpoints in names if checkpoints]


def _truncate(checkpoint: Path, rng: Random) -> None:
    os.truncate(checkpoint, rng.randrange(checkpoint.stat().st_size))


def _robots(paths: RunPaths) -> list[Path]:
    return [robot for path in _unfinished_jobs(paths) for robot in path.glob("robot/*.xml")]


def _edit(robot: Path, _: Random) -> None:
    robot.write_text(robot.read_text().replace(EDITED, EDIT))


def _damage(
    find: Callable[[RunPaths], Sequence[Path]],
    damage: Callable[[Path, Random], None],
    run: CommandRun,
    rng: Random,
) -> bool:
    """Kill the supervisor, and damage a file while nothing runs."""
    if not find(run.paths):
        return False
    pids = with_descendants(run.popen.pid)
    run.popen.kill()
    run.wait()
    await_end(pids)
    if files := find(run.paths):
        damage(rng.choice(files), rng)
    return True


def _signals() -> Iterator[Fault]:
    roles: Sequence[Role] = ("supervisor", "worker", "rank", "orphan reaper", "template process")
    for role in roles:
        for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):
            yield Fault(
                name=f"{number.name}{' and SIGCONT' if number == signal.SIGSTOP else ''}: {role}",
                apply=partial(_send, role, number),
                may_end=role == "supervisor" and number != signal.SIGSTOP,
                jobs={"worker": OF_ONE_PROCESS, "rank": (OF_RANKS,)}.get(role, ()),
                is_important=role in ("supervisor", "worker") and number == signal.SIGKILL,
            )


FAULTS: Sequence[Fault] = (
    *_signals(),
    Fault(name="full disk", apply=_fill_disk, may_end=True, on_small_disk=True, is_important=True),
    Fault(name="limit on the size of files", apply=_limit_files, may_end=True, may_fail=True),
    Fault(name="ledger locked", apply=_lock_ledger),
    Fault(name="terminal not read", apply=_begin_to_read, output="terminal"),
    Fault(name="full pipe not read", apply=_begin_to_read, output="pipe"),
    Fault(
        name="checkpoint truncated",
        apply=partial(_damage, _newest_checkpoints, _truncate),
        may_end=True,
        is_important=True,
    ),
    Fault(name="robot edited", apply=partial(_damage, _robots, _edit), may_end=True),
    Fault(name="error that is no UTF-8", apply=lambda *_: True, has_failing_job=True),
)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of :data:`DISK_MIB` at ``folder``, which is created. :raises
    NotApplicableError:
    """
    if os.geteuid() != 0 or shutil.which("mount") is None:
        raise NotApplicableError("only root can mount a small disk")
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=755", "tmpfs", str(folder)]
    mounted = subprocess.run(command, check=False, capture_output=True, text=True)
    if mounted.returncode:
        raise NotApplicableError(
            f"a small disk cannot be mounted here: {last_line(mounted.stderr, 'mount failed')}"
        )
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
