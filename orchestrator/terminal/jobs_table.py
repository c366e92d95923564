"""The totals and the table of jobs that `run`, `attach` and `status` show."""

from __future__ import annotations

import datetime
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from orchestrator.analysis.job_columns import STATE_STYLE, JobLine, job_columns
from orchestrator.core.job import TERMINAL
from orchestrator.core.text import duration
from orchestrator.terminal.tables import table

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table
    from rich.text import Text

    from orchestrator.client.events import Note
    from orchestrator.client.run_snapshot import Snapshot
    from orchestrator.ledger import SummaryRow

LINES_AROUND = 6
"""Lines of a screen for anything but jobs: a blank one, totals, names of columns, what is left out,
and the cursor."""
LONGEST_WORD = 10
"""What a wrapped line may leave free at its end."""
NO_GOALS: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsTable:
    """Totals, and jobs that are shown as far as there is room."""

    elapsed_s: float | None
    """Since when the supervisor runs; None where none does, or that is not known."""
    counts: Counter[str]
    running: Sequence[JobLine]
    """In order of launch."""
    ended: Sequence[JobLine]
    """The jobs that ended last, the latest at the end."""
    next_up: Sequence[JobLine]
    steps_to_go: int
    env_steps_per_s: float
    remaining_s: float | None = None
    """Until all jobs have ended; None where nothing tells."""
    cores_busy: float | None = None
    waiting: str | None = None
    """Why jobs that would have a slot are not launched."""
    notes: Sequence[Note] = ()
    """What features say."""


def of_snapshot(snapshot: Snapshot) -> JobsTable:
    """Return the table of a run directory at one moment."""
    lines = of_rows(snapshot.rows, snapshot.goals)
    running = [line for line in lines if line["state"] == "RUNNING"]
    pending = [line for line in lines if line["state"] == "PENDING"]
    ended = [line for line in lines if line["state"] in TERMINAL]
    steps_to_go = sum(line["steps_to_go"] for line in (*running, *pending))
    env_steps_per_s = sum(line["env_steps_per_s"] or 0.0 for line in running)
    # Rank 0 tells of itself, and the others use as much.
    shares = [
        line["cpu_share"] * line["ranks"] for line in running if line.get("cpu_share") is not None
    ]
    since = _since(snapshot)
    return JobsTable(
        elapsed_s=None if since is None else max(0.0, time.time() - since),
        counts=Counter(line["state"] for line in lines),
        running=sorted(running, key=lambda line: line["started_at"] or 0.0),
        ended=sorted(ended, key=lambda line: line["ended_at"] or 0.0),
        next_up=pending,
        steps_to_go=steps_to_go,
        env_steps_per_s=env_steps_per_s,
        remaining_s=remaining_s(
            [] if since is None else [line for line in ended if _is_done_since(line, since)],
            steps_to_go=steps_to_go,
            env_steps_per_s=env_steps_per_s,
            running=len(running),
        ),
        cores_busy=sum(shares) if shares else None,
        waiting=next((line["waiting"] for line in pending if line.get("waiting")), None),
        notes=snapshot.notes,
    )


def of_rows(rows: Iterable[SummaryRow], goals: Mapping[str, int] = NO_GOALS) -> list[JobLine]:
    """Return a line for each row. :param goals: env_steps at which jobs pause at a rung."""
    return [_job_line(row, goals) for row in rows]


def _job_line(row: SummaryRow, goals: Mapping[str, int]) -> JobLine:
    steps_to_go = max(0, goals.get(row["job_id"], row["total_timesteps"]) - row["env_steps"])
    rate = row["env_steps_per_s"]
    is_running = row["state"] == "RUNNING"
    cpus = ",".join(map(str, row["cpus"] or ())) if is_running else ""
    return {
        **row,
        "steps_to_go": steps_to_go,
        "remaining_s": steps_to_go / rate if rate and is_running else None,
        "where": " ".join(filter(None, (row["node"], cpus))),
    }


