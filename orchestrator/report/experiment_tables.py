"""The tables of an experiment: robots, failures, every job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count, duration
from orchestrator.report.document import Cell, Column, Part, Section, Table, Text
from orchestrator.report.number_format import DASH, interval, number, percent, plain
from orchestrator.report.thumbnails import thumbnails

SHOWN_ROWS = 40
STATE_TONES: dict[str, Any] = {"SUCCEEDED": "good", "FAILED": "bad", "PENDING": "dim", "CANCELLED": "dim"}


def previews(jobs: Sequence[Mapping[str, Any]], paths: RunPaths) -> dict[str, str]:
    """Group → picture of its best job that has one."""
    best: dict[str, Mapping[str, Any]] = {}
    for job in jobs:
        if job["preview"]:
            known = best.get(job["group"])
            if known is None or (job["ep_rew_mean"] or float("-inf")) > (known["ep_rew_mean"] or float("-inf")):
                best[job["group"]] = job
    return thumbnails({group: paths.job(job["job_id"]).preview for group, job in best.items()})


def robots_section(robots: Sequence[Mapping[str, Any]], pictures: Mapping[str, str], learners: str) -> Section:
    """:param learners: in words; empty where nothing has been trained."""
    names = (
        "robot",
        "preview",
        "task",
        "return: first → last",
        "evaluation",
        "measures",
        "env_steps/s",
        "core-hours",
        "attempts",
    )
    numeric = {"env_steps/s", "core-hours", "attempts"}
    columns = [Column(name=name, numeric=name in numeric) for name in names if pictures or name != "preview"]
    rows = [_robot(robot, pictures) for robot in robots]
    seeds = max(len(robot["seeds"]) for robot in robots)
    caption = (
        "Every robot with what it learned and what that cost. Return: mean of the first and the last 100 training "
        "episodes. Evaluation: mean return of the finished policy ± standard deviation over episodes, without "
        "exploration and with it (“exploring”). env_steps/s while iterating."
    )
    if seeds > 1:
        caption += (
            " Where a robot was trained with several seeds: the median over seeds and, in brackets, its 95 % interval."
        )
    parts: list[Part] = [Table(columns=columns, rows=rows, caption=caption, shown=SHOWN_ROWS)]
    if learners:
        parts.append(Text(sentences=[f"Learner (what did PPO's arithmetic): {plain(learners)}."]))
    missing = sum(robot["group"] not in pictures for robot in robots)
    if missing:
        which = "No robot has a" if missing == len(robots) else f"{missing:,} of {len(robots):,} robots have no"
        how = (
            "`video = true` in the job file, or the command `play`, makes one of a finished policy, where a GL library "
            "is there to draw it."
        )
        parts.append(Text(sentences=[f"{which} preview: {how}"], tone="dim"))
    return Section(title="Robots", parts=parts)


def _robot(robot: Mapping[str, Any], pictures: Mapping[str, str]) -> list[Cell]:
    first, last = robot["first"], robot["last"]
    better = bool(first and last and last["median"] > first["median"])
    worse = bool(first and last and last["median"] < first["median"])
    failed = robot["states"].count("FAILED")
    seeds = "" if len(robot["seeds"]) == 1 else f" ({count(len(robot['seeds']), 'seed')})"
    name = Cell(
        text=plain(robot["robot"]) + seeds + (f" · {failed} failed" if failed else ""), tone="bad" if failed else ""
    )
    picture = pictures.get(robot["group"])
    return [
        name,
        *([Cell(text=f"film strip of {plain(robot['robot'])}" if picture else "", image=picture)] if pictures else []),
        Cell(text=plain(robot["task"])),
        Cell(
            text=DASH if last is None else f"{interval(first)} → {interval(last)}",
            tone="good" if better else "bad" if worse else "",
        ),
        Cell(text=_evaluated(robot["evaluation"])),
        Cell(text=_measures(robot["evaluation"])),
        Cell(text=interval(robot["env_steps_per_s"])),
        Cell(text=number(robot["core_hours"])),
        Cell(text=str(robot["attempts"])),
    ]


def _evaluated(evaluation: Mapping[str, Any] | None) -> str:
    if not evaluation:
        return DASH
    said = {"deterministic": "", "stochastic": "; exploring "}
    parts = []
    for kind, prefix in said.items():
        found = evaluation[kind]
        if found["mean"]:
            deviation = "" if found["std"] is None else f" ± {number(found['std'])}"
            parts.append(f"{prefix}{interval(found['mean'])}{deviation}")
    return "".join(parts) or DASH


def _measures(evaluation: Mapping[str, Any] | None) -> str:
    measures = evaluation["deterministic"]["measures"] if evaluation else {}
    return ", ".join(f"{plain(name)} {interval(value)}" for name, value in measures.items()) or DASH


def failures(jobs: Sequence[Mapping[str, Any]]) -> list[Section]:
    rows = [
        [
            Cell(text=job["job_id"]),
            Cell(text=str(failure["attempt"])),
            Cell(text=str(failure["cause"])),
            Cell(text=plain(failure["message"], 400)),
            Cell(text=job["state"], tone=STATE_TONES.get(job["state"], "")),
        ]
        for job in jobs
        for failure in job["failures"]
    ]
    rows += [
        [
            Cell(text=job["job_id"]),
            Cell(text=DASH),
            Cell(text=str(job["cause"])),
            Cell(text=plain(job["message"] or "", 400)),
            Cell(text=job["state"], tone="bad"),
        ]
        for job in jobs
        if job["state"] == "FAILED" and not job["failures"]
    ]
    if not rows:
        return []
    columns = [
        Column(name=name, numeric=name == "attempt") for name in ("job", "attempt", "cause", "message", "job is now")
    ]
    caption = (
        "Attempts that did not end well, with their causes. An attempt is one launch of a job; where another may "
        "succeed, the job is tried again."
    )
    return [Section(title="Failures", parts=[Table(columns=columns, rows=rows, caption=caption, shown=SHOWN_ROWS)])]


def jobs_section(jobs: Sequence[Mapping[str, Any]]) -> Section:
    fields: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "job": lambda job: str(job["job_id"]),
        "state": lambda job: str(job["state"]),
        "learner": lambda job: job["learner"] or DASH,
        "ranks": lambda job: str(job["ranks"]),
        "in all-reduce": lambda job: percent(job["allreduce"]),
        "return: first": lambda job: number(job["ep_rew_mean_first"]),
        "last": lambda job: number(job["ep_rew_mean"]),
        "evaluated": lambda job: number(job["eval_mean"]),
        "env_steps": lambda job: f"{job['env_steps']:,}",
        "of": lambda job: f"{job['total_timesteps']:,}",
        "env_steps/s": lambda job: number(job["env_steps_per_s"]),
        "time": lambda job: duration(job["wall_s"]),
        "core-hours": lambda job: number(job["core_hours"]),
        "MiB": lambda job: number(job["max_rss_mib"] or job["timings"]["rss_mib"]),
        "attempts": lambda job: str(job["attempts"]),
    }
    if all(job["ranks"] == 1 for job in jobs):
        del fields["ranks"], fields["in all-reduce"]
    rows = [
        [
            Cell(text=read(job), tone=STATE_TONES.get(job["state"], "") if name == "state" else "")
            for name, read in fields.items()
        ]
        for job in jobs
    ]
    columns = [Column(name=name, numeric=name not in ("job", "state", "learner")) for name in fields]
    return Section(
        title="All jobs",
        parts=[Table(columns=columns, rows=rows, caption="Every job, in the order of the job file.", shown=0)],
    )
