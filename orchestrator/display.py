"""What the user sees while an experiment runs: a live table, lines, or JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from orchestrator.supervisor import Live, View

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

REFRESH_EVERY_S = 1.0
"""Drawing a table costs milliseconds; more often, and the supervisor would be felt by its workers."""

STATE_STYLE = {"PENDING": "dim", "RUNNING": "cyan", "SUCCEEDED": "green", "FAILED": "red", "CANCELLED": "yellow"}


class SilentReporter:
    """For callers of the Python API who did not ask to see anything."""

    def event(self, kind: str, message: str, **facts: Any) -> None:
        return

    def tick(self, view: Callable[[], View]) -> None:
        return


class LineReporter:
    """One line an event: for logs and pipes."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout

    def event(self, kind: str, message: str, **facts: Any) -> None:
        print(f"{time.strftime('%H:%M:%S')} {kind:<10} {message}", file=self._out, flush=True)

    def tick(self, view: Callable[[], View]) -> None:
        return


class JsonReporter:
    """One JSON object an event, and nothing else, on standard output."""

    def event(self, kind: str, message: str, **facts: Any) -> None:
        record = {"time": round(time.time(), 3), "event": kind, "message": message, **facts}
        print(json.dumps(record, ensure_ascii=False, default=str), flush=True)

    def tick(self, view: Callable[[], View]) -> None:
        return


class LiveReporter:
    """A table that is redrawn in place, with events scrolling by above it."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live as RichLive

        self._console = console
        self._live = RichLive(console=console, auto_refresh=False, transient=True)
        self._live.start()
        self._next = 0.0

    def event(self, kind: str, message: str, **facts: Any) -> None:
        from rich.text import Text

        style = {"failed": "red", "warning": "yellow", "stopping": "yellow", "succeeded": "green"}.get(kind, "")
        self._console.print(Text.assemble((time.strftime("%H:%M:%S "), "dim"), (message, style)))

    def tick(self, view: Callable[[], View]) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + REFRESH_EVERY_S
            self._live.update(live_table(view(), max(3, self._console.height - 8)), refresh=True)

    def close(self) -> None:
        self._live.stop()


def live_table(view: View, rows: int) -> Table:
    """The running jobs, at most ``rows`` of them, and the totals."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    done = sum(view.counts[name] for name in ("SUCCEEDED", "FAILED", "CANCELLED"))
    total = sum(view.counts.values())
    busy = sum(one.progress.cpu_share or 0.0 for one in view.live if one.progress is not None)
    parts = [
        f"{done}/{total} jobs done",
        *(f"{view.counts[name]} {name.lower()}" for name in ("FAILED", "CANCELLED", "PENDING") if view.counts[name]),
        f"{view.env_steps_per_s:,.0f} env_steps/s",
        f"{busy:.1f} cores busy",
        f"elapsed {duration(view.elapsed_s)}",
        f"ETA {duration(view.steps_to_go / view.env_steps_per_s) if view.env_steps_per_s else '–'}",
    ]
    table = Table(title=" · ".join(parts), title_justify="left", box=None, pad_edge=False)
    for name, justify in (
        ("job", "left"),
        ("state", "left"),
        ("progress", "left"),
        ("env_steps/s", "right"),
        ("return", "right"),
        ("ETA", "right"),
        ("CPU", "right"),
        ("waiting", "right"),
        ("attempt", "right"),
        ("on CPU", "right"),
    ):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for one in view.live[:rows]:
        steps = one.progress.env_steps if one.progress else 0
        bar = ProgressBar(total=one.job.spec.total_timesteps, completed=steps, width=20)
        table.add_row(one.job.job_id, _phase(one), bar, *_figures(one))
    if len(view.live) > rows:
        table.add_row(f"… and {len(view.live) - rows} more")
    return table


def _phase(one: Live) -> str:
    if one.asked is not None:
        return "leaving"
    return one.progress.phase if one.progress else "starting"


def _figures(one: Live) -> tuple[str, ...]:
    progress = one.progress
    rate = progress.env_steps_per_s if progress else None
    eta = None
    if progress is not None and rate:
        eta = max(0, one.job.spec.total_timesteps - progress.env_steps) / rate
    return (
        number(rate, ",.0f"),
        number(progress.ep_rew_mean if progress else None, ",.1f"),
        duration(eta),
        number(progress.cpu_share if progress else None, ".0%"),
        number(progress.run_delay_share if progress else None, ".0%"),
        str(one.handle.number),
        ",".join(map(str, one.slot.cpus)),
    )


def number(value: float | None, form: str) -> str:
    """``value`` formatted, or a dash where there is none."""
    return "–" if value is None else format(value, form)


def duration(seconds: float | None) -> str:
    """``3725`` → ``1:02:05``."""
    if seconds is None:
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def summary_table(rows: Sequence[Mapping[str, Any]], *, title: str, alive: bool = True) -> Table:
    """One line a job, from the rows of ``summary.json``.

    :param alive: whether a supervisor is at work; RUNNING means something only then.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("job", "state"):
        table.add_column(name, no_wrap=True)
    for name in ("env_steps", "first", "last", "evaluated", "env_steps/s", "time", "attempts"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("why")
    for row in rows:
        state = row["state"]
        style = STATE_STYLE[state]
        if state == "RUNNING" and not alive:
            state, style = "INTERRUPTED", "yellow"
        table.add_row(
            Text(row["job_id"]),
            Text(state, style=style),
            f"{row['env_steps']:,}",
            number(row["ep_rew_mean_first"], ",.1f"),
            number(row["ep_rew_mean"], ",.1f"),
            number(row["eval_mean"], ",.1f"),
            number(row["env_steps_per_s"], ",.0f"),
            duration(row["wall_s"]),
            str(row["attempts"]),
            Text(row["message"] or ""),
        )
    return table
