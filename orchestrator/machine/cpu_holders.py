"""Who holds which CPUs of this machine: experiments of all users say so in files that all of them
can read.

Below a fixed folder, whatever ``TMPDIR`` is, each user has a directory, and each holder (a
supervisor, a node agent, a pilot) a file in it with its name and its CPUs. The holder keeps the
file locked, and the kernel releases the lock when the holder ends in any way: a file without a lock
is one that was left behind. Others only try the lock, and never wait for it. Whoever cannot take
part, because the folder cannot be made or trusted, works without.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from orchestrator.core.files.own_files import kept_from_forks
from orchestrator.core.pacer import Pace, Pacer
from orchestrator.core.processes.environment_variables import HOLDERS_VARIABLE
from orchestrator.core.processes.procfs import is_running
from orchestrator.core.text import plain
from orchestrator.machine.users import is_own, user_name

FOLDER = Path("/tmp/orchestrator-cpus")  # noqa: S108 - the same for all users; what is found in it is checked
SHARED_MODE = 0o1777
"""Everybody may make a directory in it, and nobody remove another's."""
FILE_NAME = re.compile(r"\.?(\d{1,10})-[0-9a-f]{8}")
"""The pid of the holder; with a dot, the file is not complete yet."""
MOST_BYTES = 1 << 16
"""Of a holder's file; a larger one is not read."""
MOST_USERS = 1024
"""Further users are not looked at."""
MOST_HOLDERS = 128
"""Further holders of a user are not looked at."""
MOST_CPU = 8191
"""The largest number of a CPU that is believed."""
MOST_JOBS = 1024
"""The largest number of jobs on a CPU that is believed."""
MOST_PID = 1 << 22
"""The largest number of a process that is believed; it is that of Linux."""
LONGEST_NAME = 200
LONGEST_PATH = 4096
"""Bytes of a path on Linux (``PATH_MAX``), the host before it among them."""
LOOKS = 3
"""How often a file is opened again that its holder replaces meanwhile."""
TURN_S = 0.1
"""Longest wait for another holder of this user that is choosing CPUs, which it does within
milliseconds."""
TOUCHES = Pace(every_s=3600.0)
"""How often the file of a holder is touched: systems remove old files from their temporary
directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """One that has given CPUs to its jobs."""

    user: str
    experiment: str
    run_dir: str
    """With the host before it where that is another one; empty for what is no run. It is as it was
    said: who shows it makes it :func:`~orchestrator.core.text.plain`."""
    uid: int
    pid: int
    cpus: Mapping[int, int]
    """CPU → the number of its jobs there."""

    @property
    def name(self) -> str:
        """For people: ``run robots of ann``."""
        what = f"run {self.experiment}" if self.experiment else "another run"
        return what if self.uid == os.getuid() else f"{what} of {self.user}"


def holders_folder() -> Path:
    """The fixed folder, or the one that the environment names."""
    named = os.environ.get(HOLDERS_VARIABLE)
    return Path(named) if named else FOLDER


def prepare(folder: Path) -> str | None:
    """Make the folder of all users and that of this user where they are missing.

    Returns why runs on this machine cannot tell each other which CPUs they hold; None if they can.
    """
    own = folder / str(os.getuid())
    try:
        _make_shared(folder)
        with _opened_folder(folder) as shared:
            status = os.fstat(shared)
            if stat.S_IMODE(status.st_mode) != SHARED_MODE:
                return (
                    f"{folder} is not a folder in which every user may make a directory (mode 1777)"
                )
            with contextlib.suppress(FileExistsError):  # another run of this user has made it
                os.mkdir(own.name, dir_fd=shared)
                os.chmod(own.name, 0o755, dir_fd=shared)  # noqa: S103 - others read it
            with _opened_folder(own.name, shared) as descriptor:
                status = os.fstat(descriptor)
                if not is_own(status, os.getuid()):
                    return f"{own} is not a directory that this user alone may change"
                if not os.access(own, os.W_OK):
                    return f"{own} cannot be written to"
    except OSError as error:
        return f"{error.filename or folder} cannot be used ({error.strerror})"
    return None


class CpuHolders:
    """The holders of the machine, and this process as one of them once it holds CPUs."""

    def __init__(self, folder: Path | None, *, experiment: str = "", run_dir: str = "") -> None:
        """:param folder: None: this process sees no holders, and is not seen.
        :param experiment: its name, for others.
        """
        is_usable = folder is not None and prepare(folder) is None
        self._folder = folder if is_usable else None
        self._experiment = experiment
        self._run_dir = run_dir
        self._name = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._locked: contextlib.ExitStack | None = None
        """Closes the locked file, which forked processes do not have: their lock would outlive this
        process. None: this process holds no CPUs."""
        self._touches = Pacer(TOUCHES)

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """No other holder of this user chooses CPUs during the block, unless one takes longer than
        it should.
        """
        descriptor = self._locked_turn()
        try:
            yield
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def others(self) -> tuple[Holder, ...]:
        """All other holders, in the order of their users and pids."""
        if self._folder is None:
            return ()
        found: list[Holder] = []
        # The folder, or one in it, has been removed, or is being made anew.
        with contextlib.suppress(OSError), _opened_folder(self._folder) as shared:
            users = [name for name in islice(os.listdir(shared), MOST_USERS) if name.isdecimal()]
            for name in users:
                with contextlib.suppress(OSError), _opened_folder(name, shared) as directory:
                    if is_own(os.fstat(directory), int(name)):
                        found += self._of_user(directory, int(name))
        return tuple(sorted(found, key=lambda holder: (holder.uid, holder.pid)))

    def publish(self, cpus: Mapping[int, int]) -> None:
        """Say which CPUs this process holds, with the number of its jobs on each; nobody sees it
        while it has none.
        """
        if self._folder is None:
            return
        if not cpus:
            self.close()
            return
        content = {
            "experiment": self._experiment,
            "run_dir": self._run_dir,
            "pid": os.getpid(),
            "cpus": {str(cpu): number for cpu, number in cpus.items()},
        }
        # The disk may be full: others do not see this holder, or see what it held.
        with contextlib.suppress(OSError):
            self._replace(json.dumps(content).encode())

    def keep(self) -> None:
        """Keep the file from looking old. To be called again and again."""
        if self._locked is not None and self._touches.is_due():
            self._touches.wait()
            # The file may have been removed: the next change writes it anew.
            with contextlib.suppress(OSError), self._own_directory() as directory:
                os.utime(self._name, dir_fd=directory)

    def close(self) -> None:
        """Hold nothing any more. May be called again."""
        if self._locked is None:
            return
        # It may have been removed; one that stays is not locked any more, so nobody heeds it.
        with contextlib.suppress(OSError), self._own_directory() as directory:
            os.unlink(self._name, dir_fd=directory)
        self._locked.close()
        self._locked = None

    @contextlib.contextmanager
    def _own_directory(self) -> Iterator[int]:
        """:raises OSError: it cannot be used, or belongs to somebody else now."""
        assert self._folder is not None
        with (
            _opened_folder(self._folder) as shared,
            _opened_folder(str(os.getuid()), shared) as directory,
        ):
            if not is_own(os.fstat(directory), os.getuid()):
                raise PermissionError(
                    errno.EACCES, "not a directory of this user alone", str(self._folder)
                )
            yield directory

    def _replace(self, content: bytes) -> None:
        """A new file in place of the earlier one: readers find either, whole and locked."""
        assert self._folder is not None
        if not (self._folder / str(os.getuid())).exists():
            prepare(self._folder)  # it has been removed
        beside = f".{self._name}"
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._own_directory() as directory, contextlib.ExitStack() as opened:
            descriptor = os.open(beside, flags, 0o600, dir_fd=directory)
            opened.callback(os.close, descriptor)
            opened.enter_context(kept_from_forks(descriptor))
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.write(descriptor, content)
                os.fchmod(descriptor, 0o644)  # only now: whoever can read a file can lock it
                os.rename(beside, self._name, src_dir_fd=directory, dst_dir_fd=directory)
            except OSError:
                os.unlink(beside, dir_fd=directory)
                raise
            earlier = self._locked
            self._locked = opened.pop_all()
        self._touches.wait()
        if earlier is not None:
            earlier.close()

    def _of_user(self, directory: int, uid: int) -> list[Holder]:
        """The holders of a user; what one of this user has left behind is removed.

        :param directory: the open directory of the user ``uid``.
        """
        found = []
        for name in islice(os.listdir(directory), MOST_HOLDERS):
            match = FILE_NAME.fullmatch(name)
            is_this_one = uid == os.getuid() and name.lstrip(".") == self._name
            if match is None or is_this_one:
                continue
            if uid == os.getuid() and not is_running(int(match[1])):
                # One of another container, whose processes are not seen here, keeps its file.
                _remove_unlocked(directory, name)
            if not name.startswith("."):
                holder = _read_holder(directory, name, uid)
                if holder is not None:
                    found.append(holder)
        return found

    def _locked_turn(self) -> int | None:
        """The locked file of the turn; None where it cannot be had, or not in time."""
        if self._folder is None:
            return None
        deadline = time.monotonic() + TURN_S
        try:
            with self._own_directory() as directory:
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                descriptor = os.open("turn", flags, 0o600, dir_fd=directory)
        except OSError:  # the folder was removed, or the disk is full
            return None
        while time.monotonic() < deadline:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.001)
            except OSError:  # a file system without locks
                break
            else:
                return descriptor
        os.close(descriptor)
        return None


def _make_shared(folder: Path) -> None:
    """Make the folder of all users where it is missing. It has its mode from the first moment
    on.
    """
    if folder.exists() or folder.is_symlink():
        return
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        made.chmod(SHARED_MODE)
        made.rename(folder)
    except OSError:  # another user has made it at the same moment
        made.rmdir()


@contextlib.contextmanager
def _opened_folder(name: Path | str, within: int | None = None) -> Iterator[int]:
    """A descriptor of a folder that is no link: what is behind the name may be exchanged by others
    at any moment.
    """
    descriptor = os.open(
        name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within
    )
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read_holder(directory: int, name: str, uid: int) -> Holder | None:
    """The holder that keeps the file locked; None where it has ended, or where this is no file of a
    holder.
    """
    for _ in range(LOOKS):
        # It has been removed, or belongs to another user who does not let it be read.
        with contextlib.suppress(OSError), _opened_file(directory, name) as descriptor:
            status = os.fstat(descriptor)
            if (
                not stat.S_ISREG(status.st_mode)
                or status.st_uid != uid
                or status.st_size > MOST_BYTES
            ):
                return None
            if _is_locked(descriptor):
                return _parse_holder(os.read(descriptor, MOST_BYTES), uid)
            if os.stat(name, dir_fd=directory, follow_symlinks=False).st_ino == status.st_ino:
                return None
        # Its holder has replaced it meanwhile.
    return None


@contextlib.contextmanager
def _opened_file(directory: int, name: str) -> Iterator[int]:
    # Neither a link nor a pipe may be there, but the directory may be another user's.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _remove_unlocked(directory: int, name: str) -> None:
    """Remove what a holder of this user has left behind, unless one of another container has it."""
    # Another holder of this user may remove it at the same time.
    with contextlib.suppress(OSError), _opened_file(directory, name) as descriptor:
        if not _is_locked(descriptor):
            os.unlink(name, dir_fd=directory)


def _parse_holder(content: bytes, uid: int) -> Holder | None:
    """None where it makes no sense: another user has written it."""
    try:
        values: Any = json.loads(content)
        cpus = {int(cpu): int(number) for cpu, number in values["cpus"].items()}
        if not all(
            0 <= cpu <= MOST_CPU and 1 <= number <= MOST_JOBS for cpu, number in cpus.items()
        ):
            return None
        pid = int(values["pid"])
        if not 1 <= pid <= MOST_PID:
            return None
        return Holder(
            user=user_name(uid),
            experiment=_printable_line(values["experiment"]),
            run_dir=_path(str(values["run_dir"])),
            uid=uid,
            pid=pid,
            cpus=cpus,
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return None


def _path(text: str) -> str:
    """``text`` where it can be a path; empty otherwise.

    :raises UnicodeEncodeError: it has surrogates that stand for no byte.
    """
    size = len(text.encode("utf-8", "surrogateescape"))
    return "" if "\0" in text or size > LONGEST_PATH else text


def _printable_line(text: object) -> str:
    """In one line, and without what controls a terminal."""
    return plain(" ".join(str(text).split()))[:LONGEST_NAME]
