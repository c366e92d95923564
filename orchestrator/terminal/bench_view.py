"""What ``bench`` shows when it ends: one line per way of starting processes and number of processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.terminal.output import console
from orchestrator.terminal.output import show as put
from orchestrator.terminal.tables import NONE, Column, number_column, table


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One measurement."""

    way: str
    number: str
    """Of processes, or of ranks."""
    estimates: Mapping[str, Any]

    def median(self, name: str, form: str, *, bounded: bool = False) -> str:
        """The median of an estimate; with ``bounded`` marked as an upper bound where processes were cut off."""
        estimate = self.estimates[name]
        if estimate is None or estimate["median"] is None:
            return NONE
        return f"{'≤ ' if bounded and self.estimates['at_most'] else ''}{estimate['median']:{form}}"

    @property
    def throughput(self) -> str:
        return self.median("throughput", ",.0f", bounded=True)

    @property
    def interval(self) -> str:
        throughput = self.estimates["throughput"] or {}
        low, high = throughput.get("low"), throughput.get("high")
        return "" if low is None or high is None else f"{low:,.0f} – {high:,.0f}"


THROUGHPUT: Sequence[Column[_Line]] = (
    number_column("env_steps/s", lambda line: line.throughput),
    number_column("95 % interval", lambda line: line.interval),
)
BASELINE_COLUMNS: Sequence[Column[_Line]] = (
    Column("baseline", lambda line: line.way),
    number_column("processes", lambda line: line.number),
    *THROUGHPUT,
    number_column("efficiency", lambda line: line.median("efficiency_absolute", ".2f", bounded=True)),
)
RANK_COLUMNS: Sequence[Column[_Line]] = (
    Column("way", lambda line: line.way),
    number_column("ranks", lambda line: line.number),
    *THROUGHPUT,
    number_column("speed-up", lambda line: line.median("speedup", ".2f")),
    number_column("in all-reduce", lambda line: line.median("allreduce", ".0%")),
)


def show(analysis: Mapping[str, Any], run_dir: Path) -> None:
    """Print the table of ``bench``, and where its page comes from.

    :param analysis: as of :func:`orchestrator.bench.scaling_analysis.analyse`.
    """
    lines = [
        _Line(way=name, number=level, estimates=estimates)
        for name, figures in analysis["arms"].items()
        for level, estimates in sorted(figures["levels"].items(), key=lambda item: int(item[0]))
    ]
    note = "Efficiency: throughput divided by that of one pinned process alone and by the processes or cores, if fewer."
    _show(BASELINE_COLUMNS, lines, [note], run_dir)


def show_ranks(facts: Mapping[str, Any], run_dir: Path) -> None:
    """Print the table of ``bench --ranks``, and what follows from it.

    :param facts: as of :func:`orchestrator.bench.rank_analysis.facts`.
    """
    lines = [] if facts["one"] is None else [_Line(way="one rank", number="1", estimates=facts["one"])]
    lines += [
        _Line(way=way, number=number, estimates=estimates)
        for way, numbers in facts["ways"].items()
        for number, estimates in numbers.items()
    ]
    _show(RANK_COLUMNS, lines, facts["sentences"], run_dir)


def _show(columns: Sequence[Column[_Line]], lines: Sequence[_Line], notes: Sequence[str], run_dir: Path) -> None:
    on = console()
    put(on, table(columns, lines, on.width), *notes, f"python -m orchestrator report {run_dir} writes the page.")
