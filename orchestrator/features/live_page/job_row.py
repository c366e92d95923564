"""A job as the page has it: a list of values, in the order of :class:`PageJob`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from orchestrator.analysis.job_columns import activity, share
from orchestrator.core.task_names import measure_of_task
from orchestrator.core.text import plain, shortened
from orchestrator.ledger import SummaryRow

DIGITS = 5
LONGEST_MESSAGE = 300


class JobMedia(NamedTuple):
    """The pictures of a job."""

    media: int = 0
    """1 with a preview, 2 with a video, 3 with both."""
    drawn: float | None = None
    """When the newer one was written, seconds since the epoch."""


class PageJob(NamedTuple):
    """What the page has of a job. None: not known, or without meaning in this state."""

    position: int
    name: str
    seed: int
    task: str
    state: str
    activity: str | None
    """What it does, if that is more than its state."""
    share: float | None
    """Share of its training that is done."""
    steps: int
    total: int
    goal: int | None
    """env_steps at which it pauses at a rung."""
    rate: float | None
    """env_steps per second."""
    first: float | None
    """Mean return of the first iteration with one, and ``ret`` that of the last."""
    ret: float | None
    evaluated: float | None
    measure: str | None
    """Name of the first measure of its evaluation, and ``measured`` its mean."""
    measured: float | None
    wall: float | None
    """Seconds of the attempts that have ended."""
    started: float | None
    ended: float | None
    cpu: float | None
    """Of a running job, seconds of computing a second, and ``delay`` of waiting for a CPU."""
    delay: float | None
    attempts: int
    ranks: int
    cpus: Sequence[int] | None
    node: str | None
    cause: str | None
    message: str | None
    """Why it failed."""
    media: int
    """As in :class:`JobMedia`, and so is ``drawn``."""
    drawn: float | None
    lineage: int | None
    """``steps`` with those of the policy that it started from."""
    parent: str | None
    """The job of this run directory that it started from."""


FIELDS = PageJob._fields
"""Their names, which the page is told beside the values."""


def page_job(
    row: SummaryRow,
    position: int,
    goals: Mapping[str, int],
    pictures: JobMedia,
) -> PageJob:
    measures = row["measures"] or {}
    measure = measure_of_task(measures)
    measured = None if measure is None else measures[measure]
    message = row["message"] if row["state"] == "FAILED" else None
    return PageJob(
        position=position,
        name=row["name"],
        seed=row["seed"],
        task=row["task"],
        state=row["state"],
        activity=None if activity(row) == row["state"] else activity(row),
        share=brief(share(row)),
        steps=row["env_steps"],
        total=row["total_timesteps"],
        goal=goals.get(row["job_id"]),
        rate=brief(row["env_steps_per_s"]),
        first=brief(row["ep_rew_mean_first"]),
        ret=brief(row["ep_rew_mean"]),
        evaluated=brief(row["eval_mean"]),
        measure=measure,
        measured=brief(measured),
        wall=tenths(row["wall_s"]),
        started=tenths(row["started_at"]),
        ended=None if row["state"] == "RUNNING" else tenths(row["ended_at"]),
        cpu=brief(row["cpu_share"]),
        delay=brief(row["run_delay_share"]),
        attempts=row["attempts"],
        ranks=row["ranks"],
        cpus=row["cpus"],
        node=row["node"],
        cause=row["cause"],
        message=None if message is None else safe_text(message, LONGEST_MESSAGE),
        media=pictures.media,
        drawn=pictures.drawn,
        lineage=row["lineage_env_steps"],
        parent=row["parent"],
    )


def brief(value: float | None) -> float | int | None:
    """With about :data:`DIGITS` significant digits; None for what is no finite number."""
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short == int(short) and abs(short) < 1e15 else short


def tenths(seconds: float | None) -> float | None:
    return None if seconds is None or not math.isfinite(seconds) else round(seconds, 1)


def safe_text(text: str, longest: int) -> str:
    """``text`` of a job, without characters that would control what shows it."""
    text = plain(shortened(text), keep="\n\t")
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
