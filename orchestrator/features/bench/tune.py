"""``bench --tune``: which processes × threads × environments, with SMT or without, give the most
env_steps/s.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

from orchestrator.analysis.samples import TunePoint
from orchestrator.core.errors import UsageError
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import duration
from orchestrator.features.bench import drift, forecast, plan
from orchestrator.features.bench.forecast import Forecast
from orchestrator.features.bench.measurement import Measurement
from orchestrator.features.bench.runner import Setup, measure
from orchestrator.features.bench.workload import Work
from orchestrator.machine.topology import Machine

FORMAT = 1
FACTORS = (0.5, 2.0, 4.0)
"""Multiples of the job's own ``n_envs`` that are tried with the best packing."""
FINALISTS = 3
"""Points that are measured again: the best of single measurements is often merely the luckiest."""
ROUNDS = 3
LIMIT_S = 600.0

Point = tuple[int, int, int]
"""Number of processes, threads of each, environments of each."""


def packings(machine: Machine) -> list[tuple[int, int]]:
    """Processes and threads to be tried: all cores by processes, by fewer processes of more
    threads, and with SMT.
    """
    capacity = machine.capacity
    pairs = [(capacity // 2**power, 2**power) for power in range(capacity.bit_length())]
    pairs += [(processes, 1) for processes in (capacity // 2, len(machine.cpus)) if processes]
    most = plan.max_processes(machine)
    fitting = [
        (processes, threads)
        for processes, threads in dict.fromkeys(pairs)
        if processes <= most and plan.has_slots(machine, processes, threads)
    ]
    return fitting or [(1, 1)]


def run(paths: RunPaths, work: Work, setup: Setup, seconds: float) -> list[str]:
    """Run or continue the search. Returns lines for the job file.

    :raises UsageError: ``tune.json`` belongs to another search, or nothing could be measured.
    """
    path = paths.bench / "tune.json"
    settings = {
        "format": FORMAT,
        "job": work.job.job_id,
        "fingerprint": work.job.spec.fingerprint(),
        "robot_hash": work.robot_hash,
        "seconds": seconds,
        "machine": plan.machine_facts(setup.machine),
    }
    new: dict[str, Any] = {**settings, "points": [], "best": None}
    document = plan.begin(path, new, settings)
    search = _Search(document, work, setup, seconds)
    for line in search.forecast().lines():
        setup.tell(line)
    for point in search.points():
        search.measure(point)
        document["best"] = search.best()
        plan.write(path, document)
    best = document["best"]
    if best is None:
        raise UsageError(f"nothing could be measured: {document['points'][0]['message']}")
    setup.tell(
        f"Best: {best['processes']} processes × {best['threads']} threads × {best['n_envs']} environments,"
        f" {best['throughput']:,.0f} env_steps/s"
    )
    return lines(best, work)


def lines(best: TunePoint, work: Work) -> list[str]:
    """The lines of a job file that set the best point."""
    n_steps = work.job.spec.steps_an_iteration // best["n_envs"]
    return [
        f"max_parallel = {best['processes']}",
        "",
        "[defaults]",
        f"n_envs = {best['n_envs']}",
        "",
        "[defaults.ppo]",
        f"n_steps = {n_steps}    # the rollout, n_steps × n_envs, keeps its length",
        "",
        "[defaults.resources]",
        f"cores = {best['threads']}",
        f"threads = {best['threads']}",
    ]


class _Search:
    def __init__(self, document: dict[str, Any], work: Work, setup: Setup, seconds: float) -> None:
        self._points: list[TunePoint] = document["points"]
        self._work = work
        self._setup = setup
        self._seconds = seconds
        self._reference_s = drift.kernel_s(setup.cpus)

    def forecast(self) -> Forecast:
        """Of the measurements that are left. Which points the later ones have is not known yet: they
        are taken for such that use all cores.
        """
        capacity = self._setup.machine.capacity
        packed = packings(self._setup.machine)
        own = self._work.job.spec.n_envs
        first = self._unmeasured_points(
            [(processes, threads, own) for processes, threads in packed]
        )
        all_points = len(packed) + len(self._other_sizes())
        wanted = all_points + min(FINALISTS, all_points) * (ROUNDS - 1)
        taken = sum(len(entry["samples"]) for entry in self._points)
        later = max(0, wanted - taken - len(first))
        filled = forecast.cell_s(capacity, seconds=self._seconds, cores=1, capacity=capacity)
        cells_s = [
            forecast.cell_s(processes, seconds=self._seconds, cores=threads, capacity=capacity)
            for processes, threads, _ in first
        ]
        return Forecast(
            cells_s=(*cells_s, *[filled] * later),
            seconds=self._seconds,
            calibration_s=0.0,
            retakes=0,
        )

    def points(self) -> Iterator[Point]:
        """First the packings, then ``n_envs`` with the best of them, then the finalists again."""
        own = self._work.job.spec.n_envs
        yield from self._unmeasured_points(
            [(processes, threads, own) for processes, threads in packings(self._setup.machine)]
        )
        packed = [entry for entry in self._measured_points() if entry["n_envs"] == own]
        if not packed:
            return
        best = max(packed, key=lambda entry: entry["samples"][0])
        yield from self._unmeasured_points(
            [(best["processes"], best["threads"], size) for size in self._other_sizes()]
        )
        ranked = sorted(self._measured_points(), key=lambda entry: -entry["samples"][0])
        for done in range(1, ROUNDS):
            for entry in ranked[:FINALISTS]:
                if len(entry["samples"]) == done:
                    yield _point(entry)

    def _other_sizes(self) -> list[int]:
        """The ``n_envs`` that are tried with the best packing."""
        own = self._work.job.spec.n_envs
        return [size for factor in FACTORS if self._is_valid(size := int(own * factor))]

    def _is_valid(self, n_envs: int) -> bool:
        steps = self._work.job.spec.steps_an_iteration
        return n_envs >= 1 and steps % n_envs == 0 and steps // n_envs > 1

    def _unmeasured_points(self, points: list[Point]) -> list[Point]:
        return [point for point in points if point not in map(_point, self._measured_points())]

    def _measured_points(self) -> list[TunePoint]:
        return [entry for entry in self._points if entry["throughput"] is not None]

    def best(self) -> TunePoint | None:
        """The best of the points that were measured most often: a single measurement may have been
        lucky.
        """
        return max(
            self._measured_points(),
            key=lambda entry: (len(entry["samples"]), entry["throughput"]),
            default=None,
        )

    def measure(self, point: Point) -> None:
        """Measure a point, for the first time or again."""
        processes, threads, n_envs = point
        begun = time.monotonic()
        record = measure(
            Measurement(baseline="pinned", level=processes, repeat=0),
            self._work.with_settings(n_envs=n_envs, threads=threads),
            self._setup,
            seconds=self._seconds,
            limit_s=LIMIT_S,
            reference_s=self._reference_s,
        )
        entry = next((entry for entry in self._points if _point(entry) == point), None)
        if entry is None:
            smt = processes * threads > self._setup.machine.physical_cores
            entry = TunePoint(
                processes=processes,
                threads=threads,
                n_envs=n_envs,
                smt=smt,
                throughput=None,
                samples=[],
                message="",
            )
            self._points.append(entry)
        if record["status"] == "ok" and record["throughput"] is not None:
            entry["samples"].append(record["throughput"])
            entry["throughput"] = statistics.median(entry["samples"])
        entry["message"] = record["message"] or record["disturbance"]
        result = entry["message"]
        if entry["throughput"] is not None:
            result = f"{entry['throughput']:,.0f} env_steps/s"
        what = f"{processes} × {threads} threads × {n_envs} environments"
        self._setup.tell(f"{what}: {result} ({duration(time.monotonic() - begun)})")


def _point(entry: TunePoint) -> Point:
    return entry["processes"], entry["threads"], entry["n_envs"]
