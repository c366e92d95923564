"""The limit on a worker's log: its first MiB and its end stay, and a line between them counts what
was dropped.

The log is cut in place while the worker appends to it. That needs no pipe that could block the
worker, works on every file system, and leaves an ordinary file. What is written between the last
look and the cut is lost, and missing from the number in that line: microseconds of output, or more
where the kernel lets the cut wait for a worker that writes without a pause. (To take the middle out
of the file by fallocate(2) loses nothing, but waits until the rest is on the disk: 51 s were seen,
in which the supervisor would do nothing else.)
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

from orchestrator.core.files.file_status import status_of

HEAD_BYTES = 2**20
SMALLEST_MIB = 4
"""Lowest limit that a user can set: room for the head and some of the end."""
LARGEST_MIB = 1024
"""Highest limit that a user can set: no more than can be copied in a moment."""
BUDGET_S = 0.25
"""After so long the remaining logs are left to the next call, so that the supervisor's loop goes
on."""
COPY_BYTES = 2**20
_BEFORE = "\n… ".encode()
_AFTER = " bytes of output were dropped here (the limit is resources.log) …\n".encode()
_DIGITS = 21
GAP_BYTES = len(_BEFORE) + _DIGITS + len(_AFTER)


def limit(logs: Mapping[Path, int]) -> None:
    """Cut those logs that are longer than their limits in bytes.

    A log that is missing, or cannot be cut because of an error of the disk, stays as it is.
    """
    begun = time.monotonic()
    for path, limit_bytes in logs.items():
        status = status_of(path)
        if status is not None and status.st_size > limit_bytes:
            with contextlib.suppress(OSError):  # of the disk; it is tried again
                _cut(path, limit_bytes)
            if time.monotonic() - begun > BUDGET_S:
                return


def _cut(path: Path, limit_bytes: int) -> None:
    """Keep the head and half of the limit from the end, so that a log is copied once per half of
    the limit.

    The end is copied from ``source`` on to ``target``, behind the head and the line about the gap,
    until nothing new is left to be copied; then the log is cut behind the copy.
    """
    with path.open("r+b", buffering=0) as file:
        log = file.fileno()
        dropped = dropped_bytes(log)
        deadline = time.monotonic() + BUDGET_S
        source = os.fstat(log).st_size - (limit_bytes - HEAD_BYTES) // 2
        source += os.pread(log, COPY_BYTES, source).find(b"\n") + 1
        target = HEAD_BYTES + GAP_BYTES
        while content := os.pread(log, COPY_BYTES, source):
            written = os.pwrite(log, content, target)
            source += written
            target += written
            if target > limit_bytes and time.monotonic() > deadline:
                break  # it is written faster than it is copied
        # Nothing stands between the last look and the cut.
        size = os.fstat(log).st_size
        os.ftruncate(log, target)
        output_bytes = size + dropped - (GAP_BYTES if dropped else 0)
        kept_bytes = target - GAP_BYTES
        os.pwrite(log, _gap(output_bytes - kept_bytes), HEAD_BYTES)


def _gap(dropped: int) -> bytes:
    return _BEFORE + f"{dropped:>{_DIGITS},}".encode() + _AFTER


def dropped_bytes(log: int) -> int:
    """How many bytes are missing after the head of a log, given by its file descriptor; 0 if it is
    whole.
    """
    line = os.pread(log, GAP_BYTES, HEAD_BYTES)
    digits = line[len(_BEFORE) : len(_BEFORE) + _DIGITS].replace(b",", b"").strip()
    dropped = int(digits) if digits.isdigit() else 0
    return dropped if line == _gap(dropped) else 0


def position_in_output(offset: int, dropped: int) -> int:
    """The position in a worker's whole output of ``offset`` in its log, of which ``dropped`` bytes
    are missing.
    """
    return offset if not dropped or offset <= HEAD_BYTES else offset - GAP_BYTES + dropped


def offset_in_log(position: int, dropped: int) -> int:
    """Where the output continues in a log after ``position``; at the line about the gap if that has
    been dropped.
    """
    if not dropped or position <= HEAD_BYTES:
        return position
    offset = position - dropped + GAP_BYTES
    return offset if offset >= HEAD_BYTES + GAP_BYTES else HEAD_BYTES
