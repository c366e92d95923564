"""What ``selftest`` shows: one line per kind of fault, what fell short, and how to repeat it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from orchestrator.core.text import count, duration
from orchestrator.features.selftest.campaign import FaultRow, SelftestResult
from orchestrator.terminal.output import show_table
from orchestrator.terminal.tables import Column, number_column


def show(result: SelftestResult) -> None:
    below = [*_messages(result), *(Text(line) for line in _closing_lines(result))]
    show_table(COLUMNS, result.rows, below=below)


def _outcome(row: FaultRow) -> str:
    if row.shortfalls:
        return f"fell short in {count(len(row.shortfalls), 'round')}"
    if row.not_applicable is not None:
        return f"not possible here: {row.not_applicable}"
    if not row.rounds:
        return "not reached in this time"
    return "ok" if row.applied else "the jobs ended before it came"


def _style(row: FaultRow) -> str:
    if row.shortfalls:
        return "bold red"
    return "green" if row.applied else ""


COLUMNS: Sequence[Column[FaultRow]] = (
    Column("fault", lambda row: row.fault),
    number_column("times", lambda row: str(row.applied)),
    Column("outcome", _outcome, style=_style),
)


def _messages(result: SelftestResult) -> Iterator[Text]:
    for row in result.rows:
        for number, texts in row.shortfalls.items():
            yield Text.assemble(
                "\n",
                (f"round {number}: {row.fault}", _style(row)),
                *(f"\n    {text}" for text in texts),
            )


def _closing_lines(result: SelftestResult) -> Iterator[str]:
    how = "stopped after" if result.interrupted else "in"
    yield f"\n{count(result.rounds, 'round')} {how} {duration(result.took_s)}. The same faults again: {result.again}"
    if result.not_reached:
        enough = (
            f" (--minutes {result.minutes_for_all:g} is enough for each once)"
            if result.minutes_for_all
            else ""
        )
        yield f"Not tested, as the time was over{enough}: {', '.join(result.not_reached)}"
    if result.kept is not None:
        yield f"One round again: {result.again} --round K. The files of what fell short are kept in {result.kept}"
