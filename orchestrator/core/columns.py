"""Columns of tables for people: what the terminal, notebooks and reports show of a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

NONE = "–"
"""Shown where there is no value."""

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column: how it shows a row.

    :param rank: where there is no room, columns of the highest rank are dropped first; those of
        rank 0 stay, others only if they have a value.
    :param is_number: aligned right.
    :param is_folded: its text takes several lines where there is no room for it in one.
    :param shown: only while jobs run, only in a report, or everywhere.
    """

    name: str
    text: Callable[[Row], str]
    rank: int = 0
    is_number: bool = False
    style: Callable[[Row], str] | None = None
    is_folded: bool = False
    shown: Literal["live", "report", "everywhere"] = "everywhere"


def number_column(
    name: str, text: Callable[[Row], str], rank: int = 0, style: Callable[[Row], str] | None = None
) -> Column[Row]:
    return Column(name, text, rank, is_number=True, style=style)


def with_values(columns: Sequence[Column[Row]], rows: Sequence[Row]) -> list[Column[Row]]:
    """Return the columns without those of a rank that have no value in any row."""
    return [
        column
        for column in columns
        if column.rank == 0 or any(column.text(row).strip() not in ("", NONE) for row in rows)
    ]
