"""Numbers of a job file that are drawn, change with the training, or stand in a grid."""

from __future__ import annotations

import math


def finite_number(text: str) -> float:
    """Return the number that ``text`` is. :raises ValueError: it is none, or not finite."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"expected a finite number, found {text.strip()!r}")
    return number
