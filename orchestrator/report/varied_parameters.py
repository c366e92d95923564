"""The figure of returns against the parameters that a job file or a program varies."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Literal

from orchestrator.core.text import count, listed
from orchestrator.report import experiment_figures as figures
from orchestrator.report.document import Figure, Section
from orchestrator.report.experiment_facts import ReportedJob
from orchestrator.report.experiment_figures import VariedKey
from orchestrator.report.experiment_lineages import lineage_remark
from orchestrator.report.experiment_tables import rating_of

ALL_JOBS = "all jobs"
"""The title of what is drawn over all robots."""
MOST_PANELS = 12
MOST_VALUES = 24
"""Of a key that varies between robots and is no number: with more, a figure of them says nothing."""
MOST_NAMED = 5
"""Keys in one sentence."""


def keys_between_robots(keys: Sequence[str], jobs: Sequence[ReportedJob]) -> list[str]:
    """Return those of ``keys`` that tell robots apart: most robots have one value of it, where a
    matrix gives each robot several.
    """
    between = []
    for key in keys:
        values: dict[str, set[str]] = {}
        for job in jobs:
            if job["point"].get(key) is not None:
                values.setdefault(job["name"], set()).add(str(job["point"][key]))
        several = sum(len(of_robot) > 1 for of_robot in values.values())
        if 2 * several <= len(values):
            between.append(key)
    return between


def varied_sections(
    keys: Sequence[str], jobs: Sequence[ReportedJob], between: Collection[str]
) -> list[Section]:
    """Jobs that have succeeded, against each of ``keys``; no section where there is none.

    :param between: those of ``keys`` that tell robots apart.
    """
    within = [key for key in keys if key not in between]
    succeeded = [job for job in jobs if job["state"] == "SUCCEEDED"]
    rating = rating_of(succeeded)
    panels = _panels_of_robots(within, succeeded, rating)
    left_out = []
    for panel in _panels(ALL_JOBS, list(between), succeeded, rating):
        if panel.is_scattered or len(panel.values()) <= MOST_VALUES:
            panels.append(panel)
        else:
            left_out.append(panel.key)
    if not panels:
        return []
    shown = panels[:MOST_PANELS]
    what = "Return of the evaluation without exploration"
    axis = "evaluated return"
    if rating != "eval_mean":
        is_evaluated = any(job["eval_mean"] is not None for job in succeeded)
        why = "not all were evaluated" if is_evaluated else "no evaluation"
        what = f"Last return of training ({why})"
        axis = "return in training"
    sentences = [
        f"{what} for each value of each parameter that the job file or program varies.",
        "A dot is a job that has succeeded.",
    ]
    if not all(panel.is_scattered for panel in shown):
        sentences.append("The line joins the medians over all values of the other parameters.")
    if any(panel.is_scattered for panel in shown):
        sentences.append(
            "Where a parameter has many values, or one for each robot, dots stand at them, without a line."
        )
    if left_out:
        sentences.append(
            f"Without {listed(left_out, MOST_NAMED)}, with more than {count(MOST_VALUES, 'value')} that are no numbers."
        )
    if len(panels) > MOST_PANELS:
        sentences.append(f"The figure shows the first {MOST_PANELS} of {len(panels)}.")
    if remark := lineage_remark(succeeded):
        sentences.append(remark)
    figure = Figure(
        name="varied-parameters",
        title="Return against varied parameters",
        caption=" ".join(sentences),
        draw=partial(figures.varied_keys, shown, axis),
    )
    return [Section(title="Varied parameters", parts=[figure])]


# -- the figure


def _panels_of_robots(
    keys: Sequence[str], jobs: Sequence[ReportedJob], rating: Literal["eval_mean", "ep_rew_mean"]
) -> list[VariedKey]:
    panels: list[VariedKey] = []
    for name in dict.fromkeys(job["name"] for job in jobs):
        of_name = [job for job in jobs if job["name"] == name]
        panels += _panels(name, keys, of_name, rating)
    return panels


def _panels(
    title: str,
    keys: Sequence[str],
    jobs: Sequence[ReportedJob],
    rating: Literal["eval_mean", "ep_rew_mean"],
) -> list[VariedKey]:
    """A panel for each of ``keys`` of which ``jobs`` have several values.

    :param rating: the column that has the return of a job.
    """
    panels: list[VariedKey] = []
    for key in keys:
        points: list[tuple[Any, float]] = []
        robots: set[str] = set()
        for job in jobs:
            value = job["point"].get(key)
            result = job[rating]
            if value is not None and result is not None:
                points.append((value, result))
                robots.add(job["name"])
        if len({str(value) for value, _ in points}) > 1:
            panels.append(VariedKey(robot=title, key=key, points=points, robots=len(robots)))
    return panels
