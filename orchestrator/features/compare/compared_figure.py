"""The figure that jobs are compared by: a measure, a column or an expression of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from orchestrator.analysis.job_values import (
    EVALUATION,
    TRAINING,
    figures_of,
    hint_at_figures,
    job_values,
    missing_figure,
)
from orchestrator.core.errors import UsageError
from orchestrator.core.front_end import option
from orchestrator.core.measure_expressions import ExpressionError, parse_expression
from orchestrator.core.text import count
from orchestrator.ledger import SummaryRow


def default_figure(rows: Sequence[SummaryRow]) -> str:
    """The return of the evaluation, or that of training where not all were evaluated."""
    succeeded = [row for row in rows if row["state"] == "SUCCEEDED"]
    is_all_evaluated = all(row["eval_mean"] is not None for row in succeeded)
    return EVALUATION if is_all_evaluated else TRAINING


def checked_figure(run_dir: Path, by: str, rows: Sequence[SummaryRow]) -> str:
    """:raises UsageError: ``by`` is neither a figure of these jobs nor an expression of such."""
    try:
        missing = missing_figure(by, rows)
    except ExpressionError as error:
        raise UsageError(f"{run_dir}: {option('by', by)}: {error}") from error
    if missing is not None:
        hint = hint_at_figures(missing, rows)
        raise UsageError(f"{run_dir}: {option('by')}: no job has {missing}; {hint}")
    return by


def names_in(figure: str) -> Sequence[str]:
    """The measures and columns that it is computed from."""
    try:
        return parse_expression(figure).names
    except ExpressionError:  # a measure whose name is no expression
        return [figure]


def value_of(row: SummaryRow, figure: str) -> float | None:
    """None where there is none, or no finite one."""
    if row["state"] != "SUCCEEDED":
        return None
    (value,) = job_values(figure, [figures_of(row)]).of_jobs
    return value if value is not None and math.isfinite(value) else None


def without_value(rows: Sequence[SummaryRow], figure: str) -> str:
    """That none of the jobs ``rows``, which have no value of ``figure``, has one, and why."""
    succeeded = [figures_of(row) for row in rows if row["state"] == "SUCCEEDED"]
    why = job_values(figure, succeeded).why or "jobs that have succeeded have one"
    states = sorted({row["state"] for row in rows})
    return f"none of its {count(len(rows), 'job')} ({', '.join(states)}) has a value of {figure}; {why}"
