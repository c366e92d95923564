"""What ``list`` shows: one line per experiment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from orchestrator.core.columns import NONE, Column
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count
from orchestrator.experiment import resume_advice, run_index
from orchestrator.experiment.run_index import FINISHED, ListedRun
from orchestrator.terminal.jobs_table import counts_text
from orchestrator.terminal.output import show_table

STATE_COLOUR = {
    "running": "cyan",
    "paused": "yellow",
    "interrupted": "yellow",
    "unreadable": "bold red",
}


def show(runs: Sequence[ListedRun], *, is_all: bool) -> None:
    shown = runs_to_list(runs, is_all=is_all)
    left_out = len(runs) - len(shown)
    more = ""
    if left_out:
        more = f"`list --all` shows {count(left_out, 'experiment')} more, which finished"
    if not shown and more:
        print(f"no experiment runs or can be resumed; {more}")
        return
    if not shown:
        try:
            print(f"no experiment is listed in {run_index.folder()}")
        except RuntimeError:
            print("experiments cannot be listed: you have no home; set XDG_STATE_HOME to a folder")
        return
    remarks: list[Text] = []
    for run in shown:
        for remark in (run.problem, _left_remark(run)):
            if remark:
                remarks.append(Text(f"{run.entry.run_dir}: {remark}", style="yellow"))
    show_table(COLUMNS, shown, below=["", *remarks, more] if remarks or more else [])


def runs_to_list(runs: Sequence[ListedRun], *, is_all: bool) -> list[ListedRun]:
    """Those that run or can be resumed, or all. Where batch jobs are left, something may still
    run.
    """
    return [run for run in runs if is_all or run.state != FINISHED or run.left is not None]


def facts(run: ListedRun) -> dict[str, Any]:
    """The same as JSON types."""
    holder = run.holder
    return {
        "run_dir": run.entry.run_dir,
        "name": run.entry.name,
        "state": run.state,
        "pid": None if holder is None else holder.pid,
        "host": None if holder is None else holder.host,
        "since": None if holder is None else holder.since,
        "jobs": dict(run.jobs),
        "problem": run.problem or None,
        "left_batch_jobs": None
        if run.left is None
        else {"name": run.left.name, "tasks": list(run.left.tasks)},
    }


def _left_remark(run: ListedRun) -> str:
    """What may still train although no supervisor runs."""
    if run.left is None:
        return ""
    return f"no supervisor is running. {resume_advice.how_to_resume(RunPaths(Path(run.entry.run_dir)), run.left)}"


def _jobs(run: ListedRun) -> str:
    return counts_text(Counter(run.jobs)) or (
        "examining the robots" if run.state == "running" else NONE
    )


COLUMNS: Sequence[Column[ListedRun]] = (
    Column("experiment", lambda run: run.entry.name),
    Column("state", lambda run: run.state, style=lambda run: STATE_COLOUR.get(run.state, "")),
    Column("jobs", _jobs, rank=1),
    Column("run directory", lambda run: run.entry.run_dir, is_folded=True),
    Column("supervisor", lambda run: NONE if run.holder is None else str(run.holder), rank=2),
)
