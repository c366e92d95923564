"""Videos and previews that are missing when all training is over.

    python -m orchestrator.features.pictures.after_run RUN_DIR JOBS_AT_ONCE

is the companion that makes them.

They are made then, because rendering would take cores from training. A failure is a warning and
changes nothing else; running the same `run` command again makes what is missing.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from orchestrator.client.requests import report
from orchestrator.core.job import Succeeded
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count, joined
from orchestrator.executors.executor import ExecutorSettings
from orchestrator.experiment import begun_source, run_directory
from orchestrator.features.pictures import drawing_processes, previews, video_processes
from orchestrator.features.pictures.drawing_processes import Drawing
from orchestrator.features.pictures.ended_jobs import EndedJobs
from orchestrator.features.pictures.video_processes import VideoDrawing
from orchestrator.machine import topology
from orchestrator.server.companions import DONE


def make_missing(
    ended: EndedJobs, *, with_video: Collection[str], without_preview: Collection[str]
) -> None:
    """Make what is missing of jobs that have succeeded, each on its own CPU.

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
    drawings: list[Drawing] = [VideoDrawing(ended.paths.job(id_), ended.report) for id_ in due]
    drawings.extend(previews.drawings(ended.paths, stills, ended.slots.jobs_at_once, ended.report))
    if not drawings:
        return
    rest = ""
    if later:
        rest = f"; the same command makes {count(len(later), 'more preview')} another time"
    text = f"making {_numbers_text(drawings)}{rest}"
    ended.report("pictures", text, jobs=[*due, *stills])
    drawing_processes.run(drawings, ended.slots, lambda: False)


def _numbers_text(drawings: Sequence[Drawing]) -> str:
    """``2 videos and 1 preview``"""
    of_videos = sum(isinstance(one, VideoDrawing) for one in drawings)
    of_stills = sum(len(one.left) for one in drawings) - of_videos
    numbers = (("video", of_videos), ("preview", of_stills))
    return joined(count(number, what) for what, number in numbers if number)


def main(run_dir: str, jobs_at_once: str) -> int:
    paths = RunPaths(Path(run_dir))
    with run_directory.reading_ledger(paths) as ledger:
        rows = ledger.jobs()
        with_video = ledger.jobs_with("video", is_set=True)
        without_preview = ledger.jobs_with("preview", is_set=False)
        source = begun_source.begun_source(paths, ledger)
        shown = None
        if source is not None and source.makes_jobs:
            shown = source.shown_jobs() or []
    machine = topology.detect(with_gpus=False)
    settings = ExecutorSettings(
        machine=machine,
        max_parallel=min(int(jobs_at_once), machine.capacity),
        sees_neighbours=True,
        run_dir=paths.root,
    )
    slots = settings.local_slots()
    with contextlib.closing(slots):
        ended = EndedJobs(
            paths=paths,
            states={row.job_id: row.state for row in rows},
            shown=shown,
            slots=slots,
            report=functools.partial(report, paths.root),
        )
        make_missing(ended, with_video=with_video, without_preview=without_preview)
    return DONE


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
