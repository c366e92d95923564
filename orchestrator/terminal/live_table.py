"""What the user sees while an experiment runs: a live table, lines, or JSON."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from orchestrator.core.messages import Progress
from orchestrator.core.text import duration, number
from orchestrator.supervisor.active_attempts import ActiveAttempt
from orchestrator.supervisor.events import DetachableReporter, Reporter, SilentReporter, View
from orchestrator.terminal.tables import STATE_STYLE, Column, table

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType
    from rich.table import Table
    from rich.text import Text

REFRESH_EVERY_S = 1.0
DRAWING_SHARE = 0.005
"""Of our time at most, for drawing: with large tables, more would be felt by the workers."""
LINES_SHARE = 0.05
"""Of our time at most, for the lines above the table: it is drawn anew below them each time."""
EVENT_STYLE = {
    "failed": "red",
    "warning": "yellow",
    "retrying": "yellow",
    "stopping": "yellow",
    "succeeded": "green",
}


class LineReporter(SilentReporter):
    """One line an event: for logs and pipes."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout

    def event(self, kind: str, message: str, **facts: Any) -> None:
        print(f"{time.strftime('%H:%M:%S')} {kind:<10} {message}", file=self._out, flush=True)


class JsonReporter(SilentReporter):
    """One JSON object an event, and nothing else, on standard output."""

    def event(self, kind: str, message: str, **facts: Any) -> None:
        record = {"time": round(time.time(), 3), "event": kind, "message": message, **facts}
        print(json.dumps(record, ensure_ascii=False, default=str), flush=True)


