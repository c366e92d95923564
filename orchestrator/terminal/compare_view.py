"""What ``compare`` shows: two experiments or two benchmarks beside each other."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from orchestrator.analysis.compare import Comparison, Pair, names_of
from orchestrator.bench.throughput_ratios import with_interval
from orchestrator.terminal.output import show_table
from orchestrator.terminal.tables import NONE, Column, number_column


def show(comparison: Comparison) -> None:
    """Print the table, what else differs, and what only one of the two has."""
    below: list[str | Text] = []
    if comparison.differences:
        below += ["", Text("Other differences", style="bold")]
        below += [f"{what}: {a} → {b}" for what, a, b in comparison.differences]
    finished = " (or finished only there)" if comparison.kind == "experiment" else ""
    for name, only in (("A", comparison.only_a), ("B", comparison.only_b)):
        if only:
            below += ["", f"Only in {name}{finished}: {names_of(only)}"]
    above = [f"A: {comparison.a}", f"B: {comparison.b}", ""]
    show_table(COLUMNS, comparison.pairs, above=above, below=below)


def _side(pair: Pair, letter: str) -> str:
    estimate = pair.a if letter == "a" else pair.b
    form = ",.0f" if abs(estimate.median) >= 100 else ".2f"
    return f"{'≤ ' if letter in pair.bound else ''}{with_interval(estimate, f'{{:{form}}}'.format)}"


def _ratio(pair: Pair) -> str:
    if pair.ratio is None:
        return NONE
    sign = {"a": "≥ ", "b": "≤ "}.get(pair.bound, "")
    return f"{sign}{with_interval(pair.ratio, '{:.2f}'.format)}"


def _style(pair: Pair) -> str:
    """Green where the interval lies above 1, red where it lies below: of every figure, more is better."""
    ratio = pair.ratio
    if ratio is None:
        return "dim"
    if ratio.low is not None and ratio.low > 1:
        return "green"
    return "red" if ratio.high is not None and ratio.high < 1 else ""


COLUMNS: Sequence[Column[Pair]] = (
    Column("", lambda pair: pair.what),
    Column("figure", lambda pair: pair.figure),
    number_column("A", lambda pair: _side(pair, "a")),
    number_column("B", lambda pair: _side(pair, "b")),
    number_column("B / A", _ratio, style=_style),
    number_column("values", lambda pair: f"{pair.a.n}, {pair.b.n}", rank=1),
)
