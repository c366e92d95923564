"""What ``run`` shows while an experiment runs: a live table, lines, or JSON. Nothing here waits for
a reader.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from orchestrator.core.pacer import Pace, Pacer
from orchestrator.core.text import plain
from orchestrator.experiment.directory import run_directory
from orchestrator.supervisor.events import DetachableReporter, Reporter, SilentReporter, View
from orchestrator.terminal import background_output, jobs_table
from orchestrator.terminal.jobs_table import JobsTable
from orchestrator.terminal.output import console, writable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

DRAWING = Pace(every_s=1.0, share=0.005)
"""How often the table is drawn: with large tables, more would slow the workers down."""
TOTALS_EVERY_S = 60.0
PRINTING = Pace(share=0.05)
"""How often lines are printed above the table, which is drawn again below them each time."""
LINES_KEPT = 5000
"""Most events kept while the terminal is not read; then the oldest are dropped."""
EVENT_STYLE = {
    "failed": "red",
    "warning": "yellow",
    "retrying": "yellow",
    "stopping": "yellow",
    "succeeded": "green",
    "best": "green",
}


class LineReporter(SilentReporter):
    """One line per event, for logs and pipes, and one with the totals every
    :data:`TOTALS_EVERY_S`.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._totals = Pacer(Pace(every_s=TOTALS_EVERY_S))
        self._totals.wait()

    def tick(self, view: Callable[[], View]) -> None:
        self.draw(lambda: jobs_table.of_view(view()))

    def draw(self, shown: Callable[[], JobsTable]) -> None:
        """Print the totals, if that is due; ``shown`` is called only then."""
        if self._totals.is_due():
            self._totals.wait()
            self.event("progress", jobs_table.totals(shown()).plain.replace("\n", " · "))

    def event(self, kind: str, message: str, **facts: Any) -> None:
        warning = "warning: " if kind == "warning" else ""
        line = f"{time.strftime('%H:%M:%S')} {warning}{plain(message)}"
        self._out.write(writable(line, self._out) + "\n")
        self._out.flush()


class JsonReporter(SilentReporter):
    """One JSON object per event, and nothing else, on ``out``, which is standard output unless it
    is given.
    """

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
    """A table that is redrawn in place, with events above it; many events at once are printed
    together.

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
        self._printing = Pacer(PRINTING)
        self._drawing = Pacer(DRAWING)

    def event(self, kind: str, message: str, **facts: Any) -> None:
        from rich.text import Text

        if kind == "examining":  # redrawn in place, until there is a table
            if background_output.is_read(self._console.file):
                self._live.update(Text(message), refresh=True)
            return
        self._lines.append(
            Text.assemble(
                (time.strftime("%H:%M:%S "), "dim"), (plain(message), EVENT_STYLE.get(kind, ""))
            )
        )
        if len(self._lines) > LINES_KEPT and not background_output.is_read(self._console.file):
            self._lines.popleft()
            self._dropped += 1
        self._print_due()

    def tick(self, view: Callable[[], View]) -> None:
        self.draw(lambda: jobs_table.of_view(view()))

    def draw(self, shown: Callable[[], JobsTable]) -> None:
        """Draw the table anew, if that is due; ``shown`` is called only then."""
        self._print_due()
        if self._drawing.is_due() and background_output.is_read(self._console.file):
            with self._drawing.time_block():
                table = jobs_table.render(shown(), self._console.width, self._console.height)
                self._live.update(table, refresh=True)

    def _print_due(self, *, at_once: bool = False) -> None:
        from rich.text import Text

        is_due = self._printing.is_due() and background_output.is_read(self._console.file)
        if self._lines and (at_once or is_due):
            lines = list(self._lines)
            if self._dropped:
                lines.insert(0, Text(background_output.not_shown(self._dropped), style="yellow"))
            self._lines.clear()
            self._dropped = 0
            with self._printing.time_block():
                self._console.print(Text("\n").join(lines))

    def close(self) -> None:
        try:
            self._print_due(at_once=True)
        finally:
            self._live.stop()


@contextlib.contextmanager
def reporter(run_dir: Path, *, as_json: bool) -> Iterator[Reporter]:
    """The reporter that fits standard output; see
    :func:`background_output.standard_output_in_background`.

    :param run_dir: where its first error is recorded.
    """
    with fitting_reporter(as_json=as_json) as fit:
        yield DetachableReporter(fit, run_directory.error_record(run_dir))


@contextlib.contextmanager
def fitting_reporter(*, as_json: bool) -> Iterator[LiveReporter | LineReporter | JsonReporter]:
    """As :func:`reporter`, for a caller that handles its errors."""
    if as_json or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        yield JsonReporter() if as_json else LineReporter()
        return
    live = LiveReporter(console())
    try:
        yield live
    finally:
        with contextlib.suppress(OSError):  # the terminal is gone
            live.close()
