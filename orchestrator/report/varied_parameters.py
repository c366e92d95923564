"""The figure of returns against the parameters that a job file or a program varies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from orchestrator.analysis.main_effects import MainEffect
from orchestrator.core.text import count, listed
from orchestrator.report import experiment_figures as figures
from orchestrator.report.document import Columns, Figure, Part, Section, Table, table
from orchestrator.report.experiment_facts import ReportedJob
from orchestrator.report.experiment_figures import VariedKey
from orchestrator.report.experiment_lineages import lineage_remark
from orchestrator.report.number_format import one_line, percent, signed

ALL_JOBS = "all jobs"
"""The title of what is drawn over all robots."""
MOST_PANELS = 12
MOST_VALUES = 24
"""Of a key that varies between robots and is no number: with more, a figure of them says nothing."""
MOST_NAMED = 5
"""Keys in one sentence."""


def varied_sections(keys: Sequence[str], jobs: Sequence[ReportedJob]) -> list[Section]:
    """Jobs that have succeeded, against each of ``keys``; no section where there is none."""
    succeeded = [job for job in jobs if job["state"] == "SUCCEEDED"]
    are_evaluated = [job["eval_mean"] is not None for job in succeeded]
    is_evaluated = bool(succeeded) and all(are_evaluated)
    panels, left_out = _panels(keys, succeeded, is_evaluated=is_evaluated)
    if not panels:
        return []
    shown = panels[:MOST_PANELS]
    what = "Return of the evaluation without exploration"
    axis = "evaluated return"
    if not is_evaluated:
        why = "not all were evaluated" if any(are_evaluated) else "no evaluation"
        what = f"Last return of training ({why})"
        axis = "return in training"
    sentences = [
        f"{what} for each value of each parameter that the job file or program varies.",
        "A dot is a job that has succeeded; the line joins the medians over all values of the other parameters.",
    ]
    if any(panel.is_scattered for panel in shown):
        sentences.append("Where a parameter has many values, dots stand at them, without a line.")
    if left_out:
        sentences.append(
            f"Without {listed(left_out, MOST_NAMED)}, with more than {count(MOST_VALUES, 'value')} that are no numbers."
        )
    if len(panels) > MOST_PANELS:
        sentences.append(f"The figure shows the first {MOST_PANELS} of {len(panels)}.")
    figure = Figure(
        name="varied-parameters",
        title="Return against varied parameters",
        caption=" ".join(sentences) + lineage_remark(succeeded),
        draw=partial(figures.varied_keys, shown, axis),
    )
    parts: list[Part] = [figure, *_effects(panels)]
    return [Section(title="Varied parameters", parts=parts)]


def _effects(panels: Sequence[VariedKey]) -> list[Table]:
    """How much of the returns each parameter that tells robots apart explains; none where they are
    too few.
    """
    rows = [_Effect(panel.key, panel.effect()) for panel in panels if panel.robot == ALL_JOBS]
    if all(row.effect["share"] is None for row in rows):
        return []
    rows.sort(key=lambda row: row.effect["share"] or 0.0, reverse=True)
    columns: Columns[_Effect] = {
        "parameter": lambda row: one_line(row.key),
        "importance": lambda row: percent(row.effect["share"]),
        "correlation": lambda row: signed(row.effect["correlation"]),
        "jobs": lambda row: f"{row.effect['n']:,}",
    }
    caption = (
        "Importance: main effect of each parameter, the share of the variance of ranks that lies between groups of "
        "jobs with similar values, less what chance makes of it (epsilon squared). Joint effects are not in it, and "
        "parameters that were varied together share theirs. Correlation: that of ranks (Spearman)."
    )
    return [table(rows, columns, caption=caption, text=("parameter",))]


class _Effect(NamedTuple):
    key: str
    effect: MainEffect


def varies_within_robots(key: str, jobs: Iterable[ReportedJob]) -> bool:
    """Whether most robots with ``key`` were trained with several values of it, as with a matrix; else
    it tells robots apart.
    """
    values: dict[str, set[str]] = {}
    for job in jobs:
        if job["point"].get(key) is not None:
            values.setdefault(job["name"], set()).add(str(job["point"][key]))
    several = sum(len(of_robot) > 1 for of_robot in values.values())
    return 2 * several > len(values)


def _panels(
    keys: Sequence[str], jobs: Sequence[ReportedJob], *, is_evaluated: bool
) -> tuple[list[VariedKey], list[str]]:
    """One of each key over all robots, or of each robot; and the keys that are left out."""
    of_robots = [key for key in keys if varies_within_robots(key, jobs)]
    panels: list[VariedKey] = []
    for name in dict.fromkeys(job["name"] for job in jobs):
        of_name = [job for job in jobs if job["name"] == name]
        panels += _panels_of(name, of_robots, of_name, is_evaluated=is_evaluated)
    left_out = []
    over_all = [key for key in keys if key not in of_robots]
    for panel in _panels_of(ALL_JOBS, over_all, jobs, is_evaluated=is_evaluated):
        if panel.is_scattered or len(panel.values()) <= MOST_VALUES:
            panels.append(panel)
        else:
            left_out.append(panel.key)
    return panels, left_out


def _panels_of(
    title: str, keys: Sequence[str], jobs: Sequence[ReportedJob], *, is_evaluated: bool
) -> list[VariedKey]:
    """A panel for each of ``keys`` of which ``jobs`` have several values.

    :param is_evaluated: whether jobs are rated by their evaluation.
    """
    rated = [
        (job["point"], job["eval_mean"] if is_evaluated else job["ep_rew_mean"]) for job in jobs
    ]
    panels: list[VariedKey] = []
    for key in keys:
        points = [
            (point[key], value)
            for point, value in rated
            if point.get(key) is not None and value is not None
        ]
        if len({str(value) for value, _ in points}) > 1:
            panels.append(VariedKey(robot=title, key=key, points=points))
    return panels
