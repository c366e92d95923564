"""Jobs that start from the policy of another one: the process that examines such policies, which
takes its time, and may be killed.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.core.errors import DiskFullError
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.job import Job
from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.examination.examination_requests import staged_policy
from orchestrator.experiment.examination.preflight import JobVerdict
from tests.simulation.scenario import LONGEST_S, STEPS, Scenario, SimulatedJob, Trouble
from tests.simulation.world import World

EXAMINING_S = 0.4
MISFITS = "misfits"
"""Key of ``env_kwargs`` of jobs that the policy of another job does not fit."""


@dataclass(slots=True, kw_only=True, eq=False)
class SimulatedChild:
    """In the place of :class:`orchestrator.experiment.examination.examining_process.Child`."""

    world: World
    was_killed: bool = False
    hung: bool = False
    answered: int = 0
    _request: ExaminationRequest | None = None
    _ready_at: float = 0.0
    _kills: int = 0
    """How often such a process had been killed when it was asked."""
    _hangs: bool = False
    _deadline: float = 0.0

    def __exit__(self, *_: object) -> None:
        self._request = None

    @property
    def may_be_blameless(self) -> bool:
        return self.was_killed or (self.answered > 0 and not self.hung)

    def suits(self, request: ExaminationRequest) -> bool:
        return True

    def ask(self, request: ExaminationRequest, time_limit_s: float) -> None:
        self._request = request
        self._ready_at = self.world.now + EXAMINING_S
        self._kills = self.world.counts["examiner"]
        self._hangs = self.world.now < self.world.examiners_hang_until
        self._deadline = self.world.now + time_limit_s

    @property
    def is_readable(self) -> bool:
        return self.world.now >= self._ready_at and not self._hangs

    def answer(self, *, can_be_read: bool) -> ExaminationAnswer | str | None:
        if self.world.counts["examiner"] > self._kills:
            self.was_killed = True
            return "examining it ended with SIGKILL"
        if self._hangs and self.world.now > self._deadline:
            self.hung = True
            return "examining it took too long"
        if not can_be_read or self._request is None:
            return None
        self.answered += 1
        with self.world.other_process(self.world.new_pid()):
            return self._examined(self._request)

    def _examined(self, request: ExaminationRequest) -> ExaminationAnswer:
        if request.env_kwargs.get(MISFITS, False):
            return ExaminationAnswer(problem="it has other observations", cause="init")
        model = Path(request.init["path"]) / "model.zip"
        if not model.exists():
            return ExaminationAnswer(problem=f"{model}: there is no policy", cause="init")
        content = model.read_bytes()
        try:
            write_whole(staged_policy(Path(str(request.stage_to))), content)
        except OSError as error:
            return ExaminationAnswer(problem=str(error), errno=error.errno)
        digest = hashlib.sha256(content).hexdigest()
        return ExaminationAnswer(init_sha256=digest, init_env_steps=_told_env_steps(content))


def _told_env_steps(policy: bytes) -> int | None:
    """How long a policy was trained, which some policies say."""
    match policy.split():
        case [_, env_steps, _] if int(env_steps) // STEPS % 2:
            return int(env_steps)
    return None


# -- policies that are declared by their paths


def job_of(
    made: Callable[[SimulatedJob, int], Job], world: World, paths: RunPaths
) -> Callable[[SimulatedJob, int], Job]:
    """``made`` with such policies."""

    def with_policy(simulated: SimulatedJob, number: int) -> Job:
        job = made(simulated, number)
        if not simulated.policy:
            return job
        is_gone = simulated.policy == "gone"
        folder = paths.job("nobody-s0").root if is_gone else world.root / simulated.policy
        return job.with_spec(init=str(folder / "model.zip"))

    return with_policy


def content(init: str) -> bytes:
    """Of the policy at a path."""
    iterations = 6 if Path(init).parent.name == "untold" else 7
    return f"stranger {iterations * STEPS} 0".encode()


def with_policy(verdict: JobVerdict, job: Job, staging: Path, world: World) -> JobVerdict:
    """``verdict`` with a copy in ``staging`` of the policy of ``job`` that is declared by its path,
    made by the process that examines it.
    """
    if job.spec.init is None or job.spec.init_job is not None:
        return verdict
    policy = content(job.spec.init)
    copy = staging / f"{job.job_id}.init"
    with world.other_process(world.new_pid()):
        try:
            write_whole(copy, policy)
        except OSError as error:
            raise DiskFullError(f"{copy}: {error}") from error
    return replace(
        verdict,
        init=copy,
        init_sha256=hashlib.sha256(policy).hexdigest(),
        init_env_steps=_told_env_steps(policy),
    )


def readable(children: Sequence[SimulatedChild]) -> list[SimulatedChild]:
    """In the place of what asks whether such a process answers."""
    return [child for child in children if child.is_readable]


# -- drawn from a seed


def with_policies(scenario: Scenario, chance: random.Random) -> Scenario:
    """``scenario``, in which jobs that wait for others often start from the policy of the first."""
    jobs = [
        replace(job, starts=True) if job.after and chance.random() < 0.6 else job
        for job in scenario.jobs
    ]
    if not any(job.starts for job in jobs):
        return scenario
    deaths = [
        Trouble(kind="examiner", at_s=round(chance.uniform(0.5, LONGEST_S / 2), 2))
        for _ in range(chance.choice((0, 0, 1, 3)))
    ]
    return replace(scenario, jobs=tuple(jobs), troubles=(*scenario.troubles, *deaths))
