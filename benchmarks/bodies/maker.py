"""Makes a part of a table: trains bodies by a search over Sobol points, which is killed at random
moments and goes on, and reads what they gave.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import orchestrator
from benchmarks import table_of_bodies
from benchmarks.harness import ROOT, run_quietly
from benchmarks.table_of_bodies import MEASURES, RUNG_MEASURES, Table
from orchestrator.analysis import run_reader
from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.experiment.directory import run_directory
from orchestrator.experiment.from_outside import run_snapshot
from orchestrator.jobfile import Experiment, from_mapping

RUNGS = 8
JOB_NAME = re.compile(r".*-t(?P<trial>\d+)-s(?P<seed>\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Bodies of a table, by their place among all points of its job file."""

    robot: str
    first: int
    bodies: int
    run_dir: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """How a part was made."""

    wall_s: float
    """Of the whole command, with its start, its pictures and its end."""
    launching_s: float
    """From the launch of the first training to the end of the last one."""
    trained_s: float
    """Seconds of all trainings, summed."""
    kills: int
    failed: int
    is_of_one_command: bool
    """Whether none had begun before: otherwise the trainings are not those of ``wall_s``."""


class EndedError(Exception):
    """A run has ended before its bodies were trained. The text says with which exit code."""


def make(part: Part, *, kill_every_s: float, seed: int = 0) -> Made:
    """Train the bodies of ``part``. :param kill_every_s: mean time between kills; 0: none.

    :raises EndedError: it was stopped, or ended with an error.
    """
    command = [sys.executable, "-m", "benchmarks.bodies", "train", part.robot]
    command += ["--first", str(part.first), "--bodies", str(part.bodies)]
    command += ["--run-dir", str(part.run_dir)]
    chance = random.Random(seed)
    is_new = not RunPaths(part.run_dir).ledger.exists()
    begun = time.monotonic()
    kills = 0
    while not _ends(command, chance.expovariate(1 / kill_every_s) if kill_every_s else None):
        kills += 1
    wall_s = time.monotonic() - begun
    results = _results(part)
    rows = run_snapshot.status(part.run_dir).rows
    return Made(
        wall_s=wall_s,
        launching_s=max(row["ended_at"] or 0.0 for row in rows) - _first_launch(part.run_dir),
        trained_s=sum(result.wall_s or 0.0 for result in results),
        kills=kills,
        failed=sum(not result.ok for result in results),
        is_of_one_command=is_new,
    )


def _first_launch(run_dir: Path) -> float:
    """When the first attempt of all began, in seconds since the epoch."""
    with run_directory.reading_ledger(RunPaths(run_dir)) as ledger:
        return min(attempt["started_at"] for attempt in ledger.attempts())


def _ends(command: Sequence[str], kill_after_s: float | None) -> bool:
    """Whether the run came to its end before it was killed, by SIGKILL, with nothing said to its
    workers.

    :raises EndedError: it was stopped, or ended with an error.
    """
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        code = process.wait(kill_after_s)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        return False
    except BaseException:  # Ctrl-C, which a process of another session does not get
        process.terminate()
        process.wait()
        raise
    if code:
        raise EndedError(f"exit code {code}")
    return True


def train(part: Part) -> orchestrator.ExperimentResult:
    """Run, or resume, the search of ``part`` in this process."""
    return run_quietly(experiment_of(part), part.run_dir)


def _results(part: Part) -> orchestrator.ExperimentResult:
    """Of the search of ``part``, which has come to its end.

    :raises EndedError: it had not, went on, and was stopped, or ended with an error.
    """
    results = train(part)
    if results.exit_code:
        raise EndedError(f"exit code {results.exit_code}")
    return results


def experiment_of(part: Part) -> Experiment:
    """What the job file of the table declares, for the bodies of ``part`` alone."""
    content = dict(table_of_bodies.job_file(part.robot))
    content["search"] = {
        **content["search"],
        "trials": part.bodies,
        "sampler_options": {"first": part.first},
    }
    source = str(table_of_bodies.FOLDER / f"{part.robot}.toml")
    return from_mapping(content, source=source, base=table_of_bodies.FOLDER)


def read(part: Part) -> Table:
    """What the trainings of ``part`` gave."""
    content = table_of_bodies.job_file(part.robot)
    keys = tuple(content["search"]["space"])
    seeds = content["defaults"]["seeds"]
    rungs = _rungs(content["defaults"])
    points = np.full((part.bodies, len(keys)), np.nan, np.float32)
    returns = np.full((part.bodies, len(seeds), len(rungs)), np.nan, np.float32)
    measures = np.full((part.bodies, len(seeds), len(MEASURES)), np.nan, np.float32)
    rung_measures = np.full((*returns.shape, len(RUNG_MEASURES)), np.nan, np.float32)
    for result in _results(part):
        assert result.job_id is not None
        assert result.job_dir is not None
        found = JOB_NAME.fullmatch(result.job_id)
        assert found is not None
        trial, seed = int(found["trial"]), int(found["seed"])
        paths = JobPaths(result.job_dir)
        params = WorkerSpec.from_json(paths.spec.read_bytes()).params
        points[trial] = [params[key.removeprefix("params.")] for key in keys]
        if result.ok:
            place = trial, seeds.index(seed)
            at_rungs = _at_rungs(rungs, paths.progress_csv)
            returns[place] = at_rungs[:, 0]
            rung_measures[place] = at_rungs[:, 1:]
            measures[place] = [_measure(result, name) for name in MEASURES]
    return Table(
        keys=keys,
        points=points,
        rungs=np.array(rungs),
        returns=returns,
        measures=measures,
        rung_measures=rung_measures,
    )


def _rungs(defaults: Mapping[str, Any]) -> list[int]:
    """env_steps of :data:`RUNGS` rungs, each at the end of an iteration."""
    apart = defaults["total_timesteps"] // RUNGS
    assert apart % (defaults["ppo"]["n_steps"] * defaults["n_envs"]) == 0
    return list(range(apart, defaults["total_timesteps"] + 1, apart))


def _at_rungs(rungs: Sequence[int], progress: Path) -> table_of_bodies.Floats:
    """``(rungs, 1 + len(RUNG_MEASURES))``: the return and the measures of the last episodes."""
    columns = [*run_reader.CURVE_COLUMNS, *(f"measures/{name}" for name in RUNG_MEASURES)]
    rows = {row[0]: row[1:] for row in run_reader.numbers(progress.read_bytes(), columns)}
    missing = [None] * (len(columns) - 1)
    return np.array([rows.get(rung, missing) for rung in rungs], np.float32)


def _measure(result: orchestrator.Result, name: str) -> float:
    value = result.eval_mean if name == "eval_mean" else result.measures.get(name)
    return np.nan if value is None else value
