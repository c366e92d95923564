"""The sentence at the head of the page of an experiment."""

from __future__ import annotations

from orchestrator.client.run_follower import RunLook
from orchestrator.client.run_snapshot import Snapshot

WITHOUT_SUPERVISOR = {
    "missing": "There is no such run directory. It has been removed, or the run has not begun; this"
    " page waits for it.",
    "empty": "The run has not begun yet; this page waits for it.",
    "benchmark": "A benchmark, which has no jobs to show. Its report shows it when it has ended.",
    "examining": "The robots are examined before the first launch.",
    "killed": "Its supervisor was killed, or its machine restarted.",
}


def condition_text(look: RunLook) -> str:
    """What state the experiment is in."""
    if look.condition == "unreadable":
        return f"It cannot be read: {look.problem}"
    snapshot = look.snapshot
    if look.condition == "running" and snapshot is not None:
        elsewhere = " It runs on another host; this is what it wrote into summary.json last."
        return f"Supervised by {snapshot.holder}.{elsewhere if snapshot.written else ''}"
    if look.condition == "ended" and snapshot is not None:
        return _text_without_supervisor(snapshot)
    return WITHOUT_SUPERVISOR[look.condition]


def _text_without_supervisor(snapshot: Snapshot) -> str:
    rows = snapshot.rows
    has_work_left = any(row["state"] in ("PENDING", "RUNNING") for row in rows)
    if has_work_left or snapshot.standing == "underway":
        return "Interrupted: no supervisor is running."
    is_paused = any(row["state"] == "PAUSED" and row["cause"] != "rung" for row in rows)
    return "Paused: no supervisor is running." if is_paused else "The run has ended."
