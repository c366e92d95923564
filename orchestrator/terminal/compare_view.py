"""What ``compare`` prints: two benchmarks or two experiments side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import RenderableType
from rich.text import Text

from orchestrator.analysis.compare import Comparison, Pair, names_of
from orchestrator.analysis.statistics import Estimate
from orchestrator.terminal.tables import Column, table
from orchestrator.terminal.views import console
from orchestrator.terminal.views import show as put


def show(found: Comparison) -> None:
    """Print the comparison: a table, what else differs, what only one of them has."""
    on = console()
    put(on, f"A: {found.a}", f"B: {found.b}", "", _table(found.pairs, on.width))
    if found.differences:
        put(on, "", Text("What else differs", style="bold"))
        put(on, *(f"{what}: {a} → {b}" for what, a, b in found.differences))
    experiments = found.kind == "experiment"
    for name, only in (("A", found.only_a), ("B", found.only_b)):
        if only:
            put(on, "", f"Only in {name}{' (or finished only there)' if experiments else ''}: {names_of(only)}")


def _table(pairs: Sequence[Pair], width: int) -> RenderableType:
    repeats = [f"{pair.a.n}, {pair.b.n}" for pair in pairs]
    columns = [
        Column(name="", cells=[pair.what for pair in pairs]),
        Column(name="figure", cells=[pair.figure for pair in pairs]),
        Column(name="A", cells=_cells(pairs, lambda pair: pair.a, "a"), justify="right"),
        Column(name="B", cells=_cells(pairs, lambda pair: pair.b, "b"), justify="right"),
        Column(name="B / A", cells=[_ratio(pair) for pair in pairs], justify="right", styles=list(map(_style, pairs))),
        Column(name="values", cells=repeats, justify="right", rank=1),
    ]
    return table(columns, width)


def _cells(pairs: Sequence[Pair], side: Callable[[Pair], Estimate], letter: str) -> list[str]:
    return [f"{'≤ ' if letter in pair.bound else ''}{_figure(side(pair))}" for pair in pairs]


def _figure(one: Estimate) -> str:
    form = ",.0f" if abs(one.median) >= 100 else ".2f"
    if one.low is None or one.high is None:
        return format(one.median, form)
    return f"{one.median:{form}} [{one.low:{form}}, {one.high:{form}}]"


def _ratio(pair: Pair) -> str:
    one = pair.ratio
    if one is None:
        return "–"
    sign = {"a": "≥ ", "b": "≤ "}.get(pair.bound, "")
    bounds = "" if one.low is None or one.high is None else f" [{one.low:.2f}, {one.high:.2f}]"
    return f"{sign}{one.median:.2f}{bounds}"


def _style(pair: Pair) -> str:
    """Green for what has surely grown, red for what has surely shrunk: more is better of every figure."""
    one = pair.ratio
    if one is None:
        return "dim"
    if one.low is not None and one.low > 1:
        return "green"
    return "red" if one.high is not None and one.high < 1 else ""
