"""The report of a benchmark: its facts in sections."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from orchestrator.core.text import count, duration
from orchestrator.report import benchmark_figures as figures
from orchestrator.report import benchmark_tables as tables
from orchestrator.report.certificate_page import certificate_sections
from orchestrator.report.document import Cell, Column, Document, Figure, Headline, Part, Section, Table, Text
from orchestrator.report.machine_page import machine_section
from orchestrator.report.number_format import number, percent, plain, sentence
from orchestrator.report.ranks_page import benchmark_section

OURS = "pinned"
MOST_LANES = 256
ABOUT = (
    "A measurement of how the training of reinforcement-learning policies (PPO) for simulated robots scales on one "
    "machine: copies of the same training are started at once, in several ways (“arms”), and the env_steps/s of all "
    "of them together are taken. An env_step is one control step of one environment. Were nothing lost, twice the "
    "processes would take twice the env_steps, as long as each has a core of its own."
)
ABOUT_RANKS = (
    "A measurement of how much sooner several processes (“ranks”) train one reinforcement-learning policy (PPO) for a "
    "simulated robot together, beside as many separate trainings, and beside what Stable-Baselines3 itself has for "
    "more cores. An env_step is one control step of one environment."
)


def document(analysis: Mapping[str, Any], certificate: Mapping[str, Any] | None) -> Document:
    """:param analysis: as :func:`orchestrator.bench.scaling_analysis.analyse` gives it."""
    made_at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    facts = {**analysis, "made_at": made_at, "certificate": certificate}
    arms = {arm: _by_level(one["levels"]) for arm, one in facts["arms"].items()}
    sections = [
        Section(title="About", parts=[Text(sentences=[ABOUT if arms or facts["ranks"] is None else ABOUT_RANKS])]),
        *_attribution(facts),
        *_scaling(arms, facts),
        *_phases(arms),
        *_witnesses(arms),
        *_law(facts["usl"], arms),
        *_strong(facts["strong"]),
        *_packing(facts["tune"]),
        *benchmark_section(facts["ranks"], facts["cores"]),
        *certificate_sections(certificate),
        _how(facts),
        machine_section({**(facts["machine"] or {}), "versions": facts["versions"]}),
    ]
    return Document(
        title=plain(facts["name"] or "benchmark"),
        subtitle=f"Concurrency benchmark · {made_at}",
        headlines=_headlines(arms, facts),
        sections=sections,
        facts=facts,
    )


def _by_level(levels: Mapping[str, Any]) -> dict[int, Any]:
    return {int(level): levels[level] for level in sorted(levels, key=int)}


def _headlines(arms: Mapping[str, Mapping[int, Any]], facts: Mapping[str, Any]) -> list[Headline]:
    capacity = facts["cores"]
    said = [Headline(label="cores", value=str(capacity), note="processes that can have one of their own")]
    arm = OURS if arms.get(OURS) else next((arm for arm, levels in arms.items() if levels), None)
    if arm is None:
        return said
    full = max((level for level in arms[arm] if level <= capacity), default=min(arms[arm]))
    one = arms[arm][full]
    shown = (
        ("env_steps/s", one["throughput"], number),
        ("speed-up", one.get("speedup"), number),
        ("efficiency", one.get("efficiency"), percent),
    )
    for label, estimate, form in shown:
        if estimate and estimate["median"] is not None:
            note = f"{arm}, {full} at once"
            within = "" if estimate["low"] is None else f"; {form(estimate['low'])} to {form(estimate['high'])}"
            said.append(Headline(label=label, value=form(estimate["median"]), note=note + within))
    return said


def _attribution(facts: Mapping[str, Any]) -> list[Section]:
    """What tells the arms apart, the worst loss, and folded what each arm lost at each level."""
    levels = [one for one in facts["attribution"] if one["kind"] == "level"]
    first = [one for one in facts["attribution"] if one["kind"] != "level"]
    first += [one for one in [max(levels, key=_loss, default=None)] if one is not None and _loss(one) > 0]
    parts: list[Part] = [Text(sentences=[sentence(one["text"]) for one in first])] if first else []
    if levels:
        rows = [[Cell(text=f"{plain(one['arm'])} × {one['level']}"), Cell(text=plain(one["text"]))] for one in levels]
        caption = "What each arm lost at each number of processes, and to what."
        columns = [Column(name="arm × processes"), Column(name="found")]
        parts.append(Table(columns=columns, rows=rows, caption=caption, shown=0))
    return [Section(title="What was found", parts=parts)] if parts else []


def _loss(one: Mapping[str, Any]) -> float:
    return float(one.get("loss_ms") or 0.0)


def _scaling(arms: Mapping[str, Mapping[int, Any]], facts: Mapping[str, Any]) -> list[Section]:
    failed = [
        f"{plain(arm)} at {level}: nothing could be measured. {plain('; '.join(why), 300)}"
        for arm, one in facts["arms"].items()
        for level, why in one["failed"].items()
    ]
    if not any(arms.values()):
        return [Section(title="Scaling", parts=[Text(sentences=failed, tone="bad")])] if failed else []
    parts: list[Part] = []
    speedups, efficiencies = _curves(arms, "speedup"), _curves(arms, "efficiency")
    about = [f"{plain(arm)}: {plain(one['about'])}." for arm, one in facts["arms"].items() if one["about"]]
    if speedups:
        parts.append(
            Figure(
                name="scaling",
                title="Speed-up and efficiency",
                caption=(
                    "First: how many times the env_steps/s of one process (started in the same way) all processes "
                    "together reach, for each way of starting them. Second: that by the number of processes, or of "
                    f"cores where there are fewer. The dashed line is the ideal on {facts['cores']} cores: beyond "
                    "them more processes cannot be faster. Vertical bars are 95 % intervals; “≤” marks runs so slow "
                    "that they were cut off, where only a bound is known."
                ),
                draw=partial(figures.speedup, speedups, efficiencies, facts["cores"]),
            )
        )
    if about:
        parts.append(Text(sentences=about))
    if failed:
        parts.append(Text(sentences=failed, tone="bad"))
    return [Section(title="Scaling", parts=[*parts, tables.throughput(arms)])]


def _curves(arms: Mapping[str, Mapping[int, Any]], name: str) -> dict[str, dict[int, Any]]:
    found = {
        arm: {
            level: {**one[name], "cut": bool(one.get("at_most"))}
            for level, one in levels.items()
            if one.get(name) and one[name]["median"] is not None
        }
        for arm, levels in arms.items()
    }
    return {arm: levels for arm, levels in found.items() if levels}


def _phases(arms: Mapping[str, Mapping[int, Any]]) -> list[Section]:
    drawn = {
        arm: {
            level: {name: part["median"] for name, part in one["phases"].items() if part}
            for level, one in levels.items()
            if one.get("phases")
        }
        for arm, levels in arms.items()
    }
    drawn = {arm: levels for arm, levels in drawn.items() if levels}
    if not drawn:
        return []
    cut = {arm: [level for level, one in arms[arm].items() if one["at_most"]] for arm in drawn}
    figure = Figure(
        name="phases",
        title="Where the time goes",
        caption=(
            "Seconds that one process takes for 1,000 env_steps, by phase, at each number of processes. Bars of "
            "equal height mean that neighbours cost nothing; a phase that grows is where the loss is. Scales differ "
            "between panels. “(≥)”: cut off, so it would have taken longer still."
        ),
        draw=partial(figures.phases, drawn, cut),
    )
    return [Section(title="Phases", parts=[figure])]


def _witnesses(arms: Mapping[str, Mapping[int, Any]]) -> list[Section]:
    latencies = _curves(arms, "update_s")
    waiting = {
        arm: {level: {**one["witnesses"], "at_most": one["at_most"]} for level, one in levels.items()}
        for arm, levels in arms.items()
    }
    delays = _curves(waiting, "run_delay_s")
    table = tables.witnesses(arms)
    if not latencies or table is None:
        return [] if table is None else [Section(title="Witnesses", parts=[Text(sentences=[tables.READING]), table])]
    figure = Figure(
        name="latency",
        title="One optimiser step, and waiting for a CPU",
        caption=(
            "First: how long one update of the network takes (backward pass and optimiser step of one minibatch; "
            "logarithmic). Second: seconds for which the threads of a process were ready to run but waited for a CPU, "
            "summed over them, for 1,000 env_steps. With a core and a thread budget for every process, both stay where "
            "they are. “≥” marks runs that were cut off."
        ),
        draw=partial(figures.latency, latencies, delays),
    )
    return [Section(title="Latency", parts=[figure, Text(sentences=[tables.READING]), table])]


def _law(fits: Mapping[str, Any], arms: Mapping[str, Mapping[int, Any]]) -> list[Section]:
    curves = _curves(arms, "speedup")
    gaining = {arm: fit for arm, fit in fits.items() if "sigma" in fit and _gains(fit, curves.get(arm, {}))}
    losing = [plain(arm) for arm, fit in fits.items() if "sigma" in fit and arm not in gaining]
    said = [f"{plain(arm)}: {plain(fit['law'])}." for arm, fit in gaining.items()]
    warned = [f"{named}: not to be relied on: {warning}." for warning, named in _warnings(gaining)]
    unknown = {arm: fit for arm, fit in fits.items() if "sigma" not in fit}
    said += [f"{named}: {warning}." for warning, named in _warnings(unknown)]
    if losing:
        said.append(f"{', '.join(losing)}: no faster with more processes than with one; no law of scaling applies.")
    if not gaining:
        return [Section(title="Prediction", parts=[Text(sentences=said)])] if said else []
    figure = Figure(
        name="scaling-law",
        title="The law of scaling, and what it predicts",
        caption=(
            "The Universal Scalability Law fitted to each arm: σ is the part of the work that only one process can "
            "do at a time, κ what each costs every other. Line: the fit; dots: what was measured with a core for "
            "every process; bars: 95 % intervals of predictions; dashed: no loss."
        ),
        draw=partial(figures.law, gaining, curves),
    )
    parts: list[Part] = [figure, *([Text(sentences=warned, tone="bad")] if warned else []), Text(sentences=said)]
    return [Section(title="Prediction", parts=parts)]


def _warnings(fits: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Each warning once, with the arms that it is about."""
    found: dict[str, list[str]] = {}
    for arm, fit in fits.items():
        if fit["warning"]:
            found.setdefault(plain(fit["warning"]), []).append(plain(arm))
    return [(warning, ", ".join(arms)) for warning, arms in found.items()]


