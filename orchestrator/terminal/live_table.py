"""What ``run`` shows while an experiment runs: a live table, lines, or JSON. Nothing here waits for a reader."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from orchestrator.core.messages import Progress
from orchestrator.core.text import duration, number, plain
from orchestrator.supervisor.active_attempts import ActiveAttempt
from orchestrator.supervisor.events import DetachableReporter, Reporter, SilentReporter, View
from orchestrator.terminal import background_output
from orchestrator.terminal.output import console, writable
from orchestrator.terminal.tables import Column, number_column, table

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType
    from rich.table import Table
    from rich.text import Text

REFRESH_EVERY_S = 1.0
DRAWING_SHARE = 0.005
"""Largest share of time for drawing the table: with large tables, more would slow the workers down."""
LINES_SHARE = 0.05
"""Largest share of time for printing lines above the table, which is drawn again below them each time."""
LINES_KEPT = 5000
"""Most events kept while the terminal is not read; then the oldest are dropped."""
EVENT_STYLE = {"failed": "red", "warning": "yellow", "retrying": "yellow", "stopping": "yellow", "succeeded": "green"}


class LineReporter(SilentReporter):
    """One line per event, for logs and pipes."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout

    def event(self, kind: str, message: str, **facts: Any) -> None:
        line = f"{time.strftime('%H:%M:%S')} {kind:<10} {plain(message)}"
        self._out.write(writable(line, self._out) + "\n")
        self._out.flush()


