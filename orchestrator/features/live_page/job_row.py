"""A job as the page has it: a list of values, in the order of :data:`FIELDS`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from orchestrator.core.task_names import measure_of_task
from orchestrator.core.text import plain, shortened
from orchestrator.ledger import SummaryRow
from orchestrator.ledger.live_facts import LiveFacts
from orchestrator.terminal.jobs_table import of_rows

FIELDS = (
    *(
        "position",
        "name",
        "seed",
        "task",
        "state",
        "activity",
        "share",
        "steps",
        "total",
        "goal",
        "rate",
    ),
    *(
        "first",
        "ret",
        "evaluated",
        "measure",
        "measured",
        "wall",
        "started",
        "ended",
        "cpu",
        "delay",
        "attempts",
    ),
    *("ranks", "cpus", "node", "cause", "message", "media", "drawn"),
)
"""``activity``: what it does, if that is more than its state. ``goal``: env_steps at which it
pauses at a rung. ``first``, ``ret``: mean return of the first and the last iteration. ``measure``,
``measured``: name and mean of the first measure of its evaluation. ``wall``: seconds of the
attempts that have ended. ``cpu``, ``delay``: of a running job, seconds of computing and of waiting
for a CPU a second. ``media``, ``drawn``: see :class:`JobMedia`."""
DIGITS = 5
LONGEST_MESSAGE = 300


class JobMedia(NamedTuple):
    """The pictures of a job."""

    media: int = 0
    """1 with a preview, 2 with a video, 3 with both."""
    drawn: float | None = None
    """When the newer one was written, seconds since the epoch."""


def values(
    row: SummaryRow,
    position: int,
    live: LiveFacts | None,
    goals: Mapping[str, int],
    media: JobMedia,
) -> list[Any]:
    """What :data:`FIELDS` names. None: not known, or without meaning in this state."""
    (line,) = of_rows([row], live, goals)
    is_running = row["state"] == "RUNNING"
    measures = row["measures"] or {}
    measure = measure_of_task(measures)
    measured = None if measure is None else measures[measure]
    message = row["message"] if row["state"] == "FAILED" else None
    activity = None if line.activity == row["state"] else line.activity
    steps = line.env_steps or row["env_steps"]
    return [
        *(position, row["name"], row["seed"], row["task"]),
        *(row["state"], activity, brief(line.share), steps, row["total_timesteps"]),
        goals.get(row["job_id"]),
        brief(line.env_steps_per_s),
        *(brief(line.ep_rew_mean_first), brief(line.ep_rew_mean), brief(row["eval_mean"]), measure),
        *(brief(measured), tenths(row["wall_s"]), tenths(row["started_at"])),
        None if is_running else tenths(row["ended_at"]),
        *(brief(line.cpu_share), brief(line.run_delay_share), row["attempts"], row["ranks"]),
        *(row["cpus"], row["node"], row["cause"]),
        None if message is None else safe_text(message, LONGEST_MESSAGE),
        *media,
    ]


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
