"""Estimates and differences in words."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.analysis.statistics import Estimate, TwoGroups

SIGNIFICANT = 0.05


def short_number(value: float) -> str:
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if size >= 0.1 else f"{value:.3g}"


def with_interval(estimate: Estimate, text: Callable[[float], str] = short_number) -> str:
    """Return ``"2.1 [1.9, 2.3]"``, or the value alone where there is no interval."""
    if estimate.low is None or estimate.high is None:
        return text(estimate.value)
    return f"{text(estimate.value)} [{text(estimate.low)}, {text(estimate.high)}]"


def difference_text(difference: Estimate, first: str) -> str:
    """Say how much higher or lower a group is than the one that is called ``first``."""
    if difference.value == 0:
        return f"as high as {first}, with a difference of {with_interval(difference)}"
    if difference.value > 0:
        return f"higher than {first} by {with_interval(difference)}"
    return f"lower than {first} by {with_interval(difference.scaled(-1))}"


def chance_text(found: TwoGroups) -> str:
    """Say whether the difference may be chance."""
    if found.p is None:
        return "whether that is chance cannot be said"
    verdict = "hardly chance" if found.p <= SIGNIFICANT else "it may be chance"
    return f"p = {found.p:.2g}: {verdict}"
