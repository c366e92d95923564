"""What ``status`` shows, and what ``run`` shows at its end: one line per job, and why jobs
failed.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from orchestrator.client.events import Note
from orchestrator.client.run_snapshot import Snapshot
from orchestrator.core.job import Cause
from orchestrator.core.text import count, plain
from orchestrator.experiment import left_batch_jobs, resume_advice
from orchestrator.ledger import SummaryRow
from orchestrator.ledger.summary import learner_summary
from orchestrator.terminal import jobs_table, output
from orchestrator.terminal.output import console
from orchestrator.terminal.run_view import json_line

REASONS_SHOWN = 20
MOST_ROWS = 1000
"""Jobs in the table at the end of a run: a table of 100,000 takes minutes."""


def show(snapshots: Iterable[Snapshot], *, in_place: bool) -> Snapshot | None:
    """Show one snapshot after the other; returns the last.

    :param in_place: on a terminal each replaces the one before, with the jobs that fit, and the
        last one is shown whole; in a pipe they follow one another.
    """
    on = console()
    last: Snapshot | None = None
    with contextlib.ExitStack() as stack:
        live = None
        if in_place and on.is_terminal:
            live = stack.enter_context(Live(console=on, auto_refresh=False, transient=True))
        for snapshot in snapshots:
            if live:
                shown = jobs_table.of_snapshot(snapshot)
                live.update(
                    jobs_table.render(shown, on.width, on.height, _title(snapshot)), refresh=True
                )
            else:
                output.show(on, *([] if last is None else [""]), _status(snapshot, on.width))
            last = snapshot
    if live and last:
        output.show(on, _status(last, on.width))
    return last


def show_end(
    root: Path,
    rows: Sequence[SummaryRow],
    *,
    exit_code: int,
    is_stopped: bool,
    as_json: bool,
    how_to_resume: str = "Run the same command again to resume.",
    notes: Sequence[Note] = (),
    error: str = "",
) -> None:
    """Show how the run in ``root`` ended, where its results are, and what to do next.

    :param how_to_resume: a sentence.
    :param notes: what features say of it.
    :param error: what ended the run.
    """
    succeeded = [row for row in rows if row["state"] == "SUCCEEDED"]
    if as_json:
        texts = [f"{len(succeeded)} of {len(rows)} jobs succeeded", *(note.text for note in notes)]
        facts = {"exit_code": exit_code, "run_dir": str(root)}
        print(json_line("ended", error or "; ".join(texts), facts), end="")
        return
    if error:
        print(plain(f"error: {error}", keep="\n"), file=sys.stderr)
        return
    on = console()
    lines = jobs_table.of_rows(rows[:MOST_ROWS])
    parts: list[RenderableType] = ["", jobs_table.jobs_table(lines, on.width)]
    if len(rows) > MOST_ROWS:
        parts.append(f"… and {count(len(rows) - MOST_ROWS, 'more job')}, in summary.csv")
    parts += _remarks(rows)
    for note in notes:
        parts += ["", note.text]
    if any(row["attempts"] for row in rows):
        model = "model.zip (of those that succeeded), " if succeeded else ""
        files = f"summary.csv, and in jobs/ the {model}progress.csv, timings.csv and logs"
        parts += ["", f"Results in {root}: {files} of the jobs"]
    if succeeded:
        names = [*(note.command for note in notes if note.command), "report"]
        commands = "    ".join(f"orchestrator {name} {shlex.quote(str(root))}" for name in names)
        play = f"orchestrator play {shlex.quote(str(root))} JOB shows what a job has learnt"
        parts.append(f"Next: {commands}    ({play})")
    if is_stopped and exit_code != 0:
        parts.append(Text(f"Stopped. {how_to_resume}", style="yellow"))
    elif exit_code == 1 and any(row["state"] in ("FAILED", "CANCELLED") for row in rows):
        advice = (
            f"Some jobs did not succeed. `logs {root} JOB` shows the output of one; `retry {root}` queues them"
            " again, and running the job file examines invalid ones again."
        )
        parts.append(Text(advice, style="red"))
    paused = [
        row["job_id"] for row in rows if row["state"] == "PAUSED" and row["cause"] != Cause.RUNG
    ]
    if paused:
        jobs = count(len(paused), "job is", "jobs are")
        text = f"{jobs} paused. First, `resume {root}` queues them again. {how_to_resume}"
        parts.append(Text(text, style="yellow"))
    output.show(on, *parts)


def counts(snapshot: Snapshot) -> str:
    """Say in a line how many jobs are in which state, and who supervises them."""
    jobs = jobs_table.counts_text(Counter(row["state"] for row in snapshot.rows))
    supervisor = (
        f"supervised by {snapshot.holder}" if snapshot.holder else "its supervisor has ended"
    )
    return f"{snapshot.paths.root}: {jobs or 'examining the robots'}; {supervisor}"


def _title(snapshot: Snapshot) -> str:
    """The run directory, and which supervisor it has."""
    supervisor = "No supervisor is running."
    if snapshot.was_killed:
        supervisor = "Its supervisor was killed, or its machine restarted."
    elif snapshot.holder:
        supervisor = f"Supervised by {snapshot.holder}."
    if snapshot.written is not None:
        age_s = max(0.0, time.time() - snapshot.written)
        supervisor += f" As of {age_s:.0f} s ago, when it wrote summary.json: the ledger is for its host only."
    return f"{snapshot.paths.root}: {supervisor}"


def _status(snapshot: Snapshot, width: int) -> Group:
    how_to_go_on = _how_to_go_on(snapshot)
    if not snapshot.rows:
        first = ["The robots are examined before the first launch."] if snapshot.holder else []
        notes = [Text(note.text) for note in snapshot.notes]
        return Group(_title(snapshot), *first, *notes, *how_to_go_on)
    lines = jobs_table.of_rows(snapshot.rows, snapshot.goals)
    jobs = jobs_table.jobs_table(lines, width)
    above = (_title(snapshot), jobs_table.totals(jobs_table.of_snapshot(snapshot)), "")
    return Group(*above, jobs, *_remarks(snapshot.rows), *how_to_go_on)


def _how_to_go_on(snapshot: Snapshot) -> list[Text]:
    """What resumes jobs that are left; empty while a supervisor runs, and where none are."""
    if snapshot.holder is not None:
        return []
    left = left_batch_jobs.of(snapshot.paths)
    if left is not None:
        return [Text(f"\n{resume_advice.how_to_resume(snapshot.paths, left)}", style="yellow")]
    pending = [row for row in snapshot.rows if row["state"] == "PENDING"]
    is_left = snapshot.standing == "underway" or not all(row.get("waits_for") for row in pending)
    if not snapshot.rows or not is_left:
        return []
    return [Text(f"\nInterrupted. {resume_advice.how_to_resume(snapshot.paths)}", style="yellow")]


def _remarks(rows: Sequence[SummaryRow]) -> list[Text]:
    """Below the table: the learners, why jobs failed, and if nothing else is left to be done, for
    which others jobs wait.
    """
    lines: list[Text] = []
    learners = learner_summary(rows)
    if learners:
        lines += [Text(), Text(f"learner: {learners}", style="dim")]
    remarks = [(row["job_id"], _reason(row)) for row in rows if row["state"] == "FAILED"]
    if all(row["state"] not in ("PENDING", "RUNNING") or row.get("waits_for") for row in rows):
        remarks += [
            (row["job_id"], f"not run: waits for {row['waits_for']}")
            for row in rows
            if row.get("waits_for")
        ]
    if remarks:
        lines.append(Text())
    lines += [
        Text.assemble((job_id, "bold red"), f"  {why}") for job_id, why in remarks[:REASONS_SHOWN]
    ]
    if len(remarks) > REASONS_SHOWN:
        lines.append(Text(f"… and {len(remarks) - REASONS_SHOWN} more"))
    return lines


def _reason(row: SummaryRow) -> str:
    """The cause and the message, which says where the error was raised; the traceback is in the
    log.
    """
    cause = "" if row["cause"] in (None, "error", "invalid") else f"{row['cause']}: "
    return f"{cause}{row['message'] or 'no reason is recorded; see its log'}"
