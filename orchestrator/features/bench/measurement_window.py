"""From the rows of ``timings.csv`` of processes that ran side by side to the figures of a
measurement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.timing_columns import PHASES, SUMMABLE, Iteration
from orchestrator.features.bench.samples import Throughput

WARM_UP = 2
"""Iterations of each process that are not counted: caches, allocators and running statistics
settle."""
LEAST_ITERATIONS = 2
"""Fewest iterations of each process in a window."""
SUMMED = tuple(name for name in SUMMABLE if name not in ("rollout_s", "train_s"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSeries:
    """The iterations of one process over time."""

    job: str
    steps_an_iteration: int
    updates_an_iteration: int | None
    """Optimiser steps; None where an iteration may end early."""
    rows: Sequence[Iteration] = ()
    """The iterations that have a ``clock_s``."""
    begun_at: float = 0.0
    """``clock_s`` of its first environment step, or of its launch where that is unknown."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """``learner``, ``import_s``, ``first_step_s`` and ``cpus``, where they are known."""

    def clock(self, index: int) -> float:
        """The time at which an iteration ended."""
        return self.rows[index].clock_s or 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Seconds of the machine's monotonic clock in which all processes of a measurement were in
    steady training.
    """

    begin: float
    end: float

    @property
    def length_s(self) -> float:
        return self.end - self.begin


def window(all_series: Sequence[TimeSeries]) -> Window | None:
    """From the end of the last warm-up to the first process's last row; None while there is no such
    window.
    """
    begin = warm_up_end(all_series)
    if begin is None:
        return None
    end = min(series.clock(-1) for series in all_series)
    is_filled = all(sum(_shares(series, begin, end)) >= LEAST_ITERATIONS for series in all_series)
    return Window(begin=begin, end=end) if is_filled else None


def warm_up_end(all_series: Sequence[TimeSeries]) -> float | None:
    """The time at which the last process finished its warm-up; None while one has not."""
    if any(len(series.rows) < WARM_UP for series in all_series):
        return None
    return max(series.clock(WARM_UP - 1) for series in all_series)


def _shares(series: TimeSeries, begin: float, end: float) -> list[float]:
    """For each iteration, the share of it that lies between ``begin`` and ``end``."""
    shares = []
    for index, row in enumerate(series.rows):
        ended = series.clock(index)
        started = series.clock(index - 1) if index else ended - row.wall_s
        overlap = max(0.0, min(ended, end) - max(started, begin))
        shares.append(overlap / (ended - started) if ended > started else 0.0)
    return shares


def process(series: TimeSeries, begin: float, end: float) -> dict[str, Any]:
    """One entry of a record's ``processes``; unknown figures are None."""
    shares = _shares(series, begin, end)
    counted = [(row, share) for row, share in zip(series.rows, shares, strict=True) if share > 0]
    iterations = sum(share for _, share in counted)
    sums = {name: _sum(counted, name) for name in SUMMED}
    phases = [sums[name] for name in PHASES]
    wall = sums["wall_s"]
    updates = series.updates_an_iteration
    rest = None
    if wall is not None and None not in phases:
        rest = wall - math.fsum(phase or 0.0 for phase in phases)
    return {
        "job": series.job,
        "learner": series.facts.get("learner"),
        "env_steps": round(iterations * series.steps_an_iteration, 1),
        "updates": None if updates is None else round(iterations * updates, 1),
        "iterations": round(iterations, 3),
        **{name: None if value is None else round(value, 6) for name, value in sums.items()},
        "rest_s": None if rest is None else round(rest, 6),
        "rss_mib": max((row.rss_mib or 0.0 for row, _ in counted), default=0.0) or None,
        "n_threads": int(max((row.n_threads or 0.0 for row, _ in counted), default=0.0)) or None,
        **{name: series.facts.get(name) for name in ("import_s", "first_step_s", "cpus")},
    }


def _sum(counted: Sequence[tuple[Iteration, float]], name: str) -> float | None:
    values = [(getattr(row, name), share) for row, share in counted]
    if not values or any(value is None for value, _ in values):
        return None
    return math.fsum((value or 0.0) * share for value, share in values)


def throughput_in(all_series: Sequence[TimeSeries], span: Window) -> Throughput:
    """Of a completed measurement."""
    processes = [process(series, span.begin, span.end) for series in all_series]
    total = math.fsum(one["env_steps"] for one in processes)
    return {"throughput": total / span.length_s, "window_s": span.length_s, "processes": processes}


def throughput_bound(all_series: Sequence[TimeSeries], cut_at: float) -> Throughput:
    """Of a measurement that was cut off; ``throughput`` is an upper bound.

    An iteration that has begun takes at least as long as it has taken so far. So a process that has
    finished ``n`` iterations since ``t`` has done fewer than ``n + 1`` until now. Counting begins
    at the end of the warm-up, or, where the process has not come that far, at its first environment
    step or its launch.
    """
    processes = []
    bound = 0.0
    longest = 0.0
    for series in all_series:
        begin = _counted_from(series)
        entry = process(series, begin, cut_at)
        most_steps = (round(entry["iterations"]) + 1) * series.steps_an_iteration
        bound += most_steps / max(cut_at - begin, 1e-9)
        longest = max(longest, cut_at - begin)
        processes.append(entry)
    return {"throughput": bound, "window_s": longest, "processes": processes}


def _counted_from(series: TimeSeries) -> float:
    if len(series.rows) >= WARM_UP:
        return series.clock(WARM_UP - 1)
    if series.rows:
        return series.clock(0) - series.rows[0].wall_s
    return series.begun_at
