"""Locks on CPUs: one file per CPU, in a folder that all users of this machine share.

The first job on CPU 3 locks the file ``3.0``, one that shares this CPU ``3.1``, and so on. The file
says who holds it. The kernel releases the lock when its holder ends in any way, and files are never
removed. Where the folder cannot be used, nothing is locked and nobody is seen.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from orchestrator.core.files.own_files import kept_from_forks
from orchestrator.core.processes.environment_variables import CPU_LOCKS_VARIABLE
from orchestrator.core.text import plain
from orchestrator.machine.users import user_name

FOLDER = Path("/tmp/orchestrator-cpus")  # noqa: S108 - the same for all users; what is found in it is checked
FOLDER_MODE = 0o1777
"""Everybody may make files in it, and nobody remove another's."""
FILE_MODE = 0o666
"""Everybody may lock a file, whoever made it."""
FILE_NAME = re.compile(r"(\d{1,5})\.(\d{1,4})")
MOST_BYTES = 8192
"""The part of a file that is read."""
LONGEST_NAME = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A job that holds a CPU, as its run says in the file. Nothing of this can be relied on."""

    cpu: int
    place: int
    """Number of its file among those of the CPU."""
    pid: int = 0
    """Process that holds the lock, in its own container; 0: unknown."""
    uid: int = -1
    """-1: unknown."""
    experiment: str = ""
    run_dir: str = ""
    """With its host if that is another one. Control characters are not removed."""
    job_id: str = ""
    since: float = 0.0
    """Seconds since the epoch."""

    @property
    def user(self) -> str:
        return "" if self.uid < 0 else user_name(self.uid)

    @property
    def is_own_user(self) -> bool:
        return self.uid == os.getuid()

    @property
    def name(self) -> str:
        """For people: ``run robots of ann``."""
        what = f"run {self.experiment}" if self.experiment else "another run"
        return what if self.is_own_user or self.uid < 0 else f"{what} of {self.user}"


@dataclass(frozen=True, slots=True)
class HeldCpu:
    """A CPU that a job of this process has."""

    cpu: int
    place: int | None = None
    """None: it is not locked, since the folder cannot be used."""
    closing: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """Closes the locked file."""


def locks_folder() -> Path:
    """Return the fixed folder, or the one that the environment names."""
    named = os.environ.get(CPU_LOCKS_VARIABLE)
    return Path(named) if named else FOLDER


class CpuLocks:
    """The locks of one run, or another program that gives CPUs to jobs. Not thread-safe."""

    def __init__(self, folder: Path | None, *, experiment: str = "", run_dir: str = "") -> None:
        """:param folder: None: nothing is locked and nobody is seen.
        :param experiment: its name, for others.
        """
        self._folder = folder
        self._said = {"experiment": experiment, "run_dir": run_dir}
        self._held: dict[tuple[int, int | None], HeldCpu] = {}
        """By CPU and place."""

    def problem(self) -> str | None:
        """Return why runs of several users cannot lock CPUs in the folder, or None."""
        try:
            with self._opened_folder():
                return None
        except OSError as error:
            return f"{self._folder} cannot be used: {error.strerror or error}"

    def others(self) -> Sequence[Holder]:
        """Return all holders outside of this object, by CPU."""
        found = []
        with contextlib.suppress(OSError), self._opened_folder() as folder:
            for name in os.listdir(folder):
                match = FILE_NAME.fullmatch(name)
                if match is None:
                    continue
                cpu, place = int(match[1]), int(match[2])
                if (cpu, place) in self._held:
                    continue
                with contextlib.suppress(OSError):  # no regular file, or it is gone
                    content = _read_locked(name, folder)
                    if content is not None:
                        found.append(_parsed_holder(cpu, place, content))
        return sorted(found, key=lambda holder: (holder.cpu, holder.place))

    def take(self, cpu: int, others: Collection[Holder], job_id: str = "") -> HeldCpu | None:
        """Lock a CPU for a job, beside those who hold it already.

        Return None if another run has come first since ``others`` were read. Where the folder or
        the file cannot be used, the CPU is returned without a lock.
        """
        taken = {holder.place for holder in others if holder.cpu == cpu}
        place = next(
            place for place in count() if place not in taken and (cpu, place) not in self._held
        )
        closing = contextlib.ExitStack()
        try:
            with self._opened_folder() as folder:
                descriptor = _opened_file(f"{cpu}.{place}", folder)
            closing.callback(os.close, descriptor)
            closing.enter_context(kept_from_forks(descriptor))
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            closing.close()
            return None if isinstance(error, BlockingIOError) else HeldCpu(cpu)
        said = {**self._said, "job_id": job_id, "pid": os.getpid(), "uid": os.getuid()}
        content = json.dumps({**said, "since": time.time()}).encode()
        with contextlib.suppress(OSError):  # the disk is full: it is held by nobody known
            os.pwrite(descriptor, content, 0)
            os.ftruncate(descriptor, len(content))
        held = HeldCpu(cpu, place, closing)
        self._held[cpu, place] = held
        return held

    def give_back(self, held: HeldCpu) -> None:
        self._held.pop((held.cpu, held.place), None)
        held.closing.close()

    @contextlib.contextmanager
    def _opened_folder(self) -> Iterator[int]:
        """Make the folder if it is missing, and open it. :raises OSError: it cannot be used."""
        if self._folder is None:
            raise OSError("there is no folder")
        with contextlib.suppress(FileExistsError):
            self._folder.mkdir()
            self._folder.chmod(FOLDER_MODE)
        # Not a link, whose target others may exchange at any moment.
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._folder, flags)
        try:
            if stat.S_IMODE(os.fstat(descriptor).st_mode) != FOLDER_MODE:
                raise OSError("its mode is not 1777, so not every user may make files in it")
            yield descriptor
        finally:
            os.close(descriptor)


def _opened_file(name: str, folder: int) -> int:
    """Open a lock file to write to it, and make it if it is missing.

    :raises OSError: it cannot be used.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        # With O_CREAT, Linux refuses a file of another user here (fs.protected_regular).
        descriptor = os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        try:
            descriptor = os.open(name, flags | os.O_CREAT | os.O_EXCL, FILE_MODE, dir_fd=folder)
            os.fchmod(descriptor, FILE_MODE)  # whatever the umask is
        except FileExistsError:  # another run has just made it
            descriptor = os.open(name, flags, dir_fd=folder)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:  # perhaps a link to a file of ours
        os.close(descriptor)
        raise OSError(f"{name} is not a regular file")
    return descriptor


def _read_locked(name: str, folder: int) -> bytes | None:
    """Return the content of a lock file, or None if nobody holds it."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return os.read(descriptor, MOST_BYTES)
        return None
    finally:
        os.close(descriptor)


def _parsed_holder(cpu: int, place: int, content: bytes) -> Holder:
    """Everybody can write to the file: whatever is in it, somebody holds the CPU."""
    try:
        values: Mapping[str, Any] = json.loads(content)
        holder = Holder(
            cpu=cpu,
            place=place,
            pid=int(values["pid"]),
            uid=int(values["uid"]),
            experiment=plain(" ".join(str(values["experiment"]).split()))[:LONGEST_NAME],
            run_dir=str(values["run_dir"]),
            job_id=plain(str(values["job_id"]))[:LONGEST_NAME],
            since=float(values["since"]),
        )
        os.fsencode(holder.run_dir)  # UnicodeError: there can be no such path
        is_known = math.isfinite(holder.since)
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        is_known = False
    return holder if is_known else Holder(cpu=cpu, place=place)
