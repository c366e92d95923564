"""Handles the signals that ask for a stop while no supervisor runs: Ctrl-C (SIGINT), SIGTERM, and
SIGHUP of a terminal that closes.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.core.processes.process_setup import STOP_SIGNALS


@dataclass(slots=True, kw_only=True)
class StopRequests:
    """Counts signals that request a stop. The first one takes effect at the next :meth:`check`, where
    nothing is half done; the second one at once.
    """

    is_urgent: bool = False
    """Whether the first one takes effect at once, too."""
    count: int = 0

    def check(self) -> None:
        """:raises KeyboardInterrupt: a stop was requested."""
        if self.count:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Handle the signals within the block. Does nothing outside of the main thread, where
        Python forbids it.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        # An ignored signal stays ignored (nohup); None is a handler that Python cannot restore.
        before = {
            number: signal.signal(number, self._handle)
            for number in STOP_SIGNALS
            if signal.getsignal(number) not in (signal.SIG_IGN, None)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, _frame: object) -> None:
        if number == signal.SIGHUP and self.count:
            return  # a closing terminal sends it more than once; that is no second request
        self.count += 1
        if self.is_urgent or self.count > 1:
            raise KeyboardInterrupt
