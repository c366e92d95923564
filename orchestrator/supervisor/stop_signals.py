"""Handles the signals that ask for a stop: Ctrl-C (SIGINT), SIGTERM, and SIGHUP of a terminal that
closes.

SIGUSR1, which asks for checkpoints, is handled beside them.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from orchestrator.core.processes.process_setup import CHECKPOINT_SIGNAL, STOP_SIGNALS


@dataclass(slots=True, repr=False)
class StopRequests:
    """Counts signals that request a stop, and delivers them to a supervisor once there is one.

    During start-up the first signal takes effect at the next :meth:`check`, where nothing is half
    done; the second one at once. Without a text form of its own: Python's ``signal`` makes that of
    a handler that is replaced, and it would have every job in it.
    """

    count: int = 0
    signal_name: str = ""
    """The name of the signal that requested the stop first; empty where something else did."""
    stop_at: float | None = None
    """When a stop counts as requested without a signal, in seconds since the epoch; None: never."""
    ends_process: bool = False
    """Whether the process ends after the run, as that of a command does: once a signal has stopped
    the run, further ones are ignored until then, and do not change the exit code."""
    _delivered: int = 0
    _reason: str = ""
    _receiver: Callable[[str], None] | None = None
    _request_checkpoints: Callable[[], object] | None = None

    def handle_signal(self, number: int, _frame: object) -> None:
        if number == signal.SIGHUP and self.count:
            return  # a closing terminal sends it more than once; that is no second request
        self._reason = signal.Signals(number).name
        if self.count == 0:
            self.signal_name = self._reason
        self.count += 1
        if self._receiver is not None:
            self._deliver(self._receiver)
        elif self.count > 1:
            raise KeyboardInterrupt

    def request(self, reason: str) -> None:
        """As a signal does, for a request of another process before there is a supervisor."""
        self._reason = reason
        self.count += 1

    @property
    def is_requested(self) -> bool:
        return self.count > 0 or (self.stop_at is not None and time.time() >= self.stop_at)

    def check(self) -> None:
        """:raises KeyboardInterrupt: when a stop was requested; nothing has been launched."""
        if self.is_requested:
            raise KeyboardInterrupt

    def deliver_to(
        self,
        receiver: Callable[[str], None],
        request_checkpoints: Callable[[], object] | None = None,
    ) -> None:
        """Call ``receiver`` for every signal from now on, and for those that came before.

        :param request_checkpoints: called when a signal asks for checkpoints, from now on.
        """
        self._request_checkpoints = request_checkpoints
        self._receiver = receiver
        while self._delivered < self.count:  # a signal may arrive at any moment, also at this one
            self._deliver(receiver)

    def _deliver(self, receiver: Callable[[str], None]) -> None:
        self._delivered += 1
        receiver(self._reason)

    @contextlib.contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Handle the signals within the block. Does nothing outside of the main thread, where
        Python forbids it.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = self._set_handlers()
        mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, before.keys() & {CHECKPOINT_SIGNAL})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, mask & {CHECKPOINT_SIGNAL})
            for number, handler in before.items():
                is_over = self.ends_process and self.count > 0 and number in STOP_SIGNALS
                signal.signal(number, signal.SIG_IGN if is_over else handler)

    def _set_handlers(self) -> dict[signal.Signals, Any]:
        """Returns the handlers that there were before, by signal."""
        before: dict[signal.Signals, Any] = {}
        for number in STOP_SIGNALS:
            # An ignored signal stays ignored (nohup); None is a handler that Python cannot restore.
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, self.handle_signal)
        # A handler of whoever calls this stays.
        if signal.getsignal(CHECKPOINT_SIGNAL) is signal.SIG_DFL:
            before[CHECKPOINT_SIGNAL] = signal.signal(
                CHECKPOINT_SIGNAL, self._handle_checkpoint_signal
            )
        return before

    def _handle_checkpoint_signal(self, _number: int, _frame: object) -> None:
        if self._request_checkpoints is not None:
            self._request_checkpoints()
