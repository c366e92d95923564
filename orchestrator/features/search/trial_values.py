"""What trials are judged by: figures of their jobs, aggregated over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from orchestrator.analysis.job_values import figures_of, job_values
from orchestrator.analysis.statistics import Estimate, estimate
from orchestrator.features.search.declaration.spec import Aggregate
from orchestrator.ledger import SummaryRow

DRAWN = "A value is a draw, and the best one had luck, too."
"""What has to be known of the best of several trials."""
AGGREGATES: Mapping[Aggregate, Callable[[Iterable[float]], float]] = {
    "median": statistics.median,
    "mean": statistics.fmean,
    "min": min,
}


def aggregated_value(values: Sequence[float | None], how: Aggregate) -> float | None:
    """The value of a trial from those of its seeds; None where one of them has none, and where
    there are none.
    """
    numbers = [value for value in values if value is not None]
    return AGGREGATES[how](numbers) if numbers and len(numbers) == len(values) else None


def mean_over_seeds(
    objective: str, jobs: Sequence[str], rows: Mapping[str, SummaryRow]
) -> Estimate | None:
    """The mean of an objective over the jobs of a trial, with its interval; None where one of them
    has no row or no finite value, and with fewer than two.

    :param rows: by ``job_id``.
    """
    values = values_of_all_seeds(objective, jobs, rows)
    return estimate(values) if len(values) >= 2 else None


def values_of_all_seeds(
    objective: str, jobs: Sequence[str], rows: Mapping[str, SummaryRow]
) -> list[float]:
    """Empty where one of the jobs has no row or no finite value."""
    if not all(job_id in rows for job_id in jobs):
        return []
    values = job_values(objective, [figures_of(rows[job_id]) for job_id in jobs]).of_jobs
    numbers = [value for value in values if value is not None and math.isfinite(value)]
    return numbers if len(numbers) == len(values) else []
