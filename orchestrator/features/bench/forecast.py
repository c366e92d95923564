"""What a benchmark is about to do, and about how long each part takes, before it begins."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.core.text import count, duration

CELL_START_S = 4.5
"""Imports, warm-up and end of a measurement whose processes have a core each; a guess, until one is
calibrated."""
JOB_START_S = 1.5
"""Start and end of one job of the whole job file."""
RETAKEN_SHARE = 0.25
"""At most this share of the measurements is taken again in one call. On a machine that is busy for
good, nearly all are disturbed, and taken again they are disturbed again."""


def most_retakes(measurements: int) -> int:
    """How many of so many measurements are taken again at most, in one call."""
    return math.ceil(RETAKEN_SHARE * measurements)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Of one call of ``bench``; times are in seconds."""

    cells_s: tuple[float, ...]
    """Of each measurement that is to be taken."""
    seconds: float
    """How long the processes of a measurement train side by side."""
    calibration_s: float
    """0 where the benchmark is calibrated already."""
    retakes: int
    """Measurements that are taken again at most."""
    makespans_s: tuple[float, ...] = ()
    """Of the whole job file at each level."""
    why_no_makespan: str = ""
    """A clause; empty where it is measured."""

    @property
    def whole_s(self) -> float:
        """Without measurements that are taken again."""
        return self.calibration_s + math.fsum(self.cells_s) + math.fsum(self.makespans_s)

    def lines(self) -> list[str]:
        parts = []
        if self.calibration_s:
            parts.append(f"  calibration, one process alone: about {duration(self.calibration_s)}")
        if self.cells_s:
            what = f"{count(len(self.cells_s), 'measurement')} of {self.seconds:g} s"
            parts.append(
                f"  {what}, with start and warm-up: about {duration(math.fsum(self.cells_s))}"
            )
        if self.cells_s and self.retakes:
            again_s = self.retakes * math.fsum(self.cells_s) / len(self.cells_s)
            parts.append(
                f"  at most {self.retakes} of them again if they are disturbed: up to {duration(again_s)} more"
            )
        if self.makespans_s:
            what = f"makespan of the whole job file, scaled down, {count(len(self.makespans_s), 'time')}"
            parts.append(
                f"  {what}: up to {duration(math.fsum(self.makespans_s))} (--no-strong leaves it out)"
            )
        if self.why_no_makespan:
            parts.append(
                f"  the makespan of the whole job file is not measured: {self.why_no_makespan}"
            )
        return [f"Takes about {duration(self.whole_s)}:", *parts]


def cell_s(level: int, *, seconds: float, cores: int, capacity: int) -> float:
    """Of a measurement of ``level`` processes with ``cores`` each on a machine with room for
    ``capacity`` cores.
    """
    return seconds + CELL_START_S * max(1.0, level * cores / capacity)


def makespans_s(
    levels: Iterable[int], *, jobs: int, work_s: float, capacity: int
) -> tuple[float, ...]:
    """Of ``jobs`` that are ``work_s`` seconds of one core's work together, at each level."""
    whole_s = work_s + JOB_START_S * jobs
    return tuple(whole_s / max(1, min(level, capacity)) for level in levels)
