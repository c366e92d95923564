"""Trackio: one run for each job, in Trackio's own storage on this machine, without its server."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trackio.media import TrackioImage, TrackioVideo
from trackio.sqlite_storage import SQLiteStorage
from trackio.utils import TRACKIO_DIR

from orchestrator.core.paths import RunPaths
from orchestrator.features.tracking.tracked_job import ELAPSED, JobResults, Point
from orchestrator.features.tracking.tracker_protocol import Position, TrackedJob


class TrackioTracker:
    """:param options: those of ``track.trackio``."""

    def __init__(self, paths: RunPaths, experiment: str, options: Mapping[str, Any]) -> None:
        self._project = options.get("project") or experiment
        folder = TRACKIO_DIR.absolute()
        self.destination = f"{folder}#{self._project}"
        self.shown = f"Trackio, project {self._project}, in {folder}"

    def known(self, job_id: str, noted: Position) -> Position | None:
        step = SQLiteStorage.get_max_step_for_run(self._project, job_id, run_id=noted.run)
        return None if step is None else noted.at(step)

    def begin(self, job: TrackedJob) -> str:
        return uuid.uuid4().hex

    def open(self, job: TrackedJob) -> TrackioRun:
        return TrackioRun(self._project, job)


class TrackioRun:
    """Trackio's rows of a job. Each call writes all of its rows, or none."""

    def __init__(self, project: str, job: TrackedJob) -> None:
        self._project = project
        self._job = job
        self.position = job.position

    def send(self, points: Sequence[Point]) -> Position:
        began = self.position.began
        times = [began + point.values.get(ELAPSED, 0.0) for point in points]
        return self._log(
            [dict(point.values) for point in points], [point.env_steps for point in points], times
        )

    def finish(self, results: JobResults) -> Position:
        content: dict[str, Any] = {
            f"summary/{name}": value for name, value in results.summary.items()
        }
        content |= results.evaluation
        step = self.position.results_step
        if self.position.env_steps >= step:
            return self.position
        content |= self._store(results.pictures())
        return self._log(
            [content], [step], [float(results.summary.get("ended_at", self.position.began))]
        )

    def show(self, pictures: Mapping[str, Path]) -> Position:
        step = self.position.results_step
        if self.position.env_steps >= step:
            return self.position
        made = max(path.stat().st_mtime for path in pictures.values())
        return self._log([self._store(pictures)], [step], [made])

    def close(self) -> None:
        """Nothing is open between calls."""

    def _store(self, pictures: Mapping[str, Path]) -> dict[str, Any]:
        stored = {}
        for name, path in pictures.items():
            media = TrackioVideo(str(path)) if name == "video" else TrackioImage(str(path))
            media._save(self._project, self._job.job_id, self.position.results_step)
            stored[name] = media._to_dict()
        return stored

    def _log(
        self, rows: Sequence[Mapping[str, Any]], steps: Sequence[int], times: Sequence[float]
    ) -> Position:
        SQLiteStorage.bulk_log(
            self._project,
            self._job.job_id,
            list(rows),
            steps=list(steps),
            timestamps=[datetime.fromtimestamp(time, UTC).isoformat() for time in times],
            config={**self._job.settings, "experiment": self._job.experiment},
            run_id=self.position.run,
        )
        self.position = replace(self.position, env_steps=steps[-1])
        return self.position
