"""Text reaches a reader whatever its pace, and a reader that is slow or gone never stops who
writes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import pytest
import typer

from orchestrator import cli
from orchestrator.commands import shared_options
from orchestrator.terminal import background_output
from orchestrator.terminal.background_output import in_background, is_read


class Pipe:
    """A pipe that takes 4096 bytes before its writer waits."""

    def __init__(self) -> None:
        self.reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        self.file = os.fdopen(writer, "w", encoding="utf-8")
        self.received = b""
        self._thread = threading.Thread(target=self._read)

    def read(self) -> None:
        """Begin to read."""
        self._thread.start()

    def _read(self) -> None:
        while chunk := os.read(self.reader, 65536):
            self.received += chunk

    def text(self) -> str:
        """All that was read, once the writer has closed the pipe."""
        self._thread.join()
        return self.received.decode()

    def close(self) -> None:
        self.file.close()
        if self._thread.is_alive():
            self._thread.join()
        with contextlib.suppress(OSError):
            os.close(self.reader)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    one = Pipe()
    yield one
    one.close()
    for thread in threading.enumerate():
        if thread.name == "output":
            thread.join()


def test_a_reader_receives_every_byte_in_order(pipe: Pipe) -> None:
    lines = [f"{number} → {'x' * (number % 300)}\n" for number in range(10_000)]
    pipe.read()
    print("before", file=pipe.file)  # is still in the buffer of the file
    with in_background(pipe.file) as stream:
        for line in lines:
            stream.write(line)
    pipe.file.close()
    assert pipe.text() == "before\n" + "".join(lines)


def test_whoever_prints_never_waits_and_what_is_too_much_is_counted(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_output, "MOST_KEPT_BYTES", 10_000)
    with in_background(pipe.file, lambda dropped: f"dropped {dropped}\n") as stream:
        for number in range(1000):  # nobody reads yet
            stream.write(f"{number:099}\n")
        assert not is_read(stream)
        pipe.read()
    pipe.file.close()
    shown = [int(line) for line in pipe.text().splitlines() if line.isdigit()]
    # Once, or several times where the thread that writes was slow before the pipe was full.
    dropped = sum(map(int, re.findall(r"dropped (\d+)", pipe.text())))
    assert dropped > 0
    assert shown == sorted(shown)
    assert shown[-100:] == list(range(900, 1000)), "the newest are kept"
    assert len(shown) + dropped == 1000


@pytest.mark.timeout(60)
def test_the_end_does_not_wait_for_ever_for_a_reader_that_reads_nothing(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_output, "PATIENCE_S", 0.05)
    with in_background(pipe.file) as stream:
        stream.write("x" * 100_000)
    os.close(pipe.reader)


def test_a_reader_that_has_gone_is_no_error(pipe: Pipe) -> None:
    os.close(pipe.reader)
    with in_background(pipe.file) as stream:
        for _ in range(10):
            stream.write("x" * 100_000)
    assert not is_read(stream)


def closed_file() -> TextIO:
    with Path(os.devnull).open("w", encoding="utf-8") as file:
        return file


@pytest.mark.parametrize("file", [lambda: None, closed_file], ids=["missing", "closed"])
def test_without_an_output_nothing_is_printed_and_nothing_fails(
    file: Callable[[], TextIO | None],
) -> None:
    with in_background(file()) as stream:
        print("to nobody", file=stream, flush=True)
        assert not stream.isatty()


def refuse() -> None:
    cli._fail("error: the last words", 2)


def stop() -> None:
    with shared_options.stoppable("the last words"):
        raise KeyboardInterrupt


@pytest.mark.parametrize(("end", "code"), [(refuse, 2), (stop, 130)])
@pytest.mark.parametrize("is_read", [True, False])
def test_a_command_ends_with_its_last_message_whether_that_is_read_or_not(
    end: Callable[[], None], code: int, is_read: bool, pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_output, "PATIENCE_S", 60.0 if is_read else 0.05)
    monkeypatch.setattr(sys, "stderr", pipe.file)
    os.write(pipe.file.fileno(), b"x" * 4096)
    if is_read:
        pipe.read()
    with pytest.raises((SystemExit, typer.Exit)) as ended:
        end()
    assert getattr(ended.value, "exit_code", getattr(ended.value, "code", None)) == code
    if is_read:
        pipe.file.close()
        assert pipe.text().endswith("the last words\n")
