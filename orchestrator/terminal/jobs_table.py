"""The totals and the table of jobs that `run`, `attach` and `status` show."""

from __future__ import annotations

import datetime
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from orchestrator.core import job_parts
from orchestrator.core.job import TERMINAL
from orchestrator.core.task_names import measure_of_task
from orchestrator.core.text import duration, number_or_dash
from orchestrator.terminal.tables import NONE, Column, number_column, table

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table
    from rich.text import Text

    from orchestrator.experiment.from_outside.run_snapshot import Snapshot
    from orchestrator.ledger import SummaryRow
    from orchestrator.supervisor.events import Note

STATE_STYLE = {
    "PENDING": "dim",
    "RUNNING": "cyan",
    "PAUSED": "yellow",
    "SUCCEEDED": "green",
    "FAILED": "bold red",
    "CANCELLED": "yellow",
}
LINES_AROUND = 6
"""Lines of a screen for anything but jobs: a blank one, totals, names of columns, what is left out,
and the cursor."""
LONGEST_WORD = 10
"""What a wrapped line may leave free at its end."""
LONGEST_ACTIVITY = 40
SILENT_S = 30.0
"""A worker that has reported nothing for so long gets no CPU, was stopped or hangs, or makes a long
update."""
NO_GOALS: Mapping[str, int] = MappingProxyType({})
SHORT_S = 60.0
"""Of jobs that take less on average, start and evaluation are a good part: their ends tell more
than their speed."""
WIDE = 100
"""From this width on the bar is long."""


JobLine: TypeAlias = dict[str, Any]
"""A job as a line of the table: its row of the summary, and what :func:`_job_line` adds. None: not
known, or without meaning in this state."""


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
    return {
        **row,
        "activity": activity(row),
        "share": _share(row),
        "steps_to_go": steps_to_go,
        "remaining_s": steps_to_go / rate if rate and is_running else None,
        "where": _where(row) if is_running else row["node"],
    }


def activity(row: SummaryRow) -> str:
    """What a job does, and for how long its worker has reported nothing, if that is long."""
    if waits_for := row.get("waits_for"):
        text = f"waits for {waits_for}"
        return text if len(text) <= LONGEST_ACTIVITY else f"{text[: LONGEST_ACTIVITY - 1]}…"
    phase = row.get("phase") or row["state"]
    silent_s = time.time() - (row.get("reported_at") or math.inf)
    return f"{phase}, silent {duration(silent_s)}" if silent_s >= SILENT_S else phase


def _share(row: SummaryRow) -> float | None:
    """The share of its training that is done."""
    if row["state"] == "SUCCEEDED":
        return 1.0
    return min(1.0, row["env_steps"] / row["total_timesteps"]) if row["attempts"] else None


def _where(row: SummaryRow) -> str:
    cpus = ",".join(map(str, row["cpus"] or ()))
    return " ".join(filter(None, (row["node"], cpus)))


def _is_done_since(line: JobLine, since: float) -> bool:
    """Whether the present supervisor has brought a job to its end in one attempt."""
    begun = line["started_at"]
    is_known = begun is not None and line["ended_at"] is not None
    return line["state"] == "SUCCEEDED" and line["attempts"] == 1 and is_known and begun >= since


def remaining_s(
    done: Sequence[JobLine], *, steps_to_go: int, env_steps_per_s: float, running: int
) -> float | None:
    """Seconds until ``steps_to_go`` are done: by the speed that running workers report, or by what
    has ended. None where nothing tells.

    :param done: jobs that were trained from their start to their end, in one attempt each.
    :param env_steps_per_s: what running workers report together; 0 where none does.
    """
    reported_s = steps_to_go / env_steps_per_s if env_steps_per_s > 0 else None
    env_steps = sum(line["env_steps"] for line in done)
    # As many as run at once: otherwise the time until the first end would count for one of them
    # alone.
    if not env_steps or len(done) < max(1, running):
        return reported_s
    wall_s = sum(line["ended_at"] - line["started_at"] for line in done)
    if reported_s is not None and wall_s >= SHORT_S * len(done):
        return reported_s
    begun = min(line["started_at"] for line in done)
    took_s = max(line["ended_at"] for line in done) - begun
    return float(steps_to_go * took_s / env_steps)


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
    parts.append(jobs_table([*running, *next_up, *ended], width, has_bar=True))
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


