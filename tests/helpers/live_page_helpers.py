"""A server of the live page in a thread of the test, and viewers of it."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from command_helpers import wait_until
from supervisor_helpers import make_job

from orchestrator.client.events import News
from orchestrator.client.run_watch import (
    Cell,
    LiveChart,
    LiveColumn,
    LiveSection,
    LiveSeries,
    LiveTable,
    RunWatch,
)
from orchestrator.core.feature import Feature
from orchestrator.core.job import Attempt, Running
from orchestrator.core.paths import RunPaths
from orchestrator.experiment import run_directory
from orchestrator.features.live_page import live_server
from orchestrator.features.live_page.job_row import FIELDS
from orchestrator.ledger import Ledger
from orchestrator.ledger.rows import DeclaredJob, LiveReport

FIRST_STATE = re.compile(r'<script id="first" type="application/json">(.*?)</script', re.DOTALL)
KERNEL_BYTES = 8 << 10
"""What the kernel keeps of a connection that is not read."""


@dataclass(frozen=True, kw_only=True)
class Served:
    host: str
    port: int
    token: str
    server: uvicorn.Server

    def request(
        self, path: str, *, method: str = "GET", body: bytes | None = None, **headers: str | None
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body. Underscores of header names are hyphens; None leaves a header
        out."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            given = {"host": f"127.0.0.1:{self.port}", **headers}
            if body is not None:
                given["content_length"] = str(len(body))
            for name, value in given.items():
                if value is not None:
                    connection.putheader(name.replace("_", "-"), value)
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def first_state(self, path: str = "/", **headers: str | None) -> dict[str, Any] | None:
        """The data in a page, as its script reads it; None where it has none."""
        status, _, page = self.request(path, **headers)
        assert status == 200
        found = FIRST_STATE.search(page.decode())
        return None if found is None else json.loads(found[1])

    def json(self, path: str) -> Any:
        status, _, body = self.request(path)
        assert status == 200, body
        return json.loads(body)


@contextlib.contextmanager
def serving(
    root: Path | None,
    *,
    host: str = "127.0.0.1",
    names: Sequence[str] = (),
) -> Iterator[Served]:
    made = live_server.open_server(root, host=host, port=0, names=names)
    made.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BYTES)
    host, port = made.listener.getsockname()[:2]
    thread = threading.Thread(target=made.run)
    thread.start()
    try:
        yield Served(
            host=host, port=port, server=made.server, token=made.address.partition("#token=")[2]
        )
    finally:
        made.server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


@contextlib.contextmanager
def stuck_viewer(server: Served) -> Iterator[Callable[[], int]]:
    """A viewer that has asked for everything and reads nothing.

    Yields how many bytes the server keeps for it, once that has come to a stop: what does not fit
    into the buffers of the kernel, and makes the server pause.
    """
    before = set(server.server.server_state.connections)
    with socket.socket() as viewer:
        viewer.setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BYTES
        )  # has no effect once it is connected
        viewer.connect((server.host, server.port))
        viewer.sendall(b"GET /api/this/events HTTP/1.1\r\nHost: localhost\r\n\r\n")

        def paused() -> list[Any]:
            mine: list[Any] = [
                one for one in server.server.server_state.connections if one not in before
            ]
            return [one for one in mine if one.flow.write_paused]

        wait_until(lambda: len(paused()) == 1, "a server that waits for its viewer")
        [connection] = paused()
        yield connection.transport.get_write_buffer_size
        assert paused() == [connection], "it is stuck all the time"


@contextlib.contextmanager
def running(root: Path, count: int = 2) -> Iterator[tuple[RunPaths, Ledger]]:
    """A run directory as its supervisor holds it, with ``count`` jobs, of which the first runs on
    CPU 0."""
    with run_directory.claim(root) as paths:
        ledger = Ledger.create(paths.ledger)
        ledger.put_jobs(
            DeclaredJob(position=number, job=make_job(f"j{number}-s0")) for number in range(count)
        )
        attempt = Attempt(
            job_id="j0-s0",
            number=0,
            cpus=(0,),
            gpus=(),
            pid=1,
            pid_start=1.0,
            started_at=time.time() - 20,
        )
        ledger.start_attempt(attempt, queue_s=0.0)
        ledger.set_state("j0-s0", Running(attempt=attempt))
        ledger.commit()
        try:
            yield paths, ledger
        finally:
            ledger.abandon()


def report(ledger: Ledger, *, delay: float) -> None:
    """What the running job reports."""
    ledger.set_reports([LiveReport("j0-s0", "training", 0.5, delay, "{}", time.time())])


class Viewer:
    """A stream of events, as a page reads it."""

    def __init__(self, port: int, path: str = "/api/this/events", **headers: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._connection.request("GET", path, headers=headers)
        self._answer = self._connection.getresponse()
        self.status = self._answer.status
        self.pieces: dict[str, Any] = {}
        self.lists: dict[str, list[Any]] = {}
        self.sizes: list[int] = []
        """Bytes of each message."""

    def __enter__(self) -> Viewer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection.sock is not None:
            self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def event(self) -> Any:
        """The data of the next event that is not the clock's."""
        while True:
            name, data = "message", None
            while line := self._answer.readline().rstrip(b"\n"):
                key, _, value = line.partition(b": ")
                if key == b"event":
                    name = value.decode()
                elif key == b"data":
                    data = value
            if name == "clock":
                self.pieces, self.lists = {}, {}
            elif data is not None and name == "message":
                self.sizes.append(len(data))
                return json.loads(data)

    def next(self) -> dict[str, Any]:
        """Take in the next message, and return it."""
        message: dict[str, Any] = self.event()
        for name in message.get("drop", ()):
            self.pieces.pop(name, None)
            self.lists.pop(name, None)
        for name in message.get("restart", ()):
            self.lists[name] = []
        self.pieces |= message["put"]
        for name, items in message["grow"].items():
            self.lists.setdefault(name, []).extend(items)
        return message

    def until(self, condition: Any) -> dict[str, Any]:
        """Messages up to the first after which ``condition`` of this viewer holds; returns that."""
        while True:
            message = self.next()
            if condition(self):
                return message

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(zip(FIELDS, self.pieces[f"job:{job_id}"], strict=True))


