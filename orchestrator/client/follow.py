"""Follows the stream of events of a run directory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from orchestrator.core.errors import UNAVAILABLE
from orchestrator.core.paths import RunPaths
from orchestrator.experiment import left_batch_jobs, resume_advice, run_directory, run_end
from orchestrator.server.ledger import EventRow, ServerLedger
from orchestrator.server.requests import Answer

LOOK_EVERY_S = 0.1


class Display(Protocol):
    """Shows a run that a client follows. What it raises ends the client."""

    def begin(self, paths: RunPaths, stop: Callable[[str], None]) -> None:
        """The run directory is locked. :param stop: requests that the run stops, with a reason."""

    def added(self) -> None:
        """The jobs are in the ledger."""

    def event(self, event: EventRow) -> None:
        """An event of the stream, but for those in :data:`.ledger.INTERNAL`."""

    def tick(self) -> None:
        """Called several times a second."""


class Follower:
    """Reads the events after a cursor. The connection stays open; nothing is ever written."""

    def __init__(self, run_dir: Path, cursor: int | None = None) -> None:
        """:param cursor: id of the last event that is known; None: only later ones are read."""
        self.paths = RunPaths(run_dir)
        self._ledger = ServerLedger.open(self.paths.ledger, read_only=True, is_sound=True)
        self._has_ended = False
        """Whether the last event was read."""
        self._cursor = self._ledger.last_event_id() if cursor is None else cursor

    def new(self) -> list[EventRow]:
        """Return the events since the last call."""
        events = self._ledger.events_after(self._cursor)
        if events:
            self._cursor = events[-1].id
        return events

    def answer(self, id_: str) -> Answer | None:
        """Return the answer to a request, or None if there is none yet."""
        return self._ledger.answer(id_)

    def to_end(self, holder: str, every_s: float = LOOK_EVERY_S) -> Iterator[EventRow | None]:
        """Yield events until the supervisor with this key has ended, and None after each look."""
        while True:
            now = run_directory.holder(self.paths)
            is_over = now is None or now.key != holder
            yield from self._last_or_new(is_over=is_over)
            yield None
            if is_over:
                return
            time.sleep(every_s)

    def _last_or_new(self, *, is_over: bool) -> Iterator[EventRow]:
        if self._has_ended:
            return
        try:
            events = self.new()
        except UNAVAILABLE:  # the file system fails; it is read again
            if is_over:
                raise
            return
        for event in events:
            if event.kind == "ended":  # while a reader has it open, the write-ahead log stays
                self._has_ended = True
                self.close()
            yield event

    def close(self) -> None:
        self._ledger.abandon()


def end_of(paths: RunPaths, holder: str) -> run_end.RunEnd:
    """Return how the run of a supervisor has ended."""
    end = run_end.read(paths)
    if end is not None and end.holder == holder:
        return end
    message = "the run directory has been removed or renamed, so its end is not known"
    if run_directory.is_run_directory(paths):
        how = resume_advice.how_to_resume(paths, left_batch_jobs.of(paths))
        message = f"the supervisor was killed, or its machine restarted. {how}"
    return run_end.RunEnd(
        holder="",
        exit_code=1,
        message=f"{paths.root}: {message}",
        error="SupervisorError",
        ended_at=time.time(),
    )
