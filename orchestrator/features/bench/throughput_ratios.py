"""Ratios of measured throughputs, with bounds where a measurement was cut off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypedDict

from orchestrator.analysis.statistics import Estimate, EstimateFacts, estimate, ratio
from orchestrator.analysis.statistics_text import with_interval
from orchestrator.features.bench.samples import LevelSamples

SAME = 1.1
"""Throughputs that differ by less than this factor are called equal."""


class EfficiencyFacts(TypedDict):
    speedup: EstimateFacts | None
    """Relative to the baseline's lowest level, or to the fewest ranks."""
    efficiency: EstimateFacts | None
    """The speed-up divided by ``ideal``, or by the ratio of the numbers of ranks."""


class MeasuredFacts(EfficiencyFacts):
    """What was measured at one level of a baseline, or with one number of ranks."""

    throughput: EstimateFacts
    """env_steps/s of all processes."""
    at_most: bool
    """Whether measurements were cut off: the throughput is then an upper bound, and its ``low`` is
    None."""
    cells: Mapping[str, int]
    """Status → measurements."""
    messages: Sequence[str]


def throughput(measured: LevelSamples) -> Estimate:
    """env_steps/s of all processes; where measurements were cut off it is an upper bound and has no
    ``low``.
    """
    return _bounded_estimate(estimate(measured.throughputs), measured)


def gain(after: LevelSamples, before: LevelSamples) -> tuple[Estimate | None, bool]:
    """How many times the throughput of ``before`` that of ``after`` is, and whether that is a lower
    bound; None where ``after`` was cut off.
    """
    if after.at_most:
        return None, False
    result = _ratio(after, before)
    if before.at_most:
        return replace(result, high=None), True
    return result, False


def speed_up(measured: LevelSamples, base: LevelSamples) -> Estimate | None:
    """Throughput divided by ``base``'s throughput per process; None where ``base`` was cut off.

    Where ``measured`` was cut off it is an upper bound and has no ``low``.
    """
    if base.at_most:
        return None
    return _bounded_estimate(_ratio(measured, base).scaled(base.processes), measured)


def efficiency_facts(speedup: Estimate | None, ideal: float) -> EfficiencyFacts:
    """``speedup``, and ``efficiency``: the same divided by ``ideal``; None where it is not
    known.
    """
    if speedup is None:
        return {"speedup": None, "efficiency": None}
    return {"speedup": speedup.facts(), "efficiency": speedup.scaled(1 / ideal).facts()}


def _ratio(after: LevelSamples, before: LevelSamples) -> Estimate:
    """The ratio of throughputs, of pairs where both were measured in the same repeats."""
    is_paired = after.repeats() == before.repeats()
    return ratio(after.throughputs, before.throughputs, paired=is_paired)


def _bounded_estimate(result: Estimate, measured: LevelSamples) -> Estimate:
    """``result`` without a ``low`` where measurements were cut off."""
    return replace(result, low=None) if measured.at_most else result


def low(result: Estimate) -> float:
    """The lower end of the interval; the value where there is no interval."""
    return result.value if result.low is None else result.low


def high(result: Estimate) -> float:
    """The upper end of the interval; the value where there is no interval."""
    return result.value if result.high is None else result.high


def factor(value: float) -> str:
    """``"12×"``, ``"2.1×"``, ``"1.05×"``: with two or three digits."""
    if value >= 9.5:
        return f"{value:.0f}×"
    if value >= 1.95:
        return f"{value:.1f}×"
    return f"{value:.2f}×"


def times(result: Estimate, *, at_least: bool = False) -> str:
    """``"at least 2.1× [1.9×, 2.3×]"``."""
    return f"{'at least ' if at_least else ''}{with_interval(result, factor)}"
