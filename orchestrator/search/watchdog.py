"""A thread of the searcher that ends it: with its supervisor, or when its sampler does not return from a call."""

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

from orchestrator.core.parent_death import outlive_parent
from orchestrator.core.text import rough_duration
from orchestrator.experiment.search_process import CANNOT_GO_ON

LIMIT_S = 300.0
"""Longest time that a sampler may take for one call."""
TICK_S = 0.25


@dataclass(slots=True, kw_only=True)
class Watchdog:
    """The sampler may be a class of the user's, so that its calls may do anything."""

    lanes: int = 1
    """Jobs that run at once, as the supervisor has said last."""
    _call: tuple[str, str] | None = field(default=None, init=False)
    """Sampler and method of the call that is under way."""
    _calls: int = field(default=0, init=False)

    def start(self, pipe: int) -> None:
        """Begin to watch, in place of the parent-death signal: that kills this process without those of its group.

        :param pipe: from the supervisor, which writes a line with the number of jobs at once when that changes.
        """
        threading.Thread(target=self._watch, args=[pipe], daemon=True).start()
        outlive_parent()

    @contextlib.contextmanager
    def limited(self, sampler: str, call: str) -> Iterator[None]:
        """The block is a call of ``sampler``: it ends within :data:`LIMIT_S`, and in this process alone."""
        process = os.getpid()
        self._call = sampler, call
        self._calls += 1
        try:
            yield
        finally:
            self._call = None
            if os.getpid() != process:  # the sampler has forked, and this is its child: there is one searcher
                os._exit(1)

    def _watch(self, pipe: int) -> None:
        last, ticks = 0, 0  # no clock: a process that was stopped for a while has not been slow
        while True:
            # If compiled code keeps other threads from running, the kernel ends the process.
            signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
            if select.select([pipe], [], [], TICK_S)[0]:
                if not (lines := os.read(pipe, 1024).split()):
                    with contextlib.suppress(ProcessLookupError):  # it leads none
                        os.killpg(os.getpid(), signal.SIGKILL)
                    os._exit(0)
                self.lanes = int(lines[-1])
            call, ticks = self._call, ticks + 1 if self._call is not None and self._calls == last else 0
            last = self._calls
            if call is not None and ticks * TICK_S > LIMIT_S:
                faulthandler.dump_traceback()
                tell(f'the sampler "{call[0]}" has not returned within {rough_duration(LIMIT_S)} from its {call[1]}')
                os._exit(CANNOT_GO_ON)


def tell(text: str) -> None:
    """Write a line to the end of the log, where it is found if this process ends next."""
    with contextlib.suppress(Exception):  # what the sampler has made of it
        sys.stdout.flush()
    os.write(2, f"\nsearch: {' '.join(text.split())}\n".encode(errors="backslashreplace"))
