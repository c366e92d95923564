"""Videos and previews that are missing when all training is over.

They are made then, because rendering would take cores from training. A failure is a warning and
changes nothing else; running the same `run` command again makes what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from orchestrator.core.front_end import repeat_call
from orchestrator.core.job import Succeeded
from orchestrator.core.text import count, joined
from orchestrator.experiment.beside_run import BesideRun, EndedJobs
from orchestrator.features.pictures import drawing_processes, previews, video_processes
from orchestrator.features.pictures.drawing_processes import Drawing
from orchestrator.features.pictures.video_processes import VideoDrawing


class PicturesAfterRun(BesideRun):
    """Makes the pictures that the jobs of a run want."""

    def add_results(self, ended: EndedJobs, is_stopped: Callable[[], bool]) -> None:
        make_missing(
            ended,
            is_stopped,
            with_video=ended.ledger.jobs_with("video", is_set=True),
            without_preview=ended.ledger.jobs_with("preview", is_set=False),
        )


def make_missing(
    ended: EndedJobs,
    is_stopped: Callable[[], bool],
    *,
    with_video: Collection[str],
    without_preview: Collection[str],
) -> None:
    """Make what is missing of jobs that have succeeded, each on its own CPU, until ``is_stopped``
    says True.

    :param with_video: ids of the jobs of which a video is wanted.
    :param without_preview: ids of the jobs of which no preview is wanted; those of the others
        are drawn where poses wait for it.
    """
    due = [
        job_id
        for job_id, state in ended.states.items()
        if job_id in with_video
        and isinstance(state, Succeeded)
        and video_processes.is_due(ended.paths.job(job_id))
    ]
    waiting = previews.jobs_to_draw(ended, without_preview)
    stills = waiting[: previews.MOST_DRAWN]
    later = waiting[previews.MOST_DRAWN :]
    drawings: list[Drawing] = [VideoDrawing(ended.paths.job(id_), ended.reporter) for id_ in due]
    drawings.extend(
        previews.drawings(ended.paths, stills, ended.slots.jobs_at_once, ended.reporter)
    )
    if not drawings:
        return
    rest = ""
    if later:
        rest = f"; the same command makes {count(len(later), 'more preview')} another time"
    ended.reporter.event(
        "pictures", f"making {_numbers_text(drawings)}{rest}", jobs=[*due, *stills]
    )
    left = drawing_processes.run(drawings, ended.slots, is_stopped)
    names = _numbers_text(left)
    if names:  # otherwise the last one had been made
        text = f"stopped before {names} could be made; {repeat_call()} to make the rest"
        ended.reporter.event("warning", text, jobs=[job_id for one in left for job_id in one.left])


def _numbers_text(drawings: Sequence[Drawing]) -> str:
    """``2 videos and 1 preview``"""
    of_videos = sum(isinstance(one, VideoDrawing) for one in drawings)
    of_stills = sum(len(one.left) for one in drawings) - of_videos
    numbers = (("video", of_videos), ("preview", of_stills))
    return joined(count(number, what) for what, number in numbers if number)
