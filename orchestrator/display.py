"""What the user sees while an experiment runs: a live table, lines, or JSON."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

from orchestrator.reporting import Live, Reporter, UntilGone, View
from orchestrator.tables import Column, duration, number, table

if TYPE_CHECKING:
    from rich.console import Console, Group

REFRESH_EVERY_S = 1.0
"""Drawing a table costs milliseconds; more often, and the supervisor would be felt by its workers."""
EVENT_STYLE = {
    "failed": "red",
    "warning": "yellow",
    "retrying": "yellow",
    "stopping": "yellow",
    "succeeded": "green",
}


class SilentReporter:
    """For callers of the Python API who did not ask to see anything."""

    def event(self, kind: str, message: str, **facts: Any) -> None:
        """Nobody is told."""

    def tick(self, view: Callable[[], View]) -> None:
        """Nothing is drawn."""


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
    """A table that is redrawn in place, with events scrolling by above it."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live as RichLive

        self._console = console
        self._live = RichLive(console=console, auto_refresh=False, transient=True)
        self._live.start()
        self._next = 0.0

    def event(self, kind: str, message: str, **facts: Any) -> None:
        from rich.text import Text

        text = Text.assemble((time.strftime("%H:%M:%S "), "dim"), (message, EVENT_STYLE.get(kind, "")))
        self._console.print(text)

    def tick(self, view: Callable[[], View]) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + REFRESH_EVERY_S
            self._live.update(live_view(view(), self._console.width, self._console.height), refresh=True)

    def close(self) -> None:
        self._live.stop()


@contextlib.contextmanager
def reporter(*, as_json: bool) -> Iterator[Reporter]:
    """The one that fits standard output. When nobody reads that any more, the training goes on all the same."""
    if as_json or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        yield UntilGone(JsonReporter() if as_json else LineReporter())
        return
    from orchestrator import views

    live = LiveReporter(views.console())
    try:
        yield UntilGone(live)
    finally:
        with contextlib.suppress(OSError):
            live.close()


def mute() -> None:
    """Let standard output lead nowhere, also what is still in its buffer: nobody reads it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def live_view(view: View, width: int, height: int) -> Group:
    """Totals, and the running jobs that fit on the screen."""
    from rich.console import Group
    from rich.text import Text

    shown = view.live[: max(1, height - 6)]
    parts = [Text(), _totals(view), _running(shown, width)]
    if len(shown) < len(view.live):
        parts.append(Text(f"… and {len(view.live) - len(shown)} more running", style="dim"))
    return Group(*parts)


def _totals(view: View) -> Any:
    from rich.text import Text

    counts = view.counts
    done = sum(counts[name] for name in ("SUCCEEDED", "FAILED", "CANCELLED"))
    busy = sum(one.progress.cpu_share or 0.0 for one in view.live if one.progress is not None)
    left = view.steps_to_go / view.env_steps_per_s if view.env_steps_per_s else None
    text = Text(f"{done}/{sum(counts.values())} jobs done", style="bold")
    for name, style in (("FAILED", "bold red"), ("CANCELLED", "yellow"), ("RUNNING", "cyan"), ("PENDING", "dim")):
        if counts[name]:
            text.append(f" · {counts[name]} {name.lower()}", style=f"not bold {style}")
    figures = (
        f"{view.env_steps_per_s:,.0f} env_steps/s",
        f"{busy:.1f} cores busy",
        f"elapsed {duration(view.elapsed_s)}",
        f"ETA {duration(left)}",
    )
    return text.append("\n" + " · ".join(figures), style="not bold")


def _running(live: list[Live] | Any, width: int) -> Any:
    shares = [_share(one) for one in live]
    rates = [one.progress.env_steps_per_s if one.progress else None for one in live]
    left = [
        max(0, one.job.spec.total_timesteps - one.progress.env_steps) / rate if one.progress and rate else None
        for one, rate in zip(live, rates, strict=True)
    ]

    def figures(read: Callable[[Any], float | None], form: str) -> list[str]:
        return [number(read(one.progress) if one.progress else None, form) for one in live]

    narrow = width < 100
    columns = [
        Column(name="job", cells=[one.job.job_id for one in live]),
        Column(name="state", cells=[_phase(one) for one in live], styles=["cyan"] * len(live), rank=2),
        Column(name="progress", cells=[""] * len(live), bars=shares, bar_width=8 if narrow else 20, rank=3),
        Column(name="", cells=[f"{share:.0%}" for share in shares], justify="right"),
        Column(name="env_steps/s", cells=[number(rate, ",.0f") for rate in rates], justify="right", rank=1),
        Column(name="return", cells=figures(lambda progress: progress.ep_rew_mean, ",.1f"), justify="right"),
        Column(name="ETA", cells=[duration(seconds) for seconds in left], justify="right", rank=1),
        Column(name="CPU", cells=figures(lambda progress: progress.cpu_share, ".0%"), justify="right", rank=4),
        Column(name="wait", cells=figures(lambda progress: progress.run_delay_share, ".0%"), justify="right", rank=4),
        Column(name="try", cells=[str(one.handle.number + 1) for one in live], justify="right", rank=5),
        Column(name="on CPU", cells=[",".join(map(str, one.slot.cpus)) for one in live], justify="right", rank=6),
    ]
    return table(columns, width)


def _share(one: Live) -> float:
    return one.progress.env_steps / one.job.spec.total_timesteps if one.progress else 0.0


def _phase(one: Live) -> str:
    if one.asked is not None:
        return "leaving"
    return one.progress.phase if one.progress else "starting"
