"""Tables with as many columns as the terminal has room for; the most important columns are dropped
last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from orchestrator.core.columns import Column, Row, with_values
from orchestrator.core.text import plain

if TYPE_CHECKING:
    from rich.table import Table

GAP = 2
LEAST_NAME = 16
"""Width that the first column keeps before other columns are dropped."""
LEAST_FOLDED = 30
"""Width that a column which is folded keeps before other columns are dropped."""
EXPENDABLE = 5
"""Columns of this rank and above are dropped before the first column is shortened."""


def table(columns: Sequence[Column[Row]], rows: Sequence[Row], width: int) -> Table:
    """A table of at most ``width`` cells. The first column is shortened in the middle, where names
    differ least.
    """
    from rich.table import Table
    from rich.text import Text

    columns = with_values(columns, rows)
    texts = [[plain(column.text(row)) for row in rows] for column in columns]
    ranks = [column.rank for column in columns]
    kept, first_width = _fit_columns(ranks, list(map(_width, columns, texts)), width)
    texts[0] = [_shorten_middle(text, first_width) for text in texts[0]]
    result = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for index in kept:
        justify: Literal["left", "right"] = "right" if columns[index].is_number else "left"
        is_folded = columns[index].is_folded
        result.add_column(
            columns[index].name, justify=justify, no_wrap=not is_folded, overflow="fold"
        )
    for number, row in enumerate(rows):
        cells = []
        for index in kept:
            style = columns[index].style
            cells.append(Text(texts[index][number], style=style(row) if style else ""))
        result.add_row(*cells)
    return result


def _width(column: Column[Row], texts: Sequence[str]) -> int:
    """What it needs, in cells. :param texts: of its rows."""
    from rich.cells import cell_len

    width = max(cell_len(column.name), *map(cell_len, texts), 1)
    return min(width, LEAST_FOLDED) if column.is_folded else width


def _shorten_middle(text: str, width: int) -> str:
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{set_cell_size(text, width - 1 - end)}…{set_cell_size(text[::-1], end)[::-1]}"


def _fit_columns(ranks: Sequence[int], widths: Sequence[int], width: int) -> tuple[list[int], int]:
    """The indices of the columns that there is room for, and the width of the first."""
    kept = list(range(len(ranks)))
    while True:
        others = sum(widths[index] + GAP for index in kept[1:])
        highest_rank = max(ranks[index] for index in kept)
        if widths[kept[0]] + others <= width or highest_rank == 0:
            return kept, max(4, min(widths[kept[0]], width - others))
        if LEAST_NAME + others <= width and highest_rank < EXPENDABLE:
            return kept, width - others
        kept.remove(max(index for index in kept if ranks[index] == highest_rank))
