"""What trials are judged by: columns, measures and expressions of their jobs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.core.measure_expressions import (
    ExpressionError,
    NoValueError,
    parse_expression,
)
from orchestrator.features.search.declaration.rules import COLUMNS
from orchestrator.features.search.declaration.spec import Aggregate
from orchestrator.ledger import SummaryRow

AGGREGATES: Mapping[Aggregate, Callable[[Iterable[float]], float]] = {
    "median": statistics.median,
    "mean": statistics.fmean,
    "min": min,
}


@dataclass(frozen=True, slots=True)
class JobValues:
    """Values of a column, measure or expression, of the jobs of a trial."""

    of_jobs: Sequence[float | None]
    why: str
    """Why one of the jobs has no value; empty where all have one."""


def figures_of(row: SummaryRow) -> dict[str, float]:
    """What an objective may be computed from: numbers among columns and measures of a job."""
    columns: dict[str, Any] = {**row, **(row["measures"] or {})}
    return {name: one for name, one in columns.items() if isinstance(one, int | float)}


def shown_names(row: SummaryRow) -> list[str]:
    """The figures of a job that can be objectives."""
    measures = row["measures"] or {}
    return sorted(name for name in figures_of(row) if name in COLUMNS or name in measures)


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


def aggregated_value(values: Sequence[float | None], how: Aggregate) -> float | None:
    """The value of a trial from those of its seeds; None where one of them has none, and where
    there are none.
    """
    numbers = [value for value in values if value is not None]
    return AGGREGATES[how](numbers) if numbers and len(numbers) == len(values) else None
