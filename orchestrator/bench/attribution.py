"""What was lost, where, and to whom: from the figures of a benchmark to sentences with their numbers.

The loss of a process is how much longer its 1,000 env_steps take at a level than at the arm's lowest one. It is split
by phase, and the direct witnesses (seconds of waiting for a CPU, of CPU time, of throttling) tell the causes apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from orchestrator.analysis.samples import PHASES, Benchmark, Measured
from orchestrator.analysis.statistics import Estimate, ratio
from orchestrator.bench import isolation
from orchestrator.bench.baselines import ARMS
from orchestrator.bench.isolation import BUDGETED, SAME, factor, gain, times
from orchestrator.core.text import count, joined

WORDS = {
    "env": "physics and environment",
    "policy": "policy",
    "gae": "GAE",
    "backward": "backward",
    "optimizer": "optimiser step",
    "rest": "the rest (forward passes, losses, logs)",
}
"""Of the phases."""
NO_LOSS = 0.03
"""Longer by less than this: not worth a word."""
NOTABLE = 0.1
"""Of the loss: a cause that explains less is not named."""
SEVERAL = 1.25
"""Threads of a process that want a CPU at once: from here on it is more than one."""
SLOW_START = 1.2
"""Times as long: from here on a start-up is worth a word."""
TOLD = 0.8
"""Of the loss: phases are listed until so much is told."""

CauseName = Literal["threads", "sharing", "throttling", "processor", "others", "waiting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    name: CauseName
    ms: float
    """Of its witness, per 1,000 env_steps of one process; of all its threads, so that it may exceed the loss."""
    text: str

    def facts(self) -> dict[str, Any]:
        return {"name": self.name, "ms": self.ms, "text": self.text}


def attribute(bench: Benchmark) -> list[dict[str, Any]]:
    """Sentences (``text``), each with its numbers: of ``kind`` ``level``, then of ``kind`` ``isolation``."""
    said: list[dict[str, Any]] = []
    for arm, levels in bench.arms.items():
        lowest, *higher = levels
        said += [_level(bench, arm, levels[level], levels[lowest]) for level in higher]
    return said + isolation.isolated(bench)


def _level(bench: Benchmark, arm: str, now: Measured, base: Measured) -> dict[str, Any]:
    cores = bench.capacity * int((bench.plan.get("work") or {}).get("cores") or 1)
    way = ARMS[arm].short if arm in ARMS else arm
    head = f"at {count(now.processes, 'process', 'processes')} on {count(cores, 'core')} with {way}"
    entry: dict[str, Any] = {"kind": "level", "arm": arm, "level": now.processes, "base": base.processes}
    longer = _longer(now, base)
    if longer is None:
        return {
            **entry,
            "text": f"{head}, nothing can be said: the lowest level was cut off",
            "causes": [],
            "shares": {},
        }
    was_ms = 1e6 * base.processes / median(base.throughputs)
    loss_ms = was_ms * (longer.median - 1)
    entry |= {
        "longer": longer.facts(),
        "at_least": now.at_most,
        "ms_before": was_ms,
        "loss_ms": loss_ms,
        "shares": {},
        "causes": [],
        "startup": _startup(now, base),
        "recovers": None,
    }
    if longer.median - 1 < NO_LOSS and not now.at_most:
        lone = count(base.processes, "process", "processes")
        return {**entry, "text": f"{head}, nothing is lost: an env_step takes {times(longer)} the time of {lone}"}
    shares = _shares(now, base)
    causes = causes_of(_medians(now), _medians(base), now.processes, bench.capacity, cores)
    parts = [f"{head}, {_phases(shares)}" if shares else f"{head}, the phases of the loss are not known"]
    bound = "at least " if now.at_most else ""
    parts.append(f"1,000 env_steps of a process take {bound}{was_ms + loss_ms:,.0f} ms instead of {was_ms:,.0f}")
    parts += [cause.text for cause in causes] or ["none of the witnesses explains it"]
    partner = BUDGETED.get(arm, "")
    if now.processes in bench.arms.get(partner, {}):
        recovered, at_least = gain(bench.arms[partner][now.processes], now)
        if recovered is not None and recovered.median >= SAME:
            least = "at least " if at_least else ""
            parts.append(f"thread budget {bench.budget} recovers {least}{factor(recovered.median)}")
            entry["recovers"] = {**recovered.facts(), "at_least": at_least, "arm": partner}
    if entry["startup"] is not None:
        parts.append(entry["startup"]["text"])
    if now.disturbed:
        parts.append("the machine was disturbed during every measurement of it")
    return {**entry, "shares": shares, "causes": [cause.facts() for cause in causes], "text": "; ".join(parts)}


def _longer(now: Measured, base: Measured) -> Estimate | None:
    """How many times as long an env_step of a process takes; a cell that was cut off: at least so many."""
    if base.at_most:
        return None
    paired = now.repeats() == base.repeats()
    found = ratio(base.throughputs, now.throughputs, paired=paired).scaled(now.processes / base.processes)
    return Estimate(found.median, found.low, None, found.n) if now.at_most else found


def _shares(now: Measured, base: Measured) -> dict[str, float]:
    """Of the loss, by phase, the largest first; a phase that got faster has a negative one. Empty where not known."""
    differences = {}
    for phase in PHASES:
        later, earlier = now.values(phase), base.values(phase)
        if not later or not earlier:
            return {}
        differences[phase] = median(later) - median(earlier)
    total = sum(differences.values())
    if total <= 0:
        return {}
    return {phase: differences[phase] / total for phase in sorted(differences, key=lambda name: -differences[name])}


def _phases(shares: Mapping[str, float]) -> str:
    """``96 % of the loss is in backward and optimiser step``."""
    named: list[str] = []
    told = 0.0
    for phase, share in shares.items():
        if share <= 0 or (named and (told >= TOLD or share < NOTABLE)):
            break
        named.append(WORDS[phase])
        told += share
    return f"{min(told, 1.0):.0%} of the loss is in {joined(named)}"


def causes_of(
    now: Mapping[str, float], base: Mapping[str, float], processes: int, capacity: int, cores: int
) -> list[Cause]:
    """What the witnesses say, the most expensive cause first; empty where they say nothing.

    :param now: medians of the figures (:func:`orchestrator.analysis.samples.figures`) at the level.
    :param base: likewise at the lowest one.
    :param capacity: processes that have ``cores`` of their own at once.
    """
    if "wall" not in now or "wall" not in base:
        return []
    loss = now["wall"] - base["wall"]
    if loss <= 0:
        return []
    more = {
        name: now[name] - base[name] if name in now and name in base else 0.0
        for name in ("cpu", "run_delay", "throttled")
    }
    runnable, started = now.get("runnable", 0.0), now.get("n_threads", 0.0)
    many = runnable >= SEVERAL and runnable * processes > cores * 1.05 and started * processes > cores
    found: list[Cause] = []
    if many and more["run_delay"] + max(0.0, more["cpu"]) >= NOTABLE * loss:
        text = (
            f"{runnable:.1f} threads per process compete for {count(cores, 'core')} ({started:.0f} are started;"
            f" together they wait {now['run_delay'] * 1e3:,.0f} ms for a CPU)"
        )
        found.append(Cause(name="threads", ms=more["run_delay"] * 1e3, text=text))
    if processes > capacity:
        each = base["wall"] * (processes / capacity - 1)
        text = (
            f"{count(processes, 'process', 'processes')} share cores for {capacity}: each gets"
            f" {capacity / processes:.0%} of what it had, which costs {min(each, loss) * 1e3:,.0f} ms"
        )
        found.append(Cause(name="sharing", ms=min(each, loss) * 1e3, text=text))
    if more["throttled"] >= NOTABLE * loss:
        text = (
            f"a cgroup limit kept the processes off the CPU ({more['throttled'] * 1e3:,.0f} ms throttled): raise the"
            " quota or run fewer at once"
        )
        found.append(Cause(name="throttling", ms=more["throttled"] * 1e3, text=text))
    elif not found and more["run_delay"] >= NOTABLE * loss:
        found.append(_others(now, more["run_delay"] * 1e3))
    if not many and more["cpu"] >= NOTABLE * loss and now["cpu"] >= base["cpu"] * (1 + NO_LOSS):
        text = (
            f"the same work takes {now['cpu'] / base['cpu'] - 1:.0%} more CPU time ({more['cpu'] * 1e3:,.0f} ms): clock"
            " frequency, SMT siblings, caches or memory bandwidth"
        )
        found.append(Cause(name="processor", ms=more["cpu"] * 1e3, text=text))
    idle = loss - more["cpu"] - more["run_delay"]
    if not found and {"cpu", "run_delay"} <= now.keys() & base.keys() and idle >= NOTABLE * loss:
        text = f"{idle * 1e3:,.0f} ms neither computing nor waiting for a CPU: pipes, disk or locks"
        found.append(Cause(name="waiting", ms=idle * 1e3, text=text))
    return sorted(found, key=lambda cause: -cause.ms)


def _others(now: Mapping[str, float], ms: float) -> Cause:
    others = now.get("others_cores")
    if others is not None and others < NOTABLE:
        who = "though there is one for each and nothing else ran: the kernel put two on one core"
    elif others is not None:
        who = f"though there is one for each: other programs used {others:.1f} cores"
    else:
        who = "though there is one for each: other programs, or the kernel put two on one core"
    return Cause(name="others", ms=ms, text=f"each process waits {ms:,.0f} ms for a CPU, {who}")


def _startup(now: Measured, base: Measured) -> dict[str, Any] | None:
    """Not part of the loss, which is measured in steady training; None where it is not longer."""
    later, earlier = now.values("first_step_s"), base.values("first_step_s")
    if not later or not earlier or median(later) < median(earlier) * SLOW_START:
        return None
    text = f"start-up takes {median(later):.1f} s instead of {median(earlier):.1f}"
    return {"before_s": median(earlier), "now_s": median(later), "text": text}


def _medians(measured: Measured) -> dict[str, float]:
    names = dict.fromkeys(name for sample in measured.samples for name in sample.figures)
    return {name: median(measured.values(name)) for name in names}
