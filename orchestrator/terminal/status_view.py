"""What ``status`` shows, and what ``run`` shows at its end: one line per job, and why jobs failed."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from orchestrator.core.text import count, duration, listed, number
from orchestrator.experiment.control import Snapshot
from orchestrator.experiment.session import RunResult
from orchestrator.ledger import SummaryRow
from orchestrator.ledger.summary import learner_summary
from orchestrator.terminal.output import console
from orchestrator.terminal.output import show as put
from orchestrator.terminal.tables import NONE, Column, number_column, table

STATE_STYLE = {
    "PENDING": "dim",
    "RUNNING": "cyan",
    "PAUSED": "yellow",
    "SUCCEEDED": "green",
    "FAILED": "bold red",
    "CANCELLED": "yellow",
    "INTERRUPTED": "yellow",
}
TRACEBACK_LINES = 4
REASONS_SHOWN = 20
PAUSED_SHOWN = 5


def show(snapshots: Iterable[Snapshot], *, in_place: bool) -> None:
    """Show one snapshot after the other.

    :param in_place: on a terminal each replaces the one before; in a pipe they always follow one another.
    """
    on = console()
    last: Group | None = None
    with contextlib.ExitStack() as stack:
        live = None
        if in_place and on.is_terminal:
            live = stack.enter_context(Live(console=on, auto_refresh=False, transient=True))
        for snapshot in snapshots:
            parts = [] if last is None or live else [""]
            last = _status(snapshot, on.width)
            if live:
                live.update(last, refresh=True)
            else:
                put(on, *parts, last)
    if live and last:
        put(on, last)


def show_end(finished: RunResult) -> None:
    """Show how a run ended, where its results are, and what to do next."""
    on = console()
    root = finished.paths.root
    put(on, "", summary(finished.rows, on.width, alive=False), *_remarks(finished.rows))
    put(
        on,
        "",
        f"Results in {root}: summary.csv, and in jobs/ the model.zip, progress.csv, timings.csv and logs of every job",
    )
    if finished.interrupted and finished.exit_code != 0:
        put(on, Text("Stopped. Run the same command again to resume.", style="yellow"))
    elif finished.exit_code == 1:
        text = (
            f"Some jobs did not succeed. `logs {root} JOB` shows the output of one; `retry {root}` queues them again."
        )
        put(on, Text(text, style="red"))
    if paused := [row["job_id"] for row in finished.rows if row["state"] == "PAUSED"]:
        jobs = count(len(paused), "job is", "jobs are")
        advice = f"`resume {root}` queues what is paused again; then run the same command again."
        text = f"{jobs} paused ({listed(paused, PAUSED_SHOWN)}). {advice}"
        put(on, Text(text, style="yellow"))


def summary(rows: Sequence[SummaryRow], width: int, *, alive: bool) -> Table:
    """A table with one line per job.

    :param alive: whether a supervisor is running; without one, no job is.
    """
    return table(_columns(rows, alive=alive), rows, width)


def _columns(rows: Sequence[SummaryRow], *, alive: bool) -> list[Column[SummaryRow]]:
    starts = max((len(_return(row["ep_rew_mean_first"])) for row in rows), default=0)
    ends = max((len(_return(row["ep_rew_mean"])) for row in rows), default=0)

    def returns(row: SummaryRow) -> str:
        start, end = _return(row["ep_rew_mean_first"]), _return(row["ep_rew_mean"])
        return NONE if start == end == NONE else f"{start:>{starts}} → {end:>{ends}}"

    columns: list[Column[SummaryRow]] = [
        Column("job", lambda row: row["job_id"]),
        Column("state", lambda row: _state(row, alive), style=lambda row: STATE_STYLE[_state(row, alive)]),
        number_column("return: first → last", returns, style=_return_style),
        number_column("evaluated", lambda row: _return(row["eval_mean"]), rank=1),
        number_column("env_steps", lambda row: f"{row['env_steps']:,}", rank=2),
        number_column("done", lambda row: f"{min(1.0, row['env_steps'] / row['total_timesteps']):.0%}", rank=5),
        number_column("time", lambda row: duration(row["wall_s"]), rank=1),
        number_column("env_steps/s", lambda row: number(row["env_steps_per_s"], ",.0f"), rank=3),
    ]
    if any(row["ranks"] > 1 for row in rows):
        columns.append(number_column("ranks", lambda row: str(row["ranks"]), rank=4))
    if any(row["node"] for row in rows):
        columns.append(Column("node", lambda row: row["node"] or NONE, rank=3))
    return [*columns, number_column("attempts", lambda row: str(row["attempts"]), rank=4)]


def _return(value: float | None) -> str:
    return number(value, ",.1f")


def _return_style(row: SummaryRow) -> str:
    first, last = row["ep_rew_mean_first"], row["ep_rew_mean"]
    if first is None or last is None:
        return "dim"
    return "green" if last > first else "red" if last < first else ""


def _state(row: SummaryRow, alive: bool) -> str:
    if alive or row["state"] not in ("RUNNING", "PENDING"):
        return str(row["state"])
    return "INTERRUPTED" if row["attempts"] else "PENDING"


def _status(snapshot: Snapshot, width: int) -> Group:
    states = Counter(row["state"] for row in snapshot.rows)
    counts = ", ".join(f"{count} {state.lower()}" for state, count in states.items()) or "examining the robots"
    supervisor = f"Supervised by {snapshot.holder}." if snapshot.holder else "No supervisor is running."
    if snapshot.written is not None:
        age_s = max(0.0, time.time() - snapshot.written)
        supervisor += f" As of {age_s:.0f} s ago, when it wrote summary.json: the ledger is for its host only."
    jobs = summary(snapshot.rows, width, alive=snapshot.holder is not None)
    return Group(f"{snapshot.paths.root}: {counts}. {supervisor}", "", jobs, *_remarks(snapshot.rows))


def _remarks(rows: Sequence[SummaryRow]) -> list[Text]:
    """Below the table: the learners, and why jobs failed."""
    learners, failed = learner_summary(rows), reasons(rows)
    lines = [Text(), Text(f"learner: {learners}", style="dim")] if learners else []
    return lines + [Text()] * bool(failed) + [Text.assemble((job, "bold red"), f"  {why}") for job, why in failed]


def reasons(rows: Sequence[SummaryRow]) -> list[tuple[str, str]]:
    """``(job_id, reason)`` of the first few failed jobs, with the last lines of a traceback."""
    failed = [row for row in rows if row["state"] == "FAILED"]
    shown = [(row["job_id"], _reason(row)) for row in failed[:REASONS_SHOWN]]
    return shown + ([("…", f"and {len(failed) - REASONS_SHOWN} more")] if len(failed) > REASONS_SHOWN else [])


def _reason(row: SummaryRow) -> str:
    """The message, and where the error was raised; the error itself is in the message."""
    cause = "" if row["cause"] in (None, "error", "invalid") else f"{row['cause']}: "
    *places, _ = (row["traceback"] or "").splitlines() or [""]
    lines = [f"\n    {line}" for line in places[-TRACEBACK_LINES:] if not line.startswith("Traceback")]
    return f"{cause}{row['message'] or 'no reason is recorded; see its log'}{''.join(lines)}"
