"""Standard output: to a terminal, to a pipe, or to nobody."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from orchestrator.core.columns import Column, Row
from orchestrator.core.text import count, plain
from orchestrator.terminal.tables import table

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment as RichSegment

PIPE_WIDTH = 10_000
BYTES = ("B", "KiB", "MiB", "GiB")


def console() -> Console:
    """A console for standard output, on which no text controls the terminal.

    In a pipe it is as wide as any table, since the reader may be a program.
    """
    from rich.console import Console
    from rich.segment import Segment

    class PlainConsole(Console):
        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[RichSegment]:
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else plain(text, keep="\n"), style, control)

    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return PlainConsole(highlight=False, markup=False, emoji=False, width=width)


def writable(text: str, stream: TextIO) -> str:
    """``text`` with escapes in place of what the encoding of ``stream`` lacks: it may be one that
    refuses to write.
    """
    # Not every object in place of sys.stdout has an encoding.
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def show(on: Console, *parts: RenderableType) -> None:
    """Print; in a pipe without the blanks that fill a table's last column."""
    if on.is_terminal:
        on.print(*parts, sep="\n")
        return
    with on.capture() as capture:
        on.print(*parts, sep="\n")
    print("\n".join(line.rstrip() for line in capture.get().splitlines()), flush=True)


def show_table(
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    *,
    above: Iterable[RenderableType] = (),
    below: Iterable[RenderableType] = (),
) -> None:
    """Print a table as wide as the console, with lines above and below it."""
    on = console()
    show(on, *above, table(columns, rows, on.width), *below)


@contextlib.contextmanager
def examination() -> Iterator[Callable[[int, int], None]]:
    """A function to be called with the numbers of robots examined and to be examined.

    It shows them in one line of standard error, if that is a terminal: standard output is for the
    result.
    """
    from rich.console import Console

    on = Console(stderr=True, highlight=False)
    if not on.is_terminal or on.is_dumb_terminal:
        yield lambda *_: None
        return
    with on.status("examining …") as status:
        yield lambda done, robots: status.update(f"examining: {done:,} of {count(robots, 'robot')}")


def bytes_text(size: float) -> str:
    """``1536`` → ``1.5 KiB``."""
    for unit in BYTES[:-1]:
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} {BYTES[-1]}"


def mute() -> None:
    """Send standard output, with what is still in its buffer, to nowhere: its reader is gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
