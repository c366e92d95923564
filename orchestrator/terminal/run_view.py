"""What ``run`` and ``attach`` show while an experiment runs: a live table, lines, or JSON."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from orchestrator.client import run_snapshot
from orchestrator.client.events import Note
from orchestrator.client.run_follower import RunFollower
from orchestrator.client.run_snapshot import Snapshot
from orchestrator.client.run_watch import RunWatches
from orchestrator.core.pacer import Pace, Pacer
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count, plain
from orchestrator.server.ledger import EventRow
from orchestrator.terminal import jobs_table
from orchestrator.terminal.jobs_table import JobsTable
from orchestrator.terminal.output import console, mute, writable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from orchestrator.client.run import Underway

LOOKING = Pace(every_s=1.0, share=0.05)
"""How often the ledger is read for the table, and for what features say."""
DRAWING = Pace(every_s=1.0, share=0.005)
"""How often the table is drawn: with large tables, more would slow the workers down."""
TOTALS_EVERY_S = 60.0
PRINTING = Pace(share=0.05)
"""How often lines are printed above the table, which is drawn again below them each time."""
EVENT_STYLE = {
    "failed": "red",
    "warning": "yellow",
    "retrying": "yellow",
    "stopping": "yellow",
    "succeeded": "green",
    "best": "green",
}


class Reporter(Protocol):
    """Shows events, and a table of the jobs."""

    def event(self, kind: str, message: str, **facts: Any) -> None: ...

    def draw(self, shown: Callable[[], JobsTable]) -> None:
        """Show the table if that is due; ``shown`` is called only then."""


class LineReporter:
    """One line per event, for logs and pipes, and one with the totals every
    :data:`TOTALS_EVERY_S`.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._totals = Pacer(Pace(every_s=TOTALS_EVERY_S))
        self._totals.wait()

    def draw(self, shown: Callable[[], JobsTable]) -> None:
        if self._totals.is_due():
            self._totals.wait()
            self.event("progress", jobs_table.totals(shown()).plain.replace("\n", " · "))

    def event(self, kind: str, message: str, **facts: Any) -> None:
        warning = "warning: " if kind == "warning" else ""
        line = f"{time.strftime('%H:%M:%S')} {warning}{plain(message)}"
        self._out.write(writable(line, self._out) + "\n")
        self._out.flush()


class JsonReporter:
    """One JSON object per event, and nothing else, on standard output."""

    def draw(self, shown: Callable[[], JobsTable]) -> None:
        """Programs read the events."""

    def event(self, kind: str, message: str, **facts: Any) -> None:
        sys.stdout.write(json_line(kind, message, facts))
        sys.stdout.flush()


def json_line(kind: str, message: str, facts: Mapping[str, Any]) -> str:
    record = {"time": round(time.time(), 3), "event": kind, "message": message, **facts}
    return plain(json.dumps(record, ensure_ascii=False, default=str)) + "\n"


class LiveReporter:
    """A table that is redrawn in place, with events above it; many events at once are printed
    together.
    """

    def __init__(self, console: Console) -> None:
        from rich.live import Live as RichLive

        self._console = console
        self._live = RichLive(console=console, auto_refresh=False, transient=True)
        self._live.start()
        self._lines: deque[Text] = deque()
        """Events that are not printed yet."""
        self._printing = Pacer(PRINTING)
        self._drawing = Pacer(DRAWING)

    def event(self, kind: str, message: str, **facts: Any) -> None:
        from rich.text import Text

        if kind == "examining":  # redrawn in place, until there is a table
            self._live.update(Text(message), refresh=True)
            return
        self._lines.append(
            Text.assemble(
                (time.strftime("%H:%M:%S "), "dim"), (plain(message), EVENT_STYLE.get(kind, ""))
            )
        )
        self._print_due()

    def draw(self, shown: Callable[[], JobsTable]) -> None:
        self._print_due()
        if self._drawing.is_due():
            with self._drawing.time_block():
                table = jobs_table.render(shown(), self._console.width, self._console.height)
                self._live.update(table, refresh=True)

    def _print_due(self, *, at_once: bool = False) -> None:
        from rich.text import Text

        if self._lines and (at_once or self._printing.is_due()):
            lines = list(self._lines)
            self._lines.clear()
            with self._printing.time_block():
                self._console.print(Text("\n").join(lines))

    def close(self) -> None:
        try:
            self._print_due(at_once=True)
        finally:
            self._live.stop()


