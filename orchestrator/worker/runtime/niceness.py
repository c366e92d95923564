"""The niceness of a worker's session.

Linux divides CPU time among sessions first, where its autogroups are enabled, and niceness counts
only within one (sched(7)). A worker has a session of its own, so that its niceness alone would mean
nothing to other programs.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from orchestrator.core.processes.environment_variables import NICE_VARIABLE

AUTOGROUP = Path("/proc/self/autogroup")
RETRY_S = 0.2
"""The kernel accepts ten changes a second of a whole machine."""
PATIENCE_S = 120.0


def apply_to_session() -> None:
    """Give this process's session the niceness of its job, if it has one. Does not wait for the
    kernel to accept it.
    """
    nice = os.environ.pop(NICE_VARIABLE, None)
    if nice is not None:
        threading.Thread(target=_write, args=[int(nice)], name="niceness", daemon=True).start()


def _write(nice: int) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up_at:
        try:
            AUTOGROUP.write_text(str(max(nice, os.getpriority(os.PRIO_PROCESS, 0))))
            return
        except BlockingIOError:
            time.sleep(RETRY_S)
        except OSError:  # a kernel without autogroups, where niceness counts as it is
            return
