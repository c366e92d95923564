"""Tables with as many columns as the terminal has room for; the most important columns are dropped
last.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from orchestrator.core.text import plain

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

NONE = "–"
"""Shown where there is no value."""
GAP = 2
LEAST_NAME = 16
"""Width that the first column keeps at least before other columns are dropped; more where its texts
look alike."""
LEAST_FOLDED = 30
"""Width that a column which is folded keeps before other columns are dropped."""
EXPENDABLE = 5
"""Columns of this rank and above are dropped before the first column is shortened."""

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column: how it shows a row.

    :param rank: where there is no room, columns of the highest rank are dropped first; those of
        rank 0 stay, others only if they have a value. See also :data:`EXPENDABLE`.
    :param is_number: aligned right.
    :param bar: fraction to be drawn as a bar ``bar_width`` wide, in place of text.
    :param is_folded: its text takes several lines where there is no room for it in one.
    """

    name: str
    text: Callable[[Row], str]
    rank: int = 0
    is_number: bool = False
    style: Callable[[Row], str] | None = None
    bar: Callable[[Row], float] | None = None
    bar_width: int = 0
    is_folded: bool = False


def number_column(
    name: str, text: Callable[[Row], str], rank: int = 0, style: Callable[[Row], str] | None = None
) -> Column[Row]:
    return Column(name, text, rank, is_number=True, style=style)


def table(columns: Sequence[Column[Row]], rows: Sequence[Row], width: int) -> Table:
    """A table of at most ``width`` cells. The first column is shortened in the middle, where names
    differ least; texts that differ are shown differently, in several lines if they must.
    """
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    columns = with_values(columns, rows)
    texts = [[plain(column.text(row)) for row in rows] for column in columns]
    ranks = [column.rank for column in columns]
    distinct_width = _distinct_width(texts[0])
    least = max(LEAST_NAME, distinct_width)
    kept, first_width = _fit_columns(ranks, list(map(_width, columns, texts)), width, least)
    is_first_folded = first_width < distinct_width
    if not is_first_folded:
        texts[0] = [_shorten_middle(text, first_width) for text in texts[0]]
    result = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for index in kept:
        justify: Literal["left", "right"] = "right" if columns[index].is_number else "left"
        is_folded = columns[index].is_folded or (index == 0 and is_first_folded)
        result.add_column(
            columns[index].name, justify=justify, no_wrap=not is_folded, overflow="fold"
        )
    for number, row in enumerate(rows):
        cells: list[RenderableType] = []
        for index in kept:
            column = columns[index]
            if column.bar is not None:
                cells.append(
                    ProgressBar(
                        total=1.0, completed=min(1.0, column.bar(row)), width=column.bar_width
                    )
                )
            else:
                cells.append(
                    Text(texts[index][number], style=column.style(row) if column.style else "")
                )
        result.add_row(*cells)
    return result


def with_values(columns: Sequence[Column[Row]], rows: Sequence[Row]) -> list[Column[Row]]:
    """Return the columns without those of a rank that have no value in any row."""
    return [
        column
        for column in columns
        if column.rank == 0
        or column.bar is not None
        or any(column.text(row).strip() not in ("", NONE) for row in rows)
    ]


def _width(column: Column[Row], texts: Sequence[str]) -> int:
    """What it needs, in cells. :param texts: of its rows."""
    from rich.cells import cell_len

    width = max(cell_len(column.name), column.bar_width, *map(cell_len, texts), 1)
    return min(width, LEAST_FOLDED) if column.is_folded else width


def _shorten_middle(text: str, width: int) -> str:
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{set_cell_size(text, width - 1 - end)}…{set_cell_size(text[::-1], end)[::-1]}"


def _distinct_width(texts: Sequence[str]) -> int:
    """The least width at which texts that differ are shortened to different ones."""
    from rich.cells import cell_len

    different = set(texts)
    longest = max(map(cell_len, texts), default=0)

    def is_distinct(width: int) -> bool:
        return len({_shorten_middle(text, width) for text in different}) == len(different)

    return bisect.bisect_left(range(longest), True, 1, key=is_distinct)


def _fit_columns(
    ranks: Sequence[int], widths: Sequence[int], width: int, least: int
) -> tuple[list[int], int]:
    """The indices of the columns that there is room for, and the width of the first.

    :param least: width that the first column keeps before others are dropped.
    """
    kept = list(range(len(ranks)))
    while True:
        others = sum(widths[index] + GAP for index in kept[1:])
        highest_rank = max(ranks[index] for index in kept)
        if widths[kept[0]] + others <= width or highest_rank == 0:
            return kept, max(4, min(widths[kept[0]], width - others))
        if least + others <= width and highest_rank < EXPENDABLE:
            return kept, width - others
        kept.remove(max(index for index in kept if ranks[index] == highest_rank))
