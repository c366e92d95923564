"""The report of a benchmark: its facts in sections."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.analysis.statistics import INTERVALS, EstimateFacts
from orchestrator.core.text import duration
from orchestrator.features.bench import benchmark_figures as figures
from orchestrator.features.bench import benchmark_tables as tables
from orchestrator.features.bench import scaling_figures
from orchestrator.features.bench.benchmark_tables import Baselines
from orchestrator.features.bench.ranks_section import benchmark_section
from orchestrator.features.bench.samples import damage_explained
from orchestrator.features.bench.scaling_analysis import LevelFacts, analyse
from orchestrator.features.bench.strong_scaling import incomplete
from orchestrator.report.document import (
    Columns,
    Figure,
    Headline,
    Part,
    Section,
    Text,
    table,
)
from orchestrator.report.machine_section import machine_section
from orchestrator.report.number_format import number, one_line, percent, sentence

Facts = Mapping[str, Any]

PINNED = "pinned"
"""The baseline of the headlines."""
MOST_LANES = 256
"""A schedule of more CPUs is not drawn."""
ABOUT = (
    "A measurement of how the training of reinforcement-learning policies (PPO) for simulated robots scales on one "
    "machine. Copies of the same training are started at once, in several ways (“baselines”), and their env_steps/s "
    "are added up. An env_step is one control step of one environment."
)
ABOUT_RANKS = (
    "A measurement of how much faster several processes (“ranks”) train one reinforcement-learning policy (PPO) for a "
    "simulated robot, compared with the same number of separate trainings and with Stable-Baselines3's own way to use "
    "more cores. An env_step is one control step of one environment."
)


def of_directory(run_dir: Path) -> list[Section]:
    """:raises UsageError: nothing is measured yet, or its files are damaged."""
    with damage_explained(run_dir):
        return of_analysis(analyse(run_dir))


def of_analysis(facts: Facts) -> list[Section]:
    """:param facts: as :func:`orchestrator.features.bench.scaling_analysis.analyse` gives them."""
    baselines = {name: _by_level(one["levels"]) for name, one in facts["arms"].items()}
    about = ABOUT if baselines or facts["ranks"] is None else ABOUT_RANKS
    return [
        Section(
            title="About",
            parts=[Text(sentences=[about])],
            headlines=_headlines(baselines, facts["cores"]),
            numbers=facts,
        ),
        *_attribution(facts["attribution"]),
        *_scaling(baselines, facts),
        *_phases(baselines),
        *_latency(baselines),
        *_law(facts["usl"], baselines),
        *_makespan(facts["strong"], facts["strong_problem"]),
        *benchmark_section(facts["ranks"], facts["cores"]),
        _method(facts),
        machine_section({**(facts["machine"] or {}), "versions": facts["versions"]}),
    ]


def _by_level(levels: Facts) -> dict[int, Any]:
    return {int(level): levels[level] for level in sorted(levels, key=int)}


def _headlines(baselines: Baselines, capacity: int) -> list[Headline]:
    headlines = [
        Headline(
            label="cores", value=str(capacity), note="processes that can have a core of their own"
        )
    ]
    measured = [name for name, levels in baselines.items() if levels]
    if not measured:
        return headlines
    name = PINNED if PINNED in measured else measured[0]
    levels = baselines[name]
    full = max((level for level in levels if level <= capacity), default=min(levels))
    one = baselines[name][full]
    for label, estimate, form in (
        ("env_steps/s", one["throughput"], number),
        ("speed-up", one["speedup"], number),
        ("efficiency", one["efficiency"], percent),
    ):
        if estimate:
            within = ""
            if estimate["low"] is not None:
                within = f"; {form(estimate['low'])} to {form(estimate['high'])}"
            note = f"{name}, {full} at once{within}"
            value = ("≤ " if one["at_most"] else "") + form(estimate["value"])
            headlines.append(Headline(label=label, value=value, note=note))
    return headlines


def _attribution(attribution: list[Facts]) -> list[Section]:
    """The differences between baselines, the largest loss, and folded the loss of each baseline at
    each level.
    """
    levels = [one for one in attribution if one["kind"] == "level"]
    first = [one for one in attribution if one["kind"] != "level"]
    first += [one for one in sorted(levels, key=_loss, reverse=True)[:1] if _loss(one) > 0]
    parts: list[Part] = [Text(sentences=[sentence(one["text"]) for one in first])] if first else []
    if levels:
        columns: Columns[Facts] = {
            "baseline × processes": lambda one: f"{one_line(one['arm'])} × {one['level']}",
            "finding": lambda one: one_line(one["text"]),
        }
        caption = "The loss of each baseline at each number of processes, and its causes."
        parts.append(table(levels, columns, caption=caption, text=columns, shown=0))
    return [Section(title="Findings", parts=parts)] if parts else []


def _loss(one: Facts) -> float:
    return float(one.get("loss_ms") or 0.0)


def _scaling(baselines: Baselines, facts: Facts) -> list[Section]:
    failures = tables.failures({name: one["failed"] for name, one in facts["arms"].items()}, "at")
    if not any(baselines.values()):
        return [Section(title="Scaling", parts=failures)] if failures else []
    parts: list[Part] = []
    speedups = _curves(baselines, lambda one: one["speedup"])
    efficiencies = _curves(baselines, lambda one: one["efficiency"])
    if speedups:
        cut = _cut_levels(baselines)
        cores = facts["cores"]
        parts.append(
            Figure(
                name="scaling",
                title="Speed-up and efficiency",
                caption="Left: env_steps/s of all processes together, relative to a process at the lowest level of the "
                "same baseline. Right: the speed-up divided by the number of processes, or of cores where that is "
                f"smaller. Dashed: the ideal on {cores} cores. Vertical bars are 95 % intervals "
                f"({INTERVALS}). “≤” marks "
                "measurements that were cut off, for which only an upper bound is known.",
                draw=partial(scaling_figures.speedup, speedups, efficiencies, cut, cores),
            )
        )
    about = [
        f"{one_line(name)}: {one_line(one['about'])}."
        for name, one in facts["arms"].items()
        if one["about"]
    ]
    parts += [Text(sentences=about)] if about else []
    return [Section(title="Scaling", parts=[*parts, *failures, tables.throughput(baselines)])]


def _curves(
    baselines: Baselines, figure: Callable[[LevelFacts], EstimateFacts | None]
) -> scaling_figures.Curves:
    """Without what is not known."""
    known = {
        name: {level: estimate for level, one in levels.items() if (estimate := figure(one))}
        for name, levels in baselines.items()
    }
    return {name: estimates for name, estimates in known.items() if estimates}


def _cut_levels(baselines: Baselines) -> scaling_figures.Cut:
    return {
        name: [level for level, one in levels.items() if one["at_most"]]
        for name, levels in baselines.items()
    }


def _phases(baselines: Baselines) -> list[Section]:
    drawn: dict[str, dict[int, dict[str, float]]] = {}
    for name, levels in baselines.items():
        for level, one in levels.items():
            means = {phase: part["value"] for phase, part in one["phases"].items() if part}
            drawn.setdefault(name, {})[level] = means
    if not drawn:
        return []
    figure = Figure(
        name="phases",
        title="Where the time goes",
        caption="Seconds that one process needs for 1,000 env_steps, by phase: a phase that grows with the number of "
        "processes shows where the loss is. Scales differ between panels. “(≥)”: cut off, so the true time is longer.",
        draw=partial(figures.phases, drawn, _cut_levels(baselines)),
    )
    return [Section(title="Phases", parts=[figure])]


def _latency(baselines: Baselines) -> list[Section]:
    latencies = _curves(baselines, lambda one: one["update_s"])
    delays = _curves(baselines, lambda one: one["witnesses"]["run_delay_s"])
    metrics = tables.metrics(baselines)
    if metrics is None:
        return []
    explained = Text(sentences=[tables.METRICS_EXPLAINED])
    if not latencies:
        return [Section(title="Metrics", parts=[explained, metrics])]
    figure = Figure(
        name="latency",
        title="One optimiser step, and waiting for a CPU",
        caption="Left: duration of one update of the network (backward pass and optimiser step of one minibatch; "
        "logarithmic). Right: seconds for which the threads of a process were ready to run but waited for a CPU, "
        "summed over them, per 1,000 env_steps. “≥” marks measurements that were cut off.",
        draw=partial(figures.latency, latencies, delays, _cut_levels(baselines)),
    )
    return [Section(title="Latency", parts=[figure, explained, metrics])]


def _law(fits: Facts, baselines: Baselines) -> list[Section]:
    curves = _curves(baselines, lambda one: one["speedup"])
    fitted = {name: fit for name, fit in fits.items() if "sigma" in fit}
    gaining = {name: fit for name, fit in fitted.items() if _gains(fit, curves.get(name, {}))}
    sentences = [f"{one_line(name)}: {one_line(fit['law'])}." for name, fit in gaining.items()]
    sentences += _warnings({name: fit for name, fit in fits.items() if name not in fitted})
    losing = ", ".join(one_line(name) for name in fitted if name not in gaining)
    if losing:
        sentences.append(
            f"{losing}: no faster with more processes than with one, so no law of scaling applies."
        )
    if not gaining:
        return [Section(title="Prediction", parts=[Text(sentences=sentences)])] if sentences else []
    figure = Figure(
        name="scaling-law",
        title="The law of scaling, and its prediction",
        caption="The Universal Scalability Law, fitted to each baseline: σ is the part of the work that only one "
        "process can do at a time, κ the cost that each process causes every other. Line: the fit. Dots: measurements "
        "with a core for every process. Dashed line: no loss.",
        draw=partial(figures.law, gaining, curves),
    )
    warnings = _warnings(gaining, "not to be relied on: ")
    parts: list[Part] = [figure, *([Text(sentences=warnings, tone="bad")] if warnings else [])]
    return [Section(title="Prediction", parts=[*parts, Text(sentences=sentences)])]


def _warnings(fits: Facts, prefix: str = "") -> list[str]:
    """A sentence for each different warning, with the baselines that it concerns."""
    warned: dict[str, list[str]] = {}
    for name, fit in fits.items():
        if fit["warning"]:
            warned.setdefault(one_line(fit["warning"]), []).append(one_line(name))
    return [f"{', '.join(names)}: {prefix}{warning}." for warning, names in warned.items()]


def _gains(fit: Facts, speedups: Mapping[int, EstimateFacts]) -> bool:
    """Whether the most processes that the law is fitted to are faster than one."""
    most = speedups.get(max(fit["levels"]))
    return most is not None and most["value"] > 1


def _makespan(strong: Facts | None, problem: str) -> list[Section]:
    """:param problem: why what was measured cannot be read."""
    if strong is None:
        parts: list[Part] = [Text(sentences=[one_line(problem, 500)], tone="bad")]
        return [Section(title="Makespan", parts=parts)] if problem else []
    measured = _by_level(strong["levels"])
    lost = {
        level: incomplete(
            {job["job_id"]: job["state"] for job in one["jobs"]}, strong["total_timesteps"]
        )
        for level, one in measured.items()
    }
    levels = {level: one for level, one in measured.items() if one["jobs"] and not lost[level]}
    sentences = [
        f"{level} at once is left out, as not all jobs were completed: {one_line(', '.join(jobs), 300)}."
        for level, jobs in lost.items()
        if jobs
    ]
    parts = [Text(sentences=sentences, tone="bad")] if sentences else []
    if not levels:
        return [Section(title="Makespan", parts=parts)] if parts else []
    lanes = sum(len({cpu for job in one["jobs"] for cpu in job["cpus"]}) for one in levels.values())
    columns: Columns[int] = {
        "jobs at once": str,
        "makespan": lambda level: duration(levels[level]["makespan_s"]),
        "lower bound": lambda level: duration(levels[level]["lower_bound_s"]),
        "of the bound": lambda level: percent(
            levels[level]["lower_bound_s"] / (levels[level]["makespan_s"] or math.nan)
        ),
    }
    caption = "Makespan: time from the first start to the last end of all jobs."
    figure = Figure(
        name="makespan",
        title="The whole job file",
        caption="All jobs of the job file at each number of jobs at once; each bar is a job on its CPU. Dashed: the "
        "lower bound of the makespan: the longest job, or all work spread evenly over the CPUs or over the jobs at "
        "once if that takes longer.",
        draw=partial(figures.makespan, levels),
    )
    parts += [figure] if lanes <= MOST_LANES else []
    return [
        Section(title="Makespan", parts=[*parts, table(levels, columns, caption=caption, text=())])
    ]


def _method(facts: Facts) -> Section:
    statuses = ", ".join(
        f"{amount} {one_line(status)}" for status, amount in facts["cells"].items() if amount
    )
    sentences = [
        *facts["how"],
        *([f"Measurements: {statuses}."] if statuses else []),
        *facts["notes"],
    ]
    return Section(title="Method", parts=[Text(sentences=list(map(one_line, sentences)))])
