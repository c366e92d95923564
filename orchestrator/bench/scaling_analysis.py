"""A benchmark's directory → every number of its report: ``report.json`` is what :func:`analyse` returns.

Read-only. A benchmark that is still running, or was stopped, gives a report of what is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.analysis import samples
from orchestrator.analysis.samples import COUNTS, PHASES, Benchmark, Measured
from orchestrator.analysis.statistics import Estimate, estimate, ratio
from orchestrator.bench import usl, wide_or_many
from orchestrator.bench.attribution import attribute
from orchestrator.core.text import joined

REFERENCE_ARM = "pinned"
WITNESSES = {
    **{name: f"{name}_s" for name in ("cpu", "run_delay", "throttled")},
    **{name: name for name in (*COUNTS, "n_threads", "runnable", "rss_mib", "others_cores")},
}
"""Figures of :func:`orchestrator.analysis.samples.figures` → their names in the report."""
STARTUP = ("import_s", "first_step_s")

Facts = dict[str, float | int | None]


def analyse(run_dir: Path) -> dict[str, Any]:
    """Every figure of a benchmark; a figure that cannot be had is None.

    ``arms.<arm>.levels.<K>`` holds ``throughput`` (env_steps/s of all K processes), ``speedup`` and ``efficiency``
    (against the same arm's lowest level; efficiency is the speed-up divided by ``ideal``, the least of K and the
    cores), ``speedup_absolute`` and ``efficiency_absolute`` (against one pinned process), ``phases`` and
    ``wall_s`` (seconds per 1,000 env_steps of a process), ``update_s`` (seconds of backward and optimiser for one
    minibatch), ``witnesses`` (seconds and counts per 1,000 env_steps of a process; ``runnable`` threads,
    ``n_threads``, ``rss_mib``, ``others_cores`` as they are), ``startup``, each as ``median``, ``low``, ``high``,
    ``n``; and ``cells``, how many ended in which status. Where ``at_most`` is true cells were cut off: the throughput
    is a bound, and ``low`` is None. ``ranks`` is as :func:`orchestrator.bench.wide_or_many.facts` gives it.

    :raises UsageError: when it is no benchmark's directory, or nothing has been measured yet.
    """
    bench = samples.read(run_dir)
    reference = bench.arms.get(REFERENCE_ARM, {}).get(1)
    arms = {
        arm: {
            "about": (bench.plan.get("about_arms") or {}).get(arm),
            "levels": {str(level): _level(bench, one, levels, reference) for level, one in levels.items()},
            "failed": {str(level): list(why) for level, why in bench.failed.get(arm, {}).items()},
        }
        for arm, levels in {**bench.arms, **{arm: {} for arm in bench.failed if arm not in bench.arms}}.items()
    }
    return {
        "kind": "benchmark",
        "name": bench.plan.get("name"),
        "jobs": bench.plan.get("jobs"),
        "work": bench.plan.get("work"),
        "learners": list(bench.learners),
        "arms": arms,
        "usl": {arm: _law(bench, levels) for arm, levels in bench.arms.items()},
        "attribution": attribute(bench),
        "strong": bench.strong,
        "tune": bench.tune,
        "ranks": wide_or_many.facts(run_dir),
        "cores": bench.capacity,
        "cells": {**bench.cells, "planned": len(bench.plan.get("order") or ()), "unreadable": bench.unreadable},
        "machine": bench.plan.get("machine"),
        "versions": bench.plan.get("versions"),
        "how": _how(bench),
        "notes": list(bench.plan.get("notes") or ()),
    }


def _level(
    bench: Benchmark, one: Measured, levels: Mapping[int, Measured], reference: Measured | None
) -> dict[str, Any]:
    base = levels[min(levels)]
    ideal = min(one.processes, bench.capacity)
    speedup = speed_up(one, base)
    absolute = None if reference is None else speed_up(one, reference)
    throughput = estimate(one.throughputs)
    return {
        "throughput": _facts(_bounded(throughput) if one.at_most else throughput),
        "at_most": one.at_most,
        "ideal": ideal,
        "base": base.processes,
        "speedup": _facts(speedup),
        "efficiency": _facts(None if speedup is None else speedup.scaled(1 / ideal)),
        "speedup_absolute": _facts(absolute),
        "efficiency_absolute": _facts(None if absolute is None else absolute.scaled(1 / ideal)),
        "phases": {phase: _of(one, phase) for phase in PHASES},
        "wall_s": _of(one, "wall"),
        "update_s": _of(one, "update_s"),
        "witnesses": {name: _of(one, figure) for figure, name in WITNESSES.items()},
        "startup": {name: _of(one, name) for name in STARTUP},
        "cells": dict(one.cells),
        "disturbed": one.disturbed,
        "messages": list(one.messages),
    }


def speed_up(one: Measured, base: Measured) -> Estimate | None:
    """Throughput against ``base`` per process of it; None where that was cut off. A bound from above has no ``low``."""
    if base.at_most:
        return None
    found = ratio(one.throughputs, base.throughputs, paired=one.repeats() == base.repeats()).scaled(base.processes)
    return _bounded(found) if one.at_most else found


def _bounded(one: Estimate) -> Estimate:
    return Estimate(one.median, None, one.high, one.n)


def _of(one: Measured, figure: str) -> Facts | None:
    values = one.values(figure)
    return _facts(estimate(values)) if values else None


def _facts(one: Estimate | None) -> Facts | None:
    return None if one is None else one.facts()


def _law(bench: Benchmark, levels: Mapping[int, Measured]) -> dict[str, Any]:
    """The Universal Scalability Law of one arm; with ``warning`` alone where it cannot be fitted."""
    found = usl.fit({level: [] if one.at_most else one.throughputs for level, one in levels.items()}, bench.capacity)
    if found is not None:
        return found.facts()
    return {
        "warning": "fewer than two levels with a core for every process were measured to the end: nothing to fit",
        "levels": [],
    }


def _how(bench: Benchmark) -> list[str]:
    """How it was measured, in sentences."""
    plan = bench.plan
    said = []
    if plan.get("jobs") and plan.get("arms"):
        said.append(
            f"At each level so many copies of {', '.join(plan['jobs'])} are trained at once, each a process, and the"
            " env_steps of all are counted while all of them train side by side, after their warm-up"
            + (f", for {plan['seconds']:g} s." if isinstance(plan.get("seconds"), int | float) else ".")
        )
    if bench.learners:
        said.append(f"PPO's arithmetic is done by the learner {joined(bench.learners)}.")
    if plan.get("repeats"):
        said.append(
            f"Arms and levels take turns in random order, {plan['repeats']} times over. A cell during which the machine"
            " was disturbed is taken again."
        )
    return [
        *said,
        "Figures are medians with 95 % intervals by a smoothed bootstrap (of fewer than five values: Student's); ratios"
        " of the same repeats are taken in pairs.",
        f"Efficiency is the speed-up divided by the processes, at most by {bench.capacity}, as many as have cores of"
        " their own.",
        "A cell that took too long was cut off: its throughput is the most that it can have been.",
    ]