def jobs_table(lines: Sequence[JobLine], width: int, *, has_bar: bool = False) -> Table:
    """A table with one line per job, in at most ``width`` cells."""
    return table(job_columns(lines, width, has_bar=has_bar), lines, width)


def job_columns(lines: Sequence[JobLine], width: int, *, has_bar: bool) -> list[Column[JobLine]]:
    """In the order in which they stand; the higher its rank, the sooner a column goes."""
    bar: Column[JobLine] = Column(
        "progress",
        lambda _: "",
        rank=10,
        bar=lambda line: line["share"] or 0.0,
        bar_width=8 if width < WIDE else 20,
    )
    is_all_done = all(line["share"] == 1.0 for line in lines)
    is_any_retried = any(line["attempts"] > 1 for line in lines)
    has_parents = any(line.get("parent") for line in lines)
    return [
        Column("job", lambda line: line["job_id"]),
        Column(
            "state", lambda line: line["activity"], style=lambda line: STATE_STYLE[line["state"]]
        ),
        number_column("return", _returns, rank=1, style=_return_style),
        _column("evaluated", "eval_mean", ",.1f", rank=6),
        _column("in steps", "eval_length", ",.0f", rank=8),
        *_columns_of_measure(lines),
        *([bar] if has_bar else []),
        _column("done", "share", ".0%", rank=7 if is_all_done else 1),
        number_column("env_steps", lambda line: _unless_zero(line, "env_steps"), rank=8),
        *([_column("lineage", "lineage_env_steps", ",", rank=8)] if has_parents else []),
        Column("parent", lambda line: line.get("parent") or NONE, rank=9),
        _column("env_steps/s", "env_steps_per_s", ",.0f", rank=2),
        *map(_column_of_feature, job_parts.column_names()),
        number_column("ETA", lambda line: duration(line.get("remaining_s")), rank=3),
        number_column("time", lambda line: duration(line.get("wall_s")), rank=6),
        _column("CPU", "cpu_share", ".0%", rank=4),
        number_column("wait", _wait, rank=4),
        *(
            [_column("ranks", "ranks", "", rank=5)]
            if any(line["ranks"] > 1 for line in lines)
            else []
        ),
        number_column(
            "attempts", lambda line: _unless_zero(line, "attempts"), rank=2 if is_any_retried else 7
        ),
        number_column("on CPU", lambda line: line.get("where") or NONE, rank=9),
    ]


def _column(name: str, key: str, form: str, rank: int) -> Column[JobLine]:
    return number_column(name, lambda line: _number(line, key, form), rank=rank)


def _number(line: JobLine, key: str, form: str = ",.1f") -> str:
    return number_or_dash(line.get(key), form)


def _unless_zero(line: JobLine, key: str) -> str:
    return number_or_dash(line.get(key) or None, ",")


def _column_of_feature(name: str) -> Column[JobLine]:
    def cell(line: JobLine) -> str:
        value = line.get(name)
        if value is None:
            return NONE
        return f"{value:,.1f}" if isinstance(value, float) else str(value)

    return number_column(name, cell, rank=5)


def _columns_of_measure(lines: Sequence[JobLine]) -> list[Column[JobLine]]:
    """That of the measure of the tasks, if it is the same in all of them."""
    measures = {measure_of_task(line.get("measures") or ()) for line in lines} - {None}
    if len(measures) != 1:
        return []
    (measure,) = measures

    def cell(line: JobLine) -> str:
        return number_or_dash((line.get("measures") or {}).get(measure), ",.2f")

    return [number_column(str(measure), cell, rank=7)]


def _wait(line: JobLine) -> str:
    """The share of its time that it waits for a CPU, 100 % at most: its threads may together wait
    for longer than the time that passes.
    """
    share = line.get("run_delay_share")
    return number_or_dash(None if share is None else min(1.0, share), ".0%")


def _returns(line: JobLine) -> str:
    """The mean return, and before it that of the first iteration."""
    last = _number(line, "ep_rew_mean")
    if line.get("ep_rew_mean_first") is None:
        return last
    return f"{_number(line, 'ep_rew_mean_first')} → {last}"


def _return_style(line: JobLine) -> str:
    """Green where the return has risen in the training, and red where it has fallen."""
    first = line.get("ep_rew_mean_first")
    last = line.get("ep_rew_mean")
    if last is None:
        return "dim"
    if first is None or first == last:
        return ""
    return "green" if last > first else "red"
