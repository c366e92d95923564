"""Tables for people: as many columns as the terminal has room for, the most important ones last to go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from orchestrator.core.text import duration, number

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

GAP = 2
LEAST_NAME = 16
"""Cells that a long job name keeps before columns are given up for it."""
STATE_STYLE = {
    "PENDING": "dim",
    "RUNNING": "cyan",
    "SUCCEEDED": "green",
    "FAILED": "bold red",
    "CANCELLED": "yellow",
    "INTERRUPTED": "yellow",
}
TRACEBACK_LINES = 4
REASONS_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column, with the text of every row.

    :param rank: columns of the highest rank go first where there is no room; those of rank 0 stay.
    :param bars: fractions to be drawn as bars ``bar_width`` wide, in the place of text.
    """

    name: str
    cells: Sequence[str]
    justify: Literal["left", "right"] = "left"
    rank: int = 0
    styles: Sequence[str] | None = None
    bars: Sequence[float] | None = None
    bar_width: int = 0

    def width(self) -> int:
        from rich.cells import cell_len

        return max(cell_len(self.name), self.bar_width, *map(cell_len, self.cells), 1)


def table(columns: Sequence[Column], width: int) -> Table:
    """A table of at most ``width`` cells; the first column is shortened last of all, with an ellipsis."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    kept, first = _fitted(columns, width)
    made = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for index, column in enumerate(kept):
        made.add_column(column.name, justify=column.justify, no_wrap=True, max_width=first if index == 0 else None)
    for row in range(len(columns[0].cells)):
        cells: list[RenderableType] = []
        for column in kept:
            if column.bars is not None and column.bar_width:
                cells.append(ProgressBar(total=1.0, completed=min(1.0, column.bars[row]), width=column.bar_width))
            else:
                cells.append(Text(column.cells[row], style=column.styles[row] if column.styles else ""))
        made.add_row(*cells)
    return made


def _fitted(columns: Sequence[Column], width: int) -> tuple[list[Column], int]:
    """The columns there is room for, and the width of the first."""
    kept = list(columns)
    while True:
        others = sum(column.width() + GAP for column in kept[1:])
        natural = kept[0].width()
        if natural + others <= width or all(column.rank == 0 for column in kept):
            return kept, max(4, min(natural, width - others))
        if LEAST_NAME + others <= width:
            return kept, width - others
        kept.remove(max(reversed(kept), key=lambda column: column.rank))


def summary(rows: Sequence[Mapping[str, Any]], width: int, *, alive: bool) -> Table:
    """One line a job, from the rows of ``summary.json``.

    :param alive: whether a supervisor is at work; RUNNING means something only then.
    """
    states = [_state(row, alive) for row in rows]
    starts = [number(row["ep_rew_mean_first"], ",.1f") for row in rows]
    ends = [number(row["ep_rew_mean"], ",.1f") for row in rows]
    widest = max(map(len, starts), default=0), max(map(len, ends), default=0)
    returns = [
        "–" if start == end == "–" else f"{start:>{widest[0]}} → {end:>{widest[1]}}"
        for start, end in zip(starts, ends, strict=True)
    ]
    evaluated = [number(row["eval_mean"], ",.1f") for row in rows]
    columns = [
        Column(name="job", cells=[row["job_id"] for row in rows]),
        Column(name="state", cells=states, styles=[STATE_STYLE[state] for state in states]),
        Column(
            name="return: first → last", cells=returns, justify="right", styles=[_return_style(row) for row in rows]
        ),
        Column(name="evaluated", cells=evaluated, justify="right", rank=1),
        Column(name="env_steps", cells=[f"{row['env_steps']:,}" for row in rows], justify="right", rank=2),
        Column(name="done", cells=[_done(row) for row in rows], justify="right", rank=5),
        Column(name="time", cells=[duration(row["wall_s"]) for row in rows], justify="right", rank=1),
        Column(
            name="env_steps/s",
            cells=[number(row["env_steps_per_s"], ",.0f") for row in rows],
            justify="right",
            rank=3,
        ),
        *ranks([row["ranks"] for row in rows], rank=4),
        *_nodes(rows),
        Column(name="attempts", cells=[str(row["attempts"]) for row in rows], justify="right", rank=4),
    ]
    return table(columns, width)


def _nodes(rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    """A column with the machine of every job, where there are several; else nothing."""
    names = [row["node"] for row in rows]
    if not any(names):
        return []
    return [Column(name="node", cells=[name or "–" for name in names], rank=3)]


def ranks(numbers: Sequence[int], *, rank: int = 0) -> list[Column]:
    """A column with the number of ranks of every job, where any job has several; else nothing.

    :param rank: as of :class:`Column`.
    """
    if max(numbers, default=1) == 1:
        return []
    return [Column(name="ranks", cells=[str(number) for number in numbers], justify="right", rank=rank)]


def reasons(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """``(job_id, why)`` of the jobs that failed, the first few of them, with the last lines of a traceback."""
    failed = [row for row in rows if row["state"] == "FAILED"]
    told = [(row["job_id"], "\n".join([_why(row), *_last_lines(row)])) for row in failed[:REASONS_SHOWN]]
    return told + ([("…", f"and {len(failed) - REASONS_SHOWN} more")] if len(failed) > REASONS_SHOWN else [])


def _why(row: Mapping[str, Any]) -> str:
    cause = "" if row["cause"] in (None, "error", "invalid") else f"{row['cause']}: "
    return f"{cause}{row['message'] or 'no reason was given; see its log'}"


def _last_lines(row: Mapping[str, Any]) -> list[str]:
    """Where it was raised; what was raised is in the message."""
    *places, _ = (row.get("traceback") or "").splitlines() or [""]
    return [f"    {line}" for line in places[-TRACEBACK_LINES:] if not line.startswith("Traceback")]


def _state(row: Mapping[str, Any], alive: bool) -> str:
    if alive or row["state"] not in ("RUNNING", "PENDING"):
        return str(row["state"])
    return "INTERRUPTED" if row["attempts"] else "PENDING"


def _done(row: Mapping[str, Any]) -> str:
    return f"{min(1.0, row['env_steps'] / row['total_timesteps']):.0%}"


def _return_style(row: Mapping[str, Any]) -> str:
    first, last = row["ep_rew_mean_first"], row["ep_rew_mean"]
    if first is None or last is None:
        return "dim"
    return "green" if last > first else "red" if last < first else ""
