"""What a table for people has of each job: the columns of `status`, `run`, notebooks and reports."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from orchestrator.core import job_parts
from orchestrator.core.columns import NONE, Column, number_column
from orchestrator.core.task_names import measure_of_task
from orchestrator.core.text import duration, number_or_dash

STATE_STYLE = {
    "PENDING": "dim",
    "RUNNING": "cyan",
    "PAUSED": "yellow",
    "SUCCEEDED": "green",
    "FAILED": "bold red",
    "CANCELLED": "yellow",
}
LONGEST_ACTIVITY = 40
SILENT_S = 30.0
"""A worker that has reported nothing for so long gets no CPU, was stopped or hangs, or makes a long
update."""

JobLine: TypeAlias = Mapping[str, Any]
"""A job: a row of the summary, or a result with the same keys. While jobs run,
:func:`.jobs_table.of_rows` adds to it. A key may be missing or None: not known."""


def job_columns(lines: Sequence[JobLine]) -> list[Column[JobLine]]:
    """Return all columns in the order in which they stand; the higher its rank, the sooner a column
    goes where there is no room.

    :param lines: the jobs; which measure is shown depends on them.
    """
    return [
        Column("job", lambda line: line["job_id"]),
        Column("state", activity, style=lambda line: STATE_STYLE[line["state"]]),
        number_column("return", _returns, rank=1, style=_return_style),
        _number("evaluated", "eval_mean", ",.1f", rank=6),
        _number("in steps", "eval_length", ",.0f", rank=8),
        *_columns_of_measure(lines),
        _live(number_column("done", lambda line: number_or_dash(share(line), ".0%"), rank=1)),
        _count("env_steps", "env_steps", rank=8),
        number_column("lineage", _lineage, rank=8),
        Column("parent", lambda line: line.get("parent") or NONE, rank=9),
        _number("env_steps/s", "env_steps_per_s", ",.0f", rank=2),
        *map(_column_of_feature, job_parts.column_names()),
        _live(number_column("ETA", lambda line: duration(line.get("remaining_s")), rank=3)),
        number_column("time", lambda line: duration(line.get("wall_s")), rank=6),
        _live(_number("CPU", "cpu_share", ".0%", rank=4)),
        _live(number_column("wait", _wait, rank=4)),
        Column("learner", lambda line: line.get("learner") or NONE, rank=10, shown="report"),
        replace(_number("MiB", "max_rss_mib", ",.0f", rank=10), shown="report"),
        number_column("ranks", _ranks, rank=5),
        _count("attempts", "attempts", rank=3),
        _live(number_column("on CPU", lambda line: line.get("where") or NONE, rank=9)),
    ]


def activity(line: JobLine) -> str:
    """What a job does, and for how long its worker has reported nothing, if that is long."""
    if waits_for := line.get("waits_for"):
        text = f"waits for {waits_for}"
        return text if len(text) <= LONGEST_ACTIVITY else f"{text[: LONGEST_ACTIVITY - 1]}…"
    phase = str(line.get("phase") or line["state"])
    silent_s = time.time() - (line.get("reported_at") or math.inf)
    return f"{phase}, silent {duration(silent_s)}" if silent_s >= SILENT_S else phase


def share(line: JobLine) -> float | None:
    """The share of its training that is done; None before its first attempt."""
    if line["state"] == "SUCCEEDED":
        return 1.0
    return min(1.0, line["env_steps"] / line["total_timesteps"]) if line["attempts"] else None


def _live(column: Column[JobLine]) -> Column[JobLine]:
    return replace(column, shown="live")


def _number(name: str, key: str, form: str, rank: int) -> Column[JobLine]:
    return number_column(name, lambda line: number_or_dash(line.get(key), form), rank=rank)


def _count(name: str, key: str, rank: int) -> Column[JobLine]:
    """A column of numbers that is empty where they are zero, as before the first attempt."""
    return number_column(name, lambda line: number_or_dash(line.get(key) or None, ","), rank=rank)


def _columns_of_measure(lines: Sequence[JobLine]) -> list[Column[JobLine]]:
    """That of the measure of the tasks, if it is the same in all of them."""
    measures = {measure_of_task(line.get("measures") or ()) for line in lines} - {None}
    if len(measures) != 1:
        return []
    (measure,) = measures
    return [number_column(str(measure), measure_text(str(measure)), rank=7)]


def measure_text(name: str) -> Callable[[JobLine], str]:
    """Return the function that formats the mean of a measure."""
    return lambda line: number_or_dash((line.get("measures") or {}).get(name), ",.4g")


def _column_of_feature(name: str) -> Column[JobLine]:
    def cell(line: JobLine) -> str:
        value = line.get(name)
        if value is None:
            return NONE
        return f"{value:,.1f}" if isinstance(value, float) else str(value)

    return number_column(name, cell, rank=5)


def _lineage(line: JobLine) -> str:
    """The env_steps with those of the policies before it; empty if there were none."""
    steps = line.get("lineage_env_steps")
    return NONE if steps == line["env_steps"] else number_or_dash(steps, ",")


def _wait(line: JobLine) -> str:
    """The share of its time that it waits for a CPU, 100 % at most: its threads may together wait
    for longer than the time that passes.
    """
    waited = line.get("run_delay_share")
    return number_or_dash(None if waited is None else min(1.0, waited), ".0%")


def _ranks(line: JobLine) -> str:
    return str(line["ranks"]) if line.get("ranks", 1) > 1 else NONE


def _returns(line: JobLine) -> str:
    """The mean return, and before it that of the first iteration."""
    first = line.get("ep_rew_mean_first")
    last = number_or_dash(line.get("ep_rew_mean"), ",.1f")
    return last if first is None else f"{first:,.1f} → {last}"


def _return_style(line: JobLine) -> str:
    """Green where the return has risen in the training, and red where it has fallen."""
    first = line.get("ep_rew_mean_first")
    last = line.get("ep_rew_mean")
    if last is None:
        return "dim"
    if first is None or first == last:
        return ""
    return "green" if last > first else "red"
