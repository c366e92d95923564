"""One reader of a run directory for all viewers: it reads while somebody looks, and tells all of
them at once.
"""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from orchestrator.core.pacer import Pace
from orchestrator.features.live_page.board import Board, Changes, to_json
from orchestrator.features.live_page.job_row import safe_text
from orchestrator.machine.users import ask_owner

LOOK_EVERY_S = 1.0
READING = Pace(every_s=LOOK_EVERY_S, share=0.002, longest_s=10.0)
"""How often the source is read; the share is of one core."""
HEARTBEAT_S = 15.0
"""So often something is sent at least, so that a connection that is gone is noticed."""
FIRST_LOOK_S = 2.0
"""How long a page waits for its first state to be read, or read anew."""
LONGEST_PROBLEM = 4_000
"""Characters of what is said of an error."""
AFTER_ERROR_S = 10.0
"""How soon it is read again after an error that nobody has foreseen."""


class Source(Protocol):
    """What reads."""

    def read(self) -> Changes:
        """What is new since the last call; everything at first. Called in a thread, never twice at
        once.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstLook:
    """What there was at once."""

    board: str
    """Name of the board, by which a stream goes on after this."""
    state: str
    """All of it, as :meth:`Board.since` gives it."""
    read_at: float
    """When it was read, in seconds since the epoch."""


class Feed:
    """The board of one source, and those who look at it.

    When a source is over, everything is read anew by another one. So it is after an error that
    nobody has foreseen: the source may have taken in what it has told nobody.
    """

    def __init__(self, make_source: Callable[[], Source]) -> None:
        """:param make_source: called in a thread."""
        self._make_source = make_source
        self._source: Source | None = None
        self._board = Board()
        self._read_at = 0.0
        """When the board was last read, in seconds since the epoch."""
        self._is_stale = False
        """Whether nobody has looked for a while, and it has not been read since."""
        self._problem = ""
        self._last_traceback = ""
        """What was printed of the last error: the same again is not printed."""
        self._failed_at = -AFTER_ERROR_S
        self._viewers = 0
        self._reading: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @property
    def has_viewers(self) -> bool:
        return self._viewers > 0

    @property
    def problem(self) -> str:
        """Why there is nothing to see at the moment; empty where there is."""
        return self._problem if time.monotonic() - self._failed_at < AFTER_ERROR_S else ""

    @contextmanager
    def _viewer(self) -> Iterator[asyncio.Task[None]]:
        """One more viewer, and the reading for all of them."""
        self._viewers += 1
        try:
            if self._reading is None or self._reading.done():
                self._is_stale = self._board.version > 0
                self._reading = asyncio.create_task(self._read())
            yield self._reading
        finally:
            self._viewers -= 1

    async def first_look(self) -> FirstLook | None:
        """Everything, read anew where nobody has looked for a while. What takes longer than
        :data:`FIRST_LOOK_S` is not waited for; None where there is nothing by then.
        """
        with self._viewer() as reading:
            try:
                async with asyncio.timeout(FIRST_LOOK_S):
                    while (self._is_stale or not self._board.version) and not reading.done():
                        await self._changed.wait()
            except TimeoutError:  # the stream brings it
                pass
        board = self._board
        if not board.version:
            return None
        return FirstLook(board=board.name, state=board.since(0), read_at=self._read_at)

    async def messages(self, known: str = "", version: int = 0) -> AsyncIterator[str]:
        """Server-sent events for one viewer: at first everything, then what has changed since it
        took the last one.

        Where nobody has looked for a while, everything is at first as it was then: ``stale`` says
        so, with the time, and ``current`` follows once it has been read anew.

        :param known: the board of which the viewer has what there was in that ``version``. What it
            has is not sent again.
        """
        with self._viewer() as reading:
            board = self._board
            is_known = known == board.name and 0 < version <= board.version
            seen = version if is_known else 0
            if not is_known:
                yield _clock(board)
            is_stale = self._is_stale
            if is_stale:
                yield f"event: stale\ndata: {self._read_at:.1f}\n\n"
            while True:
                changed = self._changed
                if reading.done():
                    return  # an error has ended it; the page connects again
                if board is not self._board:
                    seen = 0
                    board = self._board
                    yield _clock(board)
                if text := board.since(seen):
                    seen = board.version
                    yield f"data: {text}\n\n"
                    continue
                if is_stale and not self._is_stale:
                    is_stale = False
                    yield f"event: current\ndata: {self._read_at:.1f}\n\n"
                try:
                    async with asyncio.timeout(HEARTBEAT_S):
                        await changed.wait()
                except TimeoutError:
                    yield ": alive\n\n"

    async def _read(self) -> None:
        cost_s = 0.0
        is_first = self._board.version == 0
        try:
            while self._viewers:
                changes, cost_s = await asyncio.to_thread(self._read_and_time)
                if changes.is_over:
                    self._source = None
                    self._board = Board()
                    continue
                began = time.thread_time()
                was_stale = self._is_stale
                self._is_stale = False
                self._read_at = time.time()
                if self._board.apply(changes) or was_stale:
                    self._tell()
                cost_s += time.thread_time() - began
                pause_s = READING.every_s if is_first else READING.pause_s(cost_s)
                is_first = False
                await asyncio.sleep(pause_s)
        except Exception as error:
            self._start_over(error)
        finally:
            self._tell()

    def _start_over(self, error: Exception) -> None:
        self._source = None
        self._board = Board()
        self._failed_at = time.monotonic()
        if isinstance(error, PermissionError) and isinstance(error.filename, str):
            self._problem = _permission_text(error, Path(error.filename))
            return
        self._problem = f"reading has failed ({type(error).__name__}); `serve` has printed where"
        text = "".join(traceback.format_exception(error))
        if text != self._last_traceback:
            print(
                f"serve: an unexpected error; everything is read anew after it:\n{text}",
                file=sys.stderr,
                flush=True,
            )
        self._last_traceback = text

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _read_and_time(self) -> tuple[Changes, float]:
        began = time.thread_time()
        self._source = self._source or self._make_source()
        changes = self._source.read()
        return changes, time.thread_time() - began - changes.rare_s


def _permission_text(error: PermissionError, path: Path) -> str:
    """What could not be read, and whom to ask."""
    what = f"{path}: {error.strerror or error}"
    owner = ask_owner(path)
    return safe_text(f"{what}; {owner}" if owner else what, LONGEST_PROBLEM)


def _clock(board: Board) -> str:
    """With it everything begins that a page shows: what it was told before holds no more."""
    return f"event: clock\ndata: {clock_values(board.name)}\n\n"


def clock_values(board: str) -> str:
    """The time, and the board that a page is told of, as JSON."""
    return to_json({"now": round(time.time(), 1), "board": board})
