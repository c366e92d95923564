"""Medians with distribution-free intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from orchestrator.features.advice.physics_advice import MedianEstimate

COVERAGE = 0.95


def median_estimate(values: Sequence[float]) -> MedianEstimate:
    """The median of ``values``, and the narrowest pair of order statistics that covers the true one
    with 95 %.

    Of fewer than six values it is the smallest and the largest, which cover it with less. (The
    number of values below the true median is binomial; see Conover, Practical Nonparametric
    Statistics, section 3.2.)

    :param values: at least one; infinite ones count as larger than all others.
    """
    ordered = np.sort(np.asarray(values, float))
    count = len(ordered)
    below = 0
    outside = 0.5**count
    while (
        below + 1 < count / 2
        and 2 * (outside + math.comb(count, below + 1) * 0.5**count) <= 1 - COVERAGE
    ):
        below += 1
        outside += math.comb(count, below) * 0.5**count
    return MedianEstimate(
        median=_finite(float(ordered[(count - 1) // 2] + ordered[count // 2]) / 2),
        low=_finite(float(ordered[below])),
        high=_finite(float(ordered[count - 1 - below])),
    )


def _finite(number: float) -> float | None:
    """None where it is not finite."""
    return number if math.isfinite(number) else None
