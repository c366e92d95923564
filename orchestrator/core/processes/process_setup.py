"""What a process inherits from whoever started it, set right before anything else: blocked signals,
closed streams.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

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


def give_way() -> None:
    """Use only CPU time that no other process wants, as far as the kernel lets this process ask for
    that.

    It cannot be undone: without rights, a process never leaves ``SCHED_IDLE`` (sched(7)).
    """
    with contextlib.suppress(OSError):  # a container that forbids it
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    # Sessions are groups of their own (sched(7)), unless the kernel has no autogroups.
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text("19")


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