def _gains(fit: Mapping[str, Any], speedups: Mapping[int, Any]) -> bool:
    """Whether the most processes it is fitted to are faster than one."""
    return bool(speedups.get(max(fit["levels"]), {"median": 0.0})["median"] > 1)


def _strong(strong: Mapping[str, Any] | None) -> list[Section]:
    levels = {level: one for level, one in _by_level((strong or {}).get("levels") or {}).items() if one["jobs"]}
    if not levels:
        return []
    lanes = sum(len({cpu for job in one["jobs"] for cpu in job.get("cpus") or ()}) for one in levels.values())
    rows = [
        [
            Cell(text=str(level)),
            Cell(text=duration(one["makespan_s"])),
            Cell(text=duration(one["lower_bound_s"])),
            Cell(text=percent(one["lower_bound_s"] / one["makespan_s"] if one["makespan_s"] else None)),
        ]
        for level, one in levels.items()
    ]
    columns = [Column(name=name, numeric=True) for name in ("jobs at once", "makespan", "lower bound", "of the bound")]
    table = Table(columns=columns, rows=rows, caption="Makespan: from the first start to the last end of all jobs.")
    figure = Figure(
        name="makespan",
        title="The whole job file",
        caption=(
            "All jobs of the job file, at each number of jobs at once: a bar is a job on its CPU. The dashed line is "
            "the lower bound of the makespan: no schedule ends before the longest job, nor before all work is spread "
            "evenly over the CPUs."
        ),
        draw=partial(figures.makespan, levels),
    )
    return [Section(title="Makespan", parts=[*([figure] if lanes <= MOST_LANES else []), table])]


