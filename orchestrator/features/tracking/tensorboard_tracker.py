"""TensorBoard: one event file for each job, in ``tensorboard/JOB`` of the run directory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.hparams import api_pb2, summary_v2
from tensorboard.plugins.hparams import metadata as hparams_metadata
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo
from tensorboard.plugins.text import metadata as text_metadata
from tensorboard.summary.writer.record_writer import RecordWriter

from orchestrator.core.files.video_file import video_as_gif
from orchestrator.core.paths import RunPaths
from orchestrator.features.tracking import files
from orchestrator.features.tracking.tracked_job import ELAPSED, JobResults, Point
from orchestrator.features.tracking.tracker_protocol import Position, TrackedJob

FILE = "events.out.tfevents.{began}.orchestrator"
GIF_WIDTH = 320
GIF_FPS = 10


class TensorboardTracker:
    """:param options: none."""

    def __init__(self, paths: RunPaths, experiment: str, options: Mapping[str, Any]) -> None:
        self._folder = files.tensorboard(paths.root)
        self.destination = "tensorboard"

    def known(self, job_id: str, noted: Position) -> Position | None:
        file = self._folder / job_id / noted.run
        return noted if file.is_file() and file.stat().st_size >= noted.size else None

    def begin(self, job: TrackedJob) -> str:
        shutil.rmtree(self._folder / job.job_id, ignore_errors=True)
        return FILE.format(began=int(job.position.began))

    def open(self, job: TrackedJob) -> TensorboardRun:
        return TensorboardRun(self._folder / job.job_id, job)


class TensorboardRun:
    """The file of a job. What follows the counted bytes is cut off, and written again with the same
    bytes.
    """

    def __init__(self, folder: Path, job: TrackedJob) -> None:
        self.position = job.position
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / self.position.run
        self._settings = job.settings
        self._job_id = job.job_id

    def send(self, points: Sequence[Point]) -> Position:
        began = self.position.began
        events = [
            Event(
                wall_time=began + point.values.get(ELAPSED, 0.0),
                step=point.env_steps,
                summary=Summary(
                    value=[
                        Summary.Value(tag=tag, simple_value=x) for tag, x in point.values.items()
                    ]
                ),
            )
            for point in points
        ]
        return self._append(events, points[-1].env_steps)

    def finish(self, results: JobResults) -> Position:
        values = [
            Summary.Value(tag=tag, simple_value=value) for tag, value in results.evaluation.items()
        ]
        values.append(_text("summary", _table(results.summary)))
        values += _images(results.pictures())
        status = api_pb2.STATUS_SUCCESS if results.state == "SUCCEEDED" else api_pb2.STATUS_FAILURE
        ended = float(results.summary.get("ended_at", self.position.began))
        data = HParamsPluginData(
            session_end_info=SessionEndInfo(status=status, end_time_secs=ended)
        )
        metadata = hparams_metadata.create_summary_metadata(data)
        values.append(Summary.Value(tag=hparams_metadata.SESSION_END_INFO_TAG, metadata=metadata))
        steps = self.position.env_steps
        return self._append(
            [Event(wall_time=ended, step=steps, summary=Summary(value=values))], steps
        )

    def show(self, pictures: Mapping[str, Path]) -> Position:
        made = max(path.stat().st_mtime for path in pictures.values())
        steps = self.position.env_steps
        return self._append(
            [Event(wall_time=made, step=steps, summary=Summary(value=_images(pictures)))], steps
        )

    def close(self) -> None:
        """Nothing is open between calls."""

    def _append(self, events: Sequence[Any], env_steps: int) -> Position:
        with self._path.open("ab") as file:
            if file.tell() < self.position.size:
                raise OSError(f"{self._path}: has lost what was written to it")
            file.truncate(self.position.size)
            writer = RecordWriter(file)
            if self.position.size == 0:
                writer.write(
                    Event(
                        wall_time=self.position.began, file_version="brain.Event:2"
                    ).SerializeToString()
                )
                writer.write(self._hyperparameters().SerializeToString())
            for event in events:
                writer.write(event.SerializeToString())
            self.position = replace(self.position, env_steps=env_steps, size=file.tell())
        return self.position

    def _hyperparameters(self) -> Any:
        plain = {name: _hyperparameter(value) for name, value in self._settings.items()}
        summary = summary_v2.hparams_pb(
            plain, trial_id=self._job_id, start_time_secs=self.position.began
        )
        return Event(wall_time=self.position.began, step=0, summary=summary)


def _hyperparameter(value: Any) -> bool | float | str:
    return value if isinstance(value, bool | int | float | str) else json.dumps(value)


def _table(row: Mapping[str, Any]) -> str:
    cells = [
        f"| {name} | {' '.join(str(value).split()).replace('|', ' ')} |"
        for name, value in row.items()
    ]
    return "\n".join(["| | |", "|---|---|", *cells])


def _text(tag: str, text: str) -> Any:
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()], tensor_shape=shape)
    metadata = text_metadata.create_summary_metadata(display_name=tag, description="")
    return Summary.Value(tag=f"{tag}/text_summary", tensor=tensor, metadata=metadata)


def _images(pictures: Mapping[str, Path]) -> list[Any]:
    contents = {
        name: video_as_gif(path, width=GIF_WIDTH, fps=GIF_FPS)
        if name == "video"
        else path.read_bytes()
        for name, path in pictures.items()
    }
    return [
        Summary.Value(tag=name, image=Summary.Image(encoded_image_string=content, colorspace=3))
        for name, content in contents.items()
    ]
