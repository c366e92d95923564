"""A worker's log is cut while the worker writes to it: its head and its end stay, and what is gone
is counted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.core.files import log_limit
from orchestrator.core.files.log_limit import GAP_BYTES, HEAD_BYTES

MIB = 2**20
LIMIT = 4 * MIB
LINE = 16


def lines(first: int, last: int) -> bytes:
    """Numbered lines of 16 bytes."""
    return b"".join(b"%015d\n" % number for number in range(first, last))


class Log:
    """A log to which a worker appends numbered lines."""

    def __init__(self, path: Path) -> None:
        self.path, self._written = path, 0
        self.file = path.open("ab", buffering=0)

    def grow(self, size: int) -> None:
        first, self._written = self._written, self._written + size // LINE
        self.file.write(lines(first, self._written))

    @property
    def output_bytes(self) -> int:
        return self._written * LINE

    def cut(self) -> None:
        log_limit.limit({self.path: LIMIT})

    def dropped(self) -> int:
        with self.path.open("rb") as file:
            return log_limit.dropped_bytes(file.fileno())


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = Log(tmp_path / "worker.log")
    with log.file:
        yield log


def test_a_log_within_its_limit_stays_as_it_is(log: Log) -> None:
    log.grow(LIMIT)
    log.cut()
    assert log.path.read_bytes() == lines(0, LIMIT // LINE)
    assert log.dropped() == 0


@pytest.mark.parametrize("times", [1, 3])
def test_a_log_keeps_its_first_mib_and_its_end_and_counts_what_is_gone(
    log: Log, times: int
) -> None:
    for _ in range(times):
        log.grow(6 * MIB)
        log.cut()
    log.grow(MIB)  # the worker goes on at the new end
    content = log.path.read_bytes()
    assert content[:HEAD_BYTES] == lines(0, HEAD_BYTES // LINE)
    end = content[HEAD_BYTES + GAP_BYTES :]
    assert LIMIT // 4 < len(end) < LIMIT
    assert end == lines((log.output_bytes - len(end)) // LINE, log.output_bytes // LINE)
    assert log.dropped() == log.output_bytes - HEAD_BYTES - len(end)
    assert f"{log.dropped():,}" in content[HEAD_BYTES : HEAD_BYTES + GAP_BYTES].decode()


def test_what_is_written_while_a_log_is_copied_is_kept(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is more than there is room for."""
    pread = os.pread
    more = iter([MIB, 0, 3 * MIB, 3 * MIB, 0, MIB, 0])

    def reading(file: int, count: int, offset: int) -> bytes:
        content = pread(file, count, offset)
        log.grow(next(more, 0))
        return content

    log.grow(6 * MIB)
    monkeypatch.setattr(log_limit, "BUDGET_S", 60.0)  # however slow this machine is
    monkeypatch.setattr(os, "pread", reading)
    log.cut()
    monkeypatch.undo()
    content = log.path.read_bytes()
    end = content[HEAD_BYTES + GAP_BYTES :]
    assert len(end) > MIB
    assert end == lines((log.output_bytes - len(end)) // LINE, log.output_bytes // LINE)
    assert log.dropped() == log.output_bytes - HEAD_BYTES - len(end)


def test_a_reader_of_a_log_that_is_cut_goes_on_where_it_was(log: Log) -> None:
    position, read = 0, b""
    for size in (MIB, 2 * MIB, 2 * MIB, MIB):
        log.grow(size)
        with log.path.open("rb") as file:
            dropped = log.dropped()
            file.seek(log_limit.offset_in_log(position, dropped))
            read += file.read()
            position = log_limit.position_in_output(file.tell(), dropped)
        log.cut()
    assert read == lines(0, log.output_bytes // LINE)
    assert log.dropped() > 0
