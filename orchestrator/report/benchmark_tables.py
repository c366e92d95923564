"""The tables of a benchmark: throughput of every arm and level, and what tells where it went."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.core.text import count
from orchestrator.report.document import Cell, Column, Table
from orchestrator.report.number_format import interval, number, percent, plain

Arms = Mapping[str, Mapping[int, Any]]
"""Arm → processes → its entry in ``arms.<arm>.levels``."""

WITNESSES: dict[str, tuple[str, str, float]] = {
    "update (ms)": ("", "update_s", 1e3),
    "all (ms)": ("", "wall_s", 1e3),
    "computing (ms)": ("witnesses", "cpu_s", 1e3),
    "waiting for a CPU (ms)": ("witnesses", "run_delay_s", 1e3),
    "throttled (ms)": ("witnesses", "throttled_s", 1e3),
    "involuntary switches": ("witnesses", "involuntary_switches", 1.0),
    "threads": ("witnesses", "n_threads", 1.0),
    "MiB": ("witnesses", "rss_mib", 1.0),
    "imports (s)": ("startup", "import_s", 1.0),
    "first env_step (s)": ("startup", "first_step_s", 1.0),
}
"""Column → where its estimate is in a level's entry, and the factor to the column's unit."""

READING = (
    "How to read the witnesses: “computing” grows without “waiting” where cores become slower (frequency, a shared "
    "core, memory bandwidth); waiting and involuntary switches grow where too many threads want the cores; “throttled” "
    "is a cgroup's limit. From “all” to “involuntary switches” figures are per 1,000 env_steps, summed over threads. "
    "Update: of the network, by one minibatch. Imports and first env_step: since the process began."
)


def throughput(arms: Arms) -> Table:
    """env_steps/s, speed-up and efficiency."""
    names = ("arm × processes", "env_steps/s", "speed-up", "efficiency", "cells", "remarks")
    rows = [
        [
            Cell(text=f"{plain(arm)} × {level}"),
            Cell(text=_bounded(one, "throughput", number)),
            Cell(text=_against_base(one, level, "speedup", number)),
            Cell(text=_against_base(one, level, "efficiency", percent)),
            Cell(text=str(one["throughput"]["n"])),
            Cell(text=plain("; ".join(remarks(one)), 200)),
        ]
        for arm, levels in arms.items()
        for level, one in levels.items()
    ]
    return Table(
        columns=[Column(name=name, numeric=name not in ("arm × processes", "remarks")) for name in names],
        rows=rows,
        caption=(
            "Medians over cells (one cell is one measurement), with their 95 % intervals; of a single cell there is "
            "none. “≤”: cut off, a bound. Speed-up and efficiency are against the arm's own first row."
        ),
    )


def _against_base(one: Mapping[str, Any], level: int, name: str, form: Callable[[float | None], str]) -> str:
    """Without an interval where it is itself: that is no measurement."""
    if level == one["base"] and one[name]:
        return form(one[name]["median"])
    return _bounded(one, name, form)


def _bounded(one: Mapping[str, Any], name: str, form: Callable[[float | None], str]) -> str:
    return ("≤ " if one["at_most"] and one[name] else "") + interval(one[name], form)


def remarks(one: Mapping[str, Any]) -> list[str]:
    """What became of cells that are not simply counted, and why."""
    cells = one["cells"]
    said = []
    if one["disturbed"]:
        said.append("only disturbed cells: not to be trusted")
    elif cells.get("disturbed"):
        said.append(f"{count(cells['disturbed'], 'disturbed cell')} left out")
    if cells.get("failed"):
        said.append(f"{count(cells['failed'], 'failed cell')} left out")
    if cells.get("cut"):
        said.append(f"{count(cells['cut'], 'cell')} cut off")
    return [*said, *map(str, one["messages"])]


def witnesses(arms: Arms) -> Table | None:
    """None where no level has any."""
    known = [(arm, level, one) for arm, levels in arms.items() for level, one in levels.items() if one["wall_s"]]
    if not known:
        return None
    rows = [
        [
            Cell(text=f"{plain(arm)} × {level}{' (≥)' if one['at_most'] else ''}"),
            *(Cell(text=_witness(one, *place)) for place in WITNESSES.values()),
        ]
        for arm, level, one in known
    ]
    return Table(
        columns=[Column(name="arm × processes"), *(Column(name=name, numeric=True) for name in WITNESSES)],
        rows=rows,
        caption="Witnesses of one process: medians.",
        shown=0,
    )


def _witness(one: Mapping[str, Any], part: str, name: str, scale: float) -> str:
    estimate = (one[part] if part else one).get(name)
    return number(None if not estimate or estimate["median"] is None else estimate["median"] * scale)