def _is_done_since(line: JobLine, since: float) -> bool:
    """Whether the present supervisor has brought a job to its end in one attempt."""
    begun = line["started_at"]
    is_known = begun is not None and line["ended_at"] is not None
    return line["state"] == "SUCCEEDED" and line["attempts"] == 1 and is_known and begun >= since


def remaining_s(
    done: Sequence[JobLine], *, steps_to_go: int, env_steps_per_s: float, running: int
) -> float | None:
    """Seconds until ``steps_to_go`` are done: by what has ended, start-up and evaluation included, or
    by the speed that running workers report. None where nothing tells.

    :param done: jobs that were trained from their start to their end, in one attempt each. They tell
        if there are as many as run at once; otherwise the time until the first end would count for
        one of them alone.
    :param env_steps_per_s: what running workers report together; 0 where none does.
    """
    env_steps = sum(line["env_steps"] for line in done)
    if env_steps and len(done) >= running:
        begun = min(line["started_at"] for line in done)
        took_s = max(line["ended_at"] for line in done) - begun
        return float(steps_to_go * took_s / env_steps)
    return steps_to_go / env_steps_per_s if env_steps_per_s > 0 else None


def _since(snapshot: Snapshot) -> float | None:
    """When the supervisor began, in seconds since the epoch; None where none runs."""
    if snapshot.holder is None:
        return None
    try:
        return datetime.datetime.fromisoformat(snapshot.holder.since).timestamp()
    except ValueError:  # it has just begun
        return None


def render(shown: JobsTable, width: int, height: int, title: str = "") -> Group:
    """Totals and the jobs that fit on a terminal: first those that run, then the next ones, then
    the last ended.
    """
    from rich.console import Group
    from rich.text import Text

    texts = [*(note.text for note in shown.notes), shown.waiting or ""]
    wrapped_width = max(1, width - LONGEST_WORD)
    lines_of_texts = sum(math.ceil(len(text) / wrapped_width) for text in texts)
    room = max(1, height - LINES_AROUND - lines_of_texts)
    running = shown.running[:room]
    room -= len(running)
    # Those that have ended get half of what is left, or less where there are few of them.
    next_up = shown.next_up[: max(room - room // 2, room - len(shown.ended))]
    room -= len(next_up)
    ended = shown.ended[::-1][:room]
    parts: list[RenderableType] = [Text(title, no_wrap=True, overflow="ellipsis"), totals(shown)]
    parts.append(jobs_table([*running, *next_up, *ended], width))
    left = (
        shown.counts
        - Counter(RUNNING=len(running), PENDING=len(next_up))
        - Counter(line["state"] for line in ended)
    )
    if left:
        parts.append(Text(f"… {left.total():,} more: {counts_text(left)}", style="dim"))
    return Group(*parts)


def counts_text(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[state]:,} {state.lower()}" for state in STATE_STYLE if counts[state])


def totals(shown: JobsTable) -> Text:
    """How many jobs are in which state, and while a supervisor runs, how fast they are and how long
    it takes.
    """
    from rich.text import Text

    counts = shown.counts
    ended = sum(counts[name] for name in TERMINAL)
    text = Text(f"{ended:,}/{counts.total():,} jobs ended", style="bold")
    for name in (*TERMINAL, "PAUSED", "RUNNING", "PENDING"):
        if counts[name]:
            text.append(
                f" · {counts[name]:,} {name.lower()}", style=f"not bold {STATE_STYLE[name]}"
            )
    if shown.elapsed_s is not None:
        busy = "" if shown.cores_busy is None else f" · {shown.cores_busy:.1f} cores busy"
        times = f"elapsed {duration(shown.elapsed_s)} · ETA {duration(shown.remaining_s)}"
        text.append(f"\n{shown.env_steps_per_s:,.0f} env_steps/s{busy} · {times}", style="not bold")
    for note in shown.notes:
        text.append(f"\n{note.text}", style="not bold")
    if shown.waiting:
        text.append(f"\n{shown.waiting}", style="not bold yellow")
    return text


def jobs_table(lines: Sequence[JobLine], width: int) -> Table:
    """A table with one line per job, in at most ``width`` cells."""
    columns = [column for column in job_columns(lines) if column.shown != "report"]
    return table(columns, lines, width)
