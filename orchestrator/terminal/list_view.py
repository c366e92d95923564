"""What ``list`` shows: one line per experiment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from orchestrator.core.text import count
from orchestrator.experiment.run_index import FINISHED, ListedRun
from orchestrator.terminal.output import show_table
from orchestrator.terminal.screen import counted
from orchestrator.terminal.tables import NONE, Column

STATE_COLOUR = {"running": "cyan", "paused": "yellow", "interrupted": "yellow", "unreadable": "bold red"}


def show(runs: Sequence[ListedRun], *, is_all: bool) -> None:
    shown = chosen(runs, is_all=is_all)
    left_out = len(runs) - len(shown)
    more = f"`list --all` shows {count(left_out, 'experiment')} more, which finished" if left_out else ""
    if not shown:
        print(f"no experiment runs or can be resumed; {more}" if more else "no experiment was started here")
        return
    below = [Text(f"{run.entry.run_dir}: {run.problem}", style="yellow") for run in shown if run.problem]
    show_table(COLUMNS, shown, below=["", *below, more] if below or more else [])


def chosen(runs: Sequence[ListedRun], *, is_all: bool) -> list[ListedRun]:
    """Those that run or can be resumed, or all."""
    return [run for run in runs if is_all or run.state != FINISHED]


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
    }


def _jobs(run: ListedRun) -> str:
    return counted(Counter(run.jobs)) or ("examining the robots" if run.state == "running" else NONE)


COLUMNS: Sequence[Column[ListedRun]] = (
    Column("experiment", lambda run: run.entry.name),
    Column("state", lambda run: run.state, style=lambda run: STATE_COLOUR.get(run.state, "")),
    Column("jobs", _jobs, rank=1),
    Column("run directory", lambda run: run.entry.run_dir, is_folded=True),
    Column("supervisor", lambda run: NONE if run.holder is None else str(run.holder), rank=2),
)
