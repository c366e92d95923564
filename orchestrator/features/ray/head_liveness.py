"""Whether the head of the cluster can be reached.

When its head does not answer, Ray itself waits for a minute, and then ends the process with a
traceback of its own.
"""

from __future__ import annotations

import socket
import threading
import time

PROBE_EVERY_S = 2.0
PROBE_TIMEOUT_S = 5.0
DRIVER_TIMEOUT_S = 26.0
"""A driver ends its run after this: when the network stalls for 20 s, up to 24 s pass until the
head answers again."""
FENCE_AFTER_S = 29.0
"""A node ends its attempts after this: later than a driver, whose run ends in order then, and
earlier than the 35 s after which the head declares a silent node dead
(:data:`orchestrator.features.ray.cluster.node_settings.HEALTH`)."""


class HeadLiveness:
    """Probes the head regularly, in a thread of its own. :param head: ``HOST:PORT``."""

    def __init__(self, head: str) -> None:
        host, _, port = head.rpartition(":")
        self._address = host.strip("[]"), int(port)
        self._failing_since: float | None = None
        self.is_closed = threading.Event()
        threading.Thread(target=self._probe_regularly, name="head-liveness", daemon=True).start()

    @property
    def missing_s(self) -> float:
        """Time since the first of the probes that failed in a row. (Not since the last success:
        this process may have been suspended.)
        """
        since = self._failing_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def answers(self) -> bool:
        return self.missing_s < PROBE_EVERY_S + PROBE_TIMEOUT_S

    def close(self) -> None:
        self.is_closed.set()

    def _probe_regularly(self) -> None:
        while not self.is_closed.is_set():
            start = time.monotonic()
            try:
                socket.create_connection(self._address, timeout=PROBE_TIMEOUT_S).close()
                self._failing_since = None
            except OSError:  # nobody listens, or no answer comes in time
                if self._failing_since is None:
                    self._failing_since = start
            self.is_closed.wait(PROBE_EVERY_S)