@contextlib.contextmanager
def fitting_reporter(*, as_json: bool) -> Iterator[Reporter]:
    """Yield the reporter that fits standard output."""
    if as_json or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        yield JsonReporter() if as_json else LineReporter()
        return
    live = LiveReporter(console())
    try:
        yield live
    finally:
        with contextlib.suppress(OSError):  # the terminal is gone
            live.close()


class RunDisplay:
    """Shows a run that a client follows (:class:`orchestrator.client.follow.Display`).

    An error of what shows it, such as a terminal that was closed, does not end the run: nothing is
    shown any more.
    """

    def __init__(self, reporter: Reporter) -> None:
        self.notes: Sequence[Note] = ()
        """What features say, as of the last look."""
        self.snapshot: Snapshot | None = None
        """As it was read last."""
        self._reporter = reporter
        self._looking = Pacer(LOOKING)
        self._follower: RunFollower | None = None
        self._watches: RunWatches | None = None
        self._is_broken = False

    def begin(self, paths: RunPaths, stop: Callable[[str], None]) -> None:
        self._follower = RunFollower(paths.root)
        self._watches = RunWatches(paths)

    def added(self) -> None:
        """The table needs no sign of that."""

    def event(self, event: EventRow) -> None:
        with self._guarded():
            self._report(event.kind, event.message, **event.facts)

    def tick(self) -> None:
        if self._looking.is_due():
            with self._looking.time_block():
                self.look()
        with self._guarded():
            if self.snapshot is not None and self.snapshot.rows and not self._is_broken:
                self._reporter.draw(self._table)

    def look(self) -> None:
        """Read what is new, and report what features say."""
        assert self._follower is not None
        assert self._watches is not None
        with self._guarded():
            look = self._follower.look()
            if look is not None and look.snapshot is not None:
                self.snapshot = look.snapshot
            news = self._watches.look()
            self.notes = self._watches.notes
            for what in news:
                self._report(what.kind, what.message)

    def _report(self, kind: str, message: str, **facts: Any) -> None:
        if not self._is_broken:
            self._reporter.event(kind, message, **facts)

    def _table(self) -> JobsTable:
        snapshot = self.snapshot
        assert snapshot is not None
        rows = [run_snapshot.as_of_now(row, snapshot.holder) for row in snapshot.rows]
        return jobs_table.of_snapshot(replace(snapshot, rows=rows, notes=self.notes))

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except OSError:  # nobody reads
            self._is_broken = True
            mute()
        except Exception as error:
            if not self._is_broken:
                with contextlib.suppress(OSError):
                    print(
                        f"warning: the run goes on, but cannot be shown ({error!r})",
                        file=sys.stderr,
                    )
            self._is_broken = True


def show_underway(underway: Underway, *, as_json: bool) -> None:
    """Say what runs now that `run --detach` has started, and what to type to follow and to stop
    it.
    """
    run_dir = str(underway.paths.root)
    log = str(underway.paths.supervisor_log)
    jobs = count(underway.jobs, "job")
    if underway.running or not underway.pending:
        now = f"{underway.running:,} of {jobs} run now"
    else:
        now = f"none of {jobs} runs yet, since there is no room for one"
    text = f"{run_dir}: {now}. The experiment continues without this terminal, supervised by process {underway.pid}."
    if as_json:
        facts = {"run_dir": run_dir, "pid": underway.pid, "log": log, "running": underway.running}
        print(json_line("detached", text, facts), end="")
        return
    argument = shlex.quote(run_dir)
    lines = [
        text,
        f"To follow it:  python -m orchestrator attach {argument}",
        f"To stop it:    python -m orchestrator stop {argument}",
        f"Its output is in {log}.",
    ]
    print(plain("\n".join(lines), keep="\n"))
