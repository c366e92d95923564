"""Run directories: recognise, create, lock, and move them to another name."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import errno
import fcntl
import json
import os
import re
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from orchestrator.core.decoding import decode
from orchestrator.core.errors import RunDirError, disk_full_explained
from orchestrator.core.files import own_files
from orchestrator.core.files.atomic_files import no_follow, remove_partial_files
from orchestrator.core.files.regular_files import open_regular
from orchestrator.core.files.trial_file import status_of_new_file
from orchestrator.core.front_end import option, repeat_call
from orchestrator.core.paths import RunPaths, absolute
from orchestrator.ledger import Ledger
from orchestrator.machine.process_identity import process_start
from orchestrator.machine.users import ask_owner

TIME = r"\.\d{8}T\d{6}(-\d+)?"
"""What :func:`set_aside` and ``--fresh`` append to a name."""
RUN_FILES = ("ledger.sqlite3", "supervisor.lock")
"""A run directory has at least one of them."""
LARGEST_LOCK_BYTES = 1 << 16
"""As much is read of the file of a lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """The supervisor that holds a run directory."""

    pid: int
    pid_start: float | None
    host: str
    since: str
    """Local time with microseconds."""

    @property
    def key(self) -> str:
        """Names it in requests: its pid may belong to a later process, and its process may
        supervise again, at once.
        """
        return f"{self.pid}:{self.pid_start}:{self.since}"

    @property
    def is_current(self) -> bool:
        """Whether this can be who holds the lock: until that is written, its file names nobody or
        an earlier holder.
        """
        is_here = self.host == socket.gethostname() and self.pid_start is not None
        return self.pid != 0 and not (is_here and process_start(self.pid) != self.pid_start)

    @property
    def is_elsewhere(self) -> bool:
        """Whether it runs on another host, so that this process must not open the ledger
        meanwhile.
        """
        return self.pid != 0 and self.host != socket.gethostname()

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since.partition('.')[0]}"


@contextlib.contextmanager
def put_aside(
    root: Path, prepare: Callable[[RunPaths], None] = lambda _: None
) -> Iterator[Path | None]:
    """Rename an existing run directory to ``<name>.<time>``; yields the new path, None when there
    was none.

    When the block ends with an exception and nothing has taken its place, it is renamed back.

    :param prepare: called before that, while the directory is locked.
    """
    paths = RunPaths(root)
    aside = None
    with _errors_explained(root):
        _refuse_others(paths)
        if is_run_directory(paths):
            with _locked_directory(paths):
                prepare(paths)
                whole = root.absolute()
                aside = whole.rename(_dated_path(whole.parent, whole.name))
    try:
        yield aside
    except BaseException:
        if aside is not None and not root.exists():
            with contextlib.suppress(OSError):  # it stays under its other name, whole
                aside.rename(root)
        raise


@contextlib.contextmanager
def claim(root: Path) -> Iterator[RunPaths]:
    """Lock ``root`` for the block, creating it where it is missing.

    A directory created here is removed when the block ends with an exception before it holds jobs
    or measurements.
    :raises RunDirError: not a run directory, not writable, not to be trusted, or held by another
        supervisor.
    :raises DiskFullError: when the disk has no room for the first files.
    """
    paths = RunPaths(root)
    with _errors_explained(root):
        _refuse_others(paths)
        if root.is_dir() and set(root.iterdir()) == {paths.requests}:
            # Made of the run before, which had removed itself.
            shutil.rmtree(paths.requests, ignore_errors=True)
        made = [folder for folder in (root, *root.parents) if not folder.exists()]
        root.mkdir(mode=0o775, parents=True, exist_ok=True)
    try:
        with _locked_directory(paths):
            with _errors_explained(root):
                remove_partial_files(root)  # what a supervisor that was killed was writing
                shutil.rmtree(paths.staging, ignore_errors=True)
            try:
                yield paths
            except BaseException:
                # Only the holder of the lock may remove it.
                if made and not (paths.jobs.exists() or paths.bench.exists()):
                    # What cannot be listed or removed stays, and the exception is passed on.
                    with contextlib.suppress(OSError):
                        _remove(paths)
                raise
    except BaseException:
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()  # fails unless it is empty
        raise


