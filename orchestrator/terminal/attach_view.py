"""What ``attach`` shows: the table and the lines of ``run``, made from readings of the ledger."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from orchestrator.core.text import plain
from orchestrator.experiment.directory import resume_advice
from orchestrator.experiment.directory.run_end import RunEnd
from orchestrator.experiment.from_outside import attach
from orchestrator.experiment.from_outside.run_snapshot import Snapshot
from orchestrator.terminal import background_output, jobs_table, run_view, status_view
from orchestrator.terminal.run_view import JsonReporter


def show(snapshots: Iterable[Snapshot], *, as_json: bool) -> Snapshot | None:
    """Show one reading after the other; returns the last."""
    notice = run_view.json_notice if as_json else background_output.line_notice
    last: Snapshot | None = None
    with (
        background_output.standard_output_in_background(notice),
        run_view.fitting_reporter(as_json=as_json) as reporter,
    ):
        for snapshot in snapshots:
            if last is None:
                reporter.event("attached", _summary(snapshot), run_dir=str(snapshot.paths.root))
            else:
                for row, kind, message in attach.changes(last, snapshot):
                    reporter.event(kind, message, job_id=row["job_id"], state=row["state"])
            for news in snapshot.news:
                reporter.event(news.kind, news.message)
            last = snapshot
            if not isinstance(reporter, JsonReporter) and snapshot.rows:
                reporter.draw(lambda: jobs_table.of_snapshot(snapshot))  # noqa: B023 - it is called at once, or not at all
    return last


def show_end(last: Snapshot | None, end: RunEnd, run_dir: str, *, as_json: bool) -> None:
    """Show how the run ended, as ``run`` does; an error is printed on standard error."""
    if as_json:
        text = end.message or f"{run_dir}: the run has ended"
        print(
            run_view.json_line("ended", text, {"exit_code": end.exit_code, "run_dir": run_dir}),
            end="",
        )
    elif end.message:
        print(plain(f"error: {end.message}", keep="\n"), file=sys.stderr)
    elif last is not None:
        is_left = last.standing == "underway" or any(
            row["state"] in ("PENDING", "RUNNING") for row in last.rows
        )
        is_stopped = end.exit_code == 130 and is_left
        status_view.show_end(
            last.paths.root,
            last.rows,
            exit_code=end.exit_code,
            is_stopped=is_stopped,
            how_to_resume=resume_advice.how_to_resume(last.paths),
            notes=last.notes,
        )


def _summary(snapshot: Snapshot) -> str:
    jobs = jobs_table.counts_text(jobs_table.of_snapshot(snapshot).counts) or "examining the robots"
    supervisor = (
        "its supervisor has ended"
        if snapshot.holder is None
        else f"supervised by {snapshot.holder}"
    )
    return f"{snapshot.paths.root}: {jobs}; {supervisor}"
