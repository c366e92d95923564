"""Requests that reach a worker as signals, for the next iteration boundary."""

from __future__ import annotations

import signal

from orchestrator.core.processes.process_setup import CHECKPOINT_SIGNAL


class SignalRequests:
    """SIGTERM requests a stop, and so does Ctrl-C when the worker was started by hand; SIGUSR1 a
    checkpoint.
    """

    def __init__(self) -> None:
        self._stop = self._checkpoint = False
        for number in (signal.SIGTERM, signal.SIGINT, CHECKPOINT_SIGNAL):
            signal.signal(number, self._receive)
        signal.siginterrupt(
            CHECKPOINT_SIGNAL, False
        )  # training goes on, and so does a system call in any library
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [CHECKPOINT_SIGNAL])

    def _receive(self, number: int, _frame: object) -> None:
        if number == CHECKPOINT_SIGNAL:
            self._checkpoint = True
        else:
            self._stop = True

    def stop(self) -> bool:
        return self._stop

    def take_checkpoint(self) -> bool:
        """Whether a checkpoint was requested since the last call."""
        requested = self._checkpoint
        self._checkpoint = False
        return requested
