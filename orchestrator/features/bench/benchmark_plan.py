"""What a benchmark measures, and on which machine, as ``bench/plan.json`` and ``bench/ranks.json``
have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict, cast

from orchestrator.analysis.run_reader import read_json_object


class PlannedWork(TypedDict):
    """What each process does."""

    task: str | None
    n_envs: int
    steps_an_iteration: int
    updates_an_iteration: int | None
    cores: int
    threads: int


class MachineFacts(TypedDict):
    """The machine that is measured."""

    cpu_model: str
    cpus: list[int]
    physical_cores: int
    numa_nodes: int
    cpu_quota: float | None
    capacity: int
    memory_total_mib: int
    platform: str


class Calibration(TypedDict):
    """One process alone."""

    cell_s: float
    """How long it took to measure it."""
    throughput: float


class BenchmarkPlan(TypedDict):
    format: int
    name: str
    source: str
    jobs: list[str]
    fingerprint: str
    robot_hash: str | None
    work: PlannedWork
    learner: str
    arms: list[str]
    """The baselines, or the ways in which jobs get their ranks."""
    about_arms: dict[str, str]
    levels: list[int]
    repeats: int
    seconds: float
    seed: int
    order: list[tuple[str, int, int]]
    """Baseline, level and repeat of every measurement, in their order."""
    machine: MachineFacts
    versions: Mapping[str, str | None]
    notes: list[str]
    calibration: Calibration | None


def calibration(plan: BenchmarkPlan) -> Calibration:
    """That of a plan that is being measured."""
    found = plan["calibration"]
    assert found is not None, "nothing is measured before the calibration"
    return found


def read(path: Path) -> BenchmarkPlan | None:
    """None where the file is missing or unreadable."""
    return cast(BenchmarkPlan | None, read_json_object(path))
