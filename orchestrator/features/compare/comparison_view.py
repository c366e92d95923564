"""What ``compare`` shows: experiments, or benchmarks, beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from orchestrator.analysis.statistics import INTERVALS
from orchestrator.analysis.statistics_text import with_interval
from orchestrator.core.columns import NONE, Column, number_column
from orchestrator.features.compare.comparison import (
    LETTERS,
    Comparison,
    Line,
    Pair,
    all_remarks,
    any_pair,
    lines,
    names_of,
)
from orchestrator.features.compare.declared_settings import merged_differences
from orchestrator.terminal.output import show_table


def show(comparisons: Sequence[Comparison], page: Path | None) -> None:
    """Print the table, what else differs, and what only some have.

    :param comparisons: each of another run directory with the same first one.
    :param page: the web page that was written.
    """
    below: list[str | Text] = []
    if any(_has_interval(pair) for one in comparisons for pair in one.pairs):
        below.append(Text(f"Intervals of 95 %: {INTERVALS}", style="dim"))
    for title, rows in (
        ("Settings", [one.settings for one in comparisons]),
        ("Other differences", [one.differences for one in comparisons]),
    ):
        if any(rows):
            below += ["", Text(title, style="bold")]
            below += [f"{what}: {' → '.join(values)}" for what, values in merged_differences(rows)]
    finished = " (or finished only there)" if comparisons[0].kind == "experiment" else ""
    for letter, one in zip(LETTERS[1:], comparisons, strict=False):
        than = f", not in {letter}" if len(comparisons) > 1 else ""
        if one.only_a:
            below += ["", f"Only in A{than}{finished}: {names_of(one.only_a)}"]
        if one.only_b:
            below += [
                "",
                f"Only in {letter}{', not in A' if than else ''}{finished}: {names_of(one.only_b)}",
            ]
    if remarks := all_remarks(comparisons):
        below += ["", *remarks]
    runs = [comparisons[0].a, *(one.b for one in comparisons)]
    above = [*(f"{letter}: {run}" for letter, run in zip(LETTERS, runs, strict=False)), ""]
    below += ["", f"Learning curves and tables: {page}"] if page is not None else []
    show_table(_columns(len(comparisons)), lines(comparisons), above=above, below=below)


def _has_interval(pair: Pair) -> bool:
    return any(one is not None and one.low is not None for one in (pair.a, pair.b, pair.ratio))


def _side(pair: Pair | None, letter: str) -> str:
    """The value of the side ``a`` or ``b``."""
    if pair is None:
        return NONE
    estimate = pair.a if letter == "a" else pair.b
    sign = "≤ " if letter in pair.bound else ""
    return f"{sign}{with_interval(estimate)}"


def _ratio(pair: Pair | None) -> str:
    """B divided by A, with its interval."""
    if pair is None or pair.ratio is None:
        return NONE
    sign = {"a": "≥ ", "b": "≤ "}.get(pair.bound, "")
    return f"{sign}{with_interval(pair.ratio, '{:.2f}'.format)}"


def _style(pair: Pair | None) -> str:
    """Green where the interval lies above 1, red where it lies below; the other way round where
    less is better, and neither where that is not known.
    """
    if pair is None or pair.ratio is None:
        return "dim"
    if pair.less_is_better is None:
        return ""
    above, below = ("red", "green") if pair.less_is_better else ("green", "red")
    if pair.ratio.low is not None and pair.ratio.low > 1:
        return above
    return below if pair.ratio.high is not None and pair.ratio.high < 1 else ""


def _columns(others: int) -> list[Column[Line]]:
    """:param others: number of run directories that are compared with the first."""
    columns: list[Column[Line]] = [
        Column("", lambda line: any_pair(line).what),
        Column("figure", lambda line: any_pair(line).figure),
        number_column("A", lambda line: _side(any_pair(line), "a")),
    ]
    for place in range(others):
        columns += _columns_of(place)
    return [*columns, number_column("values", _numbers_of_values, rank=1)]


def _columns_of(place: int) -> list[Column[Line]]:
    """Of the run directory at ``place`` behind the first one: its value, and its ratio to A."""
    letter = LETTERS[place + 1]
    return [
        number_column(letter, lambda line: _side(line[place], "b")),
        number_column(
            f"{letter} / A",
            lambda line: _ratio(line[place]),
            style=lambda line: _style(line[place]),
        ),
    ]


def _numbers_of_values(line: Line) -> str:
    """Of how many repeats or seeds each side is the mean."""
    others = [NONE if pair is None else str(pair.b.n) for pair in line]
    return ", ".join([str(any_pair(line).a.n), *others])
