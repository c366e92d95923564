"""Arms that differ in one thing isolate it: what the thread budget, ``Pool`` and affinity do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.analysis.samples import Benchmark, Measured
from orchestrator.analysis.statistics import Estimate, ratio
from orchestrator.core.text import count

BUDGETED = {"default": "threads", "pool-fork": "pool-fork-pinned", "pool-spawn": "pool-spawn-pinned"}
"""Arms without a thread budget → the same with one."""
POOLED = {"pool-fork-pinned": "threads", "pool-spawn-pinned": "threads"}
"""Arms with ``multiprocessing.Pool`` → the same without. Those with a budget: nothing else is in the way there."""
AFFINITY = {"threads": "pinned"}
"""Arms without affinity → the same with it (and with our supervisor)."""

SAME = 1.1
"""Arms whose throughputs differ by less than this factor are called equal."""
MUCH = 1.2
"""An arm that has surely more than this times the throughput owes it to what it differs in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """From one arm to another that differs in one thing."""

    before: str
    after: str
    gain: Estimate
    at_least: bool

    def text(self) -> str:
        least = "at least " if self.at_least else ""
        return f"{self.after} has {least}{times(self.gain)} the throughput of {self.before}"

    def facts(self) -> dict[str, Any]:
        return {"before": self.before, "after": self.after, "at_least": self.at_least, **self.gain.facts()}


def isolated(bench: Benchmark) -> list[dict[str, Any]]:
    """What the thread budget, ``Pool`` and affinity do, at the highest level with a core for every process."""
    levels = sorted({level for measured in bench.arms.values() for level in measured if 1 < level <= bench.capacity})
    said = []
    for level in levels[-1:]:
        budget, pool, affinity = (_steps(bench, level, pairs) for pairs in (BUDGETED, POOLED, AFFINITY))
        head = f"at {count(level, 'process', 'processes')}"
        if budget:
            said.append(_verdict(head, level, budget, pool, _disturbed(bench, level, [*budget, *pool])))
        if affinity:
            text = f"{head}, affinity and supervision: {affinity[0].text()}"
            said.append(_isolation("affinity", level, text, affinity))
    return said


def _disturbed(bench: Benchmark, level: int, steps: Sequence[Step]) -> bool:
    """Whether only disturbed cells were there of one of the arms."""
    return any(bench.arms[arm][level].disturbed for step in steps for arm in (step.before, step.after))


def _verdict(head: str, level: int, budget: Sequence[Step], pool: Sequence[Step], disturbed: bool) -> dict[str, Any]:
    strong = [step for step in budget if _low(step) > MUCH]
    differing = [step for step in pool if _low(step) > SAME or _high(step) < 1 / SAME]
    alike = all(_low(step) >= 1 / SAME and _high(step) <= SAME for step in pool)
    if not strong:
        claim = "the thread budget makes no sure difference"
    elif not pool:
        claim = "the thread budget is the cause" if len(strong) == len(budget) else "the thread budget is a cause"
    elif alike:
        claim = "thread budget, not Pool, is the cause"
    elif differing:
        claim = "thread budget and Pool are both causes"
    else:
        claim = "the thread budget is a cause; whether Pool is one is not sure"
    if any(step.gain.n < 2 for step in [*budget, *pool]):
        claim += " (measured once, so not sure)"
    if disturbed:
        claim += " (the machine was disturbed)"
    text = f"{head}, {claim}: {'; '.join(step.text() for step in budget)}"
    if pool:
        text += f"; with the budget, {'; '.join(step.text() for step in pool)}"
    return _isolation("budget", level, text, [*budget, *pool])


def _isolation(thing: str, level: int, text: str, steps: Sequence[Step]) -> dict[str, Any]:
    return {
        "kind": "isolation",
        "thing": thing,
        "level": level,
        "text": text,
        "ratios": [step.facts() for step in steps],
    }


def _steps(bench: Benchmark, level: int, pairs: Mapping[str, str]) -> list[Step]:
    steps = []
    for before, after in pairs.items():
        if level in bench.arms.get(before, {}) and level in bench.arms.get(after, {}):
            found, at_least = gain(bench.arms[after][level], bench.arms[before][level])
            if found is not None:
                steps.append(Step(before=before, after=after, gain=found, at_least=at_least))
    return steps


def gain(after: Measured, before: Measured) -> tuple[Estimate | None, bool]:
    """How many times the throughput, and whether it is at least so many; None when both were cut off, or ``after``."""
    if after.at_most:
        return None, False
    found = ratio(after.throughputs, before.throughputs, paired=after.repeats() == before.repeats())
    if before.at_most:
        return Estimate(found.median, found.low, None, found.n), True
    return found, False


def _low(step: Step) -> float:
    """The least it can be; what was measured once is taken as it is."""
    return step.gain.median if step.gain.low is None else step.gain.low


def _high(step: Step) -> float:
    return step.gain.median if step.gain.high is None else step.gain.high


def factor(value: float) -> str:
    return f"{value:.0f}×" if value >= 9.5 else f"{value:.1f}×" if value >= 1.95 else f"{value:.2f}×"


def times(one: Estimate) -> str:
    if one.low is None or one.high is None:
        return factor(one.median)
    return f"{factor(one.median)} [{factor(one.low)}, {factor(one.high)}]"
