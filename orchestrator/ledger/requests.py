"""Requests of ``stop``, ``pause`` and others to a supervisor, and their way from other hosts: as files.

Processes of one host leave requests in the ledger. Its write-ahead log needs memory that its users share, which no
network file system offers. A file that is renamed into place is whole everywhere.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from orchestrator.core.atomic_files import write_whole
from orchestrator.core.messages import JsonLine
from orchestrator.core.regular_files import read_regular

LARGEST_BYTES = 1 << 26
"""Of a file of requests; a larger one was not written by this program."""
TOO_MANY_DIGITS = 19
"""A number with so many of them may not fit into 64 bits."""
Verb: TypeAlias = Literal["stop", "cancel", "retry", "pause", "resume", "promote", "set", "reload", "add"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(JsonLine):
    verb: Verb
    job_id: str | None
    """For ``stop``, ``reload`` and ``add``: the supervisor that it is meant for, as :attr:`LockHolder.key`; None:
    whichever reads it. For ``set``: the key and its value, as in ``max_parallel=8``. For ``promote``: the job and how
    far it trains on, as in ``quad-t00007-s0=150000`` (env_steps of the next rung) or ``quad-t00007-s0=end``."""

    @property
    def promotion(self) -> tuple[str, int | None] | None:
        """Of a request to ``promote``: the job, and the env_steps of its next rung or None for its end.

        None for another request, and for one that names neither.
        """
        job_id, _, rung = (self.job_id or "").partition("=")
        if self.verb != "promote" or not (rung == "end" or (rung.isdecimal() and len(rung) < TOO_MANY_DIGITS)):
            return None
        return job_id, None if rung == "end" else max(1, int(rung))


class RequestFiles:
    """A folder with files of requests, one request per line. It is missing until another host has made a request."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting: dict[str, list[Request]] = {}
        """By file: requests that were taken, and have not been acted on."""
        self._changed: set[str] = set()
        """Files of which requests have been acted on, or that are damaged."""

    def add(self, requests: Iterable[Request]) -> None:
        """:raises OSError:"""
        self._folder.mkdir(exist_ok=True)
        name = f"{time.time_ns()}-{socket.gethostname()}-{os.getpid()}.jsonl"
        self._write(name, requests)

    def take(self) -> list[Request]:
        """Requests that were not taken before, by the clocks of their hosts; those of a damaged file are lost."""
        taken: list[Request] = []
        for name in self._names():
            if name not in self._waiting:
                with contextlib.suppress(OSError):  # of the network, perhaps; the file is read again next time
                    requests: list[Request] = []
                    with contextlib.suppress(ValueError):
                        content = read_regular(self._folder / name, LARGEST_BYTES)
                        requests = [Request.from_line(line) for line in content.splitlines()]
                    self._waiting[name] = requests
                    self._changed |= set() if requests else {name}
                    taken += requests
        return taken

    def handled(self, request: Request) -> None:
        """It was taken, and has been acted on."""
        for name, waiting in self._waiting.items():
            if request in waiting:
                waiting.remove(request)
                self._changed.add(name)
                return

    def remove_handled(self) -> None:
        """To be called when what they led to has been recorded. What has not been acted on stays in its file."""
        for name in list(self._changed):
            with contextlib.suppress(OSError):  # it stays known as taken
                if waiting := self._waiting[name]:
                    self._write(name, waiting)
                else:
                    (self._folder / name).unlink(missing_ok=True)
                    del self._waiting[name]
                self._changed.remove(name)

    def _write(self, name: str, requests: Iterable[Request]) -> None:
        write_whole(self._folder / name, b"".join(request.to_line() for request in requests))

    def _names(self) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._folder) if name.endswith(".jsonl") and name[0] != ".")
        except OSError:  # usually there is no such folder
            return []