def _packing(tune: Mapping[str, Any] | None) -> list[Section]:
    points = (tune or {}).get("points") or []
    if tune is None or not any(one["throughput"] is not None for one in points):
        return []
    best = tune.get("best")
    figure = Figure(
        name="packing",
        title="Best packing",
        caption=(
            "env_steps/s of all processes together, for processes × threads (SMT: more threads than physical cores) "
            "and parallel environments in each (n_envs). The stronger the colour, the faster; the frame marks the best."
        ),
        draw=partial(figures.packing, points, best),
    )
    if not best:
        return [Section(title="Packing", parts=[figure])]
    advice = (
        f"Best: {count(best['processes'], 'process', 'processes')} × {count(best['threads'], 'thread')} × "
        f"{count(best['n_envs'], 'environment')}, "
        f"{number(best['throughput'])} env_steps/s."
    )
    return [Section(title="Packing", parts=[figure, Text(sentences=[advice])])]


def _how(facts: Mapping[str, Any]) -> Section:
    cells = facts["cells"]
    numbers = ", ".join(f"{number} {plain(name)}" for name, number in cells.items() if number)
    counted = [f"Cells: {numbers}."] if numbers else []
    return Section(
        title="How it was measured",
        parts=[Text(sentences=[plain(sentence) for sentence in (*facts["how"], *counted, *facts["notes"])])],
    )
