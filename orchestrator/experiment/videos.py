"""Videos of trained policies that are missing after a run, made by child processes.

They are made when all training is over, because rendering would take cores from it. A failure is a warning and
changes nothing else; running the same `run` command again makes the missing videos.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from orchestrator.core.job import State, Succeeded
from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.core.text import count
from orchestrator.executors.process import has_ended
from orchestrator.experiment.policy_process import PlayRequest, PolicyProcess, robot_warning
from orchestrator.machine.slots import Slot, SlotPool
from orchestrator.supervisor.events import Reporter

TIME_LIMIT_S = 900.0
POLL_INTERVAL_S = 0.1


def make_missing(
    paths: RunPaths,
    wanted: Sequence[str],
    states: Mapping[str, State],
    slots: SlotPool,
    reporter: Reporter,
    stopped: Callable[[], bool],
) -> None:
    """Make the missing videos of jobs that have succeeded, each on its own CPU, until ``stopped`` says True.

    :param wanted: ids of the jobs of which a video is wanted.
    """
    succeeded = [job_id for job_id in wanted if isinstance(states[job_id], Succeeded)]
    waiting = deque(job_id for job_id in succeeded if is_due(paths.job(job_id)))
    if waiting:
        with contextlib.suppress(OSError):  # it only makes other commands answer better
            paths.only_videos.touch()
        reporter.event("pictures", f"making {count(len(waiting), 'video')}", jobs=list(waiting))
    running: dict[str, tuple[PolicyProcess, Slot]] = {}
    with contextlib.ExitStack() as players:
        while waiting or running:
            if stopped():
                missing = count(len(waiting) + len(running), "video")
                text = f"stopped before {missing} could be made; run the same command again to make the rest"
                reporter.event("warning", text, jobs=[*running, *waiting])
                return
            while waiting and (slot := slots.acquire(1)) is not None:
                job_id = waiting.popleft()
                if (warning := robot_warning(paths.job(job_id))) is not None:
                    reporter.event("warning", f"{job_id}: {warning}", job_id=job_id)
                try:
                    player = players.enter_context(PolicyProcess(paths.job(job_id), PlayRequest(), cpus=slot.cpus))
                except OSError as error:
                    slots.release(slot)
                    reporter.event("warning", f"{job_id}: no video: {error.strerror or error}", job_id=job_id)
                else:
                    running[job_id] = player, slot
            for job_id, (player, slot) in list(running.items()):
                late = time.monotonic() - player.started > TIME_LIMIT_S
                if not (late or has_ended(player.pid)):
                    continue
                code, message = player.end()
                slots.release(slot)
                del running[job_id]
                if code == 0:
                    reporter.event("pictured", f"{job_id}: {paths.job(job_id).video}", job_id=job_id)
                else:
                    why = f"took more than {TIME_LIMIT_S:.0f} s" if late else message
                    reporter.event("warning", f"{job_id}: no video: {why}", job_id=job_id)
            if running:
                time.sleep(POLL_INTERVAL_S)


def is_due(job: JobPaths) -> bool:
    """Whether video or film strip are missing, or older than the policy."""
    model, *pictures = (path.stat().st_mtime_ns if path.exists() else 0 for path in (job.model, job.video, job.preview))
    return min(pictures) < model