class Gardener(RunWatch):
    """Says of every run directory how often it has looked at it."""

    def __init__(self) -> None:
        self.looks = 0

    def look(self) -> Sequence[News]:
        self.looks += 1
        return ()

    def section(self) -> LiveSection:
        columns = [
            LiveColumn(name="fruit"),
            LiveColumn(name="weight", kind="value"),
            LiveColumn(name="picked", kind="bar"),
            LiveColumn(name="by", kind="jobs"),
            LiveColumn(name="env_steps", kind="steps"),
        ]
        rows: list[list[Cell]] = [
            ["apple", math.nan, 3, ["j0-s0"], 1500],
            ["pear", 1.25, 6, [], None],
            [None, "ripe", None, None, None],
        ]
        dots = LiveSeries(name="day", points=[(1, 2.0), (2, 4.0), (3, 3.0)], is_dots=True)
        most = LiveSeries(name="most so far", points=[(1, 2.0), (2, 4.0)], is_steps=True)
        return LiveSection(
            title="The garden",
            text=f"looked at {self.looks} times\x1b[31m",
            charts=[LiveChart(title="Fruits by day", x="day", y="fruits", series=[dots, most])],
            tables=[LiveTable(title="Fruits", columns=columns, rows=rows)],
        )


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a :class:`Gardener` be all that features say of run directories."""
    garden = Feature(name="garden", about="Fruits.", watch=lambda _: Gardener())
    monkeypatch.setattr("orchestrator.client.run_watch.features", lambda: (garden,))
