"""Many jobs or one wide one? What ``bench --ranks`` has measured, in numbers and in a sentence. Read-only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from orchestrator.analysis import samples
from orchestrator.analysis.run_reader import read_json_object
from orchestrator.analysis.samples import Measured
from orchestrator.analysis.statistics import Estimate, estimate
from orchestrator.bench.isolation import SAME, gain, times
from orchestrator.bench.rank_benchmark import ONE, TOGETHER
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count

Choice = Literal["jobs", "wide", "either", "unsure"]
Facts = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """At one number of ranks."""

    number: int
    choice: Choice
    """``jobs`` where many jobs do surely more, ``wide`` where one does, ``either`` where the difference is small."""
    sentences: tuple[str, ...]
    """The first says which is better, the others what else was found."""


def facts(run_dir: Path) -> Facts | None:
    """None where nothing of it was measured.

    ``one`` is one job of one rank; ``ways.<way>.<N>`` its like over N ranks (or their cores): ``throughput`` in
    env_steps/s, ``speedup`` against ``one``, ``efficiency`` (that by N), ``allreduce`` (rank 0's share of time in
    collectives, waiting included), each as ``median``, ``low``, ``high``, ``n``; ``at_most`` marks a bound, and
    ``cells`` says how many ended in which status.
    """
    folder = RunPaths(run_dir).bench
    plan = read_json_object(folder / "ranks.json")
    if plan is None:
        return None
    records, unreadable = samples.records(folder / "ranks.jsonl")
    ways, failed = samples.by_arm(records, plan.get("arms", ()))
    one = ways.get(ONE, {}).get(1)
    job, work, machine = (plan.get("jobs") or ["the job"])[0], plan.get("work") or {}, plan.get("machine") or {}
    found = verdict(ways, job=job, cores=int(work.get("cores") or 1), capacity=int(machine.get("capacity") or 1))
    return {
        "jobs": plan.get("jobs"),
        "work": plan.get("work"),
        "about": plan.get("about_arms"),
        "one": None if one is None else _measured(one, one, together=False),
        "ways": {
            way: {
                str(number): _measured(measured, one, together=way in TOGETHER)
                for number, measured in levels.items()
                if number > 1
            }
            for way, levels in ways.items()
        },
        "failed": {way: {str(number): list(why) for number, why in levels.items()} for way, levels in failed.items()},
        "verdict": None if found is None else {"number": found.number, "choice": found.choice},
        "sentences": [] if found is None else list(found.sentences),
        "cells": {"planned": len(plan.get("order") or ()), "measured": len(records), "unreadable": unreadable},
        "notes": list(plan.get("notes") or ()),
    }


def _measured(measured: Measured, one: Measured | None, *, together: bool) -> Facts:
    throughput = estimate(measured.throughputs)
    shares = measured.values("allreduce") if together else []
    speedup = None if one is None else gain(measured, one)[0]
    return {
        "throughput": (_bounded(throughput) if measured.at_most else throughput).facts(),
        "at_most": measured.at_most,
        "speedup": None if speedup is None else speedup.facts(),
        "efficiency": None if speedup is None else speedup.scaled(1 / measured.processes).facts(),
        "allreduce": estimate(shares).facts() if shares else None,
        "disturbed": measured.disturbed,
        "cells": dict(measured.cells),
        "messages": list(measured.messages),
    }


def _bounded(one: Estimate) -> Estimate:
    return Estimate(one.median, None, one.high, one.n)


def verdict(ways: Mapping[str, Mapping[int, Measured]], *, job: str, cores: int, capacity: int) -> Verdict | None:
    """At the most ranks that have cores of their own, or else the fewest; None where nothing can be compared.

    :param cores: of a rank.
    :param capacity: of the machine, in cores.
    """
    wide, many = ways.get(ONE, {}), ways.get("jobs", {})
    both = sorted(wide.keys() & many.keys() - {1})
    number = max((one for one in both if one * cores <= capacity), default=both[0] if both else None)
    if number is None:
        return None
    better, at_least = gain(many[number], wide[number])
    if better is None:
        return None
    faster = gain(wide[number], wide[1])[0] if 1 in wide else None
    choice = _choice(better, at_least=at_least)
    many_do = _times(many[number], wide[number])
    compared = f"{number} jobs of one rank do {many_do} the env_steps/s of one job of {number} ranks"
    doubt = _doubt(ways, number, better)
    sentences = [f"{job}, on {count(number * cores, 'core')}: {_advice(choice, faster)} ({compared}{doubt})."]
    if faster is not None:
        sentences.append(f"One job of {number} ranks does {times(faster)} the env_steps/s of one rank.")
    for way, text in (
        ("subproc", "what stock Stable-Baselines3 does on the same cores over SubprocVecEnv"),
        ("parameter-server", "what it does through a parameter server"),
    ):
        other = _times(wide[number], ways[way][number]) if number in ways.get(way, {}) else ""
        if other:
            sentences.append(f"That is {other} {text}.")
    return Verdict(number=number, choice=choice, sentences=tuple(sentences))


def _times(after: Measured, before: Measured) -> str:
    """Empty where it is not known."""
    found, at_least = gain(after, before)
    return "" if found is None else f"{'at least ' if at_least else ''}{times(found)}"


def _choice(better: Estimate, *, at_least: bool) -> Choice:
    """:param better: throughput of many jobs against one wide one."""
    low = better.median if better.low is None else better.low
    high = math.inf if at_least else better.median if better.high is None else better.high
    if low > SAME:
        return "jobs"
    if high < 1 / SAME:
        return "wide"
    return "either" if low >= 1 / SAME and high <= SAME else "unsure"


def _advice(choice: Choice, faster: Estimate | None) -> str:
    gains = faster is not None and (faster.median if faster.low is None else faster.low) > 1
    if choice == "wide":
        return "one wide job is better"
    if not gains:
        return "many jobs are better: one job is not surely faster over several ranks than over one"
    if choice == "jobs":
        return "many jobs are better, as long as there are so many to train; one wide job has its one policy sooner"
    if choice == "either":
        return "many jobs and one wide one do the same work, and one wide job has its one policy sooner"
    return "it is not sure which does more; one wide job has its one policy sooner"


def _doubt(ways: Mapping[str, Mapping[int, Measured]], number: int, better: Estimate) -> str:
    said = "; measured once, so not sure" if better.n < 2 else ""
    disturbed = any(ways[way][number].disturbed for way in (ONE, "jobs"))
    return f"{said}; the machine was disturbed" if disturbed else said
