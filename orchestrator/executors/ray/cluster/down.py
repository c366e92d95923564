"""``cluster down``: the end of what ``up`` or ``join`` of this user started on this machine, and of nothing else."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection

from orchestrator.executors.orphan_reaper import sweep
from orchestrator.executors.process import with_descendants
from orchestrator.executors.ray.cluster import node_state
from orchestrator.executors.ray.cluster.node_state import LocalNode, NodeProcess
from orchestrator.machine.process_identity import process_start

GRACE_S = 10.0
"""For the raylet to end its workers and itself."""
HEAD_GRACE_S = 2.0
"""For the others, which have nothing to save."""


def down() -> list[str]:
    """End this machine's node, or what is left of it. Returns what to tell the user.

    :raises UsageError: another command is at work here.
    """
    with node_state.alone():
        node = node_state.load()
        if node is None:
            return [
                "nothing to end: neither `cluster up` nor `cluster join` of yours has started anything on this machine"
            ]
        ended = end(node)
        node_state.forget()
    what = (
        f"the head at {node.cluster}"
        if node.role == "head"
        else f"{node.address}, a node of the cluster at {node.cluster}"
    )
    if not ended:
        return [f"nothing to end: {what} had ended already"]
    names = Counter(process.name for process in ended)
    listed = ", ".join(name if number == 1 else f"{name} × {number}" for name, number in names.items())
    return [f"ended {what}: {listed}"]


def end(node: LocalNode) -> tuple[NodeProcess, ...]:
    """End all processes of ``node``, and return them.

    First its raylet with all that it started, then the others, then whatever still carries its mark.
    """
    ended = node.living()
    raylets = [process for process in ended if process.name == "raylet"]
    below = [found for raylet in raylets for found in _descendants(raylet, ended)]
    _stop(raylets, [*raylets, *below], GRACE_S)
    others = [process for process in ended if process.name not in ("raylet", "gcs_server")]
    _stop(others, others, HEAD_GRACE_S)
    rest = [*ended, *below]
    _stop(rest, rest, HEAD_GRACE_S)
    sweep({node.mark.encode()})
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(node.directory)
    return (*ended, *below)


def _descendants(raylet: NodeProcess, known: Collection[NodeProcess]) -> list[NodeProcess]:
    """What the raylet has started and ``known`` does not hold: training processes, with a mark of their own."""
    pids = {process.pid for process in known}
    return [
        NodeProcess(name="worker", pid=pid, start=start)
        for pid in with_descendants(raylet.pid)
        if pid not in pids and (start := process_start(pid)) is not None
    ]


def _stop(asked: Collection[NodeProcess], awaited: Collection[NodeProcess], grace_s: float) -> None:
    """Ask to end, wait, kill those of ``awaited`` that are left."""
    _signal(asked, signal.SIGTERM)
    if not _until(lambda: not any(map(NodeProcess.lives, awaited)), grace_s):
        _signal(awaited, signal.SIGKILL)
        _until(lambda: not any(map(NodeProcess.lives, awaited)), HEAD_GRACE_S)


def _signal(processes: Collection[NodeProcess], number: signal.Signals) -> None:
    for process in processes:
        if process.lives():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)


def _until(condition: Callable[[], bool], patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
