"""The totals and the table of jobs that `run`, `attach` and `status` show."""

from __future__ import annotations

import datetime
import itertools
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from orchestrator.core import job_parts
from orchestrator.core.job import TERMINAL
from orchestrator.core.task_names import measure_of_task
from orchestrator.core.text import duration, number_or_dash
from orchestrator.ledger.lineage import env_steps_before
from orchestrator.supervisor.remaining_time import NOTHING_ENDED, EndedWork
from orchestrator.terminal.tables import NONE, Column, number_column, table

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table
    from rich.text import Text

    from orchestrator.experiment.from_outside.run_snapshot import Snapshot
    from orchestrator.ledger import SummaryRow
    from orchestrator.ledger.live_facts import LiveFacts
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
WIDE = 100
"""From this width on the bar is long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLine:
    """A line of the table. None: not known, or without meaning in this state."""

    job_id: str
    state: str
    """That of the ledger; of a running job rather what it does: starting, training, evaluating or
    stopping."""
    is_running: bool = False
    share: float | None = None
    """Share of its training that is done."""
    env_steps: int | None = None
    parent: str = ""
    """The job that it started from; empty: none of this run directory."""
    earlier_env_steps: int | None = 0
    """Of the policy that it started from."""
    env_steps_per_s: float | None = None
    ep_rew_mean_first: float | None = None
    ep_rew_mean: float | None = None
    eval_mean: float | None = None
    eval_length: float | None = None
    """Mean length of the evaluation's episodes in control steps."""
    measures: Mapping[str, float | None] | None = None
    """Means of the task's measures over the evaluation."""
    remaining_s: float | None = None
    wall_s: float | None = None
    """Of all attempts."""
    cpu_share: float | None = None
    run_delay_share: float | None = None
    attempts: int = 0
    ranks: int = 1
    where: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Of features (:func:`orchestrator.core.job_parts.columns`)."""
    waits_for: str = ""
    """Of a PENDING job: the jobs that have to succeed before its launch."""

    @property
    def activity(self) -> str:
        text = f"waits for {self.waits_for}" if self.waits_for else self.state
        return text if len(text) <= LONGEST_ACTIVITY else f"{text[: LONGEST_ACTIVITY - 1]}…"

    @property
    def lineage_env_steps(self) -> int | None:
        """With those of the policy that it started from."""
        if not self.env_steps or self.earlier_env_steps is None:
            return None
        return self.env_steps + self.earlier_env_steps

    @property
    def style(self) -> str:
        return STATE_STYLE["RUNNING" if self.is_running else self.state]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsTable:
    """Totals, and jobs that are shown as far as there is room."""

    elapsed_s: float | None
    """Since when the supervisor runs; None where none does, or that is not known."""
    counts: Counter[str]
    running: Iterable[JobLine]
    """In order of launch."""
    ended: Sequence[JobLine]
    """The jobs that ended last, the latest at the end."""
    next_up: Sequence[JobLine]
    steps_to_go: int
    env_steps_per_s: float
    cores_busy: float | None = None
    ended_work: EndedWork = NOTHING_ENDED
    """Of the attempts that the supervisor has brought to their end."""
    waiting: str | None = None
    """Why jobs that would have a slot are not launched."""
    notes: Sequence[Note] = ()
    """What features say."""

    @property
    def remaining_s(self) -> float | None:
        """Until all jobs have ended; None where nothing tells."""
        return self.ended_work.remaining_s(
            steps_to_go=self.steps_to_go,
            env_steps_per_s=self.env_steps_per_s,
            running=self.counts["RUNNING"],
        )


def _shares_of_cores(rows: Iterable[SummaryRow], live: LiveFacts) -> list[float]:
    """What each running job uses of cores, as far as that is known: its rank 0 tells of itself, and the
    others do the same.
    """
    jobs = ((row, live.jobs.get(row["job_id"])) for row in rows)
    return [
        job.cpu_share * row["ranks"]
        for row, job in jobs
        if job is not None and job.cpu_share is not None
    ]


def of_snapshot(snapshot: Snapshot) -> JobsTable:
    """As files of the run directory tell of the jobs."""
    rows: dict[str, list[SummaryRow]] = {}
    for row in snapshot.rows:
        rows.setdefault(row["state"], []).append(row)
    running = rows.get("RUNNING", [])
    pending = rows.get("PENDING", [])
    ended = [row for state in TERMINAL for row in rows.get(state, [])]
    live = snapshot.live
    goals = snapshot.goals
    lines = of_rows(sorted(running, key=lambda row: row["started_at"] or 0.0), live, goals)
    shares = [] if live is None else _shares_of_cores(snapshot.rows, live)
    return JobsTable(
        elapsed_s=_age_s(snapshot),
        counts=Counter({state: len(those) for state, those in rows.items()}),
        running=lines,
        ended=of_rows(sorted(ended, key=lambda row: row["ended_at"] or 0.0)),
        next_up=of_rows(pending),
        steps_to_go=sum(_steps_to_go(row, goals) for row in (*running, *pending)),
        env_steps_per_s=sum(line.env_steps_per_s or 0.0 for line in lines),
        ended_work=_ended_work(snapshot),
        cores_busy=sum(shares) if shares else None,
        waiting=live.waiting if live and pending else None,
        notes=snapshot.notes,
    )


def of_rows(
    rows: Iterable[SummaryRow], live: LiveFacts | None = None, goals: Mapping[str, int] = NO_GOALS
) -> list[JobLine]:
    """:param live: what is known of running jobs beside the ledger.
    :param goals: env_steps at which jobs pause at a rung.
    """
    return [_of_row(row, live, goals) for row in rows]


def _of_row(row: SummaryRow, live: LiveFacts | None, goals: Mapping[str, int]) -> JobLine:
    is_running = row["state"] == "RUNNING"
    job = live.jobs.get(row["job_id"]) if live and is_running else None
    phase: str = row["state"]
    if is_running and live:
        phase = job.phase if job else "starting"
    is_starting = phase == "starting"  # from which checkpoint is not known yet
    rate = None if is_starting else row["env_steps_per_s"]
    has_return = not is_starting and (job is None or job.has_return)
    cpus = ",".join(map(str, row["cpus"] or [])) if is_running else ""
    return JobLine(
        job_id=row["job_id"],
        state=_activity(phase, job.silent_s if job else None),
        is_running=is_running,
        share=None if is_starting else _share(row),
        env_steps=None if is_starting else row["env_steps"],
        parent=row.get("parent") or "",
        earlier_env_steps=env_steps_before(row["env_steps"], row.get("lineage_env_steps")),
        env_steps_per_s=rate,
        ep_rew_mean_first=row["ep_rew_mean_first"] if has_return else None,
        ep_rew_mean=row["ep_rew_mean"] if has_return else None,
        eval_mean=row["eval_mean"],
        eval_length=row.get("eval_length"),
        measures=row.get("measures"),
        remaining_s=_steps_to_go(row, goals) / rate if rate and is_running else None,
        wall_s=row["wall_s"],
        cpu_share=job.cpu_share if job else None,
        run_delay_share=job.run_delay_share if job else None,
        attempts=row["attempts"],
        ranks=row["ranks"],
        where=" ".join(filter(None, (row["node"], cpus))),
        columns=job.columns if job else job_parts.columns_in(row),
        waits_for=row.get("waits_for") or "",
    )


def _activity(phase: str, silent_s: float | None) -> str:
    """What a job does, and for how long its worker has reported nothing, if that is long."""
    if silent_s is None or silent_s < SILENT_S:
        return phase
    return f"{phase}, silent {duration(silent_s)}"


def _share(row: SummaryRow) -> float | None:
    if row["state"] == "SUCCEEDED":
        return 1.0
    if not row["attempts"]:
        return None
    return min(1.0, row["env_steps"] / row["total_timesteps"])


def _steps_to_go(row: SummaryRow, goals: Mapping[str, int]) -> int:
    return max(0, goals.get(row["job_id"], row["total_timesteps"]) - row["env_steps"])


def _ended_work(snapshot: Snapshot) -> EndedWork:
    """What the present supervisor has brought to its end in one attempt each."""
    work = EndedWork()
    since = _since(snapshot)
    if since is None:
        return work
    for row in snapshot.rows:
        if row["state"] != "SUCCEEDED" or row["attempts"] != 1:
            continue
        begun = row["started_at"]
        ended = row["ended_at"]
        if begun is not None and ended is not None and begun >= since:
            work = work.with_attempt(env_steps=row["env_steps"], begun=begun, ended=ended)
    return work


def _age_s(snapshot: Snapshot) -> float | None:
    """How long the supervisor runs, by the clock of its host."""
    since = _since(snapshot)
    return None if since is None else max(0.0, time.time() - since)


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
    running = list(itertools.islice(shown.running, room))
    room -= len(running)
    # Those that have ended get half of what is left, or less where there are few of them.
    next_up = shown.next_up[: max(room - room // 2, room - len(shown.ended))]
    room -= len(next_up)
    ended = list(itertools.islice(reversed(shown.ended), room))
    parts: list[RenderableType] = [Text(title, no_wrap=True, overflow="ellipsis"), totals(shown)]
    parts.append(jobs_table([*running, *next_up, *ended], width, has_bar=True))
    left = (
        shown.counts
        - Counter(RUNNING=len(running), PENDING=len(next_up))
        - Counter(line.state for line in ended)
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
    both = [line for line in lines if line.ep_rew_mean_first is not None]
    starts = max((len(_return(line.ep_rew_mean_first)) for line in both), default=0)
    ends = max((len(_return(line.ep_rew_mean)) for line in lines), default=0)

    def returns(line: JobLine) -> str:
        end = f"{_return(line.ep_rew_mean):>{ends}}"
        if line.ep_rew_mean_first is None:
            return end
        return f"{_return(line.ep_rew_mean_first):>{starts}} → {end}"

    is_any_running = any(line.is_running for line in lines)
    is_all_done = all(line.share == 1.0 for line in lines)
    is_any_retried = any(line.attempts > 1 for line in lines)
    bar: Column[JobLine] = Column(
        "progress",
        lambda _: "",
        rank=10,
        bar=lambda line: line.share or 0.0,
        bar_width=8 if width < WIDE else 20,
    )
    columns: list[Column[JobLine] | None] = [
        Column("job", lambda line: line.job_id),
        Column("state", lambda line: line.activity, style=lambda line: line.style),
        number_column("return", returns, rank=1, style=_return_style),
        number_column("evaluated", lambda line: _return(line.eval_mean), rank=6),
        number_column("in steps", lambda line: number_or_dash(line.eval_length, ",.0f"), rank=8)
        if any(line.eval_length is not None for line in lines)
        else None,
        _column_of_measure(lines),
        bar if has_bar else None,
        number_column(
            "done", lambda line: number_or_dash(line.share, ".0%"), rank=7 if is_all_done else 1
        ),
        number_column(
            "env_steps", lambda line: number_or_dash(line.env_steps or None, ","), rank=8
        ),
        number_column("lineage", lambda line: number_or_dash(line.lineage_env_steps, ","), rank=8)
        if any(line.earlier_env_steps for line in lines)
        else None,
        Column("parent", lambda line: line.parent or NONE, rank=9)
        if any(line.parent for line in lines)
        else None,
        number_column(
            "env_steps/s", lambda line: number_or_dash(line.env_steps_per_s, ",.0f"), rank=2
        ),
        *(_column_of_feature(name, lines) for name in job_parts.column_names()),
        number_column("ETA", lambda line: duration(line.remaining_s), rank=3)
        if is_any_running
        else None,
        number_column("time", lambda line: duration(line.wall_s), rank=6),
        number_column("CPU", lambda line: number_or_dash(line.cpu_share, ".0%"), rank=4)
        if is_any_running
        else None,
        number_column("wait", _wait, rank=4) if is_any_running else None,
        number_column("ranks", lambda line: str(line.ranks), rank=5)
        if any(line.ranks > 1 for line in lines)
        else None,
        number_column(
            "attempts", lambda line: str(line.attempts or NONE), rank=2 if is_any_retried else 7
        ),
        number_column("on CPU", lambda line: line.where, rank=9)
        if any(line.where for line in lines)
        else None,
    ]
    return [column for column in columns if column is not None]


def _column_of_measure(lines: Sequence[JobLine]) -> Column[JobLine] | None:
    """That of the measure of the tasks; None where it is not the same in all of them."""
    measures = {measure_of_task(line.measures or ()) for line in lines} - {None}
    if len(measures) != 1:
        return None
    (measure,) = measures
    assert measure is not None

    def cell(line: JobLine) -> str:
        return number_or_dash((line.measures or {}).get(measure), ",.2f")

    return number_column(measure, cell, rank=7)


def _column_of_feature(name: str, lines: Sequence[JobLine]) -> Column[JobLine] | None:
    """A column that a feature adds; None where no job has a value for it."""
    if all(line.columns.get(name) is None for line in lines):
        return None

    def cell(line: JobLine) -> str:
        value = line.columns.get(name)
        if value is None:
            return NONE
        return number_or_dash(value, ",.1f") if isinstance(value, float) else str(value)

    return number_column(name, cell, rank=5)


def _wait(line: JobLine) -> str:
    """The share of its time that it waits for a CPU, 100 % at most: its threads may together wait
    for longer than the time that passes.
    """
    share = line.run_delay_share
    return number_or_dash(None if share is None else min(1.0, share), ".0%")


def _return(value: float | None) -> str:
    """A mean return as text."""
    return number_or_dash(value, ",.1f")


def _return_style(line: JobLine) -> str:
    """Green where the return has risen in the training, and red where it has fallen."""
    first = line.ep_rew_mean_first
    last = line.ep_rew_mean
    if last is None:
        return "dim"
    if first is None or first == last:
        return ""
    return "green" if last > first else "red"
