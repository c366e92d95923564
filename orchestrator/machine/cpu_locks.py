"""Locks by which this user's supervisors on one machine choose different CPUs.

Without them two experiments at once would both start with CPU 0 and leave other cores idle. A lock is one on the file
``<temporary directory>/orchestrator-<uid>/cpu-<n>``, which the kernel releases when its holder ends in any way. Locks
are advisory: a supervisor shares the CPUs of others when none is free (node agents of a cluster wait instead), and
where locks are not possible, supervisors work without them.
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
"""Longest wait for another supervisor that is choosing CPUs, which it does within a millisecond."""


def shared_directory() -> Path | None:
    """The directory of the locks, created when it is missing; None when it cannot be trusted or created."""
    path = Path(tempfile.gettempdir()) / f"orchestrator-{os.getuid()}"
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        status = path.lstat()
    except OSError:
        return None
    # Everybody may write to the temporary directory, so that the name may belong to another user.
    is_safe = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
    return path if is_safe else None


class CpuLocks:
    """The locks of one supervisor on the files in ``directory`` (None: no locks) for the CPUs to choose from."""

    def __init__(self, directory: Path | None, cpus: Iterable[int] = ()) -> None:
        self._directory = directory
        self._cpus = () if directory is None else tuple(cpus)
        self._held: dict[int, int] = {}

    @property
    def held(self) -> Collection[int]:
        return self._held.keys()

    @contextlib.contextmanager
    def choosing(self) -> Iterator[frozenset[int]]:
        """The CPUs that other supervisors hold; no other supervisor chooses during the block."""
        turn = None
        deadline = time.monotonic() + TURN_S
        while self._cpus:
            try:
                turn = self._lock("turn")
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(0.001)
                    continue
            break
        try:
            yield frozenset(cpu for cpu in self._cpus if self._is_elsewhere(cpu))
        finally:
            if turn is not None:
                os.close(turn)

    def take(self, cpus: Iterable[int]) -> bool:
        """Lock those of ``cpus`` that are free. Returns whether no other supervisor holds any of them."""
        are_ours = True
        for cpu in cpus:
            try:
                if cpu not in self._held and (descriptor := self._lock(f"cpu-{cpu}")) is not None:
                    self._held[cpu] = descriptor
            except BlockingIOError:
                are_ours = False
        return are_ours

    def give_back(self, cpus: Iterable[int]) -> None:
        for cpu in cpus:
            if cpu in self._held:
                os.close(self._held.pop(cpu))

    def _is_elsewhere(self, cpu: int) -> bool:
        if cpu in self._held:
            return False
        try:
            descriptor = self._lock(f"cpu-{cpu}")
        except BlockingIOError:
            return True
        if descriptor is not None:
            os.close(descriptor)
        return False

    def _lock(self, name: str) -> int | None:
        """Descriptor of an open, locked file; None where locks are not possible.

        :raises BlockingIOError: another supervisor holds it.
        """
        if self._directory is None:
            return None
        descriptor = None
        try:
            descriptor = os.open(self._directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if descriptor is not None:
                os.close(descriptor)
            if isinstance(error, BlockingIOError):
                raise
            return None
        return descriptor