class LiveReporter(SilentReporter):
    """A table that is redrawn in place, with events scrolling by above it: many at a time where they come so fast."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live as RichLive

        self._console = console
        self._live = RichLive(console=console, auto_refresh=False, transient=True)
        self._live.start()
        self._lines: list[Text] = []
        """To be printed."""
        self._next_lines = self._next = 0.0

    def event(self, kind: str, message: str, **facts: Any) -> None:
        from rich.text import Text

        self._lines.append(Text.assemble((time.strftime("%H:%M:%S "), "dim"), (message, EVENT_STYLE.get(kind, ""))))
        self._print_due()

    def tick(self, view: Callable[[], View]) -> None:
        self._print_due()
        now = time.monotonic()
        if now >= self._next:
            self._live.update(live_view(view(), self._console.width, self._console.height), refresh=True)
            self._next = now + max(REFRESH_EVERY_S, (time.monotonic() - now) / DRAWING_SHARE)

    def _print_due(self) -> None:
        now = time.monotonic()
        if self._lines and now >= self._next_lines:
            self._print_lines()
            self._next_lines = now + (time.monotonic() - now) / LINES_SHARE

    def _print_lines(self) -> None:
        from rich.text import Text

        lines, self._lines = self._lines, []
        self._console.print(Text("\n").join(lines))

    def close(self) -> None:
        try:
            if self._lines:
                self._print_lines()
        finally:
            self._live.stop()


@contextlib.contextmanager
def reporter(*, as_json: bool) -> Iterator[Reporter]:
    """The one that fits standard output. When nobody reads that any more, the training goes on all the same."""
    if as_json or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        yield DetachableReporter(JsonReporter() if as_json else LineReporter())
        return
    from orchestrator.terminal import views

    live = LiveReporter(views.console())
    try:
        yield DetachableReporter(live)
    finally:
        with contextlib.suppress(OSError):
            live.close()


def mute() -> None:
    """Let standard output lead nowhere, also what is still in its buffer: nobody reads it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def live_view(view: View, width: int, height: int) -> Group:
    """Totals, the running jobs that fit on the screen, and in what room is left the last ones before and the next."""
    from rich.console import Group
    from rich.text import Text

    room = max(1, height - 6)
    live = list(itertools.islice(view.active, room))
    room -= len(live)
    after = view.next_up[: room // 2]
    before = view.ended[max(0, len(view.ended) - (room - len(after))) :]
    lines = [_over(one, state.name) for one, state in before]
    lines += [_running(one) for one in live]
    lines += [Line(job_id=job.job_id, state="pending", style="dim") for job in after]
    parts: list[RenderableType] = [Text(), _totals(view), _table(lines, width)]
    if len(live) < len(view.active):
        parts.append(Text(f"… and {len(view.active) - len(live)} more running", style="dim"))
    return Group(*parts)


def _totals(view: View) -> Text:
    from rich.text import Text

    counts = view.counts
    done = sum(counts[name] for name in ("SUCCEEDED", "FAILED", "CANCELLED"))
    left = view.steps_to_go / view.env_steps_per_s if view.env_steps_per_s else None
    text = Text(f"{done}/{sum(counts.values())} jobs done", style="bold")
    for name, style in (("FAILED", "bold red"), ("CANCELLED", "yellow"), ("RUNNING", "cyan"), ("PENDING", "dim")):
        if counts[name]:
            text.append(f" · {counts[name]} {name.lower()}", style=f"not bold {style}")
    figures = (
        f"{view.env_steps_per_s:,.0f} env_steps/s",
        f"{view.cores_busy:.1f} cores busy",
        f"elapsed {duration(view.elapsed_s)}",
        f"ETA {duration(left)}",
    )
    return text.append("\n" + " · ".join(figures), style="not bold")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What the live table shows of one job."""

    job_id: str
    state: str
    style: str
    share: float = 0.0
    """Of its training that is done."""
    env_steps_per_s: float | None = None
    ep_rew_mean: float | None = None
    left_s: float | None = None
    cpu_share: float | None = None
    run_delay_share: float | None = None
    attempt: str = ""
    cpus: str = ""


def _running(one: ActiveAttempt) -> Line:
    said, total = one.progress or Progress(phase="starting"), one.job.spec.total_timesteps
    rate = said.env_steps_per_s
    return Line(
        job_id=one.job.job_id,
        state="leaving" if one.end_reason is not None else said.phase,
        style="cyan",
        share=said.env_steps / total,
        env_steps_per_s=rate,
        ep_rew_mean=said.ep_rew_mean,
        left_s=max(0, total - said.env_steps) / rate if rate else None,
        cpu_share=said.cpu_share,
        run_delay_share=said.run_delay_share,
        attempt=str(one.handle.number + 1),
        cpus=one.where,
    )


def _over(one: ActiveAttempt, state: str) -> Line:
    line = _running(one)
    return Line(
        job_id=line.job_id,
        state=state.lower(),
        style=STATE_STYLE[state],
        share=1.0 if state == "SUCCEEDED" else line.share,
        ep_rew_mean=line.ep_rew_mean,
        attempt=line.attempt,
    )


def _table(lines: Sequence[Line], width: int) -> Table:
    shares = [line.share for line in lines]

    def figures(name: str, form: str) -> list[str]:
        return [number(getattr(line, name), form) for line in lines]

    columns = [
        Column(name="job", cells=[line.job_id for line in lines]),
        Column(name="state", cells=[line.state for line in lines], styles=[line.style for line in lines], rank=2),
        Column(name="progress", cells=[""] * len(lines), bars=shares, bar_width=8 if width < 100 else 20, rank=3),
        Column(name="", cells=[f"{share:.0%}" for share in shares], justify="right"),
        Column(name="env_steps/s", cells=figures("env_steps_per_s", ",.0f"), justify="right", rank=1),
        Column(name="return", cells=figures("ep_rew_mean", ",.1f"), justify="right"),
        Column(name="ETA", cells=[duration(line.left_s) for line in lines], justify="right", rank=1),
        Column(name="CPU", cells=figures("cpu_share", ".0%"), justify="right", rank=4),
        Column(name="wait", cells=figures("run_delay_share", ".0%"), justify="right", rank=4),
        Column(name="try", cells=[line.attempt for line in lines], justify="right", rank=5),
        Column(name="on CPU", cells=[line.cpus for line in lines], justify="right", rank=6),
    ]
    return table(columns, width)
