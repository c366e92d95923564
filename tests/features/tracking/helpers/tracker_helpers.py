"""A run directory with one job, as trackers read it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from supervisor_helpers import make_spec

from orchestrator.core.paths import RunPaths
from orchestrator.features.tracking.publisher import Publisher

HEADER = "time/total_timesteps,time/time_elapsed,rollout/ep_rew_mean,train/loss"
JOB = "a-s0"


def needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")


def write_progress(paths: RunPaths, steps: Sequence[int], *, torn: str = "") -> None:
    """A new file, as of a job that resumes; the first row has no return yet."""
    rows = [f"{step},{step // 100},{'' if step == 100 else step * 2},0.5" for step in steps]
    job = paths.job(JOB)
    job.root.mkdir(parents=True, exist_ok=True)
    beside = job.root / "beside"
    beside.write_text("\n".join([HEADER, *rows]) + "\n" + torn)
    beside.replace(job.progress_csv)


class Rows:
    """A ledger with one job, whose matrix varies a number and a text by patterns."""

    def __init__(self, state: str = "RUNNING") -> None:
        self.row: dict[str, Any] = {
            "job_id": JOB,
            "state": state,
            "env_steps": 400,
            "message": None,
            "seed": 0,
        }
        self.row |= {
            "started_at": 1000.5,
            "model.geom.*.density": 450,
            "model.body.*_thigh.pos": "*0.7",
        }

    def summary(self) -> list[dict[str, Any]]:
        return [self.row]


def tracked_run(folder: Path) -> RunPaths:
    """Its job has a spec with hyperparameters and no table yet."""
    paths = RunPaths(folder)
    paths.job(JOB).root.mkdir(parents=True)
    drawn: dict[str, Any] = {"geom.*.friction": ["uniform(0.4, 1.2)", 0.1]}
    drawn |= dict.fromkeys(
        ["geom.foot*.friction", "geom.foot?.friction", "geom.a//b.friction"], "scale(1, 2)"
    )
    spec = replace(
        make_spec(JOB), hyperparameters={"learning_rate": 1e-3, "net": [8, 8]}, randomize=drawn
    )
    paths.job(JOB).spec.write_text(spec.to_json())
    return paths


def make_publisher(paths: RunPaths, backend: str = "tensorboard", **options: Any) -> Publisher:
    def fail(message: str) -> None:
        raise AssertionError(message)

    return Publisher(
        paths=paths, experiment="robots", backend=backend, options=options, report=fail
    )


def turn(publisher: Publisher, rows: Rows, *, is_last: bool = False) -> bool:
    return publisher.turn(rows.summary(), is_last=is_last)  # type: ignore[arg-type]


def send(
    paths: RunPaths,
    rows: Rows,
    backend: str = "tensorboard",
    *,
    is_last: bool = False,
    **options: Any,
) -> bool:
    """One turn of a process of its own."""
    with contextlib.closing(make_publisher(paths, backend, **options)) as publisher:
        return turn(publisher, rows, is_last=is_last)


def end(paths: RunPaths, rows: Rows) -> None:
    rows.row["state"] = "SUCCEEDED"
    outcome = {
        "mean": 7.0,
        "std": 1.0,
        "length_mean": 9.0,
        "measures": {"distance_m": {"mean": 3.0}},
    }
    grid = [{"at": {"geom.*.friction": 0.4, "body.trunk.mass": "*0.7"}, "mean": 5.0, "std": 1.0}]
    paths.job(JOB).eval.write_text(
        json.dumps({"episodes": 2, "deterministic": outcome, "grid": grid})
    )
