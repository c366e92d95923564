"""What ``attach`` shows: the table and the lines of ``run``."""

from __future__ import annotations

import sys

from orchestrator.core.text import plain
from orchestrator.experiment.directory import resume_advice
from orchestrator.experiment.directory.run_end import RunEnd
from orchestrator.experiment.from_outside.run_snapshot import Snapshot
from orchestrator.terminal import jobs_table, run_view, status_view


def summary(snapshot: Snapshot) -> str:
    """Say which jobs there are, and who supervises them."""
    jobs = jobs_table.counts_text(jobs_table.of_snapshot(snapshot).counts) or "examining the robots"
    supervisor = (
        "its supervisor has ended"
        if snapshot.holder is None
        else f"supervised by {snapshot.holder}"
    )
    return f"{snapshot.paths.root}: {jobs}; {supervisor}"


def show_end(last: Snapshot, end: RunEnd, *, as_json: bool) -> None:
    """Show how the run ended, as ``run`` does; an error is printed on standard error."""
    run_dir = str(last.paths.root)
    if as_json:
        text = end.message or f"{run_dir}: the run has ended"
        facts = {"exit_code": end.exit_code, "run_dir": run_dir}
        print(run_view.json_line("ended", text, facts), end="")
    elif end.message:
        print(plain(f"error: {end.message}", keep="\n"), file=sys.stderr)
    else:
        is_left = last.standing == "underway" or any(
            row["state"] in ("PENDING", "RUNNING") for row in last.rows
        )
        status_view.show_end(
            last.paths.root,
            last.rows,
            exit_code=end.exit_code,
            is_stopped=end.exit_code == 130 and is_left,
            how_to_resume=resume_advice.how_to_resume(last.paths),
            notes=last.notes,
        )
