"""From the rows of ``timings.csv`` of processes that ran side by side to the figures of a cell. Nothing is run here."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WARM_UP = 2
"""Iterations of each process that are not counted: caches, allocators and running statistics settle."""
LEAST = 2
"""Iterations of each process that a window must hold."""
SUMMED = (
    *("wall_s", "env_s", "policy_s", "gae_s", "backward_s", "optimizer_s", "cpu_s", "run_delay_s"),
    *("voluntary_switches", "involuntary_switches", "throttled_s", "allreduce_s"),
)
PHASES = ("env_s", "policy_s", "gae_s", "backward_s", "optimizer_s")

Row = Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How far a process came, and when."""

    job: str
    steps_an_iteration: int
    updates_an_iteration: int | None
    """Optimiser steps; None where an iteration may end early."""
    rows: Sequence[Row] = ()
    begun_at: float | None = None
    """``clock_s`` of its first environment step, or of its launch where that is not known."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """``learner``, ``import_s``, ``first_step_s`` and ``cpus``, as far as they are known."""

    def clock(self, place: int) -> float:
        """When an iteration ended."""
        return self.rows[place]["clock_s"] or 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Seconds of the machine's monotonic clock in which all processes of a cell were in steady training."""

    begin: float
    end: float

    @property
    def length_s(self) -> float:
        return self.end - self.begin


def read_rows(path: Path) -> list[Row]:
    """The whole rows of a ``timings.csv`` that is being written; none where there is none yet."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        return []
    header, *lines = list(csv.reader(text[: text.rfind("\n") + 1].splitlines())) or [[]]
    rows = []
    for line in lines:
        if len(line) == len(header):
            rows.append({name: float(cell) if cell else None for name, cell in zip(header, line, strict=True)})
    return [row for row in rows if row.get("clock_s") is not None]


def window(courses: Sequence[Course]) -> Window | None:
    """From when the last process is warm to where the first one's rows end; None while there is none."""
    if not courses or any(len(course.rows) < WARM_UP + LEAST for course in courses):
        return None
    begin = max(course.clock(WARM_UP - 1) for course in courses)
    end = min(course.clock(-1) for course in courses)
    if any(_iterations_within(course, begin, end) < LEAST for course in courses):
        return None
    return Window(begin=begin, end=end)


def warm_since(courses: Sequence[Course]) -> float | None:
    """When all of them were warm; None while one is not."""
    if any(len(course.rows) < WARM_UP for course in courses):
        return None
    return max(course.clock(WARM_UP - 1) for course in courses)


def _iterations_within(course: Course, begin: float, end: float) -> float:
    return sum(_shares(course, begin, end))


def _shares(course: Course, begin: float, end: float) -> list[float]:
    """Of each iteration, the part that lies between ``begin`` and ``end``; in a straight line within it."""
    shares = []
    for place, row in enumerate(course.rows):
        ended = course.clock(place)
        started = course.clock(place - 1) if place else ended - (row["wall_s"] or 0.0)
        overlap = max(0.0, min(ended, end) - max(started, begin))
        shares.append(overlap / (ended - started) if ended > started else 0.0)
    return shares


def process(course: Course, begin: float, end: float) -> dict[str, Any]:
    """One entry of a cell's ``processes``. What the system does not tell is None."""
    shares = _shares(course, begin, end)
    counted = [(row, share) for row, share in zip(course.rows, shares, strict=True) if share > 0]
    iterations = sum(share for _, share in counted)
    sums = {name: _sum(counted, name) for name in SUMMED}
    phases = [sums[name] for name in PHASES]
    wall = sums["wall_s"]
    rest = None if wall is None or None in phases else wall - math.fsum(phase or 0.0 for phase in phases)
    updates = course.updates_an_iteration
    return {
        "job": course.job,
        "learner": course.facts.get("learner"),
        "env_steps": round(iterations * course.steps_an_iteration, 1),
        "updates": None if updates is None else round(iterations * updates, 1),
        "iterations": round(iterations, 3),
        **{name: None if value is None else round(value, 6) for name, value in sums.items()},
        "rest_s": None if rest is None else round(rest, 6),
        "rss_mib": max((row["rss_mib"] or 0.0 for row, _ in counted), default=0.0) or None,
        "n_threads": int(max((row["n_threads"] or 0.0 for row, _ in counted), default=0.0)) or None,
        "import_s": course.facts.get("import_s"),
        "first_step_s": course.facts.get("first_step_s"),
        "cpus": course.facts.get("cpus"),
    }


def _sum(counted: Sequence[tuple[Row, float]], name: str) -> float | None:
    values = [(row.get(name), share) for row, share in counted]
    if not values or any(value is None for value, _ in values):
        return None
    return math.fsum((value or 0.0) * share for value, share in values)


def measured(courses: Sequence[Course], span: Window) -> dict[str, Any]:
    """``throughput``, ``window_s`` and ``processes`` of a cell that was measured."""
    processes = [process(course, span.begin, span.end) for course in courses]
    total = math.fsum(one["env_steps"] for one in processes)
    return {"throughput": total / span.length_s, "window_s": span.length_s, "processes": processes}


def bounded(courses: Sequence[Course], cut_at: float) -> dict[str, Any]:
    """The same of a cell that was cut off; ``throughput`` is what it can have been at most.

    An iteration is so many env_steps, and one that has begun takes at least as long as it has taken so far. So a
    process that has done ``n`` iterations since ``t`` did fewer than ``n + 1`` until now. Counted from the end of its
    warm-up, or, when it has not come that far, from its first environment step or its launch.
    """
    processes = []
    bound = 0.0
    for course in courses:
        begun = _counted_from(course, cut_at)
        one = process(course, begun, cut_at)
        elapsed = max(cut_at - begun, 1e-9)
        bound += (round(one["iterations"]) + 1) * course.steps_an_iteration / elapsed
        processes.append(one)
    span = max((cut_at - _counted_from(course, cut_at) for course in courses), default=0.0)
    return {"throughput": bound, "window_s": span, "processes": processes}


def _counted_from(course: Course, otherwise: float) -> float:
    if len(course.rows) >= WARM_UP:
        return course.clock(WARM_UP - 1)
    if course.rows:
        return course.clock(0) - (course.rows[0]["wall_s"] or 0.0)
    return otherwise if course.begun_at is None else course.begun_at
