"""Requests of ``stop``, ``pause`` and others to a supervisor, and their way from other hosts: as
files.

Processes of one host leave requests in the ledger. Its write-ahead log needs memory that its users
share, which no network file system offers. A file that is renamed into place is whole everywhere.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from orchestrator.core.files.atomic_files import sync_directory, write_whole
from orchestrator.core.files.regular_files import read_regular
from orchestrator.core.messages import JsonLine

LARGEST_BYTES = 1 << 26
"""Of a file of requests; a larger one was not written by this program."""
TOO_MANY_DIGITS = 19
"""A number with so many of them may not fit into 64 bits."""
Verb: TypeAlias = Literal[
    "stop", "cancel", "retry", "pause", "resume", "promote", "set", "reload", "add"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(JsonLine):
    verb: Verb
    job_id: str | None
    """For ``stop``, ``reload`` and ``add``: the supervisor that it is meant for, as
    :attr:`LockHolder.key`; None: whichever reads it. For ``set``: the key and its value, as in
    ``max_parallel=8``. For ``promote``: the job and how far it trains on, as in
    ``quad-t00007-s0=150000`` (env_steps of the next rung) or ``quad-t00007-s0=end``."""

    @property
    def promotion(self) -> tuple[str, int | None] | None:
        """Of a request to ``promote``: the job, and the env_steps of its next rung or None for its
        end.

        None for another request, and for one that names neither.
        """
        if self.verb != "promote":
            return None
        job_id, _, rung = (self.job_id or "").partition("=")
        if rung == "end":
            return job_id, None
        env_steps = _number(rung)
        return None if env_steps is None else (job_id, max(1, env_steps))

    @property
    def max_parallel(self) -> int | None:
        """Of a request to ``set`` ``max_parallel``: how many jobs may run at once, at least one. None
        for another request or key, and for what is no such number.
        """
        key, _, value = (self.job_id or "").partition("=")
        if self.verb != "set" or key != "max_parallel":
            return None
        asked = _number(value)
        return None if asked is None else max(1, asked)


def _number(text: str) -> int | None:
    """None: this is none, or a larger one than anybody asks for."""
    if not text.isdecimal() or len(text) >= TOO_MANY_DIGITS:
        return None
    return int(text)


class RequestFiles:
    """A folder with files of requests, one request per line. It is missing until another host has
    made a request.

    A file stays until all of its requests have been acted on. Which of them have is recorded in the
    ledger, by ids that are never used again (file and line), in the transaction of what they led
    to: a kill between that and the removal of the file repeats none of them.

    :param acted_on: the ids that the ledger has.
    """

    def __init__(self, folder: Path, acted_on: Callable[[], Collection[str]] = tuple) -> None:
        self._folder = folder
        self._acted_on = acted_on
        self._files: dict[str, dict[str, Request]] = {}
        """By file: its requests by their ids."""
        self._waiting: dict[str, Request] = {}
        """By id: requests that were taken, and have not been acted on."""

    def add(self, requests: Iterable[Request]) -> None:
        """Leave requests for the supervisor, in one file. :raises OSError: it cannot be written."""
        self._folder.mkdir(exist_ok=True)
        name = f"{time.time_ns()}-{socket.gethostname()}-{os.getpid()}.jsonl"
        write_whole(self._folder / name, b"".join(request.to_line() for request in requests))

    def take(self) -> list[Request]:
        """Requests that were not taken before, by the clocks of their hosts; those of a damaged
        file are lost.
        """
        new_names = [name for name in self._names() if name not in self._files]
        if not new_names:
            return []
        acted_on = self._acted_on()
        taken: dict[str, Request] = {}
        for name in new_names:
            # The network's file system may be away; the file is read again next time.
            with contextlib.suppress(OSError):
                requests = self._read(name)
                self._files[name] = requests
                taken |= {id_: one for id_, one in requests.items() if id_ not in acted_on}
        self._waiting |= taken
        return list(taken.values())

    def mark_handled(self, request: Request) -> str | None:
        """It has been acted on. Returns its id; None if it was not taken from a file."""
        id_ = next((id_ for id_, waiting in self._waiting.items() if waiting == request), None)
        if id_ is not None:
            del self._waiting[id_]
        return id_

    def remove_handled(self) -> list[str]:
        """Remove the files of which nothing waits, when what they led to has been recorded. Returns
        the ids in them.
        """
        removed: list[str] = []
        for name, requests in self._files.items():
            if self._waiting.keys().isdisjoint(requests):
                with contextlib.suppress(OSError):  # it stays known as taken
                    (self._folder / name).unlink(missing_ok=True)
                    removed.append(name)
        if not removed:
            return []
        try:
            sync_directory(self._folder)  # or a power cut brings back what nobody knows
        except OSError:  # all of them stay known
            return []
        return [id_ for name in removed for id_ in self._files.pop(name)]

    def _read(self, name: str) -> dict[str, Request]:
        """The requests in a file by their ids. :raises OSError: it cannot be read."""
        try:
            lines = read_regular(self._folder / name, LARGEST_BYTES).splitlines()
            return {
                f"{name}:{number}": Request.from_line(line) for number, line in enumerate(lines, 1)
            }
        except ValueError:  # nothing that this program has written
            return {}

    def _names(self) -> list[str]:
        """Of the files, by the clocks of the hosts that made them."""
        try:
            return sorted(
                name
                for name in os.listdir(self._folder)
                if name.endswith(".jsonl") and name[0] != "."
            )
        except OSError:  # usually there is no such folder
            return []
