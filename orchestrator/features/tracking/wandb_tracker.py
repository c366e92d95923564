"""Weights & Biases: one run for each job, in a group for the experiment."""

from __future__ import annotations

import contextlib
import re
import struct
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import wandb
from google.protobuf.message import DecodeError
from wandb.proto import wandb_internal_pb2

from orchestrator.core.paths import RunPaths
from orchestrator.features.tracking.track_table import LONGEST_IN_WANDB, NOT_IN_WANDB
from orchestrator.features.tracking.tracked_job import JobResults, Point
from orchestrator.features.tracking.tracker_protocol import Position, TrackedJob

HEADER = 7
"""Bytes of the head of W&B's transaction log, and of the header of each fragment in it: the log
format of LevelDB."""
BLOCK = 1 << 15
"""Bytes of each of its blocks."""
WRITE_LIMIT_S = 5.0
POLL_S = 0.02
FULL = 1
"""Type of a fragment that is a whole record."""
LAST = 4
"""Type of the last fragment of a record."""


class WandbTracker:
    """:param options: those of ``track.wandb``."""

    def __init__(self, paths: RunPaths, experiment: str, options: Mapping[str, Any]) -> None:
        allowed = re.sub(f"[{NOT_IN_WANDB}]", "-", experiment)[:LONGEST_IN_WANDB]
        self._project = options.get("project") or allowed
        self._entity = options.get("entity")
        self._folder = paths.root / "wandb"
        self._settings = wandb.Settings(
            mode=options.get("mode", "online"),
            console="off",
            silent=True,
            disable_git=True,
            host="",
            save_code=False,
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
            init_timeout=20.0,
        )
        self.destination = f"{self._entity or ''}/{self._project} {self._settings.mode}"

    def known(self, job_id: str, noted: Position) -> Position | None:
        if noted.final is not None and noted.final == noted.results:  # then it was written
            return noted
        step = last_step(self._folder, noted.run)
        return noted if step is None else noted.at(step)

    def begin(self, job: TrackedJob) -> str:
        return uuid.uuid4().hex[:12]

    def open(self, job: TrackedJob) -> WandbRun:
        self._folder.mkdir(exist_ok=True)
        run = wandb.init(
            project=self._project,
            entity=self._entity,
            id=job.position.run,
            name=job.job_id,
            group=job.experiment,
            dir=str(self._folder.parent),
            config=dict(job.settings),
            resume="allow",
            reinit="create_new",
            settings=self._settings,
        )
        return WandbRun(run, job.position)


class WandbRun:
    """W&B's own run of a job."""

    def __init__(self, run: Any, position: Position) -> None:
        self._run = run
        self.position = position

    def send(self, points: Sequence[Point]) -> Position:
        for point in points:
            self._run.log(dict(point.values), step=point.env_steps, commit=True)
        self.position = replace(self.position, env_steps=points[-1].env_steps)
        return self.position

    def finish(self, results: JobResults) -> Position:
        self._log({**results.evaluation, **_media(results.pictures())})
        self._run.summary.update(
            {f"summary/{name}": value for name, value in results.summary.items()}
        )
        self._end(exit_code=0 if results.state == "SUCCEEDED" else 1)
        return self.position

    def show(self, pictures: Mapping[str, Path]) -> Position:
        self._log(_media(pictures))
        self._end()
        return self.position

    def _log(self, content: Mapping[str, Any]) -> None:
        """At the step of the results, unless it is there."""
        step = self.position.results_step
        if content and self.position.env_steps < step:
            self._run.log(dict(content), step=step, commit=True)
            self.position = replace(self.position, env_steps=step)

    def close(self) -> None:
        self._end()

    def _end(self, exit_code: int | None = None) -> None:
        """W&B's process may answer before it has written what it was sent, which :func:`last_step`
        reads.
        """
        log = Path(self._run.dir).parent / f"run-{self._run.id}.wandb"
        self._run.finish(exit_code=exit_code)
        until = time.monotonic() + WRITE_LIMIT_S
        while log.exists() and time.monotonic() < until:
            if any(record.WhichOneof("record_type") == "exit" for record in records(log)):
                return
            time.sleep(POLL_S)


def _media(pictures: Mapping[str, Path]) -> dict[str, Any]:
    return {
        name: wandb.Video(str(path), format="mp4") if name == "video" else wandb.Image(str(path))
        for name, path in pictures.items()
    }


def last_step(folder: Path, run_id: str) -> int | None:
    """The last step in the transaction logs of a run, 0 if they have none; None where there is no
    log.
    """
    logs = list(folder.glob(f"*run-*/run-{run_id}.wandb"))
    if not logs:
        return None
    return max((step for path in logs for step in logged_steps(path)), default=0)


def logged_steps(path: Path) -> Iterator[int]:
    """The steps of the history in a transaction log."""
    for record in records(path):
        if record.WhichOneof("record_type") == "history":
            yield record.history.step.num


def records(path: Path) -> Iterator[Any]:
    """The whole records of a transaction log, which may be torn at its end."""
    content = path.read_bytes()
    offset = HEADER
    parts = b""
    while offset + HEADER <= len(content):
        if BLOCK - offset % BLOCK < HEADER:  # the rest of a block is empty
            offset += BLOCK - offset % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", content, offset)
        offset += HEADER
        parts += content[offset : offset + length]
        if offset + length > len(content):
            return
        offset += length
        if kind in (FULL, LAST):
            # A version of W&B that writes otherwise; Protobuf in plain Python raises the second.
            with contextlib.suppress(DecodeError, ValueError):
                yield wandb_internal_pb2.Record.FromString(parts)
            parts = b""
