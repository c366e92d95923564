"""What ``status`` shows, and what ``run`` shows at its end: one line per job, and why jobs
failed.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Iterable, Sequence, Set
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from orchestrator.core.job import Cause
from orchestrator.core.text import count, listed
from orchestrator.experiment.directory import left_batch_jobs, resume_advice
from orchestrator.experiment.from_outside.run_snapshot import Snapshot
from orchestrator.ledger import SummaryRow
from orchestrator.ledger.summary import learner_summary
from orchestrator.supervisor.events import Note
from orchestrator.terminal import jobs_table, output
from orchestrator.terminal.output import console

REASONS_SHOWN = 20
MOST_ROWS = 1000
"""Jobs in the table at the end of a run: a table of 100,000 takes minutes."""
PAUSED_SHOWN = 5


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
    how_to_resume: str = "Run the same command again to resume.",
    notes: Sequence[Note] = (),
) -> None:
    """Show how the run in ``root`` ended, where its results are, and what to do next.

    :param how_to_resume: a sentence.
    :param notes: what features say of it.
    """
    on = console()
    output.show(on, "", summary(rows[:MOST_ROWS], on.width))
    if len(rows) > MOST_ROWS:
        output.show(on, f"… and {count(len(rows) - MOST_ROWS, 'more job')}, in summary.csv")
    for remark in _remarks(rows):
        output.show(on, remark)
    for note in notes:
        output.show(on, "", note.text)
    _show_results(on, root, rows, notes)
    unsuccessful = {row["cause"] for row in rows if row["state"] in ("FAILED", "CANCELLED")}
    if is_stopped and exit_code != 0:
        output.show(on, Text(f"Stopped. {how_to_resume}", style="yellow"))
    elif exit_code == 1 and unsuccessful:
        advice = _advice(root, unsuccessful)
        output.show(on, Text(f"Some jobs did not succeed. {advice}", style="red"))
    paused = [
        row["job_id"] for row in rows if row["state"] == "PAUSED" and row["cause"] != Cause.RUNG
    ]
    if paused:
        jobs = count(len(paused), "job is", "jobs are")
        advice = f"First, `resume {root}` queues what is paused again. {how_to_resume}"
        text = f"{jobs} paused ({listed(paused, PAUSED_SHOWN)}). {advice}"
        output.show(on, Text(text, style="yellow"))


def _advice(root: Path, causes: Set[str | None]) -> str:
    """What to do about jobs that did not succeed. :param causes: why they did not."""
    others = causes - {Cause.TOO_LARGE}
    sentences: list[str] = []
    if others == {Cause.INVALID}:
        sentences.append(
            "Correct what is said above and run the job file, which examines them again."
        )
    elif others:
        sentences.append(
            f"`logs {root} JOB` shows the output of one; `retry {root}` queues them again."
        )
    if Cause.TOO_LARGE in causes:
        sentences.append(f"Where there is room, `run {root}` trains those that are too large here.")
    return " ".join(sentences)


def _show_results(
    on: Console, root: Path, rows: Sequence[SummaryRow], notes: Sequence[Note]
) -> None:
    """Say where the results are, and which commands show more of them."""
    is_any_done = any(row["state"] == "SUCCEEDED" for row in rows)
    if any(row["attempts"] for row in rows):
        model = "model.zip (of those that succeeded), " if is_any_done else ""
        files = f"summary.csv, and in jobs/ the {model}progress.csv, timings.csv and logs"
        output.show(on, "", f"Results in {root}: {files} of the jobs")
    if is_any_done:
        run_dir = shlex.quote(str(root))
        commands = "".join(
            f"orchestrator {note.command} {run_dir}    " for note in notes if note.command
        )
        play = f"(orchestrator play {run_dir} JOB shows what a job has learnt)"
        output.show(on, f"Next: {commands}orchestrator report {run_dir}    {play}")


def summary(rows: Sequence[SummaryRow], width: int) -> Table:
    """A table with one line per job."""
    return jobs_table.jobs_table(jobs_table.of_rows(rows), width)


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
    jobs = jobs_table.jobs_table(
        jobs_table.of_rows(snapshot.rows, snapshot.live, snapshot.goals), width
    )
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
    """Below the table: the learners, and why jobs failed."""
    lines: list[Text] = []
    learners = learner_summary(rows)
    if learners:
        lines += [Text(), Text(f"learner: {learners}", style="dim")]
    failed = [*reasons(rows), *_held_back(rows)]
    if failed:
        lines.append(Text())
    return lines + [Text.assemble((job, "bold red"), f"  {why}") for job, why in failed]


def reasons(rows: Sequence[SummaryRow]) -> list[tuple[str, str]]:
    """``(job_id, reason)`` of the first few failed jobs, each with its cause and its place in the
    user's own code.
    """
    return _first_few([(row["job_id"], _reason(row)) for row in rows if row["state"] == "FAILED"])


def _first_few(reasons: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """``(job_id, reason)`` of the first jobs, and a line that counts the others."""
    left = len(reasons) - REASONS_SHOWN
    more = [("…", f"and {left} more")] if left > 0 else []
    return [*reasons[:REASONS_SHOWN], *more]


def _held_back(rows: Sequence[SummaryRow]) -> list[tuple[str, str]]:
    """The jobs that wait for others, where nothing else is left to be done."""
    if any(row["state"] in ("PENDING", "RUNNING") and not row.get("waits_for") for row in rows):
        return []
    return _first_few(
        [
            (row["job_id"], f"not run: waits for {row.get('waits_for')}")
            for row in rows
            if row.get("waits_for")
        ]
    )


def _reason(row: SummaryRow) -> str:
    """The cause and the message, which says where the error was raised; the traceback is in the
    log.
    """
    cause = "" if row["cause"] in (None, "error", "invalid") else f"{row['cause']}: "
    return f"{cause}{row['message'] or 'no reason is recorded; see its log'}"
