"""What was lost at each level, in which phase, and why: from the figures of a benchmark to
sentences with numbers.

The loss of a process is how much longer its 1,000 env_steps take at a level than at the baseline's
lowest level. It is split by phase. Direct metrics (seconds of waiting for a CPU, of CPU time, of
throttling) tell the causes apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

from orchestrator.core.text import count, joined
from orchestrator.features.bench import isolation
from orchestrator.features.bench.baselines import BASELINES
from orchestrator.features.bench.isolation import BUDGETED
from orchestrator.features.bench.samples import PHASES, Benchmark, LevelSamples
from orchestrator.features.bench.throughput_ratios import SAME, factor, gain, times

PHASE_NAMES = {
    "env": "physics and environment",
    "policy": "policy",
    "gae": "GAE",
    "backward": "backward pass",
    "optimizer": "optimiser step",
    "rest": "the rest (forward passes, losses, logs)",
}
NO_LOSS = 0.03
"""A smaller relative loss is not reported."""
NOTABLE = 0.1
"""Causes and phases that explain a smaller share of the loss are not named."""
SEVERAL = 1.25
"""Runnable threads of a process from which they count as more than one."""
SLOW_START = 1.2
"""A start-up that takes this many times as long is reported."""
MOST_OF_LOSS = 0.8
"""Phases are listed until they explain this share of the loss."""

CauseName = Literal["threads", "sharing", "throttling", "processor", "others", "waiting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCause:
    name: CauseName
    ms: float
    """Milliseconds of its metric per 1,000 env_steps of one process; the sum of all threads, which
    may exceed the loss."""
    text: str


def attribute(bench: Benchmark) -> list[dict[str, Any]]:
    """Entries with ``text`` and its numbers: those of ``kind`` ``level``, then those of ``kind``
    ``isolation``.
    """
    entries: list[dict[str, Any]] = []
    for name, levels in bench.baselines.items():
        lowest, *higher = levels
        entries += [_level(bench, name, levels[level], levels[lowest]) for level in higher]
    return entries + isolation.isolation_effects(bench)


def _level(bench: Benchmark, name: str, now: LevelSamples, base: LevelSamples) -> dict[str, Any]:
    cores = bench.capacity * bench.plan["work"]["cores"]
    way = BASELINES[name].short if name in BASELINES else name
    place = f"At {_processes(now.processes)} on {count(cores, 'core')} with {way}"
    entry: dict[str, Any] = {
        "kind": "level",
        "arm": name,
        "level": now.processes,
        "base": base.processes,
    }
    longer, at_least = gain(base, now)
    if longer is None:
        text = f"{place}, the loss is unknown: the measurement of the lowest level was cut off."
        return {**entry, "text": text, "causes": [], "shares": {}}
    longer = longer.scaled(now.processes / base.processes)
    was_ms = 1e6 * base.processes / median(base.throughputs)
    loss_ms = was_ms * (longer.value - 1)
    startup = _startup(now, base)
    entry |= {
        "longer": longer.facts(),
        "at_least": at_least,
        "ms_before": was_ms,
        "loss_ms": loss_ms,
        "shares": {},
        "causes": [],
        "startup": startup,
        "recovers": None,
    }
    if longer.value - 1 < NO_LOSS and not at_least:
        text = f"{place}, nothing is lost: an env_step takes {times(longer)} the time that it takes with"
        return {**entry, "text": f"{text} {_processes(base.processes)}."}
    shares = _shares(now, base)
    causes = causes_of(_medians(now), _medians(base), now.processes, bench.capacity, cores)
    bound = "at least " if at_least else ""
    sentences = [
        f"{place}, {_phases(shares) if shares else 'the phases of the loss are unknown'}",
        f"1,000 env_steps of a process take {bound}{was_ms + loss_ms:,.0f} ms instead of {was_ms:,.0f} ms",
        *([cause.text for cause in causes] or ["No metric explains the loss"]),
    ]
    recovery = _recovery(bench, name, now)
    if recovery is not None:
        sentences.append(recovery.text)
        entry["recovers"] = recovery.facts
    if startup is not None:
        sentences.append(startup["text"])
    text = ". ".join(sentences) + "."
    return {**entry, "shares": shares, "causes": [asdict(cause) for cause in causes], "text": text}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recovery:
    """What a thread budget brings at a level."""

    text: str
    facts: Mapping[str, Any]


def _recovery(bench: Benchmark, name: str, now: LevelSamples) -> _Recovery | None:
    """None where baseline ``name`` has a budget already, and where one brings nothing or was not
    measured.
    """
    partner = BUDGETED.get(name, "")
    with_budget = bench.baselines.get(partner, {}).get(now.processes)
    if with_budget is None:
        return None
    recovered, at_least = gain(with_budget, now)
    if recovered is None or recovered.value < SAME:
        return None
    more = f"{'at least ' if at_least else ''}{factor(recovered.value)}"
    return _Recovery(
        text=f"A thread budget of {bench.budget} gives {more} the throughput",
        facts={**recovered.facts(), "at_least": at_least, "arm": partner},
    )


def _processes(number: int) -> str:
    return count(number, "process", "processes")


def _shares(now: LevelSamples, base: LevelSamples) -> dict[str, float]:
    """Phase → share of the loss, largest first, negative for a phase that became faster; empty
    where unknown.
    """
    differences = {}
    for phase in PHASES:
        later = now.values(phase)
        earlier = base.values(phase)
        if not later or not earlier:
            return {}
        differences[phase] = median(later) - median(earlier)
    total = sum(differences.values())
    if total <= 0:
        return {}
    return {
        phase: differences[phase] / total
        for phase in sorted(differences, key=lambda name: -differences[name])
    }


def _phases(shares: Mapping[str, float]) -> str:
    """``96% of the loss is in backward pass and optimiser step``."""
    names: list[str] = []
    explained = 0.0
    for phase, share in shares.items():
        if share <= 0 or (names and (explained >= MOST_OF_LOSS or share < NOTABLE)):
            break
        names.append(PHASE_NAMES[phase])
        explained += share
    return f"{min(explained, 1.0):.0%} of the loss is in {joined(names)}"


def causes_of(
    now: Mapping[str, float], base: Mapping[str, float], processes: int, capacity: int, cores: int
) -> list[LossCause]:
    """The causes that the metrics show, the most expensive first; empty where they show none.

    :param now: medians of :func:`orchestrator.features.bench.samples.figures` at the level; ``base``: at
        the lowest level.
    :param capacity: processes that have cores of their own at once.
    """
    known = now.keys() & base.keys()
    if "wall" not in known or now["wall"] <= base["wall"]:
        return []
    loss = now["wall"] - base["wall"]
    more = {
        name: now[name] - base[name] if name in known else 0.0
        for name in ("cpu", "run_delay", "throttled")
    }
    runnable = now.get("runnable", 0.0)
    started = now.get("n_threads", 0.0)
    too_many_threads = (
        runnable >= SEVERAL and runnable * processes > cores * 1.05 and started * processes > cores
    )
    causes: list[LossCause] = []

    def add(name: CauseName, ms: float, text: str) -> None:
        causes.append(LossCause(name=name, ms=ms, text=text))

    if too_many_threads and more["run_delay"] + max(0.0, more["cpu"]) >= NOTABLE * loss:
        text = f"{runnable:.1f} threads per process compete for {count(cores, 'core')}"
        wait = f"{started:.0f} are started; together they wait {now['run_delay'] * 1e3:,.0f} ms for a CPU"
        add("threads", more["run_delay"] * 1e3, f"{text} ({wait})")
    if processes > capacity:
        ms = min(base["wall"] * (processes / capacity - 1), loss) * 1e3
        each = f"each gets {capacity / processes:.0%} of the CPU time that it needs"
        add(
            "sharing",
            ms,
            f"{_processes(processes)} share cores for {capacity}: {each}, which costs {ms:,.0f} ms",
        )
    if more["throttled"] >= NOTABLE * loss:
        ms = more["throttled"] * 1e3
        advice = "raise the CPU quota, or run fewer processes at once"
        add("throttling", ms, f"A cgroup limit throttled the processes for {ms:,.0f} ms: {advice}")
    elif not causes and more["run_delay"] >= NOTABLE * loss:
        ms = more["run_delay"] * 1e3
        text = f"Each process waits {ms:,.0f} ms for a CPU although there is one for each"
        why = "either other programs ran, or the kernel put two processes on one core"
        add("others", ms, f"{text}: {why}")
    if (
        not too_many_threads
        and more["cpu"] >= NOTABLE * loss
        and now["cpu"] >= base["cpu"] * (1 + NO_LOSS)
    ):
        text = f"The same work takes {now['cpu'] / base['cpu'] - 1:.0%} more CPU time ({more['cpu'] * 1e3:,.0f} ms)"
        reasons = "clock frequency, SMT siblings, caches or memory bandwidth"
        add("processor", more["cpu"] * 1e3, f"{text} because of {reasons}")
    idle = loss - more["cpu"] - more["run_delay"]
    if not causes and {"cpu", "run_delay"} <= known and idle >= NOTABLE * loss:
        text = f"The process neither computes nor waits for a CPU for {idle * 1e3:,.0f} ms: pipes, disk or locks"
        add("waiting", idle * 1e3, text)
    return sorted(causes, key=lambda cause: -cause.ms)


def _startup(now: LevelSamples, base: LevelSamples) -> dict[str, Any] | None:
    """The start-up, which is no part of the loss in steady training; None where it does not take
    longer.
    """
    later = now.values("first_step_s")
    earlier = base.values("first_step_s")
    if not later or not earlier or median(later) < median(earlier) * SLOW_START:
        return None
    text = f"Start-up takes {median(later):.1f} s instead of {median(earlier):.1f} s"
    return {"before_s": median(earlier), "now_s": median(later), "text": text}


def _medians(measured: LevelSamples) -> dict[str, float]:
    names = dict.fromkeys(name for sample in measured.samples for name in sample.figures)
    return {name: median(measured.values(name)) for name in names}
