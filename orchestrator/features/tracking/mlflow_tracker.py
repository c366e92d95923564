"""MLflow: one run for each job."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow.entities
import mlflow.exceptions
import mlflow.tracking

from orchestrator.core.paths import RunPaths
from orchestrator.features.tracking.tracked_job import ELAPSED, JobResults, Point
from orchestrator.features.tracking.tracker_protocol import Position, TrackedJob
from orchestrator.keys.names import safe_name

PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""Environment variables of MLflow: it gives up soon, as who calls tries again later."""
AT_ONCE = 1000
"""Values that MLflow takes in one request, which it stores as a whole."""
PARAMS_AT_ONCE = 100
LONGEST = 5000
"""Characters of a parameter or tag."""
LONGEST_NAME = 250
"""Characters of a name."""
STEP = "env_steps"
"""Metric that every point has: its value is that of the last one."""


class MlflowTracker:
    """:param options: those of ``track.mlflow``."""

    def __init__(self, paths: RunPaths, experiment: str, options: Mapping[str, Any]) -> None:
        for variable, value in PATIENCE.items():
            os.environ.setdefault(variable, value)
        uri = options.get("uri") or f"sqlite:///{paths.root.absolute() / 'mlflow.db'}"
        self._client = mlflow.tracking.MlflowClient(tracking_uri=uri)
        name = options.get("experiment") or experiment
        known = self._client.get_experiment_by_name(name)
        # MLflow's default is a folder of the current directory.
        artifacts = _beside(uri, name) if uri.startswith("sqlite:///") else None
        self._experiment = (
            known.experiment_id if known else self._client.create_experiment(name, artifacts)
        )
        place = uri.rpartition("@")[2]  # without a password
        self.destination = f"{place}#{name}"

    def known(self, job_id: str, noted: Position) -> Position | None:
        try:
            run = self._client.get_run(noted.run)
        except mlflow.exceptions.MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        is_deleted = run.info.lifecycle_stage == mlflow.entities.LifecycleStage.DELETED
        return None if is_deleted else noted.at(int(run.data.metrics.get(STEP, 0)))

    def begin(self, job: TrackedJob) -> str:
        tags = {"experiment": job.experiment}
        began = int(1000 * job.position.began)
        run = self._client.create_run(
            self._experiment, start_time=began, tags=tags, run_name=job.job_id
        )
        return str(run.info.run_id)

    def open(self, job: TrackedJob) -> MlflowRun:
        return MlflowRun(self._client, job)


def _beside(uri: str, name: str) -> str:
    """Folder for the files of an experiment in a database file."""
    database = Path(uri.removeprefix("sqlite:///")).absolute()
    return (database.parent / "mlartifacts" / safe_name(name)).as_uri()


class MlflowRun:
    """MLflow's own run of a job."""

    def __init__(self, client: Any, job: TrackedJob) -> None:
        self._client = client
        self.position = job.position
        # A parameter never changes: of a training that was extended later it is the first value.
        known = client.get_run(job.position.run).data.params
        settings = {_valid_name(name): value for name, value in job.settings.items()}
        new = [(name, value) for name, value in settings.items() if name not in known]
        params = [mlflow.entities.Param(name, str(value)[:LONGEST]) for name, value in new]
        for first in range(0, len(params), PARAMS_AT_ONCE):
            client.log_batch(job.position.run, params=params[first : first + PARAMS_AT_ONCE])

    def send(self, points: Sequence[Point]) -> Position:
        batch: list[Any] = []
        for point in points:
            at = int(1000 * (self.position.began + point.values.get(ELAPSED, 0.0)))
            values = {**point.values, STEP: point.env_steps}
            if len(batch) + len(values) > AT_ONCE:
                self._client.log_batch(self.position.run, metrics=batch)
                batch = []
            batch += _metrics(values, at, point.env_steps)
        self._client.log_batch(self.position.run, metrics=batch)
        self.position = replace(self.position, env_steps=points[-1].env_steps)
        return self.position

    def finish(self, results: JobResults) -> Position:
        run = self.position.run
        steps = self.position.env_steps
        numbers = {name: x for name, x in results.summary.items() if type(x) in (int, float)}
        at = int(1000 * float(results.summary.get("ended_at", self.position.began)))
        values = {f"summary/{name}": x for name, x in numbers.items()}
        values.update(results.evaluation)
        metrics = _metrics(values, at, steps)
        for first in range(0, len(metrics), AT_ONCE):
            self._client.log_batch(run, metrics=metrics[first : first + AT_ONCE])
        for name, value in results.summary.items():
            if name not in numbers:
                self._client.set_tag(run, _valid_name(f"summary.{name}"), str(value)[:LONGEST])
        for path in (results.eval_file, results.video, results.preview):
            if path is not None:
                self._client.log_artifact(run, str(path))
        status = "FINISHED" if results.state == "SUCCEEDED" else "FAILED"
        self._client.set_terminated(run, status, end_time=at)
        return self.position

    def show(self, pictures: Mapping[str, Path]) -> Position:
        for path in pictures.values():
            self._client.log_artifact(self.position.run, str(path))
        return self.position

    def close(self) -> None:
        """Nothing is open between calls."""


def _metrics(values: Mapping[str, float], at: int, env_steps: int) -> list[Any]:
    """:param at: milliseconds since the epoch."""
    return [
        mlflow.entities.Metric(_valid_name(name), value, at, env_steps)
        for name, value in values.items()
    ]


def _valid_name(name: str) -> str:
    """The name of a metric, parameter or tag as MLflow takes it: with few characters, and few kinds
    of them.

    A name that is changed ends with a hash, so that no two become the same.
    """
    # Neither a//b nor a/../b: names are paths.
    known = re.sub(r"[^/\w.\- ]|^[./]|/(?=[./]|\Z)", "_", name)
    if known == name and len(name) <= LONGEST_NAME:
        return name
    return f"{known[: LONGEST_NAME - 9]} {hashlib.sha256(name.encode()).hexdigest()[:8]}"