def _remove(paths: RunPaths) -> None:
    """Remove a run directory without jobs. Where something in it cannot be removed, it stays a run
    directory, whose end can be read and which the next `run` takes.
    """
    last = {paths.lock, paths.run_end}
    for path in sorted(set(paths.root.iterdir()) - last):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):  # it is seen below that it is still there
                path.unlink()
    if set(paths.root.iterdir()) <= last:
        shutil.rmtree(paths.root, ignore_errors=True)


def choose_another() -> str:
    """Advice where a run directory cannot be used."""
    return f"choose another with {option('run_dir')}"


def _refuse_others(paths: RunPaths) -> None:
    """:raises RunDirError: there is something else, or a directory that is not to be trusted."""
    root = paths.root
    if root.exists() and not root.is_dir():
        another = choose_another().capitalize()
        raise RunDirError(f"{root}: is a file; a run directory was expected. {another}")
    if not root.is_dir():
        return
    # In this order: another command may be making it. A request may have come while the run before
    # was being removed.
    if not (set(root.iterdir()) <= {paths.requests} or is_run_directory(paths)):
        what = "exists and is not a run directory; nothing was changed"
        another = choose_another().capitalize()
        raise RunDirError(f"{root}: {what}. {another}")
    _refuse_untrusted(root)


def _refuse_untrusted(root: Path) -> None:
    """Refuse a directory in which other users may have put files; root, whom nothing stops, is no
    other user.
    """
    ours = status_of_new_file(root)
    found = root.stat()
    pickles = "A run loads its checkpoints, which are pickles and can run any code"
    if found.st_uid not in (ours.st_uid, 0):
        copy = "or copy it (`cp -r`) if you trust its content: the copy is yours"
        advice = f"{choose_another().capitalize()}, {copy}"
        raise RunDirError(
            f"{root}: belongs to another user (number {found.st_uid}). {pickles}. {advice}"
        )
    if found.st_mode & ~ours.st_mode & stat.S_IWOTH:
        another = f"{choose_another().capitalize()}, such as {root / 'run'}"
        advice = f"{another}, or `chmod o-w {root}` if you trust its content"
        raise RunDirError(
            f"{root}: every user of this machine may write into it. {pickles}. {advice}"
        )


@contextlib.contextmanager
def _errors_explained(root: Path) -> Iterator[None]:
    absolute(root)
    try:
        with disk_full_explained(root, f"{repeat_call()}, or {choose_another()}"):
            yield
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise RunDirError(
                f"{error.filename}: is a symbolic link, expected a file; remove it"
            ) from error
        is_refused = error.errno in (errno.EACCES, errno.EPERM)
        owner = ask_owner(root) if is_refused else ""
        advice = owner or f"fix its permissions, or {choose_another()}"
        raise RunDirError(f"{root}: cannot be used ({error.strerror}); {advice}") from error


def is_run_directory(paths: RunPaths) -> bool:
    return paths.lock.exists() or paths.ledger.exists()


def only_one() -> Path | None:
    """The current directory if it is a run directory, or the only one in it or in its folder
    ``runs``; None otherwise.

    Those that ``--fresh`` renamed do not count, nor do benchmarks.
    """
    here = Path()
    if is_run_directory(RunPaths(here)):
        return here
    found: set[Path] = set()
    for below in (here, here / "runs"):
        for name in RUN_FILES:
            found |= {file.parent for file in below.glob(f"*/{name}")}
    runs = [root for root in found if _may_be_meant(root)]
    return runs[0] if len(runs) == 1 else None


def _may_be_meant(root: Path) -> bool:
    """Whether a run directory is one that a user may mean without naming it."""
    if re.fullmatch(f".+{TIME}", root.name):
        return False
    paths = RunPaths(root)
    return paths.ledger.exists() or not paths.bench.exists()


def existing_run(root: Path) -> RunPaths:
    """The paths of an existing run directory. :raises RunDirError: it is none, or does not
    exist.
    """
    paths = RunPaths(root)
    if root.is_dir() and is_run_directory(paths):
        return paths
    what = "no such run directory"
    if root.exists():
        kind = "directory" if root.is_dir() else "file"
        what = f"this {kind} is not a run directory, which `run` makes"
    raise RunDirError(f"{root}: {what}{_suggestions(root)}")


