"""Processes that make videos of trained policies: children that run
:mod:`orchestrator.worker.rendering.play`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.files.file_status import status_of
from orchestrator.core.paths import JobPaths
from orchestrator.experiment.policy_process import (
    PlayRequest,
    PolicyProcess,
    robot_warning,
)
from orchestrator.features.pictures.drawing_processes import Drawing
from orchestrator.features.pictures.ended_jobs import Report

TIME_LIMIT_S = 900.0
"""How long a video may take."""


def is_due(job: JobPaths) -> bool:
    """Whether the video is missing, or older than the policy."""
    return _written_at(job.video) < _written_at(job.model)


def _written_at(path: Path) -> int:
    """In nanoseconds; 0 where there is no such file."""
    status = status_of(path)
    return 0 if status is None else status.st_mtime_ns


@dataclass(frozen=True, slots=True)
class VideoDrawing:
    """A process that makes the video of one job."""

    job: JobPaths
    report: Report

    @property
    def time_limit_s(self) -> float:
        return TIME_LIMIT_S

    @property
    def left(self) -> tuple[str, ...]:
        return (self.job.root.name,)

    def begin(self, cpus: tuple[int, ...]) -> PolicyProcess | None:
        """:raises OSError: it cannot be started."""
        if (warning := robot_warning(self.job)) is not None:
            self._warn(warning)
        return PolicyProcess(self.job, PlayRequest(), cpus=cpus)

    def not_begun(self, why: str) -> None:
        """Report that it cannot be started."""
        self._warn(f"no video: {why}")

    def report_end(self, code: int, message: str) -> Sequence[Drawing]:
        """Report how it has ended."""
        if code == 0:
            self.report(
                "pictured", f"{self.job.root.name}: {self.job.video}", job_id=self.job.root.name
            )
        else:
            self._warn(f"no video: {message}")
        return ()

    def _warn(self, text: str) -> None:
        self.report("warning", f"{self.job.root.name}: {text}", job_id=self.job.root.name)
