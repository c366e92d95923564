"""The measured part of a benchmark's ``report.json``; None: not known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypedDict

from orchestrator.analysis.statistics import EstimateFacts

Estimates: TypeAlias = Mapping[str, EstimateFacts | None]


class EfficiencyFacts(TypedDict):
    speedup: EstimateFacts | None
    """Relative to the baseline's lowest level, or to one job of one rank."""
    efficiency: EstimateFacts | None
    """The speed-up divided by ``ideal``, or by the number of ranks."""


class MeasuredFacts(EfficiencyFacts):
    """What was measured at one level of a baseline, or with one number of ranks."""

    throughput: EstimateFacts
    """env_steps/s of all processes."""
    at_most: bool
    """Whether measurements were cut off: the throughput is then an upper bound, and its ``low`` is None."""
    disturbed: bool
    cells: Mapping[str, int]
    """Status → measurements."""
    messages: Sequence[str]


class LevelFacts(MeasuredFacts):
    ideal: int
    """The number of processes, or of cores where that is smaller."""
    base: int
    """The baseline's lowest level."""
    speedup_absolute: EstimateFacts | None
    """Relative to one pinned process."""
    efficiency_absolute: EstimateFacts | None
    phases: Estimates
    """Seconds per 1,000 env_steps of a process, as ``wall_s``."""
    wall_s: EstimateFacts | None
    update_s: EstimateFacts | None
    """Seconds of backward and optimiser for one minibatch."""
    witnesses: Estimates
    """Seconds and counts per 1,000 env_steps of a process; ``runnable`` and all that follow it as they are."""
    startup: Estimates


class RankFacts(MeasuredFacts):
    allreduce: EstimateFacts | None
    """Rank 0's share of time in collectives, waiting included."""