class JsonReporter(SilentReporter):
    """One JSON object per event, and nothing else, on ``out``, which is standard output unless it is given."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out

    def event(self, kind: str, message: str, **facts: Any) -> None:
        out = self._out or sys.stdout
        out.write(json_line(kind, message, facts))
        out.flush()


def json_line(kind: str, message: str, facts: Mapping[str, Any]) -> str:
    record = {"time": round(time.time(), 3), "event": kind, "message": message, **facts}
    return plain(json.dumps(record, ensure_ascii=False, default=str)) + "\n"


def json_notice(dropped: int) -> str:
    """The event that stands for those that were dropped because nobody read the output."""
    return json_line("dropped", background_output.not_shown(dropped), {"events": dropped})


class LiveReporter(SilentReporter):
    """A table that is redrawn in place, with events above it; many events at once are printed together.

    While the terminal does not take what was printed, nothing is drawn.
    """

    def __init__(self, console: Console) -> None:
        from rich.live import Live as RichLive

        self._console = console
        self._live = RichLive(console=console, auto_refresh=False, transient=True)
        self._live.start()
        self._lines: deque[Text] = deque()
        """Events that are not printed yet."""
        self._dropped = 0
        self._next_lines = self._next = 0.0

    def event(self, kind: str, message: str, **facts: Any) -> None:
        from rich.text import Text

        if kind == "examining":  # redrawn in place, until there is a table
            if background_output.is_read(self._console.file):
                self._live.update(Text(message), refresh=True)
            return
        self._lines.append(
            Text.assemble((time.strftime("%H:%M:%S "), "dim"), (plain(message), EVENT_STYLE.get(kind, "")))
        )
        if len(self._lines) > LINES_KEPT and not background_output.is_read(self._console.file):
            self._lines.popleft()
            self._dropped += 1
        self._print_due()

    def tick(self, view: Callable[[], View]) -> None:
        self.draw(lambda: screen(view()))

    def draw(self, shown: Callable[[], Screen]) -> None:
        """Draw the table anew, if that is due; ``shown`` is called only then."""
        self._print_due()
        now = time.monotonic()
        if now >= self._next and background_output.is_read(self._console.file):
            self._live.update(rendered(shown(), self._console.width, self._console.height), refresh=True)
            self._next = now + max(REFRESH_EVERY_S, (time.monotonic() - now) / DRAWING_SHARE)

    def _print_due(self, *, at_once: bool = False) -> None:
        from rich.text import Text

        now = time.monotonic()
        is_due = now >= self._next_lines and background_output.is_read(self._console.file)
        if self._lines and (at_once or is_due):
            lines = list(self._lines)
            if self._dropped:
                lines.insert(0, Text(background_output.not_shown(self._dropped), style="yellow"))
            self._lines.clear()
            self._dropped = 0
            self._console.print(Text("\n").join(lines))
            self._next_lines = now + (time.monotonic() - now) / LINES_SHARE

    def close(self) -> None:
        try:
            self._print_due(at_once=True)
        finally:
            self._live.stop()


@contextlib.contextmanager
def reporter(*, as_json: bool) -> Iterator[Reporter]:
    """The reporter that fits standard output; see :func:`background_output.standard_output_in_background`."""
    with fitting(as_json=as_json) as fit:
        yield DetachableReporter(fit)


@contextlib.contextmanager
def fitting(*, as_json: bool) -> Iterator[LiveReporter | LineReporter | JsonReporter]:
    """As :func:`reporter`, for a caller that handles its errors."""
    if as_json or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        yield JsonReporter() if as_json else LineReporter()
        return
    live = LiveReporter(console())
    try:
        yield live
    finally:
        with contextlib.suppress(OSError):
            live.close()


def rendered(shown: Screen, width: int, height: int) -> Group:
    """Totals and the running jobs that fit on the screen; where there is room, the last ended and the next jobs."""
    from rich.console import Group
    from rich.text import Text

    room = max(1, height - 6)
    running = list(itertools.islice(shown.running, room))
    room -= len(running)
    after = shown.next_up[: room // 2]
    before = shown.ended[max(0, len(shown.ended) - (room - len(after))) :]
    parts: list[RenderableType] = [Text(), _totals(shown), _table([*before, *running, *after], width)]
    if len(running) < shown.counts["RUNNING"]:
        parts.append(Text(f"… and {shown.counts['RUNNING'] - len(running)} more running", style="dim"))
    return Group(*parts)


def _totals(shown: Screen) -> Text:
    from rich.text import Text

    counts = shown.counts
    done = sum(counts[name] for name in ("SUCCEEDED", "FAILED", "CANCELLED"))
    remaining_s = shown.steps_to_go / shown.env_steps_per_s if shown.env_steps_per_s else None
    text = Text(f"{done}/{sum(counts.values())} jobs done", style="bold")
    styles = {"FAILED": "bold red", "CANCELLED": "yellow", "PAUSED": "yellow", "RUNNING": "cyan", "PENDING": "dim"}
    for name, style in styles.items():
        if counts[name]:
            text.append(f" · {counts[name]} {name.lower()}", style=f"not bold {style}")
    speed = f"{shown.env_steps_per_s:,.0f} env_steps/s"
    busy = "" if shown.cores_busy is None else f" · {shown.cores_busy:.1f} cores busy"
    times = f"elapsed {duration(shown.elapsed_s)} · ETA {duration(remaining_s)}"
    return text.append(f"\n{speed}{busy} · {times}", style="not bold")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRow:
    job_id: str
    state: str
    style: str
    share: float = 0.0
    """Share of its training that is done."""
    env_steps_per_s: float | None = None
    ep_rew_mean: float | None = None
    remaining_s: float | None = None
    cpu_share: float | None = None
    run_delay_share: float | None = None
    attempt: str = ""
    cpus: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """What the table shows: totals, and rows that are shown as far as there is room."""

    elapsed_s: float | None
    counts: Counter[str]
    running: Iterable[LiveRow]
    """In order of launch."""
    ended: Sequence[LiveRow]
    """The jobs that ended last, the latest at the end."""
    next_up: Sequence[LiveRow]
    steps_to_go: int
    env_steps_per_s: float
    cores_busy: float | None = None
    """None where it is not known."""


def screen(view: View) -> Screen:
    return Screen(
        elapsed_s=view.elapsed_s,
        counts=view.counts,
        running=map(_running, view.active),
        ended=[_ended(attempt, state.name) for attempt, state in view.ended],
        next_up=[pending(job.job_id) for job in view.next_up],
        steps_to_go=view.steps_to_go,
        env_steps_per_s=view.env_steps_per_s,
        cores_busy=view.cores_busy,
    )


def pending(job_id: str) -> LiveRow:
    return LiveRow(job_id=job_id, state="pending", style="dim")


def _running(attempt: ActiveAttempt) -> LiveRow:
    progress, total = attempt.progress or Progress(phase="starting"), attempt.job.spec.total_timesteps
    rate = progress.env_steps_per_s
    return LiveRow(
        job_id=attempt.job.job_id,
        state="stopping" if attempt.end_reason is not None else progress.phase,
        style="cyan",
        share=progress.env_steps / total,
        env_steps_per_s=rate,
        ep_rew_mean=progress.ep_rew_mean,
        remaining_s=max(0, total - progress.env_steps) / rate if rate else None,
        cpu_share=progress.cpu_share,
        run_delay_share=progress.run_delay_share,
        attempt=str(attempt.handle.number + 1),
        cpus=attempt.where,
    )


def _ended(attempt: ActiveAttempt, state: str) -> LiveRow:
    from orchestrator.terminal.status_view import STATE_STYLE

    row = _running(attempt)
    return LiveRow(
        job_id=row.job_id,
        state=state.lower(),
        style=STATE_STYLE[state],
        share=1.0 if state == "SUCCEEDED" else row.share,
        ep_rew_mean=row.ep_rew_mean,
        attempt=row.attempt,
    )


def _table(rows: Sequence[LiveRow], width: int) -> Table:
    bar_width = 8 if width < 100 else 20
    columns: list[Column[LiveRow]] = [
        Column("job", lambda row: row.job_id),
        Column("state", lambda row: row.state, rank=2, style=lambda row: row.style),
        Column("progress", lambda _: "", rank=3, bar=lambda row: row.share, bar_width=bar_width),
        number_column("", lambda row: f"{row.share:.0%}"),
        number_column("env_steps/s", lambda row: number(row.env_steps_per_s, ",.0f"), rank=1),
        number_column("return", lambda row: number(row.ep_rew_mean, ",.1f")),
        number_column("ETA", lambda row: duration(row.remaining_s), rank=1),
        number_column("CPU", lambda row: number(row.cpu_share, ".0%"), rank=4),
        number_column("wait", lambda row: number(row.run_delay_share, ".0%"), rank=4),
        number_column("attempt", lambda row: row.attempt, rank=5),
        number_column("on CPU", lambda row: row.cpus, rank=6),
    ]
    return table(columns, rows, width)
