"""A thread of the searcher that ends it: with its supervisor, or when it makes no progress."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from orchestrator.core.processes.child_process import kill_group
from orchestrator.core.processes.parent_death import outlive_parent
from orchestrator.core.text import rough_duration
from orchestrator.server.companions import CANNOT_GO_ON

LIMIT_S = 300.0
"""Longest time for one step: a call of the sampler, or a turn of the searcher beside that."""
TICK_S = 0.25


@dataclass(slots=True, kw_only=True)
class Watchdog:
    """The sampler may be a class of the user's, so that its calls may do anything."""

    jobs_at_once: int = 1
    """Jobs that run at once, as the supervisor has said last."""
    _call: tuple[str, str] | None = field(default=None, init=False)
    """Sampler and method of the call that is under way."""
    _steps: int = field(default=0, init=False)
    """Steps that have begun."""
    _supervisor: int = field(default=0, init=False)
    """The process that has started this one."""

    def start(self, pipe: int) -> None:
        """Begin to watch, in place of the parent-death signal: that kills this process without
        those of its group.

        :param pipe: from the supervisor, which writes a line with the number of jobs at once when
            that changes.
        """
        self._supervisor = os.getppid()
        os.set_blocking(pipe, False)
        threading.Thread(target=self._watch, args=[pipe], daemon=True).start()
        outlive_parent()

    def start_on_standard_input(self) -> None:
        """As :meth:`start`, on the pipe that the supervisor has made the standard input. A sampler
        that reads its standard input finds nothing there.
        """
        self.start(os.dup(0))
        with Path(os.devnull).open() as nothing:
            os.dup2(nothing.fileno(), 0)

    def begin_step(self) -> None:
        """Something has been done, and something else begins."""
        self._steps += 1

    @contextlib.contextmanager
    def time_limit(self, sampler: str, call: str) -> Iterator[None]:
        """The block is a call of ``sampler``: it ends within :data:`LIMIT_S`, and in this process
        alone.
        """
        self._call = sampler, call
        self.begin_step()
        try:
            yield
        finally:
            self._call = None
            self.begin_step()

    def _watch(self, pipe: int) -> None:
        # Ticks, and no clock: a process that was stopped for a while has not been slow.
        last = 0
        ticks = 0
        while True:
            # If compiled code keeps other threads from running, the kernel ends the process.
            signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
            if select.select([pipe], [], [], TICK_S)[0]:
                if not (lines := _read(pipe).split()):
                    _end_with_group()
                for line in lines:
                    if line.isdigit():
                        self.jobs_at_once = int(line)
            # Another process may still hold the other end of the pipe.
            if os.getppid() != self._supervisor:
                _end_with_group()
            ticks = ticks + 1 if self._steps == last else 0
            last = self._steps
            if ticks * TICK_S > LIMIT_S:
                self._end_for_lack_of_progress()

    def _end_for_lack_of_progress(self) -> NoReturn:
        faulthandler.dump_traceback()
        if (call := self._call) is not None:
            tell(
                f'the sampler "{call[0]}" has not returned within {rough_duration(LIMIT_S)} from its {call[1]}'
            )
            os._exit(CANNOT_GO_ON)
        where = "search/search.log in the run directory says where"
        tell(f"it has made no progress for {rough_duration(LIMIT_S)}; {where}")
        os._exit(1)  # and is started again


def _end_with_group() -> NoReturn:
    kill_group(os.getpid())
    os._exit(0)


def _read(pipe: int) -> bytes:
    """What there is to read; nothing at the end."""
    try:
        return os.read(pipe, 1024)
    except ConnectionResetError:  # the supervisor has ended, and has not read all beats
        return b""


def tell(text: str) -> None:
    """Write a line to the end of the log, where it is found if this process ends next."""
    with contextlib.suppress(Exception):  # what the sampler has made of it
        sys.stdout.flush()
    os.write(2, f"\nsearch: {' '.join(text.split())}\n".encode(errors="backslashreplace"))
