"""Sentences about two groups of values (:mod:`.two_groups`), for people."""

from __future__ import annotations

from orchestrator.analysis.two_groups import Figure, Interval, TwoGroups

SIGNIFICANT = 0.05


def short_number(value: float) -> str:
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if size >= 0.1 else f"{value:.3g}"


def with_interval(figure: Figure) -> str:
    if figure.interval is None:
        return short_number(figure.value)
    low = short_number(figure.interval.low)
    high = short_number(figure.interval.high)
    return f"{short_number(figure.value)} [{low}, {high}]"


def with_method(figure: Figure) -> str:
    method = "" if figure.interval is None else f" ({figure.interval.method})"
    return f"{with_interval(figure)}{method}"


def difference_text(difference: Figure, first: str) -> str:
    """How much higher or lower a group is than the one that is called ``first``."""
    if difference.value == 0:
        return f"as high as {first}, with a difference of {with_method(difference)}"
    if difference.value > 0:
        return f"higher than {first} by {with_method(difference)}"
    return f"lower than {first} by {with_method(_negative(difference))}"


def ratio_text(ratio: Figure | None) -> str:
    """What follows the difference; empty without a ratio."""
    return "" if ratio is None else f", × {with_method(ratio)}"


def chance_text(found: TwoGroups) -> str:
    """Whether the difference may be chance, by the test of permutations."""
    p = found.p
    least_p = found.least_p
    if p is None or least_p is None:
        return "whether that is chance cannot be said"
    shown = f"p = {p:.2g} (permutation test)"
    if p <= SIGNIFICANT:
        return f"{shown}: hardly chance"
    if least_p > SIGNIFICANT:
        return f"{shown}: so few seeds can give no p below {least_p:.2g}"
    return f"{shown}: it may be chance"


def _negative(figure: Figure) -> Figure:
    interval = figure.interval
    if interval is None:
        return Figure(value=-figure.value, interval=None)
    mirrored = Interval(low=-interval.high, high=-interval.low, method=interval.method)
    return Figure(value=-figure.value, interval=mirrored)
