"""``bench --tune``: which processes × threads × environments, with SMT or without, give most env_steps/s."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from orchestrator.bench import drift, plan
from orchestrator.bench.runner import Cell, Ground, measure
from orchestrator.bench.workload import Work
from orchestrator.core.atomic_files import write_whole
from orchestrator.core.errors import UsageError
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import duration
from orchestrator.machine.topology import Machine

FORMAT = 1
FACTORS = (0.5, 2.0, 4.0)
"""Of the job's own ``n_envs``, tried with the best packing."""
FINALISTS = 3
"""Measured again: the best of single measurements is partly the luckiest."""
ROUNDS = 3
LIMIT_S = 600.0

Point = tuple[int, int, int]
"""Processes, threads of each, environments of each."""


def packings(machine: Machine) -> list[tuple[int, int]]:
    """Processes and threads to be tried: all cores by processes, by fewer processes of more threads, and with SMT."""
    capacity = machine.capacity
    found = [(capacity, 1)]
    threads = 2
    while threads <= capacity:
        found.append((capacity // threads, threads))
        threads *= 2
    found += [(processes, 1) for processes in (capacity // 2, len(machine.cpus)) if processes]
    held = plan.most_held(machine)
    return [one for one in dict.fromkeys(found) if one[0] <= held and plan.has_slots(machine, *one)] or [(1, 1)]


def run(paths: RunPaths, work: Work, ground: Ground, seconds: float, told: Callable[[str], None]) -> list[str]:
    """Search, or go on searching; the lines for the job file.

    :raises UsageError: when ``tune.json`` is of another search, or nothing could be measured.
    """
    path = paths.bench / "tune.json"
    of = {
        "format": FORMAT,
        "job": work.job.job_id,
        "fingerprint": work.job.spec.fingerprint(),
        "robot_hash": work.robot_hash,
        "seconds": seconds,
        "machine": plan.machine_facts(ground.machine),
    }
    document: dict[str, Any] = {**of, "points": [], "best": None}
    if path.exists():
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            changed = plan.differences(found, of)
        except (ValueError, AttributeError) as error:
            raise UsageError(f"{path}: cannot be read ({error}); choose another --run-dir") from error
        if changed:
            raise UsageError(f"{path}: is of another search: {'; '.join(changed)}; choose another --run-dir")
        document = found
    search = _Search(document, work, ground, seconds, told)
    for point in search.points():
        search.take(point)
        document["best"] = search.best()
        write_whole(path, json.dumps(document, indent=1) + "\n")
    best = document["best"]
    if best is None:
        raise UsageError(f"nothing could be measured: {document['points'][0]['message']}")
    told(
        f"best: {best['processes']} processes × {best['threads']} threads × {best['n_envs']} environments,"
        f" {best['throughput']:,.0f} env_steps/s"
    )
    return lines(best, work)


def lines(best: dict[str, Any], work: Work) -> list[str]:
    """What to write into the job file."""
    n_steps = work.steps_an_iteration // best["n_envs"]
    return [
        f"max_parallel = {best['processes']}",
        "",
        "[defaults]",
        f"n_envs = {best['n_envs']}",
        "",
        "[defaults.ppo]",
        f"n_steps = {n_steps}    # × n_envs: a rollout as long as it was",
        "",
        "[defaults.resources]",
        f"cores = {best['threads']}",
        f"threads = {best['threads']}",
    ]


class _Search:
    def __init__(
        self, document: dict[str, Any], work: Work, ground: Ground, seconds: float, told: Callable[[str], None]
    ) -> None:
        self._document, self._work, self._ground = document, work, ground
        self._seconds, self._told = seconds, told
        self._reference_s = drift.kernel_s(ground.cpus)

    def points(self) -> Iterator[Point]:
        """First the packings, then ``n_envs`` with the best of them, then the finalists again."""
        own = self._work.job.spec.n_envs
        yield from self._untaken([(processes, threads, own) for processes, threads in packings(self._ground.machine)])
        packed = [one for one in self._measured() if one["n_envs"] == own]
        if not packed:
            return
        best = max(packed, key=lambda point: point["samples"][0])
        sizes = [size for factor in FACTORS if self._fits(size := int(own * factor))]
        yield from self._untaken([(best["processes"], best["threads"], size) for size in sizes])
        finalists = sorted(self._measured(), key=lambda point: -point["samples"][0])[:FINALISTS]
        for done in range(1, ROUNDS):
            for point in finalists:
                if len(point["samples"]) == done:
                    yield point["processes"], point["threads"], point["n_envs"]

    def _fits(self, n_envs: int) -> bool:
        steps = self._work.steps_an_iteration
        return n_envs >= 1 and steps % n_envs == 0 and steps // n_envs > 1

    def _untaken(self, points: list[Point]) -> list[Point]:
        known = {(one["processes"], one["threads"], one["n_envs"]) for one in self._document["points"]}
        return [point for point in points if point not in known]

    def _measured(self) -> list[dict[str, Any]]:
        return [one for one in self._document["points"] if one["throughput"] is not None]

    def best(self) -> dict[str, Any] | None:
        """Of those that were measured most often: a single measurement may have been lucky."""
        most = max((len(point["samples"]) for point in self._measured()), default=0)
        finalists = [point for point in self._measured() if len(point["samples"]) == most]
        return max(finalists, key=lambda point: point["throughput"], default=None)

    def take(self, point: Point) -> None:
        """Measure a point; once more, where it has been measured."""
        processes, threads, n_envs = point
        begun = time.monotonic()
        record = measure(
            Cell(arm="pinned", level=processes, repeat=0),
            self._work.with_settings(n_envs=n_envs, threads=threads),
            self._ground,
            seconds=self._seconds,
            limit_s=LIMIT_S,
            reference_s=self._reference_s,
        )
        key = {"processes": processes, "threads": threads, "n_envs": n_envs}
        entry = next((one for one in self._document["points"] if key.items() <= one.items()), None)
        if entry is None:
            smt = processes * threads > self._ground.machine.physical_cores
            entry = {**key, "smt": smt, "throughput": None, "samples": [], "message": ""}
            self._document["points"].append(entry)
        if record["status"] == "ok":
            entry["samples"].append(record["throughput"])
            entry["throughput"] = statistics.median(entry["samples"])
        entry["message"] = record["message"] or record["disturbance"]
        shown = entry["message"] if entry["throughput"] is None else f"{entry['throughput']:,.0f} env_steps/s"
        self._told(
            f"{processes} × {threads} threads × {n_envs} environments: {shown} ({duration(time.monotonic() - begun)})"
        )
