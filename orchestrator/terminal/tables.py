"""Tables with as many columns as the terminal has room for; the most important columns are dropped last."""

from __future__ import annotations

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
"""Width that the first column keeps before other columns are dropped."""
EXPENDABLE = 5
"""Columns of this rank and above are dropped before the first column is shortened."""
EMPTY = 1000
"""Rank of a column that has no value in any row."""

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column: how it shows a row.

    :param rank: where there is no room, columns without any value are dropped first, then those of the highest rank;
        those of rank 0 stay. See also :data:`EXPENDABLE`.
    :param is_number: aligned right.
    :param bar: fraction to be drawn as a bar ``bar_width`` wide, in place of text.
    """

    name: str
    text: Callable[[Row], str]
    rank: int = 0
    is_number: bool = False
    style: Callable[[Row], str] | None = None
    bar: Callable[[Row], float] | None = None
    bar_width: int = 0


def number_column(
    name: str, text: Callable[[Row], str], rank: int = 0, style: Callable[[Row], str] | None = None
) -> Column[Row]:
    return Column(name, text, rank, is_number=True, style=style)


def table(columns: Sequence[Column[Row]], rows: Sequence[Row], width: int) -> Table:
    """A table of at most ``width`` cells. The first column is shortened last of all, in the middle: names often differ
    at their ends.
    """
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    texts = [[plain(column.text(row)) for row in rows] for column in columns]
    ranks = [_rank(column, shown) for column, shown in zip(columns, texts, strict=True)]
    kept, first_width = _fitted(ranks, list(map(_width, columns, texts)), width)
    texts[kept[0]] = [_shortened(text, first_width) for text in texts[kept[0]]]
    result = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for index in kept:
        justify: Literal["left", "right"] = "right" if columns[index].is_number else "left"
        result.add_column(columns[index].name, justify=justify, no_wrap=True)
    for number, row in enumerate(rows):
        cells: list[RenderableType] = []
        for index in kept:
            column = columns[index]
            if column.bar is not None:
                cells.append(ProgressBar(total=1.0, completed=min(1.0, column.bar(row)), width=column.bar_width))
            else:
                cells.append(Text(texts[index][number], style=column.style(row) if column.style else ""))
        result.add_row(*cells)
    return result


def _width(column: Column[Row], texts: Sequence[str]) -> int:
    from rich.cells import cell_len

    return max(cell_len(column.name), column.bar_width, *map(cell_len, texts), 1)


def _shortened(text: str, width: int) -> str:
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{set_cell_size(text, width - 1 - end)}…{set_cell_size(text[::-1], end)[::-1]}"


def _rank(column: Column[Row], texts: Sequence[str]) -> int:
    is_empty = column.bar is None and all(text.strip() in ("", NONE) for text in texts)
    return EMPTY if column.rank and is_empty else column.rank


def _fitted(ranks: Sequence[int], widths: Sequence[int], width: int) -> tuple[list[int], int]:
    """The indices of the columns that there is room for, and the width of the first."""
    kept = list(range(len(ranks)))
    while True:
        others = sum(widths[index] + GAP for index in kept[1:])
        if widths[kept[0]] + others <= width or all(ranks[index] == 0 for index in kept):
            return kept, max(4, min(widths[kept[0]], width - others))
        if LEAST_NAME + others <= width and all(ranks[index] < EXPENDABLE for index in kept):
            return kept, width - others
        kept.remove(max(reversed(kept), key=lambda index: ranks[index]))
