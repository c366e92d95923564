"""The output of workers: the logs of a run directory, and one of them, also while it is written."""

from __future__ import annotations

import codecs
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from orchestrator.client import run_snapshot
from orchestrator.core.errors import UsageError
from orchestrator.core.files import log_limit
from orchestrator.core.files.regular_files import open_below, open_regular
from orchestrator.core.job import TERMINAL
from orchestrator.core.text import count, last_line
from orchestrator.ledger import SummaryRow

CHUNK = 1 << 16
FOLLOW_EVERY_S = 0.3
LAST_LINE_BYTES = 1 << 12


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLog:
    """The log of a job's last attempt; with several ranks, that of rank 0."""

    job_id: str
    state: str
    attempt: int
    """Counted from 1."""
    size: int | None
    """Bytes; None where there is no log, or none that can be read."""
    last_line: str


def listing(run_dir: Path) -> list[WorkerLog]:
    """The logs of all jobs that were launched, in the order of the job file.

    :raises UsageError: as :func:`run_snapshot.status`.
    """
    snapshot = run_snapshot.status(run_dir)
    logs = []
    for row in snapshot.rows:
        job_id = row["job_id"]
        attempts = row["attempts"]
        if not attempts:
            continue
        size, line = _end_of(snapshot.paths.job(job_id).attempt(attempts - 1).worker_log)
        logs.append(
            WorkerLog(
                job_id=job_id, state=row["state"], attempt=attempts, size=size, last_line=line
            )
        )
    return logs


def _end_of(path: Path) -> tuple[int | None, str]:
    """Size and last line of a log, as in :class:`WorkerLog`."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - LAST_LINE_BYTES))
            return size, last_line(file.read(LAST_LINE_BYTES).decode("utf-8", "replace"), "")
    except OSError as error:
        return None, f"cannot be read: {error.strerror}"


def log(
    run_dir: Path, job: str, *, follow: bool, lines: int, attempt: int | None, rank: int = 0
) -> Iterator[str]:
    """The last ``lines`` (0: all) of a worker's log in chunks; with ``follow`` what follows until
    the job is over.

    :param attempt: counted from 1; None: the last.
    """
    snapshot = run_snapshot.status(run_dir)
    (job_id,) = run_snapshot.resolve(snapshot, [job], one=True)
    row = run_snapshot.row_of(snapshot, job_id)
    _refuse_missing(row, attempt, rank)
    if not row["attempts"] and not follow:
        raise UsageError(f"{job_id} has not been launched yet; -f waits for it")
    number = attempt or max(1, row["attempts"])
    reader: LogReader | None = None
    while True:
        path = snapshot.paths.job(job_id).attempt(number - 1).log_of(rank)
        # The state is read before the log: a job that is over writes nothing more.
        over = run_snapshot.row_of(snapshot, job_id)["state"] in TERMINAL or snapshot.holder is None
        reader = reader or LogReader(path, lines)
        yield from reader.new_text()
        if not follow or over:
            yield reader.rest()
            return
        time.sleep(FOLLOW_EVERY_S)
        snapshot = run_snapshot.status(run_dir)
        latest = max(1, run_snapshot.row_of(snapshot, job_id)["attempts"])
        if attempt is None and latest != number:
            number = latest
            reader = None
            lines = 0
            yield f"--- attempt {latest} ---\n"


def _refuse_missing(row: SummaryRow, attempt: int | None, rank: int) -> None:
    """:raises UsageError: the job has no such attempt, or no such rank."""
    job_id = row["job_id"]
    ranks = row["ranks"]
    attempts = row["attempts"]
    if rank >= ranks:
        raise UsageError(
            f"{job_id} has {count(ranks, 'rank')}, numbered from 0; there is no rank {rank}"
        )
    if attempt is not None and not 1 <= attempt <= attempts:
        raise UsageError(
            f"{job_id} has {count(attempts, 'attempt')}, numbered from 1; there is no attempt {attempt}"
        )


class LogReader:
    """Reads a log that is being written, and perhaps cut.

    :param lines: the last so many of those that are there at first; 0: all.
    :param below: links out of this folder are not followed; None: all are.
    """

    def __init__(self, path: Path, lines: int, *, below: Path | None = None) -> None:
        self._path = path
        self._lines = lines
        self._below = below
        self._position: int | None = None
        """In the whole output of the worker."""
        self._mark: tuple[int, int] | None = None
        """Size and time of the last change, when it was read to its end."""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def new_text(self) -> Iterator[str]:
        """What has been written since the last call, in chunks; nothing where there is no log yet.

        What a caller leaves of it is there at the next call.

        :raises UsageError: it cannot be read.
        """
        if not self._path.exists():
            return
        with self._open_log() as file:
            descriptor = file.fileno()
            found = os.fstat(descriptor)
            mark = (found.st_size, found.st_mtime_ns)
            if mark == self._mark:
                return
            dropped = log_limit.dropped_bytes(descriptor)  # first: it may be cut while it is read
            if self._position is None:
                offset = _tail(descriptor, self._lines)
            else:
                offset = log_limit.offset_in_log(self._position, dropped)
            file.seek(offset)
            while chunk := file.read(CHUNK):
                self._position = log_limit.position_in_output(file.tell(), dropped)
                yield self._decoder.decode(chunk)
            self._position = log_limit.position_in_output(file.tell(), dropped)
            self._mark = mark

    def rest(self) -> str:
        """What an incomplete character at the end stands for."""
        return self._decoder.decode(b"", final=True)

    def _open_log(self) -> BinaryIO:
        try:
            if self._below is None:
                return open_regular(self._path)
            return open_below(self._below, self._path)
        except OSError as error:
            raise UsageError(f"{self._path}: cannot be read: {error.strerror}") from error


def _tail(descriptor: int, lines: int) -> int:
    """Offset of the last ``lines`` lines. Reads from the end, so that the length of the file does
    not matter.
    """
    if lines == 0:
        return 0
    position = os.fstat(descriptor).st_size
    ends_whole = position > 0 and os.pread(descriptor, 1, position - 1) == b"\n"
    # The newline before the first of these lines is searched; a newline at the very end begins no
    # line.
    newlines = lines + 1 if ends_whole else lines
    while position > 0:
        start = max(0, position - CHUNK)
        block = os.pread(descriptor, position - start, start)
        at = len(block)
        while newlines and (at := block.rfind(b"\n", 0, at)) >= 0:
            newlines -= 1
        if newlines == 0:
            return start + at + 1
        position = start
    return 0
