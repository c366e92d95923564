"""What ``compare`` shows: two experiments or two benchmarks beside each other."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from orchestrator.analysis.compare import Comparison, Pair, names_of
from orchestrator.analysis.statistics import Estimate
from orchestrator.terminal.output import console
from orchestrator.terminal.output import show as put
from orchestrator.terminal.tables import NONE, Column, number_column, table


def show(comparison: Comparison) -> None:
    """Print the table, what else differs, and what only one of the two has."""
    on = console()
    pairs = comparison.pairs
    put(on, f"A: {comparison.a}", f"B: {comparison.b}", "", table(COLUMNS, pairs, on.width))
    if comparison.differences:
        put(on, "", Text("Other differences", style="bold"))
        put(on, *(f"{what}: {a} → {b}" for what, a, b in comparison.differences))
    finished = " (or finished only there)" if comparison.kind == "experiment" else ""
    for name, only in (("A", comparison.only_a), ("B", comparison.only_b)):
        if only:
            put(on, "", f"Only in {name}{finished}: {names_of(only)}")


def _side(pair: Pair, letter: str) -> str:
    estimate = pair.a if letter == "a" else pair.b
    return f"{'≤ ' if letter in pair.bound else ''}{_figure(estimate)}"


def _figure(estimate: Estimate) -> str:
    form = ",.0f" if abs(estimate.median) >= 100 else ".2f"
    return f"{estimate.median:{form}}{_interval(estimate, form)}"


def _interval(estimate: Estimate, form: str) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    return f" [{estimate.low:{form}}, {estimate.high:{form}}]"


def _ratio(pair: Pair) -> str:
    if pair.ratio is None:
        return NONE
    sign = {"a": "≥ ", "b": "≤ "}.get(pair.bound, "")
    return f"{sign}{pair.ratio.median:.2f}{_interval(pair.ratio, '.2f')}"


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
