"""CPUs that this user's supervisors on this machine have given to jobs, so that they keep out of each other's way.

Two experiments at once would otherwise both begin with CPU 0, and leave other cores idle. A claim is a lock on
``<temporary directory>/orchestrator-<uid>/cpu-<n>``: the kernel gives it back when its holder ends, in whatever
way. Claims are advice: where they cannot be had everyone goes on without.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

TURN_S = 0.1
"""Longest wait for others that choose; it takes them less than a millisecond."""


def shared_directory() -> Path | None:
    """The directory of claims, made where it is missing; None where it cannot be trusted or made."""
    path = Path(tempfile.gettempdir()) / f"orchestrator-{os.getuid()}"
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()
    except OSError:
        return None
    # In a directory that everyone may write to, the name may have been taken by someone else.
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return path if ours else None


class CpuClaims:
    """One supervisor's claims.

    :param directory: where all supervisors lock; None for no claims at all.
    :param cpus: the CPUs that are looked at.
    """

    def __init__(self, directory: Path | None, cpus: Iterable[int] = ()) -> None:
        self._directory = directory
        self._cpus = () if directory is None else tuple(cpus)
        self._held: dict[int, int] = {}

    @property
    def held(self) -> Collection[int]:
        return self._held.keys()

    @contextlib.contextmanager
    def choosing(self) -> Iterator[frozenset[int]]:
        """The CPUs that others hold; nobody else chooses as long as the block lasts.

        Whoever was stopped while choosing is not waited for.
        """
        turn = None
        deadline = time.monotonic() + TURN_S
        while self._cpus and (turn := self._lock("turn")) is None and time.monotonic() < deadline:
            time.sleep(0.001)
        try:
            yield frozenset(cpu for cpu in self._cpus if self._is_elsewhere(cpu))
        finally:
            if turn is not None:
                os.close(turn)

    def take(self, cpus: Iterable[int]) -> None:
        """Claim what is still free of ``cpus``; what others hold is shared with them."""
        for cpu in cpus:
            if cpu not in self._held and (descriptor := self._lock(f"cpu-{cpu}")) is not None:
                self._held[cpu] = descriptor

    def give_back(self, cpus: Iterable[int]) -> None:
        for cpu in cpus:
            if cpu in self._held:
                os.close(self._held.pop(cpu))

    def _is_elsewhere(self, cpu: int) -> bool:
        if cpu in self._held:
            return False
        descriptor = self._lock(f"cpu-{cpu}")
        if descriptor is None:
            return True
        os.close(descriptor)
        return False

    def _lock(self, name: str) -> int | None:
        """An open, locked file; None when another holds it, or where there are no claims."""
        if self._directory is None:
            return None
        try:
            descriptor = os.open(self._directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return descriptor