def _suggestions(root: Path) -> str:
    """Run directories that may have been meant: in ``root``, or beside it."""
    for folder, where in ((root, "in it"), (root.parent, "beside it")):
        ledgers = list(folder.glob("*/ledger.sqlite3"))
        ledgers.sort(key=lambda ledger: -ledger.stat().st_mtime)
        if ledgers:
            latest = ", ".join(str(path.parent) for path in ledgers[:5])
            return f"; run directories {where}, the latest first: {latest}"
    return ""


def holder(paths: RunPaths) -> LockHolder | None:
    """The supervisor that holds the run directory now; None when none does."""
    try:
        with open_regular(paths.lock, follow=False) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _read_holder(file.read(LARGEST_LOCK_BYTES))
    except OSError:  # there is no lock, or it may not be read
        return None
    return None


@contextlib.contextmanager
def reading_ledger(paths: RunPaths) -> Iterator[Ledger]:
    """The ledger, to be read within the block.

    :raises RunDirError: its supervisor runs on another host.
    """
    if (at_work := holder(paths)) is not None and at_work.is_elsewhere:
        commands = (
            "`status`, `attach`, `wait`, `logs`, `stop`, `retry`, `pause`, `resume` and `set`"
        )
        advice = f"{commands} work from here; for anything else use that host or wait"
        raise RunDirError(
            f"{paths.root}: its supervisor ({at_work}) runs on another host than this. {advice}"
        )
    with opened_ledger(paths, read_only=True) as ledger:
        yield ledger


@contextlib.contextmanager
def opened_ledger(
    paths: RunPaths, *, read_only: bool = False, is_sound: bool = False
) -> Iterator[Ledger]:
    """The ledger, whoever has the run directory locked; what is not committed within the block is
    dropped.

    :param is_sound: as for :meth:`Ledger.open`.
    """
    ledger = Ledger.open(paths.ledger, read_only=read_only, is_sound=is_sound)
    try:
        yield ledger
    finally:
        ledger.abandon()


def _read_holder(content: bytes) -> LockHolder:
    try:
        return decode(LockHolder, content)
    except ValueError:  # the lock was taken just now, and its file is not written yet
        return LockHolder(pid=0, pid_start=None, host="this machine", since="just now")


@contextlib.contextmanager
def _locked_directory(paths: RunPaths) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        with _errors_explained(paths.root):
            lock = open(paths.lock, "a+b", buffering=0, opener=no_follow)  # noqa: SIM115 - pathlib has no opener
            file = stack.enter_context(lock)
            stack.enter_context(own_files.kept_from_forks(file.fileno()))
            if not (_try_lock(file) and _is_still(file, paths.lock)):
                file.seek(0)
                this = _read_holder(file.read(LARGEST_LOCK_BYTES) or b"")
                root = paths.root
                advice = f"`status {root}` shows its jobs, `attach {root}` follows it, `stop {root}` ends it"
                raise RunDirError(
                    f"{paths.root}: is running already, held by another supervisor ({this}). {advice}"
                )
            file.truncate(0)
            pid = os.getpid()
            host = socket.gethostname()
            since = str(datetime.datetime.now())
            this = LockHolder(pid=pid, pid_start=process_start(pid), host=host, since=since)
            try:
                file.write(json.dumps(dataclasses.asdict(this)).encode())
            except OSError:
                paths.lock.unlink()
                raise
        yield


def _is_still(file: IO[bytes], path: Path) -> bool:
    """Whether ``path`` still names the locked file: its directory may have been moved before the
    lock was taken.
    """
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _try_lock(file: IO[bytes]) -> bool:
    for _ in range(5):  # :func:`holder` takes the lock for an instant, a supervisor keeps it
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.02)
    return False


def set_aside(directory: Path, into: Path) -> Path:
    """Move ``directory`` (if it exists) below ``into`` under a free name; returns the new path."""
    into.mkdir(exist_ok=True)
    target = _dated_path(into, directory.name)
    with contextlib.suppress(FileNotFoundError):  # there is none
        directory.rename(target)
    return target


def _dated_path(folder: Path, name: str) -> Path:
    """A path in ``folder`` that nothing has: ``name`` with the time, as in :data:`TIME`."""
    path = folder / f"{name}.{time.strftime('%Y%m%dT%H%M%S')}"
    candidate = path
    number = 1
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate
