"""The sections of the report of an experiment."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.analysis.contention import ContentionFinding
from orchestrator.analysis.job_columns import JobLine, job_columns
from orchestrator.analysis.statistics import INTERVALS
from orchestrator.core.columns import Column, with_values
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count, duration, listed
from orchestrator.ledger.summary import learner_summary
from orchestrator.report import figures
from orchestrator.report.document import (
    Cell,
    Columns,
    Figure,
    Headline,
    Part,
    Section,
    Text,
    Tone,
    table,
)
from orchestrator.report.experiment import (
    ExperimentFacts,
    ReportedAttempt,
    ReportedJob,
    ReportedRobot,
    cpu_share,
)
from orchestrator.report.machine_section import machine_section
from orchestrator.report.number_format import DASH, interval, number, one_line, percent
from orchestrator.report.thumbnails import thumbnails

MOST_PANELS = 24
MOST_FINDINGS = 12
MOST_ROWS = 40
"""Rows of the table of robots that are not folded, and have pictures."""
MOST_NAMED = 4
"""Jobs that a finding names, and keys that a robot's cell names."""
LONGEST_VALUE = 24
LONGEST_MESSAGE = 400
ABOUT = (
    "A report of training runs of reinforcement-learning policies for simulated robots, each in an operating-system "
    "process of its own. An env_step is one control step of one environment. The return is the sum of the rewards of "
    "an episode, averaged over the latest 100 training episodes. A robot is all jobs that differ in their seed alone."
)
STATE_TONES: dict[str, Tone] = {
    "SUCCEEDED": "good",
    "FAILED": "bad",
    "PENDING": "dim",
    "PAUSED": "dim",
    "CANCELLED": "dim",
}


def of_experiment(facts: ExperimentFacts, run_dir: Path) -> list[Section]:
    """Return all sections; the first one is about the report, the last one about the machine."""
    about = [ABOUT]
    machine = machine_section(facts["machine"])
    if not facts["jobs"]:
        about.append("The robots are being examined; there are no jobs yet.")
        return [_about(about, facts["totals"]), machine]
    robots = facts["robots"]
    jobs = {job["job_id"]: job for job in facts["jobs"]}
    if len(jobs) < facts["totals"]["jobs"]:
        about.append(
            f"Of {facts['totals']['jobs']:,} jobs, the {len(jobs):,} with the highest returns are shown; summary.csv "
            "has all."
        )
    return [
        _about(about, facts["totals"]),
        _findings(facts["findings"], facts["jobs"]),
        _failures(facts["attempts"], facts["jobs"]),
        _robots(robots, jobs, RunPaths(run_dir)),
        _learning_curves(robots, jobs),
        _measures(robots),
        _grid(robots),
        _schedule(facts["attempts"], jobs),
        _phases(robots),
        _jobs(facts["jobs"]),
        machine,
    ]


def _about(sentences: Sequence[str], totals: Mapping[str, Any]) -> Section:
    states = totals["states"]
    others = [f"{states[name]} {name.lower()}" for name in states if name != "SUCCEEDED"]
    retries = count(totals["retries"], "retry", "retries") if totals["retries"] else ""
    headlines = [
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
    parts = [Text(sentences=[sentence]) for sentence in sentences]
    return Section(title="About", parts=parts, headlines=headlines)


def _findings(findings: Sequence[ContentionFinding], jobs: Sequence[ReportedJob]) -> Section:
    if findings:
        columns: Columns[ContentionFinding] = {
            "job": lambda finding: listed(finding.job_ids, MOST_NAMED),
            "cause": lambda finding: one_line(finding.what),
            "evidence": lambda finding: one_line(finding.evidence),
            "remedy": lambda finding: one_line(finding.cure),
        }
        caption = "What slowed jobs down, or is wrong with their policies, with the evidence and the remedy."
        part: Part = table(findings, columns, caption=caption, text=columns, shown=MOST_FINDINGS)
    elif any((job["timings"]["iterations"] or 0) > 1 for job in jobs):
        none = "No lost time was found: no contention for cores, no throttling, no surplus threads."
        part = Text(sentences=[none], tone="good")
    else:
        early = "There are no findings: no job has finished a second iteration (the first one warms up)."
        part = Text(sentences=[early])
    return Section(title="Findings", parts=[part])


def _failures(attempts: Sequence[ReportedAttempt], jobs: Sequence[ReportedJob]) -> Section:
    """Attempts that failed, and jobs that were invalid, which have none."""
    rows: list[Mapping[str, Any]] = [one for one in attempts if one["outcome"] == "failed"]
    rows += [job for job in jobs if job["state"] == "FAILED" and not job["attempts"]]
    columns: Columns[Mapping[str, Any]] = {
        "job": lambda row: str(row["job_id"]),
        "attempt": lambda row: str(row["number"] + 1) if "number" in row else DASH,
        "cause": lambda row: str(row["cause"]),
        "message": lambda row: one_line(row["message"] or "", LONGEST_MESSAGE),
    }
    caption = "Attempts that failed. An attempt is one launch of a job, which is retried where another may succeed."
    parts = [table(rows, columns, caption=caption, text=("job", "cause", "message"))]
    return Section(title="Failures", parts=parts if rows else [])


# -- robots


def _robots(
    robots: Sequence[ReportedRobot], jobs: Mapping[str, ReportedJob], paths: RunPaths
) -> Section:
    caption = (
        "Return: after the first iteration with a finished episode, and at the end. Evaluation: the mean return of the "
        "finished policy ± the standard deviation over its episodes. env_steps/s: during training iterations."
    )
    if any(robot["point"] for robot in robots):
        robots = sorted(robots, key=_rating, reverse=True)
        caption = f"Robots with the highest return come first. {caption}"
    if any(len(robot["seeds"]) > 1 for robot in robots):
        caption += f" Of several seeds: the mean with its 95 % interval ({INTERVALS}) in brackets."
    previews = {
        robot["group"]: path
        for robot in robots[:MOST_ROWS]
        for job_id in sorted(robot["jobs"], key=lambda job_id: _job_return(jobs[job_id]))
        if (path := paths.job(job_id).preview).is_file()
    }
    images = thumbnails(previews)
    columns: Columns[ReportedRobot] = {"robot": _robot_name}
    if images:
        columns["preview"] = lambda robot: Cell(
            text=f"picture of {one_line(robot['robot'])}" if robot["group"] in images else "",
            image=images.get(robot["group"]),
        )
    if any(robot["point"] for robot in robots):
        columns["varied"] = _varied
    columns |= {
        "task": lambda robot: one_line(robot["task"]),
        "return: first → last": _returns,
        "evaluation": _evaluation,
        "env_steps/s": lambda robot: interval(robot["env_steps_per_s"]),
        "core-hours": lambda robot: number(robot["core_hours"]),
        "attempts": lambda robot: str(robot["attempts"]),
    }
    text = ("robot", "preview", "varied", "task", "return: first → last", "evaluation")
    parts: list[Part] = [table(robots, columns, caption=caption, text=text, shown=MOST_ROWS)]
    if learners := learner_summary(list(jobs.values())):
        sentence = f"Learner (the implementation of the algorithm): {one_line(learners)}."
        parts.append(Text(sentences=[sentence]))
    return Section(title="Robots", parts=parts)


def _rating(robot: ReportedRobot) -> float:
    """Return what robots are ordered by: the evaluation, or the last return of training."""
    episodes = robot["evaluation"]
    estimate = (episodes["mean"] if episodes else None) or robot["last"]
    return -math.inf if estimate is None else estimate["value"]


def _job_return(job: ReportedJob) -> float:
    return -math.inf if job["ep_rew_mean"] is None else job["ep_rew_mean"]


def _robot_name(robot: ReportedRobot) -> Cell:
    text = one_line(robot["robot"])
    if len(robot["seeds"]) > 1:
        text += f" ({count(len(robot['seeds']), 'seed')})"
    failed = robot["states"].count("FAILED")
    return Cell(text=f"{text} · {failed} failed", tone="bad") if failed else Cell(text=text)


def _varied(robot: ReportedRobot) -> str:
    """Return the values that a matrix or a program gave to its first job."""
    named = [
        f"{one_line(key, LONGEST_VALUE)} {one_line(value, LONGEST_VALUE)}"
        for key, value in robot["point"].items()
    ]
    return listed(named, MOST_NAMED) or DASH


def _returns(robot: ReportedRobot) -> Cell:
    first = robot["first"]
    last = robot["last"]
    if first is None or last is None:
        return Cell(text=DASH)
    text = f"{number(first['value'])} → {interval(last)}"
    if last["value"] == first["value"]:
        return Cell(text=text)
    return Cell(text=text, tone="good" if last["value"] > first["value"] else "bad")


def _evaluation(robot: ReportedRobot) -> str:
    episodes = robot["evaluation"]
    if episodes is None or episodes["mean"] is None:
        return DASH
    deviation = "" if episodes["std"] is None else f" ± {number(episodes['std'])}"
    return f"{interval(episodes['mean'])}{deviation}"


def _measures(robots: Sequence[ReportedRobot]) -> Section:
    measured = [
        robot for robot in robots if robot["evaluation"] and robot["evaluation"]["measures"]
    ]
    columns: Columns[ReportedRobot] = {"robot": lambda robot: one_line(robot["robot"])}
    for robot in measured:
        for name in robot["evaluation"]["measures"] if robot["evaluation"] else ():
            columns[one_line(name)] = partial(_measure, name)
    caption = "What the tasks measure, on average over the episodes of the evaluation."
    parts = [table(measured, columns, caption=caption, text=("robot",))] if measured else []
    return Section(title="Measures", parts=parts)


def _measure(name: str, robot: ReportedRobot) -> str:
    return interval(robot["evaluation"]["measures"].get(name) if robot["evaluation"] else None)


def _grid(robots: Sequence[ReportedRobot]) -> Section:
    rows = [(robot, point) for robot in robots for point in robot["grid"]]
    columns: Columns[tuple[ReportedRobot, Mapping[str, Any]]] = {
        "robot": lambda row: one_line(row[0]["robot"]),
        "at": lambda row: ", ".join(
            f"{one_line(key)} = {one_line(value)}" for key, value in row[1]["at"].items()
        ),
        "return": lambda row: interval(row[1]["mean"]),
    }
    caption = (
        "Mean return of the finished policy on changed robots, at every point of the grid. A factor has an asterisk. "
        f"Of several seeds: the mean with its 95 % interval ({INTERVALS}) in brackets."
    )
    parts = [table(rows, columns, caption=caption, text=("robot", "at"))] if rows else []
    return Section(title="Evaluation grid", parts=parts)


# -- figures


def _shown_robots(robots: Sequence[ReportedRobot]) -> tuple[Sequence[ReportedRobot], str]:
    """Return the robots that a figure shows, and the sentence that says which they are."""
    if len(robots) <= MOST_PANELS:
        return robots, ""
    half = MOST_PANELS // 2
    ranked = sorted(robots, key=_rating, reverse=True)
    sentence = (
        f" The figure shows the {half} robots with the highest and the {half} with the lowest return of "
        f"{len(robots):,}."
    )
    return [*ranked[:half], *ranked[-half:]], sentence


def _learning_curves(robots: Sequence[ReportedRobot], jobs: Mapping[str, ReportedJob]) -> Section:
    trained = [robot for robot in robots if any(jobs[job_id]["curve"] for job_id in robot["jobs"])]
    if not trained:
        none = Text(sentences=["No job has finished an episode."])
        return Section(title="Learning curves", parts=[none])
    shown, which = _shown_robots(trained)
    caption = f"Return of training episodes over env_steps. Scales differ between panels.{which}"
    if any(len(robot["seeds"]) > 1 for robot in shown):
        caption += (
            " Thin lines: seeds. Thick line: their mean; band: its 95 % interval "
            f"({INTERVALS}), clipped by the panel."
        )
    if missing := len(robots) - len(trained):
        caption += f" Without {count(missing, 'robot')} of which no training episode has ended."
    figure = Figure(
        name="learning-curves",
        title="Learning curves",
        caption=caption,
        draw=partial(figures.learning_curves, shown, jobs),
    )
    return Section(title="Learning curves", parts=[figure])


def _schedule(attempts: Sequence[ReportedAttempt], jobs: Mapping[str, ReportedJob]) -> Section:
    attempts = [attempt for attempt in attempts if attempt["job_id"] in jobs]
    if not attempts:
        return Section(title="Schedule")
    held_s = 0.0
    busy_s = 0.0
    for attempt in attempts:
        length = attempt["until"] - attempt["started_at"]
        held_s += max(1, len(attempt["cpus"])) * length
        busy_s += cpu_share(attempt, jobs[attempt["job_id"]]) * length
    figure = Figure(
        name="schedule",
        title="Jobs on CPUs",
        caption="Each bar is one attempt (launch of a job) on the CPU that it was bound to. Jobs computed for "
        f"{percent(busy_s / held_s if held_s else None)} of the time for which they held a CPU; else they waited "
        "for a CPU that was used by others, or for the disk.",
        draw=partial(figures.schedule, attempts),
    )
    return Section(title="Schedule", parts=[figure])


def _phases(robots: Sequence[ReportedRobot]) -> Section:
    timed = [robot for robot in robots if robot["timed_s"] > 0 and robot["timed_env_steps"] > 0]
    if not timed:
        return Section(title="Phases")
    shown, which = _shown_robots(timed)
    figure = Figure(
        name="phases",
        title="Where the time goes",
        caption="Time of training iterations by phase, one bar per robot. On the right, the share of this time in "
        f"which a thread was ready to run but waited for a CPU: the direct measure of contention.{which}",
        draw=partial(figures.phases, shown),
    )

    return Section(title="Phases", parts=[figure])


# -- jobs


def _jobs(jobs: Sequence[ReportedJob]) -> Section:
    shown = [column for column in job_columns(jobs) if column.shown != "live"]
    shown = with_values(shown, jobs)
    caption = (
        "Every job, in the order of the job file. Evaluated, in steps: means without exploration."
    )
    if any(column.name == "lineage" for column in shown):
        caption += (
            " Lineage: the env_steps with those of the policy that it started from, which the parent had trained, and "
            "so on. Jobs of different lineages are not comparable at equal env_steps."
        )
    columns: Columns[ReportedJob] = {column.name: partial(_job_cell, column) for column in shown}
    text = [column.name for column in shown if not column.is_number]
    return Section(
        title="All jobs", parts=[table(jobs, columns, caption=caption, text=text, shown=0)]
    )


def _job_cell(column: Column[JobLine], job: JobLine) -> Cell:
    tone = STATE_TONES.get(job["state"], "") if column.name == "state" else ""
    return Cell(text=one_line(column.text(job)), tone=tone)
