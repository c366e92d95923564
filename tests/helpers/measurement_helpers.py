"""Benchmarks that were never run: a plan and records of measurements with chosen figures."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from orchestrator.machine.topology import Cpu, Machine

CORES = 2
ALONE = {
    "env": 0.25,
    "policy": 0.15,
    "gae": 0.001,
    "backward": 0.06,
    "optimizer": 0.04,
    "rest": 0.02,
}
"""Seconds per 1,000 env_steps of a process with a core of its own."""


def plan(**changed: Any) -> dict[str, Any]:
    return {
        "format": 1,
        "name": "tiny-bench",
        "jobs": ["hopper-s0"],
        "work": {"cores": 1, "threads": 1, "n_envs": 4},
        "arms": ["pinned", "threads", "default", "pool-spawn", "pool-spawn-pinned"],
        "about_arms": {"pinned": "this program"},
        "levels": [1, 2, 4],
        "repeats": 5,
        "seconds": 20.0,
        "order": [],
        "machine": {
            "cpu_model": "Example 9000",
            "cpus": [0, 1],
            "physical_cores": CORES,
            "capacity": CORES,
        },
        "versions": {"torch": "2.13.0"},
        "notes": [],
        **changed,
    }


def measurement(
    baseline: str,
    level: int,
    repeat: int,
    *,
    phases: Mapping[str, float] = ALONE,
    cpu: float | None = None,
    run_delay: float | None = 0.002,
    throttled: float | None = 0.0,
    n_threads: int = 2,
    first_step_s: float | None = 3.0,
    status: str = "ok",
    noise: float = 0.005,
    window_s: float = 20.0,
    **more: Any,
) -> dict[str, Any]:
    """A line of ``cells.jsonl``; seconds are per 1,000 env_steps of a process. ``cpu`` None: as
    much as wall time."""
    rng = random.Random(f"{baseline} {level} {repeat}")
    factor = 1 + rng.gauss(0, noise)
    wall = sum(phases.values()) * factor
    steps = window_s / wall * 1000
    scale = steps / 1000
    one = {
        "job": "hopper-s0",
        "env_steps": steps,
        "updates": steps / 64,
        "iterations": steps / 1024,
        "wall_s": wall * scale,
        **{f"{name}_s": value * factor * scale for name, value in phases.items()},
        "cpu_s": (wall if cpu is None else cpu * factor) * scale,
        "run_delay_s": None if run_delay is None else run_delay * factor * scale,
        "voluntary_switches": 10,
        "involuntary_switches": 100,
        "throttled_s": None if throttled is None else throttled * level * scale,
        "rss_mib": 350.0,
        "n_threads": n_threads,
        "import_s": 2.0,
        "first_step_s": first_step_s,
        "cpus": [0],
    }
    return {
        "arm": baseline,
        "level": level,
        "repeat": repeat,
        "status": status,
        "throughput": None if status == "failed" else level * steps / window_s,
        "window_s": window_s,
        "started_at": 1_700_000_000.0 + repeat,
        "message": "",
        "processes": [] if status == "failed" else [one] * level,
        **more,
    }


def measurements(
    baseline: str, level: int, repeats: int = 5, **figures: Any
) -> list[dict[str, Any]]:
    return [measurement(baseline, level, repeat, **figures) for repeat in range(repeats)]


def slower(factor: float, *phases: str, by: Mapping[str, float] = ALONE) -> dict[str, float]:
    """``by``, with some phases taking ``factor`` times as long."""
    return {name: value * (factor if name in phases else 1) for name, value in by.items()}


def collapsed(level: int = 2, baseline: str = "default", **figures: Any) -> list[dict[str, Any]]:
    """The effect of default threads: backward and optimiser take 60 times as long, and threads wait
    for a CPU."""
    phases = slower(60, "backward", "optimizer")
    wall = sum(phases.values())
    given = {
        "phases": phases,
        "cpu": wall * 1.0,
        "run_delay": wall * 2.1,
        "n_threads": 6,
        **figures,
    }
    return measurements(baseline, level, **given)


def write(
    run_dir: Path, records: Iterable[Mapping[str, Any]], tail: str = "", **changed: Any
) -> Path:
    folder = run_dir / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_text(json.dumps(plan(**changed)))
    (folder / "cells.jsonl").write_text(
        "".join(json.dumps(record) + "\n" for record in records) + tail
    )
    return run_dir


def machine_with(
    cores: int, *, siblings: int = 1, quota: float | None = None, memory_mib: int = 64_000
) -> Machine:
    cpus = [
        Cpu(index=index, core=index % cores, package=0, numa_node=0)
        for index in range(cores * siblings)
    ]
    return Machine(cpus=tuple(cpus), quota=quota, memory_total_mib=memory_mib)
