"""From a benchmark's directory to every number of its report: ``report.json`` is what
:func:`analyse` returns.

A benchmark that is still running, or was stopped, gives a report of its finished measurements.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.analysis.statistics import INTERVALS, EstimateFacts, known_estimate
from orchestrator.core.errors import UsageError
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import joined
from orchestrator.features.bench import rank_analysis, samples, strong_scaling, usl
from orchestrator.features.bench.attribution import attribute
from orchestrator.features.bench.samples import COUNTS, PHASES, Benchmark, LevelSamples
from orchestrator.features.bench.throughput_ratios import (
    MeasuredFacts,
    efficiency_facts,
    speed_up,
    throughput,
)

REFERENCE = "pinned"
METRICS = {
    **{name: f"{name}_s" for name in ("cpu", "run_delay", "throttled")},
    **{name: name for name in (*COUNTS, "n_threads", "runnable", "rss_mib")},
}
"""Figures of :func:`orchestrator.features.bench.samples.figures` → their names in the report."""
STARTUP = ("import_s", "first_step_s")


class LevelFacts(MeasuredFacts):
    ideal: int
    """The number of processes, or of cores where that is smaller."""
    base: int
    """The baseline's lowest level."""
    speedup_absolute: EstimateFacts | None
    """Relative to one pinned process."""
    efficiency_absolute: EstimateFacts | None
    phases: Mapping[str, EstimateFacts | None]
    """Seconds per 1,000 env_steps of a process, as ``wall_s``."""
    wall_s: EstimateFacts | None
    update_s: EstimateFacts | None
    """Seconds of backward and optimiser for one minibatch."""
    witnesses: Mapping[str, EstimateFacts | None]
    """Seconds and counts per 1,000 env_steps of a process; ``runnable`` and all that follow it as
    they are."""
    startup: Mapping[str, EstimateFacts | None]


def analyse(run_dir: Path) -> dict[str, Any]:
    """Every figure of a benchmark, with a :class:`LevelFacts` at ``arms.<baseline>.levels.<K>`` for
    K processes.

    :raises UsageError: it is no benchmark's directory, or nothing has been measured yet.
    """
    bench = samples.read(run_dir)
    reference = bench.baselines.get(REFERENCE, {}).get(1)
    all_levels = {name: bench.baselines.get(name, {}) for name in [*bench.baselines, *bench.failed]}
    return {
        "kind": "benchmark",
        "name": bench.plan["name"],
        "jobs": bench.plan["jobs"],
        "work": bench.plan["work"],
        "learners": list(bench.learners),
        "arms": {
            name: _baseline(bench, name, levels, reference) for name, levels in all_levels.items()
        },
        "usl": {name: _law(bench, measured) for name, measured in bench.baselines.items()},
        "attribution": attribute(bench),
        **_strong_scaling(RunPaths(run_dir).bench / strong_scaling.FILE),
        "ranks": rank_analysis.facts(run_dir),
        "cores": bench.capacity,
        "cells": {
            **bench.statuses,
            "planned": len(bench.plan["order"]),
            "unreadable": bench.unreadable,
        },
        "machine": bench.plan["machine"],
        "versions": bench.plan["versions"],
        "how": _method(bench),
        "notes": bench.plan["notes"],
    }


def _strong_scaling(path: Path) -> dict[str, Any]:
    """``strong``, a :class:`.StrongScaling`; ``strong_problem``: why it cannot be read."""
    try:
        strong = strong_scaling.read(path)
    except UsageError as error:
        return {"strong": None, "strong_problem": str(error)}
    facts = None if strong is None else dataclasses.asdict(strong)
    return {"strong": facts, "strong_problem": ""}


def _baseline(
    bench: Benchmark,
    name: str,
    levels: Mapping[int, LevelSamples],
    reference: LevelSamples | None,
) -> dict[str, Any]:
    """:param reference: one pinned process; None where it was not measured."""
    failed = bench.failed.get(name, {})
    return {
        "about": bench.plan["about_arms"].get(name),
        "levels": {
            str(level): _level(bench, one, levels, reference) for level, one in levels.items()
        },
        "failed": {str(level): list(why) for level, why in failed.items()},
    }


def _level(
    bench: Benchmark,
    one: LevelSamples,
    levels: Mapping[int, LevelSamples],
    reference: LevelSamples | None,
) -> LevelFacts:
    base = levels[min(levels)]
    ideal = min(one.processes, bench.capacity)
    absolute = efficiency_facts(None if reference is None else speed_up(one, reference), ideal)
    return {
        "throughput": throughput(one).facts(),
        "at_most": one.at_most,
        "ideal": ideal,
        "base": base.processes,
        **efficiency_facts(speed_up(one, base), ideal),
        "speedup_absolute": absolute["speedup"],
        "efficiency_absolute": absolute["efficiency"],
        "phases": {phase: known_estimate(one.values(phase)) for phase in PHASES},
        "wall_s": known_estimate(one.values("wall")),
        "update_s": known_estimate(one.values("update_s")),
        "witnesses": {name: known_estimate(one.values(figure)) for figure, name in METRICS.items()},
        "startup": {name: known_estimate(one.values(name)) for name in STARTUP},
        "cells": dict(one.statuses),
        "messages": list(one.messages),
    }


def _law(bench: Benchmark, levels: Mapping[int, LevelSamples]) -> dict[str, Any]:
    """The Universal Scalability Law of one baseline; only ``warning`` and no levels where it cannot
    be fitted.
    """
    fit = usl.fit(
        {level: [] if one.at_most else one.throughputs for level, one in levels.items()},
        bench.capacity,
    )
    warning = "there is nothing to fit: fewer than two levels with a core for every process were measured fully"
    return {"warning": warning, "levels": []} if fit is None else fit.facts()


def _method(bench: Benchmark) -> list[str]:
    """How it was measured, in sentences."""
    plan = bench.plan
    sentences = []
    if plan["arms"]:
        sentences.append(
            f"At each level that number of copies of {', '.join(plan['jobs'])} are trained at once, each in a process"
            f" of its own. The env_steps of all of them are counted for {plan['seconds']:g} s while all train side by"
            " side, after their warm-up."
        )
    if bench.learners:
        sentences.append(f"PPO's arithmetic is done by the learner {joined(bench.learners)}.")
    if plan["arms"]:
        sentences.append(
            f"Every baseline is measured {plan['repeats']} times at every level, in random order."
        )
    return [
        *sentences,
        f"Figures are means with 95 % intervals ({INTERVALS}); ratios of the same repeats are paired.",
        f"Efficiency is the speed-up divided by the number of processes, but at most by {bench.capacity}, the number"
        " that have cores of their own.",
        "A measurement that took too long was cut off: its throughput is an upper bound.",
    ]
