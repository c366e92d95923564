"""Messages between supervisor and pilots: append-only files of JSON lines, each with one writer and
one reader.

Every message is appended by an open and close of its own, and read likewise. So it arrives at once
also on NFS, where a renamed file may stay hidden for a minute. There are no locks and no ports.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

from orchestrator.core.decoding import from_values, parsed_json
from orchestrator.core.files.atomic_files import no_follow
from orchestrator.features.slurm.pilot_messages import KINDS, Continued

LONGEST_BYTES = 4 << 20
"""Of a file, after which the next one begins. The reader removes the one before."""
CHUNK = 1 << 20


class Outbox:
    """The writer's end.

    What cannot be written now, as the disk is full or away, is written with the next message. If a
    part of it was written, that part comes twice: the reader has to bear that.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._number = _last_number(path)
        self._bytes = 0
        self._unsent = b""

    def send(self, *messages: Any) -> None:
        """Send ``messages``, dataclasses of :data:`.KINDS`; without any, what could not be sent
        before.
        """
        self._unsent += b"".join(map(_line, messages))
        if not self._unsent:
            return
        is_last = self._bytes + len(self._unsent) > LONGEST_BYTES
        data = self._unsent + (_line(Continued()) if is_last else b"")
        try:
            with open(_numbered_path(self._path, self._number), "ab", opener=no_follow) as file:
                file.write(data)
        except OSError:  # the file system is full or away: it is sent with the next messages
            return
        self._unsent = b""
        self._bytes += len(data)
        if is_last:
            self._number += 1
            self._bytes = 0

    def finish(self, patience_s: float) -> None:
        """Try for so long to send what could not be sent before."""
        deadline = time.monotonic() + patience_s
        while self._unsent and time.monotonic() < deadline:
            time.sleep(0.2)
            self.send()


class Inbox:
    """The reader's end. What is no message is skipped: a line may be cut off."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._number = 0
        self._offset = 0

    def receive(self) -> list[Any]:
        """All messages that have arrived since the last call; none while the file cannot be
        read.
        """
        messages: list[Any] = []
        while lines := self._lines():
            for line in lines:
                with contextlib.suppress(ValueError):  # a line that was cut off
                    messages.append(_message(line))
            if messages and isinstance(messages[-1], Continued):
                messages.pop()
                with contextlib.suppress(OSError):  # it has been read, and is in nobody's way
                    _numbered_path(self._path, self._number).unlink(missing_ok=True)
                self._number += 1
                self._offset = 0
        return messages

    def _lines(self) -> list[bytes]:
        try:
            with _numbered_path(self._path, self._number).open("rb") as file:
                file.seek(self._offset)
                data = file.read(CHUNK)
        except OSError:  # it is not there yet, or the file system is away
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [line for line in whole.split(b"\n") if line]


def has_sent(path: Path, kind: type[Any]) -> bool:
    """Whether the last file of an outbox has a message of ``kind``."""
    begin = f'{{"{kind.__name__}"'.encode()  # as :func:`_line` writes it
    with contextlib.suppress(OSError):  # nothing has been sent
        return begin in _numbered_path(path, _last_number(path)).read_bytes()
    return False


def _numbered_path(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _last_number(path: Path) -> int:
    numbers = [
        int(file.suffix[1:])
        for file in path.parent.glob(f"{path.name}.*")
        if file.suffix[1:].isdecimal()
    ]
    return max(numbers, default=0)


def _line(message: Any) -> bytes:
    fields = dataclasses.asdict(message)
    # The first newline ends a line that was cut off.
    return b"\n" + json.dumps({type(message).__name__: fields}).encode() + b"\n"


def _message(line: bytes) -> Any:
    """:raises ValueError: it is none."""
    value = parsed_json(line)
    if not (isinstance(value, dict) and len(value) == 1):
        raise ValueError("expected an object with one key")
    (name, fields), *_ = value.items()
    if name not in KINDS or not isinstance(fields, dict):
        raise ValueError(f"{name}: unknown message")
    return from_values(KINDS[name], fields)
