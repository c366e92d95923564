"""Text streams that never make their writer wait: a thread of their own passes the text on to
whoever reads it.

A terminal that is not read (Ctrl-S, a connection that hangs) or a full pipe would otherwise stop
the supervisor.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import IO, Any, TextIO

from orchestrator.core.processes.process_setup import STOP_SIGNALS
from orchestrator.core.text import count, plain

MOST_KEPT_BYTES = 4 << 20
"""What is kept for a reader that does not read; beyond it the oldest text is dropped."""
PATIENCE_S = 10.0
"""How long the end of a stream waits for a reader that reads nothing."""
AT_ONCE_BYTES = 4096
"""Bytes of one write: a pipe takes as many whole, and progress shows how many were read."""

Notice = Callable[[int], str]
"""The line that stands for so many dropped events."""


def line_notice(dropped: int) -> str:
    return f"{time.strftime('%H:%M:%S')} {'dropped':<10} {not_shown(dropped)}\n"


def not_shown(dropped: int) -> str:
    return f"{count(dropped, 'event')} not shown: the output was not read for some time"


class BackgroundWriter(io.BufferedIOBase):
    """Takes bytes at once, and writes them to ``descriptor`` in a thread.

    :param descriptor: None where there is nobody to read; everything is dropped.
    """

    name = "output"

    def __init__(self, descriptor: int | None, notice: Notice) -> None:
        self._descriptor = descriptor
        self._notice = notice
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._dropped = 0
        self._written_bytes = 0
        self._is_writing = False
        self._is_ended = False
        self._is_gone = descriptor is None
        """Whether nobody will ever read again."""
        if descriptor is not None:
            threading.Thread(
                target=self._pass_on, args=[descriptor], name="output", daemon=True
            ).start()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._descriptor is not None and os.isatty(self._descriptor)

    def fileno(self) -> int:
        if self._descriptor is None:
            raise io.UnsupportedOperation("fileno")
        return self._descriptor

    @property
    def is_read(self) -> bool:
        """Whether the reader has taken everything so far."""
        return not (self._waiting or self._is_writing or self._is_gone)

    def write(self, data: Any, /) -> int:
        text = bytes(data)
        with self._changed:
            if text and not (self._is_gone or self._is_ended):
                self._waiting.append(text)
                self._waiting_bytes += len(text)
                while self._waiting_bytes > MOST_KEPT_BYTES and len(self._waiting) > 1:
                    self._waiting_bytes -= len(self._waiting.popleft())
                    self._dropped += 1
                self._changed.notify_all()
        return len(text)

    def end(self) -> None:
        """Return when everything is written, or after :data:`PATIENCE_S` in which nothing was
        read.
        """
        with self._changed:
            written = -1
            while not (self.is_read or self._is_gone) and written < self._written_bytes:
                written = self._written_bytes
                self._changed.wait_for(lambda: self.is_read or self._is_gone, PATIENCE_S)
            self._is_ended = True
            self._waiting.clear()
            self._changed.notify_all()

    def _pass_on(self, descriptor: int) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # they are for the main thread
        with contextlib.suppress(OSError):  # the reader is gone
            while text := self._next():
                self._write_whole(descriptor, memoryview(text))
        with self._changed:
            self._is_gone = True
            self._waiting.clear()
            self._changed.notify_all()

    def _next(self) -> bytes:
        """The next text, once there is one; nothing after :meth:`end`."""
        with self._changed:
            self._is_writing = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._waiting or self._is_ended)
            if not self._waiting:
                return b""
            text = self._waiting.popleft()
            dropped = self._dropped
            self._waiting_bytes -= len(text)
            self._is_writing = True
            self._dropped = 0
        return self._notice(dropped).encode() + text if dropped else text

    def _write_whole(self, descriptor: int, text: memoryview) -> None:
        while text:
            try:
                written = os.write(descriptor, text[:AT_ONCE_BYTES])
            except BlockingIOError:  # whoever shares the terminal has made it non-blocking
                select.select([], [descriptor], [])
                continue
            text = text[written:]
            self._written_bytes += written


@contextlib.contextmanager
def in_background(file: TextIO | None, notice: Notice = line_notice) -> Iterator[TextIO]:
    """A stream to the same reader as ``file``, for the block; its writes never wait, and never
    fail.

    A ``file`` that is no file of the operating system, such as a notebook's, is used as it is. One
    that is missing or closed stands for a reader that is gone.
    """
    if file is None or getattr(file, "closed", False):
        yield _stream(BackgroundWriter(None, notice), "utf-8")
    elif (descriptor := _descriptor(file)) is None:
        yield file
    else:
        with contextlib.suppress(OSError):  # the reader is gone
            file.flush()
        writer = BackgroundWriter(descriptor, notice)
        try:
            yield _stream(writer, file.encoding, file.errors)
        finally:
            writer.end()


@contextlib.contextmanager
def standard_output_in_background(notice: Notice = line_notice) -> Iterator[None]:
    """Nothing that is printed within the block waits for its reader."""
    with (
        in_background(sys.stdout, notice) as out,
        in_background(sys.stderr) as err,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        yield


def print_last(message: str) -> None:
    """Print on standard error what a command says last: it ends also where nobody reads, or at a
    further Ctrl-C.
    """
    with contextlib.suppress(KeyboardInterrupt), in_background(sys.stderr) as err:
        print(plain(message, keep="\n"), file=err)


def is_read(stream: IO[str]) -> bool:
    """Whether ``stream`` can be written to without text piling up."""
    writer = getattr(stream, "buffer", None)
    return writer.is_read if isinstance(writer, BackgroundWriter) else True


def _stream(writer: BackgroundWriter, encoding: str, errors: str | None = None) -> TextIO:
    errors = errors if errors not in (None, "strict") else "replace"
    return io.TextIOWrapper(
        writer, encoding=encoding, errors=errors, newline="\n", write_through=True
    )


def _descriptor(file: TextIO) -> int | None:
    """The descriptor that ``file`` writes to; None where it does more than that."""
    binary = file.buffer if isinstance(file, io.TextIOWrapper) else None
    raw = getattr(binary, "raw", binary)
    return raw.fileno() if isinstance(raw, io.FileIO) else None
