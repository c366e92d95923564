"""Ratios of measured throughputs, with bounds where a measurement was cut off, and how they are written."""

from __future__ import annotations

from orchestrator.analysis.samples import LevelSamples
from orchestrator.analysis.statistics import Estimate, estimate, ratio

SAME = 1.1
"""Throughputs that differ by less than this factor are called equal."""


def throughput(measured: LevelSamples) -> Estimate:
    """env_steps/s of all processes; where measurements were cut off it is an upper bound and has no ``low``."""
    found = estimate(measured.throughputs)
    return _upper_bound(found) if measured.at_most else found


def gain(after: LevelSamples, before: LevelSamples) -> tuple[Estimate | None, bool]:
    """How many times the throughput of ``before``, and whether that is a lower bound; None where ``after`` was cut."""
    if after.at_most:
        return None, False
    found = _ratio(after, before)
    if before.at_most:
        return Estimate(found.median, found.low, None, found.n), True
    return found, False


def speed_up(measured: LevelSamples, base: LevelSamples) -> Estimate | None:
    """Throughput divided by ``base``'s throughput per process; None where ``base`` was cut off.

    Where ``measured`` was cut off it is an upper bound and has no ``low``.
    """
    if base.at_most:
        return None
    found = _ratio(measured, base).scaled(base.processes)
    return _upper_bound(found) if measured.at_most else found


def _ratio(after: LevelSamples, before: LevelSamples) -> Estimate:
    return ratio(after.throughputs, before.throughputs, paired=after.repeats() == before.repeats())


def _upper_bound(found: Estimate) -> Estimate:
    return Estimate(found.median, None, found.high, found.n)


def low(found: Estimate) -> float:
    """The lower end of the interval; the median where there is no interval."""
    return found.median if found.low is None else found.low


def high(found: Estimate) -> float:
    return found.median if found.high is None else found.high


def factor(value: float) -> str:
    return f"{value:.0f}×" if value >= 9.5 else f"{value:.1f}×" if value >= 1.95 else f"{value:.2f}×"


def times(found: Estimate, *, at_least: bool = False) -> str:
    """``"at least 2.1× [1.9×, 2.3×]"``."""
    bound = "at least " if at_least else ""
    if found.low is None or found.high is None:
        return f"{bound}{factor(found.median)}"
    return f"{bound}{factor(found.median)} [{factor(found.low)}, {factor(found.high)}]"
