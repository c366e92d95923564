"""Who holds which CPUs of this machine: experiments of all users say so in files that all of them can read.

Below a fixed folder, whatever ``TMPDIR`` is, each user has a directory, and each holder (a supervisor, a node agent, a
pilot) a file in it with its name and its CPUs. The holder keeps the file locked, and the kernel releases the lock when
the holder ends in any way: a file without a lock is one that was left behind. Others only try the lock, and never wait
for it. Whoever cannot take part, because the folder cannot be made or trusted, works without.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.core.environment import HOLDERS_VARIABLE
from orchestrator.core.own_files import kept_from_forks
from orchestrator.core.procfs import is_running
from orchestrator.machine.user_directory import is_own, make_own

FOLDER = Path("/tmp/orchestrator-cpus")  # noqa: S108 - the same for all users; what is found in it is checked
SHARED_MODE = 0o1777
"""Everybody may make a directory in it, and nobody remove another's."""
MOST_BYTES = 1 << 16
"""Of a holder's file; a larger one is not read."""
MOST_HOLDERS = 1024
"""Of each user; further ones are not read."""
LOOKS = 3
"""How often a file is opened again that its holder replaces meanwhile."""
TURN_S = 0.1
"""Longest wait for another holder of this user that is choosing CPUs, which it does within milliseconds."""
TOUCH_S = 3600.0
"""How often the file of a holder is touched: systems remove old files from their temporary directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """One that has given CPUs to its jobs."""

    user: str
    experiment: str
    run_dir: str
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


def problem(folder: Path | None = None) -> str | None:
    """Why runs on this machine cannot tell each other which CPUs they hold; None if they can."""
    folder = holders_folder() if folder is None else folder
    if not _is_shared(folder):
        return f"{folder} is no folder that everybody may write to (mode 1777), or cannot be made"
    own = folder / str(os.getuid())
    if not make_own(own, 0o755) or not os.access(own, os.W_OK):
        return f"{own} is not a writable directory of this user that only this user may change"
    return None


class CpuHolders:
    """The holders of the machine, and this process as one of them once it holds CPUs."""

    def __init__(self, folder: Path | None, *, experiment: str = "", run_dir: str = "") -> None:
        """:param folder: None: this process sees no holders, and is not seen.
        :param experiment: its name, for others.
        """
        self._folder = None if folder is None or problem(folder) is not None else folder
        self._experiment, self._run_dir = experiment, run_dir
        self._path: Path | None = None
        self._locked = contextlib.ExitStack()
        """Closes the locked file, which forked processes do not have: their lock would outlive this process."""
        self._touch_at = 0.0

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """No other holder of this user chooses CPUs during the block, unless one takes longer than it should."""
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
        for directory in _entries(self._folder):
            if directory.name.isdecimal() and is_own(Path(directory.path), int(directory.name)):
                found += self._of_user(Path(directory.path), int(directory.name))
        return tuple(sorted(found, key=lambda holder: (holder.uid, holder.pid)))

    def publish(self, cpus: Mapping[int, int]) -> None:
        """Say which CPUs this process holds, with the number of its jobs on each; nobody sees it while it has none."""
        if self._folder is None:
            return
        if not cpus:
            self.close()
            return
        content = {
            "user": _user_name(os.getuid()),
            "experiment": self._experiment,
            "run_dir": self._run_dir,
            "pid": os.getpid(),
            "cpus": {str(cpu): number for cpu, number in cpus.items()},
        }
        with contextlib.suppress(OSError):  # a full disk, or a folder that was removed: others do not see this one
            self._replace(json.dumps(content).encode())

    def keep(self) -> None:
        """Keep the file from looking old. To be called again and again."""
        if self._path is not None and time.monotonic() >= self._touch_at:
            self._touch_at = time.monotonic() + TOUCH_S
            with contextlib.suppress(OSError):
                os.utime(self._path)

    def close(self) -> None:
        """Hold nothing any more. May be called again."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            self._path = None
        self._locked.close()

    def _replace(self, content: bytes) -> None:
        """A new file in place of the earlier one: readers find either, whole and locked."""
        assert self._folder is not None
        directory = self._folder / str(os.getuid())
        path = self._path or directory / f"{os.getpid()}-{secrets.token_hex(4)}"
        beside = path.with_name(f".{path.name}")
        descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(descriptor, content)
            os.fchmod(descriptor, 0o644)  # only now: whoever can read a file can lock it
            beside.rename(path)
        except BaseException:
            os.close(descriptor)
            raise
        earlier, self._locked, self._path = self._locked, contextlib.ExitStack(), path
        self._locked.callback(os.close, descriptor)
        self._locked.enter_context(kept_from_forks(descriptor))
        self._touch_at = time.monotonic() + TOUCH_S
        earlier.close()

    def _of_user(self, directory: Path, uid: int) -> list[Holder]:
        paths = [Path(entry.path) for entry in _entries(directory) if entry.name[0].isdecimal()]
        found = (_look(path, uid) for path in paths[:MOST_HOLDERS] if path != self._path)
        return [holder for holder in found if holder is not None]

    def _locked_turn(self) -> int | None:
        if self._folder is None:
            return None
        deadline = time.monotonic() + TURN_S
        try:
            path = self._folder / str(os.getuid()) / "turn"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:
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


def _is_shared(folder: Path) -> bool:
    """Whether ``folder``, made where it is missing, is one in which every user can have a directory."""
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            folder.chmod(SHARED_MODE)
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) == SHARED_MODE


def _look(path: Path, uid: int) -> Holder | None:
    """The holder that keeps ``path`` locked; None where it has ended, or where this is no file of a holder."""
    for _ in range(LOOKS):
        found = _read(path, uid)
        if not isinstance(found, _Unlocked):
            return found
        if found.is_still(path):
            if uid == os.getuid() and not is_running(int(path.name.partition("-")[0])):
                with contextlib.suppress(OSError):  # left behind; another one has removed it
                    path.unlink()
            return None
    return None


@dataclass(frozen=True, slots=True)
class _Unlocked:
    """A file that nobody keeps locked: its holder has ended, or has replaced it since it was opened."""

    inode: int

    def is_still(self, path: Path) -> bool:
        try:
            return path.lstat().st_ino == self.inode
        except OSError:
            return False


def _read(path: Path, uid: int) -> Holder | _Unlocked | None:
    try:
        # Neither a link nor a pipe may be there, but the directory is another user's.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != uid or status.st_size > MOST_BYTES:
            return None
        if not _is_locked(descriptor):
            return _Unlocked(status.st_ino)
        return _parsed(os.read(descriptor, MOST_BYTES), uid)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _parsed(content: bytes, uid: int) -> Holder | None:
    """Another user has written it: everything in it may be wrong."""
    try:
        values: Any = json.loads(content)
        return Holder(
            user=_user_name(uid),
            experiment=str(values["experiment"])[:200],
            run_dir=str(values["run_dir"])[:1000],
            uid=uid,
            pid=int(values["pid"]),
            cpus={int(cpu): max(1, int(number)) for cpu, number in values["cpus"].items()},
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return None


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
