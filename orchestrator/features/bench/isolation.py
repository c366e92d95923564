"""The effects of the thread budget, ``Pool`` and affinity, from baselines that differ in one of
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.analysis.statistics import Estimate
from orchestrator.core.text import count
from orchestrator.features.bench.baselines import BUDGETED_FORK, BUDGETED_SPAWN
from orchestrator.features.bench.samples import Benchmark
from orchestrator.features.bench.throughput_ratios import SAME, gain, high, low, times

BUDGETED = {
    "default": "threads",
    "pool-fork": BUDGETED_FORK,
    "pool-spawn": BUDGETED_SPAWN,
}
"""Baselines without a thread budget → the same with one."""
POOLED = {BUDGETED_FORK: "threads", BUDGETED_SPAWN: "threads"}
"""Baselines with ``multiprocessing.Pool`` → the same without, both with a thread budget."""
AFFINITY = {"threads": "pinned"}
"""Baselines without affinity → the same with affinity (and with this program's supervisor)."""

MUCH = 1.2
"""A throughput that is surely more than this times larger is caused by what the two baselines
differ in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineComparison:
    before: str
    after: str
    gain: Estimate
    at_least: bool

    def text(self) -> str:
        return f"{self.after} has {times(self.gain, at_least=self.at_least)} the throughput of {self.before}"

    def facts(self) -> dict[str, Any]:
        return {
            "before": self.before,
            "after": self.after,
            "at_least": self.at_least,
            **self.gain.facts(),
        }


def isolation_effects(bench: Benchmark) -> list[dict[str, Any]]:
    """The effects at the highest level at which every process has a core of its own."""
    levels = {
        level
        for measured in bench.baselines.values()
        for level in measured
        if 1 < level <= bench.capacity
    }
    if not levels:
        return []
    level = max(levels)
    budget = _comparisons(bench, level, BUDGETED)
    pool = _comparisons(bench, level, POOLED)
    affinity = _comparisons(bench, level, AFFINITY)
    place = f"At {count(level, 'process', 'processes')}"
    entries = []
    if budget:
        text = f"{place}, {_claim(budget, pool)}: "
        text += "; ".join(one.text() for one in budget)
        if pool:
            text += f". With the thread budget, {'; '.join(one.text() for one in pool)}"
        entries.append(_entry("budget", level, text, [*budget, *pool]))
    if affinity:
        text = f"{place}, the effect of affinity and supervision is: {affinity[0].text()}"
        entries.append(_entry("affinity", level, text, affinity))
    return entries


def _claim(budget: Sequence[BaselineComparison], pool: Sequence[BaselineComparison]) -> str:
    strong = [one for one in budget if low(one.gain) > MUCH]
    differing = [one for one in pool if low(one.gain) > SAME or high(one.gain) < 1 / SAME]
    alike = all(low(one.gain) >= 1 / SAME and high(one.gain) <= SAME for one in pool)
    if not strong:
        claim = "the thread budget makes no certain difference"
    elif not pool:
        article = "the" if len(strong) == len(budget) else "a"
        claim = f"the thread budget is {article} cause"
    elif alike:
        claim = "the thread budget, not Pool, is the cause"
    elif differing:
        claim = "the thread budget and Pool are both causes"
    else:
        claim = "the thread budget is a cause, and it is uncertain whether Pool is one"
    if any(one.gain.n < 2 for one in [*budget, *pool]):
        return f"{claim} (measured once, so uncertain)"
    return claim


def _entry(
    thing: str, level: int, text: str, comparisons: Sequence[BaselineComparison]
) -> dict[str, Any]:
    ratios = [one.facts() for one in comparisons]
    return {
        "kind": "isolation",
        "thing": thing,
        "level": level,
        "text": f"{text}.",
        "ratios": ratios,
    }


def _comparisons(
    bench: Benchmark, level: int, pairs: Mapping[str, str]
) -> list[BaselineComparison]:
    at_level = {name: levels[level] for name, levels in bench.baselines.items() if level in levels}
    comparisons = []
    for before, after in pairs.items():
        if before in at_level and after in at_level:
            ratio, at_least = gain(at_level[after], at_level[before])
            if ratio is not None:
                comparisons.append(
                    BaselineComparison(before=before, after=after, gain=ratio, at_least=at_least)
                )
    return comparisons
