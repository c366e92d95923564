"""What a process inherits from whoever started it, set right before anything else: blocked signals,
closed streams.
"""

from __future__ import annotations

import os
import signal
import sys

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that request a stop."""

CHECKPOINT_SIGNAL = signal.SIGUSR1
"""Requests a checkpoint: of all running workers from the supervisor, of itself from a worker."""


def set_up_process() -> None:
    """Unblock the signals that request a stop, and connect standard streams that are closed to
    ``/dev/null``.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    hold_standard_descriptors()
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            stream = open(number, mode, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def block_checkpoint_signal() -> None:
    """Until there is a handler: without one the signal would end the process. It waits, as do those
    sent before.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [CHECKPOINT_SIGNAL])


def hold_standard_descriptors() -> None:
    """Open ``/dev/null`` on every free descriptor from 0 to 2, for good.

    Otherwise the next file that this process opens gets the number, and what is printed is written
    into that file.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
