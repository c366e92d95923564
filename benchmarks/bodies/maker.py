"""Train bodies of a table, and read what they gave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

import orchestrator
from benchmarks.bodies import table
from benchmarks.bodies.table import MEASURES, RUNG_MEASURES, Table
from benchmarks.harness import run_quietly
from orchestrator.analysis import run_reader
from orchestrator.core.paths import JobPaths
from orchestrator.jobfile import Experiment, from_mapping

RUNGS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Bodies of a table, by their numbers among all Sobol points."""

    robot: str
    first: int
    bodies: int


def experiment(part: Part) -> Experiment:
    """Return the job file of the table with a job for each body."""
    content = table.job_file(part.robot)
    job = content["jobs"][0]
    content["jobs"] = [
        {**job, "name": f"body{part.first + place}", "params": params}
        for place, params in enumerate(table.points(part.robot, part.first, part.bodies))
    ]
    source = str(table.FOLDER / f"{part.robot}.toml")
    return from_mapping(content, source=source, base=table.FOLDER)


def make(part: Part, run_dir: Path) -> Table | None:
    """Train the bodies of ``part``, or resume that. Return None if the run was stopped."""
    results = run_quietly(experiment(part), run_dir)
    if any(result.state not in {"SUCCEEDED", "FAILED"} for result in results):
        return None
    defaults = table.job_file(part.robot)["defaults"]
    seeds = defaults["seeds"]
    apart = defaults["total_timesteps"] // RUNGS
    rungs = list(range(apart, defaults["total_timesteps"] + 1, apart))
    shape = (part.bodies, len(seeds))
    returns = np.full((*shape, len(rungs)), np.nan, np.float32)
    measures = np.full((*shape, len(MEASURES)), np.nan, np.float32)
    rung_measures = np.full((*shape, len(rungs), len(RUNG_MEASURES)), np.nan, np.float32)
    by_id = {result.job_id: result for result in results}
    for body in range(part.bodies):
        for place, seed in enumerate(seeds):
            result = by_id[f"body{part.first + body}-s{seed}"]
            if not result.ok:
                continue
            assert result.job_dir is not None
            found = _at_rungs(rungs, JobPaths(result.job_dir).progress_csv)
            returns[body, place] = found[:, 0]
            rung_measures[body, place] = found[:, 1:]
            measures[body, place] = [_measure(result, name) for name in MEASURES]
    points = table.points(part.robot, part.first, part.bodies)
    keys = tuple(table.SPACES[part.robot])
    return Table(
        keys=tuple(f"params.{key}" for key in keys),
        points=np.array([[point[key] for key in keys] for point in points], np.float32),
        rungs=np.array(rungs),
        returns=returns,
        measures=measures,
        rung_measures=rung_measures,
    )


def _at_rungs(rungs: Sequence[int], progress: Path) -> npt.NDArray[np.float32]:
    """Return the return and the measures of the last episodes at each rung."""
    columns = [*run_reader.CURVE_COLUMNS, *(f"measures/{name}" for name in RUNG_MEASURES)]
    rows = {row[0]: row[1:] for row in run_reader.numbers(progress.read_bytes(), columns)}
    missing = [None] * (len(columns) - 1)
    return np.array([rows.get(rung, missing) for rung in rungs], np.float32)


def _measure(result: orchestrator.Result, name: str) -> float:
    value = result.eval_mean if name == "eval_mean" else result.measures.get(name)
    return np.nan if value is None else value
