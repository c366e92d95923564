"""What ``attach`` shows: the table and the lines of ``run``, made from readings of the ledger."""

from __future__ import annotations

import datetime
import sys
import time
from collections import Counter
from collections.abc import Iterable

from orchestrator.core.text import plain
from orchestrator.experiment import attach
from orchestrator.experiment.control import Snapshot
from orchestrator.experiment.run_end import RunEnd
from orchestrator.experiment.session import RunResult
from orchestrator.ledger import SummaryRow
from orchestrator.terminal import background_output, live_table, status_view
from orchestrator.terminal.live_table import LiveReporter, LiveRow, Screen

ENDED_SHOWN = NEXT_SHOWN = 5


def show(snapshots: Iterable[Snapshot], *, as_json: bool) -> Snapshot | None:
    """Show one reading after the other; returns the last."""
    notice = live_table.json_notice if as_json else background_output.line_notice
    last: Snapshot | None = None
    with (
        background_output.standard_output_in_background(notice),
        live_table.fitting(as_json=as_json) as reporter,
    ):
        for snapshot in snapshots:
            if last is None:
                reporter.event("attached", _summary(snapshot), run_dir=str(snapshot.paths.root))
            else:
                for change in attach.changes(last, snapshot):
                    reporter.event(change.kind, change.message, job_id=change.job_id, state=change.state)
            last = snapshot
            if isinstance(reporter, LiveReporter) and snapshot.rows:
                reporter.draw(lambda: screen(snapshot))  # noqa: B023 - it is called at once, or not at all
    return last


def show_end(last: Snapshot | None, end: RunEnd, run_dir: str, *, as_json: bool) -> None:
    """Show how the run ended, as ``run`` does; an error is printed on standard error."""
    if as_json:
        text = end.message or f"{run_dir}: the run has ended"
        print(live_table.json_line("ended", text, {"exit_code": end.exit_code, "run_dir": run_dir}), end="")
    elif end.message:
        print(plain(f"error: {end.message}", keep="\n"), file=sys.stderr)
    elif last is not None:
        is_stopped = end.exit_code == 130 and any(row["state"] in ("PENDING", "RUNNING") for row in last.rows)
        status_view.show_end(
            RunResult(
                paths=last.paths,
                states={},
                rows=last.rows,
                exit_code=end.exit_code,
                interrupted=is_stopped,
                signalled=False,
            )
        )


def screen(snapshot: Snapshot) -> Screen:
    by_state: dict[str, list[SummaryRow]] = {}
    for row in snapshot.rows:
        by_state.setdefault(row["state"], []).append(row)
    running, pending = by_state.get("RUNNING", []), by_state.get("PENDING", [])
    ended = [row for state in ("SUCCEEDED", "FAILED", "CANCELLED") for row in by_state.get(state, [])]
    latest = sorted(ended, key=lambda row: row["ended_at"] or 0.0)[-ENDED_SHOWN:]
    return Screen(
        elapsed_s=_age_s(snapshot),
        counts=Counter({state: len(rows) for state, rows in by_state.items()}),
        running=map(_running, running),
        ended=[_ended(row) for row in latest],
        next_up=[live_table.pending(row["job_id"]) for row in pending[:NEXT_SHOWN]],
        steps_to_go=sum(map(_steps_to_go, running)) + sum(map(_steps_to_go, pending)),
        env_steps_per_s=sum(row["env_steps_per_s"] or 0.0 for row in running),
    )


def _steps_to_go(row: SummaryRow) -> int:
    return max(0, row["total_timesteps"] - row["env_steps"])


def _running(row: SummaryRow) -> LiveRow:
    cpus = ",".join(map(str, row["cpus"] or []))
    rate = row["env_steps_per_s"]
    return LiveRow(
        job_id=row["job_id"],
        state="running",
        style=status_view.STATE_STYLE["RUNNING"],
        share=row["env_steps"] / row["total_timesteps"],
        env_steps_per_s=rate,
        ep_rew_mean=row["ep_rew_mean"],
        remaining_s=_steps_to_go(row) / rate if rate else None,
        attempt=str(row["attempts"]),
        cpus=cpus if row["node"] is None else f"{row['node']} {cpus}",
    )


def _ended(row: SummaryRow) -> LiveRow:
    return LiveRow(
        job_id=row["job_id"],
        state=row["state"].lower(),
        style=status_view.STATE_STYLE[row["state"]],
        share=1.0 if row["state"] == "SUCCEEDED" else row["env_steps"] / row["total_timesteps"],
        ep_rew_mean=row["ep_rew_mean"],
        attempt=str(row["attempts"]),
    )


def _summary(snapshot: Snapshot) -> str:
    states = Counter(row["state"] for row in snapshot.rows)
    jobs = ", ".join(f"{number:,} {state.lower()}" for state, number in states.items()) or "examining the robots"
    supervisor = "its supervisor has ended" if snapshot.holder is None else f"supervised by {snapshot.holder}"
    return f"{snapshot.paths.root}: {jobs}; {supervisor}"


def _age_s(snapshot: Snapshot) -> float | None:
    """How long the supervisor runs, by the clock of its host."""
    if snapshot.holder is None:
        return None
    try:
        since = datetime.datetime.fromisoformat(snapshot.holder.since).timestamp()
    except ValueError:  # it has just begun
        return None
    return max(0.0, time.time() - since)
