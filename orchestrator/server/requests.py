"""Requests of clients: files in a run directory, each written whole and acted on exactly once.

A client leaves ``requests/<id>.json``. The supervisor applies it and records the answer under the
id, in one transaction, and then removes the file. After a kill in between, the file is there again
and the recorded answer says that nothing is left to do.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from orchestrator.core.decoding import decode
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.files.regular_files import read_regular

Verb: TypeAlias = Literal[
    "add", "stop", "cancel", "pause", "resume", "retry", "set", "checkpoint", "report", "release"
]
LARGEST_BYTES = 1 << 28
"""Of a request: 10,000 jobs take some 30 MiB."""
_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a client asks for."""

    verb: Verb
    jobs: Sequence[str] = ()
    """Ids of the jobs that it is about."""
    args: Mapping[str, Any] = field(default_factory=dict)
    supervisor: str | None = None
    """The only supervisor that it is for (:attr:`LockHolder.key`); None: whichever reads it."""
    host: str = ""
    """Where the client runs: on another host it reads the answer from a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What has become of a request."""

    error: str = ""
    """Why it was refused; empty if it was not."""
    message: str = ""
    """What was done, in a sentence."""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps({"error": self.error, "message": self.message, "facts": dict(self.facts)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedRequest:
    """A request with its id, or why its file cannot be read."""

    id: str
    request: Request | None
    problem: str = ""


class RequestFolder:
    """The folder ``requests`` of a run directory. It is missing until a client makes it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def leave(self, request: Request) -> str:
        """Write a request. Return its id. :raises OSError: it cannot be written."""
        self._folder.mkdir(exist_ok=True)
        id_ = f"{time.time_ns()}-{socket.gethostname()}-{os.getpid()}-{next(_numbers)}"
        values = {
            "verb": request.verb,
            "jobs": list(request.jobs),
            "args": dict(request.args),
            "supervisor": request.supervisor,
            "host": socket.gethostname(),
        }
        write_whole(self._folder / f"{id_}.json", json.dumps(values))
        return id_

    def new(self, known: Collection[str]) -> list[ReceivedRequest]:
        """Return the requests whose ids are not ``known``, the oldest first."""
        try:
            names = sorted(name for name in os.listdir(self._folder) if _is_request(name))
        except OSError:  # there is none, or its file system is away: it is read again
            return []
        found = []
        for name in names:
            id_ = name.removesuffix(".json")
            if id_ in known:
                continue
            try:
                request = decode(Request, read_regular(self._folder / name, LARGEST_BYTES))
                found.append(ReceivedRequest(id=id_, request=request))
            except FileNotFoundError:  # its client has withdrawn it
                continue
            except (OSError, ValueError) as error:
                found.append(ReceivedRequest(id=id_, request=None, problem=str(error)))
        return found

    def remove(self, id_: str) -> bool:
        """Remove a request: it was applied, or its client withdraws it. Return whether that was done."""
        try:
            self._path(id_).unlink()
        except OSError:
            return False
        return True

    def finish(self, id_: str, request: Request | None, answer: Answer) -> None:
        """Remove a request whose answer is in the ledger. A client on another host, which cannot read
        that, gets a file.
        """
        if request is not None and request.host != socket.gethostname():
            with contextlib.suppress(OSError):
                write_whole(self._folder / f"{id_}.answer", answer.to_json(), durable=False)
        self.remove(id_)

    def take_answer(self, id_: str) -> Answer | None:
        """Read and remove the answer to a request; return None if there is none yet."""
        path = self._folder / f"{id_}.answer"
        try:
            answer = decode(Answer, read_regular(path, LARGEST_BYTES))
        except (OSError, ValueError):
            return None
        path.unlink(missing_ok=True)
        return answer

    def set_aside(self, id_: str) -> Path:
        """Rename a request that cannot be read. Return its new path."""
        target = self._folder / f"{id_}.unreadable"
        self._path(id_).replace(target)
        return target

    def _path(self, id_: str) -> Path:
        return self._folder / f"{id_}.json"


def _is_request(name: str) -> bool:
    return name.endswith(".json") and not name.startswith(".")
