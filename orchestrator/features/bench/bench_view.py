"""What ``bench`` shows when it ends: one line per way of starting processes and number of
processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.analysis import statistics
from orchestrator.core.columns import NONE, Column, number_column
from orchestrator.terminal.output import show_table

INTERVALS = f"Intervals of 95 %: {statistics.INTERVALS}."
PAGE = "python -m orchestrator report {} writes the page."


class _Line(NamedTuple):
    way: str
    number: str
    """Number of processes, or of ranks."""
    estimates: Mapping[str, Any]

    def value(self, name: str, form: str, *, bounded: bool = False) -> str:
        """The value of an estimate; with ``bounded`` marked as an upper bound where processes were
        cut off.
        """
        estimate = self.estimates[name]
        if estimate is None or estimate["value"] is None:
            return NONE
        return f"{'≤ ' if bounded and self.estimates['at_most'] else ''}{estimate['value']:{form}}"

    def interval(self) -> str:
        throughput = self.estimates["throughput"] or {}
        low = throughput.get("low")
        high = throughput.get("high")
        return "" if low is None or high is None else f"{low:,.0f} – {high:,.0f}"


THROUGHPUT: Sequence[Column[_Line]] = (
    number_column("env_steps/s", lambda line: line.value("throughput", ",.0f", bounded=True)),
    number_column("95 % interval", _Line.interval),
)
BASELINE_COLUMNS: Sequence[Column[_Line]] = (
    Column("baseline", lambda line: line.way),
    number_column("processes", lambda line: line.number),
    *THROUGHPUT,
    number_column(
        "efficiency", lambda line: line.value("efficiency_absolute", ".2f", bounded=True)
    ),
)
RANK_COLUMNS: Sequence[Column[_Line]] = (
    Column("way", lambda line: line.way),
    number_column("ranks", lambda line: line.number),
    *THROUGHPUT,
    number_column("speed-up", lambda line: line.value("speedup", ".2f")),
    number_column("in all-reduce", lambda line: line.value("allreduce", ".0%")),
)


def show(analysis: Mapping[str, Any], run_dir: Path) -> None:
    """Print the table of ``bench``, and where its page comes from.

    :param analysis: as of :func:`orchestrator.features.bench.scaling_analysis.analyse`.
    """
    lines = [
        _Line(name, level, estimates)
        for name, figures in analysis["arms"].items()
        for level, estimates in sorted(figures["levels"].items(), key=lambda item: int(item[0]))
    ]
    note = "Efficiency: throughput divided by that of one pinned process alone and by the processes or cores, if fewer."
    show_table(BASELINE_COLUMNS, lines, below=[note, INTERVALS, PAGE.format(run_dir)])


def show_ranks(facts: Mapping[str, Any], run_dir: Path) -> None:
    """Print the table of ``bench --ranks``, and what follows from it.

    :param facts: as of :func:`orchestrator.features.bench.rank_analysis.facts`.
    """
    lines = [] if facts["one"] is None else [_Line("one rank", "1", facts["one"])]
    lines += [
        _Line(way, number, estimates)
        for way, numbers in facts["ways"].items()
        for number, estimates in numbers.items()
    ]
    show_table(RANK_COLUMNS, lines, below=[*facts["sentences"], INTERVALS, PAGE.format(run_dir)])
