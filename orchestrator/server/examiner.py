"""Examines robots beside the loop: a thread that talks to examining processes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.core.job import Job
from orchestrator.examination import preflight
from orchestrator.examination.examining_process import Child
from orchestrator.examination.preflight import JobVerdict


class AbortedExamination(Exception):
    """The run stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """Jobs whose robots are examined together, for one request."""

    request_id: str
    jobs: Sequence[Job]
    sources: Sequence[Job]
    """Jobs that they may start from."""
    staging: Path
    """Receives a folder for each distinct robot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """The result of an examination."""

    examination: Examination
    verdicts: Mapping[str, JobVerdict] = field(default_factory=dict)
    error: Exception | None = None
    """What ended it early."""

    def verdicts_or_raise(self) -> Mapping[str, JobVerdict]:
        """Return the verdicts. :raises Exception: what ended the examination early."""
        if self.error is not None:
            raise self.error
        return self.verdicts


class Examiner:
    """Runs examinations one after the other, each with several processes side by side. Its processes
    are kept for the next one and closed when there is none.
    """

    def __init__(self, processes: int, warm: Child | None = None) -> None:
        """:param warm: a process that was started earlier."""
        self._processes = processes
        self._kept: list[Child] = [] if warm is None else [warm]
        self._todo: queue.SimpleQueue[Examination | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Examined] = queue.SimpleQueue()
        self._pending = 0
        self._aborted = threading.Event()
        self.progress: tuple[int, int] = (0, 0)
        """Robots examined, and to be examined, of the present examination."""
        # The processes are killed when the thread ends that has started them: it lives until close.
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        return self._pending > 0

    def begin(self, examination: Examination) -> None:
        self._pending += 1
        self._todo.put(examination)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="examiner", daemon=True)
            self._thread.start()

    def take(self) -> list[Examined]:
        """Return the examinations that have ended since the last call."""
        taken: list[Examined] = []
        while not self._done.empty():
            taken.append(self._done.get())
        self._pending -= len(taken)
        return taken

    def abort(self) -> None:
        """End all examinations early."""
        self._aborted.set()

    def close(self) -> None:
        self._aborted.set()
        self._todo.put(None)
        if self._thread is not None:
            self._thread.join()
        self._close_children()

    def _work(self) -> None:
        while (examination := self._todo.get()) is not None:
            self._done.put(self._examine(examination))
            if self._todo.empty():
                self._close_children()

    def _examine(self, examination: Examination) -> Examined:
        def watch(done: int, robots: int) -> None:
            self.progress = (done, robots)
            if self._aborted.is_set():
                raise AbortedExamination

        try:
            if self._aborted.is_set():
                raise AbortedExamination
            examination.staging.mkdir(parents=True)
            verdicts = preflight.examine(
                examination.jobs,
                staging=examination.staging,
                processes=self._processes,
                kept=self._kept,
                watch=watch,
                sources=examination.sources,
            )
        except Exception as error:
            return Examined(examination=examination, error=error)
        return Examined(examination=examination, verdicts=verdicts)

    def _close_children(self) -> None:
        for child in self._kept:
            child.close()
        self._kept.clear()
