"""Many jobs or one wide job? The measurements of ``bench --ranks``, in numbers and in sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from orchestrator.analysis.statistics import Estimate, EstimateFacts, known_estimate
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count
from orchestrator.features.bench import benchmark_plan, samples
from orchestrator.features.bench.rank_benchmark import ONE_JOB_WAYS, REFERENCE_WAY
from orchestrator.features.bench.samples import LevelSamples
from orchestrator.features.bench.throughput_ratios import (
    SAME,
    MeasuredFacts,
    efficiency_facts,
    gain,
    high,
    low,
    speed_up,
    throughput,
    times,
)

Choice = Literal["jobs", "wide", "either", "unsure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankVerdict:
    """The comparison at one number of ranks."""

    number: int
    choice: Choice
    """``jobs`` where many jobs surely do more, ``wide`` where one wide job does, ``either`` for a
    small difference."""
    sentences: tuple[str, ...]


class RankFacts(MeasuredFacts):
    allreduce: EstimateFacts | None
    """Rank 0's share of time in collectives, waiting included."""


def facts(run_dir: Path) -> dict[str, Any] | None:
    """Every figure of ``bench --ranks``; None where it was not measured.

    ``one`` is one job of one rank, ``ways.<way>.<N>`` the same over N ranks (or their cores).
    """
    folder = RunPaths(run_dir).bench
    plan = benchmark_plan.read(folder / "ranks.json")
    if plan is None:
        return None
    records, unreadable = samples.records(folder / "ranks.jsonl")
    ways, failed = samples.by_baseline(records, plan["arms"])
    one = ways.get(REFERENCE_WAY, {}).get(1)
    result = verdict(
        ways,
        job=plan["jobs"][0],
        cores=plan["work"]["cores"],
        capacity=plan["machine"]["capacity"],
    )
    return {
        "jobs": plan["jobs"],
        "work": plan["work"],
        "about": plan["about_arms"],
        "one": None if one is None else _rank_facts(one, one, together=False),
        "ways": {
            way: {
                str(number): _rank_facts(measured, one, together=way in ONE_JOB_WAYS)
                for number, measured in levels.items()
                if number > 1
            }
            for way, levels in ways.items()
        },
        "failed": {
            way: {str(number): list(why) for number, why in levels.items()}
            for way, levels in failed.items()
        },
        "verdict": None if result is None else {"number": result.number, "choice": result.choice},
        "sentences": [] if result is None else list(result.sentences),
        "cells": {
            "planned": len(plan["order"]),
            "measured": len(records),
            "unreadable": unreadable,
        },
        "notes": plan["notes"],
    }


def _rank_facts(measured: LevelSamples, one: LevelSamples | None, *, together: bool) -> RankFacts:
    return {
        "throughput": throughput(measured).facts(),
        "at_most": measured.at_most,
        **efficiency_facts(None if one is None else speed_up(measured, one), measured.processes),
        "allreduce": known_estimate(measured.values("allreduce")) if together else None,
        "cells": dict(measured.statuses),
        "messages": list(measured.messages),
    }


def verdict(
    ways: Mapping[str, Mapping[int, LevelSamples]], *, job: str, cores: int, capacity: int
) -> RankVerdict | None:
    """The comparison at the most ranks that have cores of their own, or else the fewest; None
    without measurements.

    :param cores: of a rank.
    :param capacity: of the machine, in cores.
    """
    wide = ways.get(REFERENCE_WAY, {})
    many = ways.get("jobs", {})
    numbers = sorted(wide.keys() & many.keys() - {1})
    number = max(
        (number for number in numbers if number * cores <= capacity),
        default=numbers[0] if numbers else None,
    )
    if number is None:
        return None
    better, at_least = gain(many[number], wide[number])
    if better is None:
        return None
    faster, is_bound = gain(wide[number], wide[1]) if 1 in wide else (None, False)
    choice = _choice(better, at_least=at_least)
    doubt = "; measured once, so uncertain" if better.n < 2 else ""
    sentences = [
        f"{job}, on {count(number * cores, 'core')}: {_advice(choice, faster)} ({number} jobs of one rank do"
        f" {times(better, at_least=at_least)} the env_steps/s of one job of {number} ranks{doubt})."
    ]
    if faster is not None:
        does = times(faster, at_least=is_bound)
        sentences.append(f"One job of {number} ranks does {does} the env_steps/s of one rank.")
    for way, text in (
        ("subproc", "stock Stable-Baselines3 over SubprocVecEnv on the same cores"),
        ("parameter-server", f"the same {number} ranks with a parameter server"),
    ):
        if number in ways.get(way, {}):
            ratio, at_least = gain(wide[number], ways[way][number])
            if ratio is not None:
                does = times(ratio, at_least=at_least)
                sentences.append(
                    f"One job of {number} ranks does {does} the env_steps/s of {text}."
                )
    return RankVerdict(number=number, choice=choice, sentences=tuple(sentences))


def _choice(better: Estimate, *, at_least: bool) -> Choice:
    """:param better: throughput of many jobs divided by that of one wide job."""
    least = low(better)
    most = math.inf if at_least else high(better)
    if least > SAME:
        return "jobs"
    if most < 1 / SAME:
        return "wide"
    return "either" if least >= 1 / SAME and most <= SAME else "unsure"


def _advice(choice: Choice, faster: Estimate | None) -> str:
    sooner = "one wide job finishes its one policy sooner"
    if choice == "wide":
        return "one wide job is better"
    if faster is None or low(faster) <= 1:
        return "many jobs are better: it is not certain that one job is faster with several ranks than with one"
    if choice == "jobs":
        return f"many jobs are better, as long as there are that many to train; {sooner}"
    if choice == "either":
        return f"many jobs and one wide job do the same work; {sooner}"
    return f"it is uncertain which does more; {sooner}"
