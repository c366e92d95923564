"""One reader of a run directory for all viewers: it reads while somebody looks, and tells all of them at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Protocol

from orchestrator.web.board import Board, Changes

LOOK_EVERY_S = 1.0
LONGEST_S = 10.0
READ_SHARE = 0.002
"""Largest share of a core for reading; where one reading takes long, they are further apart, up to LONGEST_S."""
HEARTBEAT_S = 15.0
"""So often something is sent at least, so that a connection that is gone is noticed."""


class Source(Protocol):
    """What reads."""

    def read(self) -> Changes:
        """What is new since the last call; everything at first. Called in a thread, never twice at once."""
        ...


class Feed:
    """The board of one source, and those who look at it."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._board = Board()
        self._viewers = 0
        self._reading: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @property
    def has_viewers(self) -> bool:
        return self._viewers > 0

    async def messages(self) -> AsyncIterator[str]:
        """Server-sent events for one viewer: at first everything, then what has changed since it took the last one."""
        self._viewers += 1
        try:
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read())
            seen = 0
            yield f"event: clock\ndata: {time.time():.1f}\n\n"
            while True:
                changed = self._changed
                if text := self._board.since(seen):
                    seen = self._board.version
                    yield f"data: {text}\n\n"
                    continue
                if self._reading.done():
                    self._reading.result()  # the error that has ended it; the page connects again
                    return
                try:
                    async with asyncio.timeout(HEARTBEAT_S):
                        await changed.wait()
                except TimeoutError:
                    yield ": alive\n\n"
        finally:
            self._viewers -= 1

    async def _read(self) -> None:
        cost_s, is_first = 0.0, self._board.version == 0
        try:
            while self._viewers:
                changes, cost_s = await asyncio.to_thread(self._timed)
                began = time.thread_time()
                if self._board.apply(changes):
                    self._tell()
                cost_s += time.thread_time() - began
                pause_s = LOOK_EVERY_S if is_first else max(LOOK_EVERY_S, cost_s / READ_SHARE)
                is_first = False
                await asyncio.sleep(min(LONGEST_S, pause_s))
        finally:
            self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _timed(self) -> tuple[Changes, float]:
        began = time.thread_time()
        changes = self._source.read()
        return changes, time.thread_time() - began - changes.rare_s
