"""The tables of an experiment: robots, failures, jobs."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, Literal, NamedTuple

from orchestrator.analysis.statistics import INTERVALS
from orchestrator.core import job_parts
from orchestrator.core.job import META
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count, duration, listed
from orchestrator.ledger.lineage import env_steps_before
from orchestrator.report.document import Cell, Columns, Part, Section, Text, Tone, table
from orchestrator.report.experiment_facts import (
    EpisodeEstimates,
    FailedAttempt,
    ReportedJob,
    ReportedRobot,
)
from orchestrator.report.number_format import DASH, interval, number, one_line, percent
from orchestrator.report.thumbnails import thumbnails

STATE_TONES: dict[str, Tone] = {
    "SUCCEEDED": "good",
    "FAILED": "bad",
    "PENDING": "dim",
    "PAUSED": "dim",
    "CANCELLED": "dim",
}
LONGEST_MESSAGE = 400
LONGEST_VALUE = 60
LINEAGE = (
    " “lineage”: its env_steps with those of the policy that it started from, which another job had trained, and so "
    "on. At equal env_steps, jobs of other lineages are not comparable."
)
PARENT = (
    " “parent”: the job of this run directory that had trained the policy that it started from."
)
UNLIKE = (
    " Seeds that had other settings, or another robot, than the first one, as the job file was changed in between: "
    "{seeds}. Figures over seeds are then over different trainings."
)
MOST_UNLIKE = 8
"""Robots with such seeds that are named."""
MOST_PARENTS = 2
"""Jobs of several seeds that are named in one cell."""
MOST_KEYS = 24
"""Columns for keys that a program gives."""
META_COLUMN = "meta"
"""What a program says of a robot: all of it in one column."""
MOST_META = 8
"""Keys of it that are named there."""
LONGEST_META = 24


def previews(jobs: Sequence[ReportedJob], paths: RunPaths) -> dict[str, str]:
    """Group → image of its best job that has one, as a ``data:`` URL."""
    best_first = sorted(jobs, key=_return_of, reverse=True)
    # Of a group the last one stays in the table, which is the best.
    best = {job["group"]: job for job in reversed(best_first) if job["preview"]}
    return thumbnails({group: paths.job(job["job_id"]).preview for group, job in best.items()})


def _return_of(job: ReportedJob) -> float:
    """Of its training; −∞ where it has none."""
    return float("-inf") if job["ep_rew_mean"] is None else job["ep_rew_mean"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotOrder:
    """An order of robots that is not that of the job file."""

    robots: Sequence[ReportedRobot]
    sentence: str


def rating_of(succeeded: Sequence[ReportedJob]) -> Literal["eval_mean", "ep_rew_mean"]:
    """Return the column with the return of jobs: of the evaluation, or the last of training where not
    all have one.
    """
    is_evaluated = bool(succeeded) and all(job["eval_mean"] is not None for job in succeeded)
    return "eval_mean" if is_evaluated else "ep_rew_mean"


def by_return(robots: Sequence[ReportedRobot], jobs: Sequence[ReportedJob]) -> RobotOrder:
    """The robot with the highest return first: of the evaluation, or of training where not all jobs
    that have succeeded were evaluated.
    """
    rating = rating_of([job for job in jobs if job["state"] == "SUCCEEDED"])
    returns = {job["job_id"]: job[rating] for job in jobs}

    def of_robot(robot: ReportedRobot) -> float:
        """The mean over its seeds; −∞ without one."""
        known = [value for job_id in robot["jobs"] if (value := returns[job_id]) is not None]
        return fmean(known) if known else float("-inf")

    what = "evaluation" if rating == "eval_mean" else "last return of training"
    return RobotOrder(
        robots=sorted(robots, key=of_robot, reverse=True),
        sentence=f"Robots with the highest {what} come first.",
    )


def robots_section(
    robots: Sequence[ReportedRobot],
    jobs: Iterable[ReportedJob],
    images: Mapping[str, str],
    learners: str,
    *,
    order: RobotOrder | None = None,
) -> Section:
    """``images`` as :func:`previews` gives them; ``learners`` in words, empty where nothing has
    been trained.

    :param jobs: those of ``robots``.
    :param order: None: that of ``robots``.
    """
    jobs_by_id = {job["job_id"]: job for job in jobs}

    def preview(robot: ReportedRobot) -> Cell:
        image = images.get(robot["group"])
        text = f"picture of {one_line(robot['robot'])}" if image else ""
        return Cell(text=text, image=image)

    columns: Columns[ReportedRobot] = {
        "robot": _robot,
        "preview": preview,
        META_COLUMN: lambda robot: _meta(robot, jobs_by_id),
        "task": lambda robot: one_line(robot["task"]),
        "return: first → last": _returns,
        "evaluation": lambda robot: _evaluation(robot["evaluation"]),
        "measures": lambda robot: _measures(robot["evaluation"]),
        "env_steps": lambda robot: _range(robot["env_steps"]),
        "lineage": lambda robot: _range(robot["lineage_env_steps"]),
        "parent": lambda robot: _parents(robot["parents"]),
        "env_steps/s": lambda robot: interval(robot["env_steps_per_s"]),
        "core-hours": lambda robot: number(robot["core_hours"]),
        "attempts": lambda robot: str(robot["attempts"]),
    }
    if not images:
        del columns["preview"]
    if not any(key.startswith(META) for robot in robots for key in robot["point"]):
        del columns[META_COLUMN]
    caption = (
        "Return: after the first iteration with a finished episode, and at the end; each is the mean of at most the "
        "latest 100 episodes. Evaluation: the mean return of the finished policy ± the standard deviation over "
        "its episodes. env_steps/s: during training iterations."
    )
    if order is not None:
        caption = f"{order.sentence} {caption}"
    if any(len(robot["seeds"]) > 1 for robot in robots):
        caption += f" Of several seeds: the mean with its 95 % interval ({INTERVALS}) in brackets."
    if unlike := [_unlike_seeds(robot) for robot in robots if robot["unlike_seeds"]]:
        caption += UNLIKE.format(seeds=listed(unlike, MOST_UNLIKE))
    if any(map(_goes_on_from_a_policy, robots)):
        caption += LINEAGE
    else:
        del columns["lineage"]
    if any(any(robot["parents"]) for robot in robots):
        caption += PARENT
    else:
        del columns["parent"]
    text = (
        "robot",
        "preview",
        META_COLUMN,
        "task",
        "return: first → last",
        "evaluation",
        "measures",
        "parent",
    )
    rows = robots if order is None else order.robots
    parts: list[Part] = [table(rows, columns, caption=caption, text=text)]
    if learners:
        parts.append(
            Text(
                sentences=[f"Learner (the implementation of the algorithm): {one_line(learners)}."]
            )
        )
    missing = sum(robot["group"] not in images for robot in robots)
    if missing:
        parts.append(_missing_previews(missing, len(robots)))
    return Section(title="Robots", parts=parts)


def _unlike_seeds(robot: ReportedRobot) -> str:
    """The robot, with its seeds that were trained otherwise than the first."""
    return f"{one_line(robot['robot'], 40)} ({', '.join(map(str, robot['unlike_seeds']))})"


def _missing_previews(missing: int, robots: int) -> Text:
    which = "No robot has a" if missing == robots else f"{missing:,} of {robots:,} robots have no"
    how = (
        "at its end, a run draws those of robots that MuJoCo simulates and that are evaluated (“preview = true”), "
        "where there is a GL library; “play” makes one, too."
    )
    return Text(sentences=[f"{which} preview: {how}"], tone="dim")


def _robot(robot: ReportedRobot) -> Cell:
    failed = robot["states"].count("FAILED")
    seeds = "" if len(robot["seeds"]) == 1 else f" ({count(len(robot['seeds']), 'seed')})"
    failures = f" · {failed} failed" if failed else ""
    return Cell(text=f"{one_line(robot['robot'])}{seeds}{failures}", tone="bad" if failed else "")


def _meta(robot: ReportedRobot, jobs: Mapping[str, ReportedJob]) -> str:
    """What a program says of the robot; several values where it says different ones of its seeds.

    :param jobs: by ``job_id``.
    """
    of_robot = [jobs[job_id] for job_id in robot["jobs"]]
    found: list[str] = []
    for key in dict.fromkeys(itertools.chain.from_iterable(job["point"] for job in of_robot)):
        if not key.startswith(META):
            continue
        texts = dict.fromkeys(one_line(_of_point(key, job), LONGEST_META) for job in of_robot)
        if any(text != DASH for text in texts):
            found.append(f"{one_line(key.removeprefix(META), LONGEST_META)} {' or '.join(texts)}")
    return listed(found, MOST_META) or DASH


def _returns(robot: ReportedRobot) -> Cell:
    first = robot["first"]
    last = robot["last"]
    if last is None:
        return Cell(text=DASH)
    change = last["value"] - first["value"] if first else 0
    tone: Tone = ""
    if change != 0:
        tone = "good" if change > 0 else "bad"
    return Cell(text=f"{interval(first)} → {interval(last)}", tone=tone)


def _evaluation(episodes: EpisodeEstimates | None) -> str:
    if episodes is None or episodes["mean"] is None:
        return DASH
    deviation = "" if episodes["std"] is None else f" ± {number(episodes['std'])}"
    return f"{interval(episodes['mean'])}{deviation}"


def _measures(episodes: EpisodeEstimates | None) -> str:
    measures = episodes["measures"] if episodes else {}
    known = {name: value for name, value in measures.items() if value is not None}
    return ", ".join(f"{one_line(name)} {interval(value)}" for name, value in known.items()) or DASH


def _goes_on_from_a_policy(robot: ReportedRobot) -> bool:
    """Whether one of its jobs is known to."""
    steps = zip(robot["env_steps"], robot["lineage_env_steps"], strict=True)
    return any(env_steps_before(own, lineage) for own, lineage in steps)


def _range(numbers: Sequence[int | None]) -> str:
    """``51,200``, or ``51,200 to 102,400`` where they differ; a dash where one is not known."""
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers):
        return DASH
    fewest = f"{min(known):,}"
    return fewest if min(known) == max(known) else f"{fewest} to {max(known):,}"


def _parents(parents: Sequence[str | None]) -> str:
    return one_line(listed(list(dict.fromkeys(filter(None, parents))), MOST_PARENTS)) or DASH


class FailureRow(NamedTuple):
    """A row of the table of failures."""

    job: ReportedJob
    attempt: str
    """Its number, from 1; a dash where no attempt has failed, but the job."""
    why: FailedAttempt | ReportedJob
    """Has cause and message."""


def failures(jobs: Sequence[ReportedJob]) -> list[Section]:
    """Failed attempts, and jobs that failed without one; no section where there are none."""
    rows = [
        FailureRow(job, str(failure["attempt"] + 1), failure)
        for job in jobs
        for failure in job["failures"]
    ]
    rows += [
        FailureRow(job, DASH, job)
        for job in jobs
        if job["state"] == "FAILED" and not job["failures"]
    ]
    if not rows:
        return []
    columns: Columns[FailureRow] = {
        "job": lambda row: row.job["job_id"],
        "attempt": lambda row: row.attempt,
        "cause": lambda row: str(row.why["cause"]),
        "message": lambda row: one_line(row.why["message"] or "", LONGEST_MESSAGE),
        "state of the job": lambda row: _state(row.job),
    }
    caption = "Attempts that failed. An attempt is one launch of a job, which is retried where another may succeed."
    text = ("job", "cause", "message", "state of the job")
    return [Section(title="Failures", parts=[table(rows, columns, caption=caption, text=text)])]


def _state(job: ReportedJob) -> Cell:
    return Cell(text=job["state"], tone=STATE_TONES.get(job["state"], ""))


def jobs_section(
    jobs: Sequence[ReportedJob], varied: Sequence[str] = (), between: Collection[str] = ()
) -> Section:
    """A table with a row for each job.

    :param varied: keys of the points of jobs.
    :param between: those of them that tell robots apart, which names of jobs do not show.
    """
    columns: Columns[ReportedJob] = {
        "job": lambda job: str(job["job_id"]),
        "state": _state,
        "learner": lambda job: job["learner"] or DASH,
        "ranks": lambda job: str(job["ranks"]),
        "in all-reduce": lambda job: percent(job["allreduce"]),
        "return: first": lambda job: number(job["ep_rew_mean_first"]),
        "last": lambda job: number(job["ep_rew_mean"]),
        "evaluation": lambda job: number(job["eval_mean"]),
        "steps an episode": lambda job: number(_deterministic(job).get("length_mean")),
        "measures": _measures_of_job,
        "env_steps": lambda job: f"{job['env_steps']:,}",
        "of": lambda job: f"{job['total_timesteps']:,}",
        "lineage": lambda job: number(job["lineage_env_steps"]),
        "parent": lambda job: job["parent"] or DASH,
        "env_steps/s": lambda job: number(job["env_steps_per_s"]),
        "time": lambda job: duration(job["wall_s"]),
        "in evaluation": lambda job: percent(
            job["eval_s"] / job["wall_s"] if job["eval_s"] and job["wall_s"] else None
        ),
        "core-hours": lambda job: number(job["core_hours"]),
        "MiB": lambda job: number(job["max_rss_mib"] or job["timings"]["rss_mib"]),
        "attempts": lambda job: str(job["attempts"]),
    }
    for name in job_parts.column_names():
        if name not in columns and any(job_parts.columns_in(job)[name] is not None for job in jobs):
            columns[name] = partial(_of_feature, name)
    for key in _own_columns(varied, between, jobs):
        if key not in columns:
            columns[key] = partial(_of_point, key)
    caption = (
        "Every job, in the order of the job file. Evaluation, steps an episode and measures are means over the "
        "evaluation episodes without exploration."
    )
    if any(env_steps_before(job["env_steps"], job["lineage_env_steps"]) for job in jobs):
        caption += LINEAGE
    else:
        del columns["lineage"]
    if any(job["parent"] for job in jobs):
        caption += PARENT
    else:
        del columns["parent"]
    if all(job["ranks"] == 1 for job in jobs):
        del columns["ranks"], columns["in all-reduce"]
    return Section(
        title="All jobs",
        parts=[
            table(
                jobs,
                columns,
                caption=caption,
                text=("job", "state", "learner", "measures", "parent"),
                shown=0,
            )
        ],
    )


def _own_columns(
    varied: Sequence[str], between: Collection[str], jobs: Sequence[ReportedJob]
) -> list[str]:
    """Those of ``varied`` that a program gives, and those that tell robots apart."""
    own = [
        key
        for key in varied
        if key.startswith(META) or (key in between and _has_several_values(key, jobs))
    ]
    return own[:MOST_KEYS]


def _has_several_values(key: str, jobs: Sequence[ReportedJob]) -> bool:
    return len({str(job["point"].get(key)) for job in jobs}) > 1


def _of_point(key: str, job: ReportedJob) -> str:
    value = job["point"].get(key)
    if value is None:
        return DASH
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return number(value) if is_number else one_line(str(value), LONGEST_VALUE)


def _deterministic(job: ReportedJob) -> Mapping[str, Any]:
    """Its evaluation; empty where there is none."""
    return (job["evaluation"] or {}).get("deterministic", {})


def _of_feature(name: str, job: ReportedJob) -> str:
    """The text of a column of a feature."""
    value = job_parts.columns_in(job)[name]
    return one_line(value) if isinstance(value, str) else number(value)


def _measures_of_job(job: ReportedJob) -> str:
    measures = _deterministic(job).get("measures", {})
    known = {name: value for name, value in measures.items() if value is not None}
    return ", ".join(f"{one_line(name)} {number(value)}" for name, value in known.items()) or DASH
