"""``cluster down``: end what this user's ``up`` or ``join`` started on this machine, and nothing
else.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from collections import Counter
from collections.abc import Collection

from orchestrator.core.processes.child_process import send_signal
from orchestrator.executors.orphan_reaper import sweep
from orchestrator.features.ray.cluster import node_state
from orchestrator.features.ray.cluster.node_state import LocalNode, NodeProcess
from orchestrator.machine.process_identity import process_start
from orchestrator.machine.process_tree import with_descendants

RAYLET_GRACE_S = 10.0
GRACE_S = 2.0
"""Time for processes other than the raylet, which have nothing to save."""


def down() -> list[str]:
    """End this machine's node, or what remains of it. Returns lines for the user.

    :raises UsageError: another `cluster` command is running here.
    """
    with node_state.exclusive():
        node = node_state.load()
        if node is None:
            return [
                "nothing to end: this user's `cluster up` or `cluster join` has not started a node on this machine"
            ]
        ended = end(node)
        node_state.delete()
    what = str(node) if node.role == "head" else f"{node.address}, {node}"
    if not ended:
        return [f"nothing to end: {what} had already ended"]
    names = Counter(process.name for process in ended)
    processes = ", ".join(
        name if number == 1 else f"{name} × {number}" for name, number in names.items()
    )
    return [f"ended {what}: {processes}"]


def end(node: LocalNode) -> tuple[NodeProcess, ...]:
    """End all processes of ``node``, and return them.

    First its raylet with its descendants, then the others, then every process that still carries
    the node's mark.
    """
    running = node.running_processes()
    raylets = [process for process in running if process.name == "raylet"]
    descendants = [process for raylet in raylets for process in _descendants(raylet, running)]
    _stop(raylets, [*raylets, *descendants], RAYLET_GRACE_S)
    others = [process for process in running if process.name not in ("raylet", "gcs_server")]
    _stop(others, others, GRACE_S)
    rest = [*running, *descendants]
    _stop(rest, rest, GRACE_S)
    sweep({node.mark.encode()})
    with contextlib.suppress(FileNotFoundError):  # somebody has cleaned the temporary directory
        shutil.rmtree(node.directory)
    return (*running, *descendants)


def _descendants(raylet: NodeProcess, recorded: Collection[NodeProcess]) -> list[NodeProcess]:
    """Descendants of the raylet that are not ``recorded``: training processes, which carry a mark
    of their own.
    """
    pids = {process.pid for process in recorded}
    return [
        NodeProcess(name="worker", pid=pid, start=start)
        for pid in with_descendants(raylet.pid)
        if pid not in pids and (start := process_start(pid)) is not None
    ]


def _stop(asked: Collection[NodeProcess], awaited: Collection[NodeProcess], grace_s: float) -> None:
    """Send SIGTERM to ``asked``, wait for ``awaited``, and kill those of them that remain."""
    for processes, number, timeout_s in (
        (asked, signal.SIGTERM, grace_s),
        (awaited, signal.SIGKILL, GRACE_S),
    ):
        for process in processes:
            if process.is_running():
                send_signal(process.pid, number)
        deadline = time.monotonic() + timeout_s
        while any(process.is_running() for process in awaited) and time.monotonic() <= deadline:
            time.sleep(0.05)
