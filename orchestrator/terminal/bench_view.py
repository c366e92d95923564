"""What ``bench`` shows when it ends: a line for each arm and level."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def show(run_dir: Path) -> None:
    """Print the table, and where the rest is to be found."""
    from rich.console import Console
    from rich.table import Table

    from orchestrator.bench.scaling_analysis import analyse

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("arm")
    for name in ("processes", "env_steps/s", "95 % interval", "efficiency"):
        table.add_column(name, justify="right")
    for arm, figures in analyse(run_dir)["arms"].items():
        for level, one in sorted(figures["levels"].items(), key=lambda item: int(item[0])):
            throughput, interval = _estimate(one["throughput"], ",.0f", one["at_most"])
            table.add_row(
                arm, level, throughput, interval, _estimate(one["efficiency_absolute"], ".2f", one["at_most"])[0]
            )
    console = Console()
    console.print(table)
    console.print(
        "Efficiency: against one pinned process alone, times the processes, but at most the cores."
        f"\npython -m orchestrator report {run_dir} makes the page.",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )


def show_ranks(run_dir: Path) -> None:
    """Print the table of ``bench --ranks``, and what follows from it."""
    from rich.console import Console
    from rich.table import Table

    from orchestrator.bench.wide_or_many import facts

    found = facts(run_dir)
    assert found is not None, "it has just been measured"
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("way")
    for name in ("ranks", "env_steps/s", "95 % interval", "speed-up", "in all-reduce"):
        table.add_column(name, justify="right")
    rows = [] if found["one"] is None else [("one rank", "1", found["one"])]
    rows += [(way, number, one) for way, numbers in found["ways"].items() for number, one in numbers.items()]
    for way, number, one in rows:
        throughput, interval = _estimate(one["throughput"], ",.0f", one["at_most"])
        speedup, share = (
            _estimate(one[name], form, False)[0] for name, form in (("speedup", ".2f"), ("allreduce", ".0%"))
        )
        table.add_row(way, number, throughput, interval, speedup, share)
    console = Console()
    console.print(table)
    told = [*found["sentences"], f"python -m orchestrator report {run_dir} makes the page."]
    console.print("\n".join(told), soft_wrap=True, highlight=False, markup=False)


def _estimate(estimate: Mapping[str, Any] | None, form: str, at_most: bool) -> tuple[str, str]:
    """Median and interval in words; a bound where cells were cut off, and no interval where there is none."""
    if estimate is None or estimate["median"] is None:
        return "–", ""
    median = f"{'≤ ' if at_most else ''}{estimate['median']:{form}}"
    low, high = estimate["low"], estimate["high"]
    return median, "" if low is None or high is None else f"{low:{form}} – {high:{form}}"
