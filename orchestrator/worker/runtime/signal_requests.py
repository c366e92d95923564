"""Requests that reach a worker as signals, for the next iteration boundary."""

from __future__ import annotations

import signal

from orchestrator.core.processes.process_setup import CHECKPOINT_SIGNAL


class SignalRequests:
    """SIGTERM requests a stop, and so does Ctrl-C when the worker was started by hand; SIGUSR1 a
    checkpoint.
    """

    def __init__(self) -> None:
        self._is_stop_requested = False
        self._is_checkpoint_requested = False
        for number in (signal.SIGTERM, signal.SIGINT, CHECKPOINT_SIGNAL):
            signal.signal(number, self._receive)
        # Training goes on, and so does a system call in any library.
        signal.siginterrupt(CHECKPOINT_SIGNAL, False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [CHECKPOINT_SIGNAL])

    def _receive(self, number: int, _frame: object) -> None:
        if number == CHECKPOINT_SIGNAL:
            self._is_checkpoint_requested = True
        else:
            self._is_stop_requested = True

    def is_stop_requested(self) -> bool:
        return self._is_stop_requested

    def take_checkpoint_request(self) -> bool:
        """Whether a checkpoint was requested since the last call."""
        was_requested = self._is_checkpoint_requested
        self._is_checkpoint_requested = False
        return was_requested
