"""Ratios of measured throughputs, with bounds where a measurement was cut off, and how they are written."""

from __future__ import annotations

from orchestrator.analysis.samples import LevelSamples
from orchestrator.analysis.statistics import Estimate, estimate, ratio

SAME = 1.1
"""Throughputs that differ by less than this factor are called equal."""


def throughput(measured: LevelSamples) -> Estimate:
    """env_steps/s of all processes; where measurements were cut off it is an upper bound and has no ``low``."""
    result = estimate(measured.throughputs)
    return _upper_bound(result) if measured.at_most else result


def gain(after: LevelSamples, before: LevelSamples) -> tuple[Estimate | None, bool]:
    """How many times the throughput of ``before``, and whether that is a lower bound; None where ``after`` was cut."""
    if after.at_most:
        return None, False
    result = _ratio(after, before)
    if before.at_most:
        return Estimate(result.median, result.low, None, result.n), True
    return result, False


def speed_up(measured: LevelSamples, base: LevelSamples) -> Estimate | None:
    """Throughput divided by ``base``'s throughput per process; None where ``base`` was cut off.

    Where ``measured`` was cut off it is an upper bound and has no ``low``.
    """
    if base.at_most:
        return None
    result = _ratio(measured, base).scaled(base.processes)
    return _upper_bound(result) if measured.at_most else result


def _ratio(after: LevelSamples, before: LevelSamples) -> Estimate:
    return ratio(after.throughputs, before.throughputs, paired=after.repeats() == before.repeats())


def _upper_bound(result: Estimate) -> Estimate:
    return Estimate(result.median, None, result.high, result.n)


def low(result: Estimate) -> float:
    """The lower end of the interval; the median where there is no interval."""
    return result.median if result.low is None else result.low


def high(result: Estimate) -> float:
    return result.median if result.high is None else result.high


def factor(value: float) -> str:
    return f"{value:.0f}×" if value >= 9.5 else f"{value:.1f}×" if value >= 1.95 else f"{value:.2f}×"


def times(result: Estimate, *, at_least: bool = False) -> str:
    """``"at least 2.1× [1.9×, 2.3×]"``."""
    bound = "at least " if at_least else ""
    if result.low is None or result.high is None:
        return f"{bound}{factor(result.median)}"
    return f"{bound}{factor(result.median)} [{factor(result.low)}, {factor(result.high)}]"
