"""Examines robots and environments before anything is launched, in child processes.

MuJoCo and gymnasium are imported only there. A model that crashes a C library, hangs or exhausts
the memory gets a verdict like any other. Every distinct pair of robot and task is examined once,
from the copy that its jobs will train.

What is asked is in :mod:`.examination_requests`, the processes that answer are in
:mod:`.side_by_side`, and one of them is in :mod:`.examining_process`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.errors import DiskFullError, Problem
from orchestrator.core.exit_codes import DISK_FULL_ERRNOS
from orchestrator.core.front_end import repeat_call
from orchestrator.core.job import Job
from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest
from orchestrator.examination import side_by_side, training_time
from orchestrator.examination.examination_requests import (
    LEAST_SIMULATE_S,
    requests_of,
    staged_policy,
)
from orchestrator.examination.examining_process import Child
from orchestrator.examination.side_by_side import Watch

SIMULATE_S = 0.25
"""CPU seconds of the stability test of one robot, where there are few."""
ALL_SIMULATE_S = 30.0
"""Of all together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobVerdict:
    """The result of preflight for a job: a problem, or where its robot was staged."""

    problem: Problem | None = None
    bundle: Path | None = None
    """Folder with the robot's MJCF and every file that it refers to; None without a robot."""
    xml: str | None = None
    """The main file in ``bundle``."""
    robot_hash: str | None = None
    source_hash: str | None = None
    """Of the robot before ``model_edits``, as far as it is known; also of an invalid one."""
    warnings: Sequence[str] = ()
    task: str | None = None
    init: Path | None = None
    """The policy to start from; None where there is none, or where it is in the job directory
    already."""
    init_sha256: str | None = None
    init_env_steps: int | None = None
    init_reason: str | None = None
    """What of it is copied."""
    task_reason: str | None = None
    """Why the task was chosen; None where the job file names it."""
    settings_problem: str | None = None
    """The text of ``problem`` without the robot's name, where it lies in settings and not in the
    robot."""
    code_problem: str | None = None
    """Likewise, where it may lie in the robot or in the user's own code."""
    lacks_room: bool = False
    """Whether ``problem`` is that the machines have too little for the job: its robot is valid, and
    other machines may train it."""
    has_unfit_init: bool = False
    """Whether ``problem`` is that the policy to start from does not fit the job."""
    physics_s: float = 0.0
    """Seconds of physics in one env_step, as measured here; 0 where it was not."""
    episode_steps: int | None = None
    """After so many steps an episode ends at the latest; None: not known."""
    given: Path | None = None
    """A temporary file with the robot, where the problem is one of a robot that is no file of the
    user's."""

    @property
    def is_invalid(self) -> bool:
        """Whether no machine can train the job."""
        return self.problem is not None and not self.lacks_room


def examine(
    jobs: Sequence[Job],
    *,
    staging: Path,
    processes: int,
    warm: Child | None = None,
    kept: list[Child] | None = None,
    watch: Watch = lambda *_: None,
    sources: Sequence[Job] = (),
) -> dict[str, JobVerdict]:
    """A verdict for every job, by ``job_id``. ``staging`` receives one folder for each distinct
    robot.

    :param processes: most of them that examine side by side.
    :param sources: jobs that ``jobs`` may start from, beside ``jobs`` themselves.
    :param warm: a child started earlier; it is closed at the end.
    :param kept: children of earlier calls; those that are idle at the end are left in it, to be
        closed by the caller.
    :raises DiskFullError: when the disk has no room for the robots' copies.
    """
    distinct, key_of = requests_of(jobs, sources)
    requests = [request for request, _ in distinct.values()]
    examples = [job for _, job in distinct.values()]
    simulate_s = min(SIMULATE_S, max(LEAST_SIMULATE_S, ALL_SIMULATE_S / max(1, len(requests))))
    staged = [
        dataclasses.replace(request, stage_to=str(staging / str(number)), simulate_s=simulate_s)
        for number, request in enumerate(requests)
    ]
    answers = side_by_side.ask(staged, processes=processes, warm=warm, kept=kept, watch=watch)
    verdicts = {
        key: _verdict(job, request, answer)
        for key, job, request, answer in zip(distinct, examples, staged, answers, strict=True)
    }
    return {job_id: verdicts[key] for job_id, key in key_of.items()}


def raise_if_disk_full(answer: ExaminationAnswer, folder: Path) -> None:
    """:raises DiskFullError: that is why there is no other answer."""
    if answer.errno in DISK_FULL_ERRNOS:
        raise DiskFullError(
            f"{folder}: no space left on the disk. Free some space and {repeat_call()}"
        )


def _verdict(job: Job, request: ExaminationRequest, answer: ExaminationAnswer) -> JobVerdict:
    if answer.problem is not None:
        raise_if_disk_full(answer, Path(str(request.stage_to)))
        text = answer.problem.removeprefix(f"{request.robot}: ")
        return JobVerdict(
            problem=Problem(
                where=job.where if answer.key is None else f"{job.where}.{answer.key}",
                message=answer.problem,
            ),
            source_hash=answer.source_hash,
            warnings=answer.warnings,
            settings_problem=text if answer.cause == "settings" else None,
            code_problem=text if answer.cause == "code" else None,
            has_unfit_init=answer.cause == "init",
        )
    return JobVerdict(
        bundle=None if answer.xml is None or request.stage_to is None else Path(request.stage_to),
        xml=answer.xml,
        robot_hash=answer.hash,
        source_hash=answer.source_hash,
        warnings=answer.warnings,
        task=answer.task,
        task_reason=answer.task_reason,
        init=None if answer.init_sha256 is None else staged_policy(Path(str(request.stage_to))),
        init_sha256=answer.init_sha256,
        init_env_steps=answer.init_env_steps,
        init_reason=answer.init,
        physics_s=training_time.physics_s(answer.figures),
        episode_steps=answer.figures.get("episode_steps"),
    )
