"""Whether a process is still part of the cluster: whether the head can be reached, and has not given its node up.

Where its head does not answer, Ray itself waits for a minute and then ends the process, with a trace of its own code.
"""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

PROBE_EVERY_S = 2.0
PROBE_PATIENCE_S = 5.0
DRIVER_PATIENCE_S = 26.0
"""How long a driver bears it: where the network stalls for 20 s, up to 24 s pass until it answers again."""
FENCE_AFTER_S = 29.0
"""How long a node goes on by itself: longer than a driver, whose run ends in order then; less than the 35 s after which
its head takes a silent node for dead at the earliest
(:data:`orchestrator.executors.ray.cluster.node_settings.HEALTH`)."""


class HeadLiveness:
    """Asks again and again, in a thread of its own.

    :param head: ``HOST:PORT``.
    """

    def __init__(self, head: str) -> None:
        host, _, port = head.rpartition(":")
        self._place = host.strip("[]"), int(port)
        self._failing_since: float | None = None
        self.is_closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="head-watch", daemon=True)
        self._thread.start()

    @property
    def missing_s(self) -> float:
        """Since when it has not answered: since a probe failed, for we may have been stopped ourselves."""
        since = self._failing_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def answers(self) -> bool:
        return self.missing_s < PROBE_EVERY_S + PROBE_PATIENCE_S

    def close(self) -> None:
        self.is_closed.set()

    def _watch(self) -> None:
        while not self.is_closed.is_set():
            began = time.monotonic()
            try:
                socket.create_connection(self._place, timeout=PROBE_PATIENCE_S).close()
                self._failing_since = None
            except OSError:
                if self._failing_since is None:
                    self._failing_since = began
            self.is_closed.wait(PROBE_EVERY_S)


def head_has_given_up(node_id: str) -> bool:
    """Whether the head takes the node for dead, asked on it. Ray there need not notice.

    False also where there is no answer.
    """
    try:
        from ray._private import worker
        from ray._raylet import NodeID

        ours: Any = worker.global_worker
        (is_alive,) = ours.gcs_client.check_alive([NodeID.from_hex(node_id)], timeout=PROBE_PATIENCE_S)
    except Exception:  # whatever another Ray has in its place: what is asked without Ray goes on
        return False
    return not is_alive
