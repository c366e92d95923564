"""Videos and previews of trained policies that are missing after a run, made by child processes.

They are made when all training is over, because rendering would take cores from it. A failure is a
warning and changes nothing else; running the same `run` command again makes what is missing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.core.job import State, Succeeded
from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.core.text import count, joined
from orchestrator.experiment import drawing_processes, previews
from orchestrator.experiment.drawing_processes import Drawing
from orchestrator.experiment.policy_process import PlayRequest, PolicyProcess, robot_warning
from orchestrator.machine.slots import SlotPool
from orchestrator.supervisor.events import Reporter

TIME_LIMIT_S = 900.0
"""How long a video may take."""


def make_missing(
    paths: RunPaths,
    wanted: Sequence[str],
    states: Mapping[str, State],
    slots: SlotPool,
    reporter: Reporter,
    stopped: Callable[[], bool],
    *,
    without_preview: Collection[str] = (),
    only_shown: bool = False,
) -> None:
    """Make what is missing of jobs that have succeeded, each on its own CPU, until ``stopped`` says
    True.

    :param wanted: ids of the jobs of which a video is wanted. Of the others previews are drawn
        where poses wait for it.
    :param without_preview: ids of the jobs of which no preview is wanted.
    :param only_shown: whether previews are drawn of those jobs alone that pages show by themselves:
        all of them would be too many.
    """
    with contextlib.suppress(OSError):  # it only makes other commands answer better
        paths.only_videos.touch()
    succeeded = [job_id for job_id in wanted if isinstance(states[job_id], Succeeded)]
    due = [job_id for job_id in succeeded if is_due(paths.job(job_id))]
    stills = previews.waiting(paths, states, {*wanted, *without_preview}, only_shown=only_shown)
    stills, later = stills[: previews.MOST_DRAWN], stills[previews.MOST_DRAWN :]
    drawings: list[Drawing] = [VideoDrawing(paths.job(job_id), reporter) for job_id in due]
    drawings.extend(previews.drawings(paths, stills, slots.lanes, reporter))
    if not drawings:
        return
    rest = (
        f"; the same command makes {count(len(later), 'more preview')} another time"
        if later
        else ""
    )
    reporter.event("pictures", f"making {_named(drawings)}{rest}", jobs=[*due, *stills])
    left = drawing_processes.run(drawings, slots, stopped)
    if names := _named(left):  # otherwise the last one had been made
        text = f"stopped before {names} could be made; run the same command again to make the rest"
        reporter.event("warning", text, jobs=[job_id for one in left for job_id in one.left])


def is_due(job: JobPaths) -> bool:
    """Whether video or film strip are missing, or older than the policy."""
    model, *pictures = (
        path.stat().st_mtime_ns if path.exists() else 0
        for path in (job.model, job.video, job.preview)
    )
    return min(pictures) < model


@dataclass(frozen=True, slots=True)
class VideoDrawing:
    """A process that makes the video and the film strip of one job."""

    job: JobPaths
    reporter: Reporter

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

    def end(self, code: int, message: str) -> Sequence[Drawing]:
        """Report how it has ended."""
        if code == 0:
            self.reporter.event(
                "pictured", f"{self.job.root.name}: {self.job.video}", job_id=self.job.root.name
            )
        else:
            self._warn(f"no video: {message}")
        return ()

    def _warn(self, text: str) -> None:
        self.reporter.event("warning", f"{self.job.root.name}: {text}", job_id=self.job.root.name)


def _named(drawings: Sequence[Drawing]) -> str:
    """``2 videos and 1 preview``"""
    of_videos = sum(isinstance(one, VideoDrawing) for one in drawings)
    of_stills = sum(len(one.left) for one in drawings) - of_videos
    numbers = (("video", of_videos), ("preview", of_stills))
    return joined(count(number, what) for what, number in numbers if number)
