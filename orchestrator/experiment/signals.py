"""Signals on their way to a supervisor that may not be there yet."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(slots=True)
class StopRequests:
    """Counts signals that ask for a stop, and hands them on once there is someone to take them.

    During start-up the first one is acted upon at the next :meth:`check`, where nothing is left half done;
    a second one does not wait for that.
    """

    count: int = 0
    _handed_on: int = 0
    _reason: str = ""
    _receiver: Callable[[str], None] | None = None

    def signalled(self, number: int, _frame: object) -> None:
        if number == signal.SIGHUP and self.count:
            return  # a closing terminal sends it more than once; that is no second wish
        self._reason = signal.Signals(number).name
        self.count += 1
        if self._receiver is not None:
            self._hand_on(self._receiver)
        elif self.count > 1:
            raise KeyboardInterrupt

    def check(self) -> None:
        """:raises KeyboardInterrupt: when a stop was asked for; nothing has been launched."""
        if self.count:
            raise KeyboardInterrupt

    def deliver_to(self, receiver: Callable[[str], None]) -> None:
        """From now on ``receiver`` is called, also for what came before."""
        self._receiver = receiver
        while self._handed_on < self.count:  # a signal may come at any moment, also at this one
            self._hand_on(receiver)

    def _hand_on(self, receiver: Callable[[str], None]) -> None:
        self._handed_on += 1
        receiver(self._reason)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Take over the signals meanwhile; in any but the main thread they are not ours to take."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        # What is ignored was meant to be (nohup); None is a handler that Python cannot put back.
        wanted = [number for number in SIGNALS if signal.getsignal(number) not in (signal.SIG_IGN, None)]
        before = {number: signal.signal(number, self.signalled) for number in wanted}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
