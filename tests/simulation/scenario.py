"""What happens in one simulated world, as data: jobs, how their workers behave, and the troubles.

All chance is in :mod:`tests.simulation.drawing`, which draws a scenario from a seed. Playing a
scenario draws nothing, so a scenario can be shortened, kept, and played again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal, TypeAlias

STEPS = 100
"""env_steps of an iteration."""

Ending: TypeAlias = Literal[
    "done",
    "error",
    "diverged",
    "killed",
    "oom",
    "hangs",
    "grows",
    "silent",
    "garbled",
    "leaves",
    "full",
    "refused",
    "refused-odd",
    "refused-full",
    "node-lost",
    "rank-fails",
]
"""How an attempt ends by itself. ``silent``: with exit code 0 and no exit record; ``garbled``: with
one that cannot be read; ``leaves``: as if asked; ``grows``: over its memory limit; ``refused``: it
cannot be started; ``rank-fails``: its second rank ends with an error."""

JOB_VERBS = ("cancel", "pause", "resume", "retry", "promote")
VERBS = (*JOB_VERBS, "stop", "stop-now", "set", "checkpoint", "add")


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """Of one attempt."""

    ending: Ending = "done"
    after: int = 0
    """Iterations of this attempt before an ending other than ``done``."""
    waits_s: float = 0.0
    """How long it waits for its machine."""
    iteration_s: float = 0.5
    asked: Literal["saves", "slow", "deaf"] = "saves"
    """What it does when it is asked to end."""
    lingers: bool = False
    """Whether it goes on for a while when its supervisor has died."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedJob:
    name: str
    iterations: int = 4
    cores: int = 1
    memory_mib: int = 100
    max_retries: int = 1
    timeout_s: float = 1000.0
    stall_timeout_s: float = 1000.0
    min_free_disk_mib: int = 0
    after: tuple[str, ...] = ()
    behaviours: tuple[Behaviour, ...] = ()
    """Of its attempts, in order; those that follow are ``done``."""
    rung: int = 0
    """Iterations after which it is compared with others; 0: it is not."""
    version: int = 0
    """Stands for all values that decide the result beside the number of env_steps."""
    is_declared: bool = True
    """Whether the job file has it from the beginning."""
    is_invalid: bool = False
    """Whether its robot is refused."""

    @property
    def job_id(self) -> str:
        return f"{self.name}-s0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Comes at a time (seconds since the beginning), at a point (the n-th change that a supervisor
    makes to a file), or to the n-th event of the executor.
    """

    kind: str
    """A verb of a user, or one of :data:`tests.simulation.drawing.KINDS`."""
    at_s: float | None = None
    at_what: str = ""
    """With a time: it comes at the first point from then on whose name begins so."""
    at_point: int | None = None
    at_event: int | None = None
    for_s: float = 0.0
    """How long it lasts, or by how much a clock jumps."""
    job: str = ""
    number: int = 0
    """For ``set``: jobs at once. For ``promote``: iterations, 0: to the end. For ``power``: what is
    lost. For ``edit``: a value."""
    client: Literal["here", "elsewhere", "dies", "withdraws"] = "here"
    """Where and how a request is made. ``dies``: nobody waits for the answer."""
    what: str = ""
    """What is edited in the job file, or how jobs that have changed are added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    jobs: tuple[SimulatedJob, ...]
    troubles: tuple[Trouble, ...] = ()
    cpus: int = 2
    jobs_at_once: int = 4
    grace_s: float = 3.0
    gap_s: float = 2.0
    """Between the end of a supervisor and the start of the next one."""
    is_detached: bool = False
    """Whether runs go on when the client that started them has died."""
    held_s: float = 0.0
    """How long the client of a run holds it open."""
    skips_invalid: bool = True

    def to_json(self) -> str:
        """Return it as text, without what has its default."""
        return json.dumps(_plain(self), indent=1)

    def shorter(self) -> Iterator[Scenario]:
        """Yield the same with one part left out, larger parts first."""
        size = len(self.troubles) // 2
        while size:
            for first in range(0, len(self.troubles), size):
                rest = self.troubles[:first] + self.troubles[first + size :]
                yield replace(self, troubles=rest)
            size //= 2
        for index, job in enumerate(self.jobs):
            before, after = self.jobs[:index], self.jobs[index + 1 :]
            if len(self.jobs) > 1:
                rest = tuple(one for one in self.troubles if one.job != job.job_id)
                yield replace(self, jobs=before + after, troubles=rest)
            for simpler in _simpler(job):
                yield replace(self, jobs=(*before, simpler, *after))


def _plain(value: Any) -> Any:
    """Return a value in JSON types, without the fields that have their defaults."""
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    if not is_dataclass(value):
        return value
    return {
        field.name: _plain(getattr(value, field.name))
        for field in fields(value)
        if getattr(value, field.name) != field.default
    }


def _simpler(job: SimulatedJob) -> Iterator[SimulatedJob]:
    """Yield a job with one field that has its default, or without one of its behaviours."""
    for field in fields(job):
        if field.name != "name" and getattr(job, field.name) != field.default:
            yield replace(job, **{field.name: field.default})
    for index in range(len(job.behaviours)):
        yield replace(job, behaviours=job.behaviours[:index] + job.behaviours[index + 1 :])
