"""What a figure of jobs is computed from: columns, measures and expressions of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.core.measure_expressions import (
    ExpressionError,
    NoValueError,
    parse_expression,
)
from orchestrator.core.text import listed
from orchestrator.keys.problems import suggestion
from orchestrator.ledger import SummaryRow

EVALUATION = "eval_mean"
"""The return of the evaluation."""
TRAINING = "ep_rew_mean"
"""The return of training."""
MOST_LISTED = 20
"""Figures in one message."""


@dataclass(frozen=True, slots=True)
class JobValues:
    """Values of a column, measure or expression, of several jobs."""

    of_jobs: Sequence[float | None]
    why: str
    """Why one of the jobs has no value; empty where all have one."""


def figures_of(row: SummaryRow) -> dict[str, float]:
    """What a value may be computed from: numbers among columns and measures of a job."""
    columns: dict[str, Any] = {**row, **(row["measures"] or {})}
    return {name: one for name, one in columns.items() if isinstance(one, int | float)}


def job_values(text: str, known: Sequence[Mapping[str, float]]) -> JobValues:
    """The values of the column, measure or expression ``text``.

    :param known: of each job, by name.
    """
    if all(text in of_job for of_job in known):  # also a measure whose name is no expression
        return JobValues([of_job[text] for of_job in known], "")
    values: list[float | None] = []
    why = ""
    for of_job in known:
        try:
            values.append(parse_expression(text).value(of_job))
        except ExpressionError:
            values.append(None)
            why = why or f"{text} has no value"
        except NoValueError as error:
            values.append(None)
            reason = str(error)
            why = why or (reason if reason.startswith(text) else f"{text} has no value: {reason}")
    return JobValues(values, why)


def known_figures(rows: Sequence[SummaryRow]) -> set[str]:
    """What values of these jobs may be computed from, and both returns."""
    return {EVALUATION, TRAINING, *(name for row in rows for name in figures_of(row))}


def missing_figure(text: str, rows: Sequence[SummaryRow]) -> str | None:
    """The first name in the column, measure or expression ``text`` that none of these jobs has; None
    where there is none.

    :raises ExpressionError: it is no expression.
    """
    known = known_figures(rows)
    if text in known:
        return None
    return next((name for name in parse_expression(text).names if name not in known), None)


WHY_WITHOUT = {
    EVALUATION: "there was no evaluation (`eval_episodes`)",
    TRAINING: "no episode of training has ended",
}


def why_missing(text: str, rows: Sequence[SummaryRow]) -> str:
    """Where a value of ``text`` is missing: what may be meant by a name in it that none of these jobs
    has, or why they have no return; empty where it is something else.

    :raises ExpressionError: it is no expression.
    """
    missing = missing_figure(text, rows)
    if missing is not None:
        return hint_at_figures(missing, rows)
    return WHY_WITHOUT.get(text, "")


def hint_at_figures(name: str, rows: Sequence[SummaryRow]) -> str:
    """Return what may be meant by ``name``, of which none of these jobs has a number."""
    near = suggestion(name, sorted(known_figures(rows)))
    if near:
        return f"did you mean {near}?"
    measures = {measure for row in rows for measure in row["measures"] or {}}
    return f"there are {listed(sorted({*measures, EVALUATION, TRAINING}), MOST_LISTED)}"
