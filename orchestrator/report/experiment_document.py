"""The report of an experiment: its facts in sections."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.analysis.contention import ContentionFinding
from orchestrator.analysis.statistics import INTERVALS
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count, duration, listed
from orchestrator.ledger.summary import learner_summary
from orchestrator.report import experiment_figures as figures
from orchestrator.report import experiment_tables as tables
from orchestrator.report.document import (
    Columns,
    Document,
    Figure,
    Headline,
    Section,
    ShownJobs,
    Text,
    table,
)
from orchestrator.report.drawing import PHASES
from orchestrator.report.experiment_data import to_json
from orchestrator.report.experiment_facts import (
    ExperimentFacts,
    ReportedAttempt,
    ReportedJob,
    ReportedRobot,
    Totals,
)
from orchestrator.report.experiment_lineages import lineage_remark
from orchestrator.report.grid_section import grid_sections
from orchestrator.report.machine_section import machine_section
from orchestrator.report.number_format import number, one_line, percent
from orchestrator.report.ranks_section import ranks_sections
from orchestrator.report.varied_parameters import keys_between_robots, varied_sections

MOST_PANELS = 24
MOST_FINDINGS = 12
NAMED = 4
"""Jobs that a finding names."""
ABOUT = (
    "A report of training runs of reinforcement-learning policies for simulated robots, each in an operating-system "
    "process of its own. An env_step is one control step of one environment. The return is the sum of the rewards of "
    "an episode, averaged over the latest 100 training episodes."
)


def document(
    facts: ExperimentFacts,
    run_dir: Path,
    *,
    shown: ShownJobs | None = None,
    has_robots: bool = True,
    is_begun: bool = False,
) -> Document:
    """The report of an experiment.

    :param shown: the jobs that ``facts`` has, where these are not all.
    :param has_robots: whether there is a section of robots.
    :param is_begun: whether sections of features come first, which say how far it is.
    """
    robots = facts["robots"]
    jobs = facts["jobs"]
    about = ABOUT
    between = keys_between_robots(facts["varied"], jobs)
    if jobs:
        sections = [
            _findings(facts["findings"], jobs),
            _learning_curves(robots, {job["job_id"]: job for job in jobs}),
            *(_robots(facts, run_dir) if has_robots else ()),
            *grid_sections(robots),
            *tables.failures(jobs),
            *varied_sections(facts["varied"], jobs, between),
            *_schedule(facts["attempts"], jobs),
            *_phases(robots),
            *ranks_sections(facts["ranks"]),
            tables.jobs_section(jobs, facts["varied"], between),
        ]
        if shown is not None and len(jobs) < facts["totals"]["jobs"]:
            about += (
                f" Of {facts['totals']['jobs']:,} jobs, findings, learning curves, phases and the table of jobs show "
                f"{len(jobs):,}: {shown.which}."
            )
    elif facts["totals"]["jobs"] or is_begun:
        sections = []
    else:
        sections = [_text("Jobs", "The robots are being examined; there are no jobs yet.")]
    subtitle = "Experiment, still running: results so far" if facts["running"] else "Experiment"
    return Document(
        title=facts["name"],
        subtitle=f"{subtitle} · {facts['made_at']}",
        headlines=_headlines(facts["totals"]),
        sections=[_text("About", about), *sections, machine_section(facts["machine"])],
        facts=to_json(facts),
    )


def _robots(facts: ExperimentFacts, run_dir: Path) -> list[Section]:
    jobs = facts["jobs"]
    pictures = tables.previews(jobs, RunPaths(run_dir))
    order = (
        tables.by_return(facts["robots"], jobs)
        if keys_between_robots(facts["varied"], jobs)
        else None
    )
    return [
        tables.robots_section(facts["robots"], jobs, pictures, learner_summary(jobs), order=order)
    ]


def _text(title: str, sentence: str, **more: Any) -> Section:
    return Section(title=title, parts=[Text(sentences=[sentence], **more)])


def _headlines(totals: Totals) -> list[Headline]:
    states = totals["states"]
    others = [f"{states[name]} {name.lower()}" for name in states if name != "SUCCEEDED"]
    retries = count(totals["retries"], "retry", "retries") if totals["retries"] else ""
    return [
        Headline(label="jobs", value=f"{totals['jobs']:,}", note=retries),
        Headline(
            label="succeeded", value=f"{states.get('SUCCEEDED', 0):,}", note=", ".join(others)
        ),
        Headline(
            label="time", value=duration(totals["busy_s"]), note="with at least one job running"
        ),
        Headline(label="core-hours", value=number(totals["core_hours"]), note="cores held × time"),
        Headline(label="env_steps", value=number(float(totals["env_steps"])), note="all jobs"),
        Headline(
            label="env_steps/s",
            value=number(totals["env_steps_per_s"]),
            note="all jobs together, start-up and evaluation included",
        ),
    ]


def _findings(findings: Sequence[ContentionFinding], jobs: Sequence[ReportedJob]) -> Section:
    if not findings and not any((job["timings"]["iterations"] or 0) > 1 for job in jobs):
        early = "There are no findings: no job has finished a second iteration (the first one warms up)."
        return _text("Findings", early)
    if not findings:
        none = "No lost time was found: no contention for cores, no throttling, no surplus threads."
        return _text("Findings", none, tone="good")
    columns: Columns[ContentionFinding] = {
        "job": lambda finding: listed(finding.job_ids, NAMED) or "all jobs",
        "cause": lambda finding: one_line(finding.what),
        "evidence": lambda finding: one_line(finding.evidence),
        "remedy": lambda finding: one_line(finding.cure),
    }
    caption = (
        "What slowed jobs down, or is wrong with their policies, with the evidence and the remedy."
    )
    parts = [table(findings, columns, caption=caption, text=columns, shown=MOST_FINDINGS)]
    return Section(title="Findings", parts=parts)


def _shown_robots(robots: Sequence[ReportedRobot]) -> tuple[list[ReportedRobot], str]:
    """The robots that a figure shows, and the sentence that says which they are."""
    if len(robots) <= MOST_PANELS:
        return list(robots), ""
    half = MOST_PANELS // 2
    ranked = sorted(
        robots,
        key=lambda robot: robot["last"]["value"] if robot["last"] else -math.inf,
        reverse=True,
    )
    sentence = (
        f" The figure shows the {half} robots with the highest and the {half} with the lowest last return of "
        f"{len(robots):,}; the table shows all."
    )
    return [*ranked[:half], *ranked[-half:]], sentence


def _learning_curves(robots: Sequence[ReportedRobot], jobs: Mapping[str, ReportedJob]) -> Section:
    trained = [robot for robot in robots if any(jobs[job_id]["curve"] for job_id in robot["jobs"])]
    if not trained:
        return _text("Learning curves", "No job has finished an episode.")
    shown, which = _shown_robots(trained)
    seeds = "Each robot was trained with a single seed, so there is no interval."
    if any(len(robot["seeds"]) > 1 for robot in shown):
        seeds = (
            f"Thin lines: seeds. Thick line: their mean; band: its 95 % interval ({INTERVALS}), clipped by "
            "the panel."
        )
    marks = [jobs[job_id]["marks"] for robot in shown for job_id in robot["jobs"]]
    if remark := lineage_remark([jobs[job_id] for robot in shown for job_id in robot["jobs"]]):
        seeds += f" {remark}"
    if marked := {meaning for of_job in marks for meaning, steps in of_job.items() if steps}:
        seeds += f" Triangles: {' or '.join(sorted(marked))}."
    if missing := len(robots) - len(trained):
        what = f"{missing:,} of {count(len(robots), 'robot')} {'has' if missing == 1 else 'have'} no panel"
        seeds += f" {what}, as no training episode of theirs has ended."
    figure = Figure(
        name="learning-curves",
        title="Learning curves",
        caption=f"Return of training episodes over env_steps. {seeds} Scales differ between panels.{which}",
        draw=partial(figures.learning_curves, shown, jobs),
    )
    return Section(title="Learning curves", parts=[figure])


def _schedule(attempts: Sequence[ReportedAttempt], jobs: Sequence[ReportedJob]) -> list[Section]:
    if not attempts:
        return []
    use = {job["job_id"]: _cpu_share(job) for job in jobs}
    held = sum(
        (attempt["until"] - attempt["started_at"]) * max(1, len(attempt["cpus"]))
        for attempt in attempts
    )
    busy = sum(
        figures.cpu_share(attempt, use) * (attempt["until"] - attempt["started_at"])
        for attempt in attempts
    )
    figure = Figure(
        name="schedule",
        title="Jobs on CPUs",
        caption="Above: each bar is one attempt (launch of a job) on the CPU that it was bound to. Below: the number "
        "of CPUs that the jobs kept busy, from the CPU time of each attempt spread evenly over it; dashed: how many "
        f"the jobs were given. Jobs computed for {percent(busy / held if held else None)} of the time for which "
        "they held a CPU; else they waited for a CPU that was used by others, or for the disk.",
        draw=partial(figures.schedule, attempts, use),
    )
    return [Section(title="Schedule", parts=[figure, *_starts(attempts)])]


def _starts(attempts: Sequence[ReportedAttempt]) -> list[Text]:
    """How workers were started, and why; nothing where that is not known."""
    starts = Counter(attempt["start"] for attempt in attempts if attempt["start"] is not None)
    reasons = Counter(attempt["why_exec"] for attempt in attempts if attempt["start"] == "exec")
    if not starts:
        return []
    ways = []
    if forked := starts["fork"]:
        ways.append(f"{forked:,} forked from a process that had imported their packages")
    if execed := starts["exec"]:
        known = "; ".join(
            f"{one_line(why)} ({times:,})" for why, times in reasons.most_common() if why
        )
        ways.append(f"{execed:,} started as new Python processes" + (f": {known}" if known else ""))
    return [
        Text(sentences=[f"Of {starts.total():,} workers that have ended, {' and '.join(ways)}."])
    ]


def _cpu_share(job: ReportedJob) -> float | None:
    """CPU seconds per second of its iterations: that of rank 0 times the number of ranks."""
    cpu_s = job["timings"]["cpu_s"]
    wall_s = job["timings"]["wall_s"]
    return job["ranks"] * cpu_s / wall_s if cpu_s is not None and wall_s else None


def _phases(robots: Sequence[ReportedRobot]) -> list[Section]:
    timed = [robot for robot in robots if robot["timed_s"] > 0 and robot["timed_env_steps"] > 0]
    if not timed:
        return []
    shown, which = _shown_robots(timed)
    figure = Figure(
        name="phases",
        title="Where the time goes",
        caption="Time of training iterations by phase, one bar per robot. On the right, the share of this time in "
        f"which a thread was ready to run but waited for a CPU: the direct measure of contention.{which}",
        draw=partial(figures.phases, shown),
    )
    columns: Columns[ReportedRobot] = {
        "robot": lambda robot: one_line(robot["robot"]),
        **{phase.title: partial(_phase_ms, name) for name, phase in PHASES.items()},
        "all": lambda robot: _milliseconds(robot["timed_s"], robot),
        "waiting for a CPU": lambda robot: _milliseconds(robot["run_delay_s"], robot),
    }
    caption = "Milliseconds per 1,000 env_steps."
    return [
        Section(
            title="Phases",
            parts=[figure, table(timed, columns, caption=caption, text=("robot",), shown=0)],
        )
    ]


def _phase_ms(phase: str, robot: ReportedRobot) -> str:
    return _milliseconds(robot["phases"][f"{phase}_s"], robot)


def _milliseconds(seconds: float | None, robot: ReportedRobot) -> str:
    """Milliseconds per 1,000 env_steps."""
    return number(None if seconds is None else seconds * 1e6 / robot["timed_env_steps"])
