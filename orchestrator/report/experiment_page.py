"""The report of an experiment: its facts in sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count, duration, listed
from orchestrator.ledger.summary import learner_summary
from orchestrator.report import experiment_figures as figures
from orchestrator.report import experiment_tables as tables
from orchestrator.report.certificate_page import certificate_sections
from orchestrator.report.document import Cell, Column, Document, Figure, Headline, Section, Table, Text
from orchestrator.report.drawing import PHASES
from orchestrator.report.machine_page import machine_section
from orchestrator.report.number_format import number, percent, plain
from orchestrator.report.ranks_page import experiment_section

MOST_PANELS = 24
MOST_VARIED = 12
NAMED = 4
"""Jobs that one finding lists."""
ABOUT = (
    "A report of training runs of reinforcement-learning policies for simulated robots, every run an "
    "operating-system process of its own. An env_step is one control step of one environment; the return is the sum of "
    "rewards of an episode, as seen in training (mean of the latest 100 episodes)."
)


def document(facts: Mapping[str, Any], run_dir: Path) -> Document:
    """:param facts: as :func:`orchestrator.report.experiment_data.gather` gives them."""
    robots, jobs = facts["robots"], facts["jobs"]
    parts: list[Section] = []
    if not jobs:
        parts.append(
            Section(title="Jobs", parts=[Text(sentences=["The robots are being examined; no job is declared yet."])])
        )
    else:
        parts += [
            _findings(facts["findings"], jobs),
            _curves(robots, {job["job_id"]: job["curve"] for job in jobs}),
            tables.robots_section(robots, tables.previews(jobs, RunPaths(run_dir)), learner_summary(jobs)),
            *tables.failures(jobs),
            *_varied(facts["varied"], jobs),
            *_schedule(facts["attempts"], jobs),
            *_phases(robots),
            *experiment_section(facts["ranks"]),
            tables.jobs_section(jobs),
            *certificate_sections(facts["certificate"]),
        ]
    parts.append(machine_section(facts["machine"]))
    subtitle = "Experiment, still running: figures so far" if facts["running"] else "Experiment"
    return Document(
        title=facts["name"],
        subtitle=f"{subtitle} · {facts['made_at']}",
        headlines=_headlines(facts["totals"]),
        sections=[Section(title="About", parts=[Text(sentences=[ABOUT])]), *parts],
        facts=facts,
    )


def _headlines(totals: Mapping[str, Any]) -> list[Headline]:
    states = totals["states"]
    others = [f"{states[name]} {name.lower()}" for name in states if name != "SUCCEEDED"]
    retries = [count(totals["retries"], "further attempt")] if totals["retries"] else []
    return [
        Headline(label="jobs", value=f"{totals['jobs']:,}", note=", ".join(retries)),
        Headline(label="succeeded", value=f"{states.get('SUCCEEDED', 0):,}", note=", ".join(others)),
        Headline(label="time", value=duration(totals["busy_s"]), note="with at least one job at work"),
        Headline(label="core-hours", value=number(totals["core_hours"]), note="cores held × time"),
        Headline(label="env_steps", value=number(float(totals["env_steps"])), note="all jobs"),
        Headline(
            label="env_steps/s",
            value=number(totals["env_steps_per_s"]),
            note="all jobs together, start-up and evaluation included",
        ),
    ]


def _findings(findings: Sequence[Mapping[str, Any]], jobs: Sequence[Mapping[str, Any]]) -> Section:
    if not findings and not any(job["timings"]["iterations"] > 1 for job in jobs):
        early = "Nothing can be said yet: no job has timings of more than one iteration (the first one warms up)."
        return Section(title="Findings", parts=[Text(sentences=[early])])
    if not findings:
        none = "Nothing was found that took time from the jobs: no contention for cores, throttling or surplus threads."
        return Section(title="Findings", parts=[Text(sentences=[none], tone="good")])
    rows = [
        [Cell(text=_named(one["job_ids"])), *(Cell(text=plain(one[key])) for key in ("what", "evidence", "cure"))]
        for one in findings
    ]
    columns = [Column(name=name) for name in ("job", "what took time", "evidence", "cure")]
    return Section(
        title="Findings",
        parts=[
            Table(columns=columns, rows=rows, caption="What slowed jobs down, how it shows, and what to do.", shown=12)
        ],
    )


def _named(job_ids: Sequence[str]) -> str:
    return listed(job_ids, NAMED) or "all jobs"


def chosen(robots: Sequence[Mapping[str, Any]], what: str) -> tuple[list[Mapping[str, Any]], str]:
    """As many robots as a figure can hold, and the sentence that says which."""
    if len(robots) <= MOST_PANELS:
        return list(robots), ""
    half = MOST_PANELS // 2
    ranked = sorted(robots, key=lambda robot: -_last(robot))
    said = (
        f" Shown are the {half} {what} with the highest and the {half} with the lowest last return of {len(robots):,}; "
        "the table has them all."
    )
    return [*ranked[:half], *ranked[-half:]], said


def _last(robot: Mapping[str, Any]) -> float:
    return float(robot["last"]["median"]) if robot["last"] else float("-inf")


def _curves(robots: Sequence[Mapping[str, Any]], curves: Mapping[str, Any]) -> Section:
    learned = [robot for robot in robots if any(curves[job_id] for job_id in robot["jobs"])]
    if not learned:
        none = "No job has finished an episode yet: there is nothing to draw."
        return Section(title="Learning curves", parts=[Text(sentences=[none])])
    shown, said = chosen(learned, "robots")
    several = any(len(robot["seeds"]) > 1 for robot in shown)
    seeds = (
        "Thin lines are seeds; the thick line is their median and the band its 95 % interval (cut off at the edge of "
        "the panel)."
        if several
        else "One line a robot: each was trained with a single seed, so no interval can be given."
    )
    caption = (
        f"Return of training episodes (upwards: better) against env_steps taken. {seeds} Scales differ between panels."
        f"{said}"
    )
    drawn = Figure(
        name="learning-curves",
        title="Learning curves",
        caption=caption,
        draw=partial(figures.learning_curves, shown, curves),
    )
    return Section(title="Learning curves", parts=[drawn])


def _varied(keys: Sequence[str], jobs: Sequence[Mapping[str, Any]]) -> list[Section]:
    panels = []
    for name in dict.fromkeys(job["name"] for job in jobs):
        mine = [job for job in jobs if job["name"] == name and job["ep_rew_mean"] is not None]
        for key in keys:
            points = [(job["point"][key], job["ep_rew_mean"]) for job in mine if key in job["point"]]
            if len({str(value) for value, _ in points}) > 1:
                panels.append((name, key, points))
    if not panels:
        return []
    left_out = f" Shown are the first {MOST_VARIED} of {len(panels)}." if len(panels) > MOST_VARIED else ""
    figure = Figure(
        name="varied-parameters",
        title="Return against varied parameters",
        caption=(
            "Last return of training against each parameter that the job file varies. A dot is a job; the line joins "
            f"the medians, over all values of the other parameters.{left_out}"
        ),
        draw=partial(figures.varied, panels[:MOST_VARIED]),
    )
    return [Section(title="Varied parameters", parts=[figure])]


def _schedule(attempts: Sequence[Mapping[str, Any]], jobs: Sequence[Mapping[str, Any]]) -> list[Section]:
    if not attempts:
        return []
    use = {job["job_id"]: _share(job) for job in jobs}
    held = sum((attempt["until"] - attempt["started_at"]) * max(1, len(attempt["cpus"])) for attempt in attempts)
    busy = sum(figures.cpu_share(attempt, use) * (attempt["until"] - attempt["started_at"]) for attempt in attempts)
    figure = Figure(
        name="schedule",
        title="Jobs on CPUs",
        caption=(
            "Above: a bar is one attempt (launch of a job) on the CPU it was bound to. Below: how many CPUs the jobs "
            "kept busy, from the CPU time of each attempt spread evenly over it; the dashed line is all CPUs that jobs "
            f"were given. Jobs computed for {percent(busy / held if held else None)} of the time for which they held a "
            "CPU; the rest they waited: for a CPU that others used, or for the disk."
        ),
        draw=partial(figures.schedule, attempts, use),
    )
    return [Section(title="Schedule", parts=[figure])]


def _share(job: Mapping[str, Any]) -> float | None:
    """CPU seconds per second of its iterations: those of rank 0, as many times as there are ranks."""
    cpu_s, wall_s = job["timings"]["cpu_s"], job["timings"]["wall_s"]
    return job["ranks"] * cpu_s / wall_s if cpu_s is not None and wall_s else None


def _phases(robots: Sequence[Mapping[str, Any]]) -> list[Section]:
    timed = [robot for robot in robots if robot["timed_s"] > 0 and robot["timed_env_steps"] > 0]
    if not timed:
        return []
    shown, said = chosen(timed, "robots")
    figure = Figure(
        name="phases",
        title="Where the time goes",
        caption=(
            "Time of training iterations by phase, one bar a robot. At the right, the share of it in which a thread "
            "was ready to run but had to wait for a CPU: the direct measure of contention, contained in the phases."
            f"{said}"
        ),
        draw=partial(figures.phases, shown),
    )
    return [Section(title="Phases", parts=[figure, _phase_table(timed)])]


def _phase_table(robots: Sequence[Mapping[str, Any]]) -> Table:
    names = [name for name, _ in PHASES.values()]
    columns = [
        Column(name="robot"),
        *(Column(name=name, numeric=True) for name in (*names, "all", "waited for a CPU")),
    ]
    rows = []
    for robot in robots:
        scale = 1e6 / robot["timed_env_steps"]
        delay = robot["run_delay_s"]
        figures_ = [*(robot["phases"][f"{name}_s"] for name in PHASES), robot["timed_s"], delay]
        rows.append(
            [
                Cell(text=plain(robot["robot"])),
                *(Cell(text=number(None if one is None else one * scale)) for one in figures_),
            ]
        )
    return Table(columns=columns, rows=rows, caption="Milliseconds per 1,000 env_steps.", shown=0)
