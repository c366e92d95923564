"""What happens in one simulated world, as data: jobs, how their workers behave, and the troubles.

All chance is in :mod:`tests.simulation.drawing`, which draws a scenario from a seed. Playing a
scenario draws nothing, so a scenario can be shortened by leaving parts out, kept as a file, and
played again after the generator has changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

STEPS = 100
"""env_steps of an iteration."""

Ending: TypeAlias = Literal[
    "done",
    "error",
    "diverged",
    "killed",
    "crashed",
    "oom",
    "hangs",
    "grows",
    "silent",
    "garbled",
    "leaves",
    "orphaned",
    "full",
    "refused",
    "refused-full",
    "refused-odd",
    "rank-dies",
]
"""How an attempt ends by itself. ``silent``: with exit code 0 and no exit record; ``garbled``: with
one that cannot be read; ``leaves``: as if asked; ``grows``: over its memory limit; ``refused``: it
cannot be started; ``rank-dies``: the last of its ranks is killed."""
Asked: TypeAlias = Literal["saves", "slow", "deaf"]
"""What a worker does when it is asked to end."""

TroubleKind: TypeAlias = Literal[
    "kill",
    "power",
    "lock",
    "full",
    "io",
    "unremoved",
    "jump",
    "late",
    "twice",
    "lost",
    "stray",
    "stop",
    "stop-now",
    "signal",
    "hangup",
    "checkpoints",
    "cancel",
    "pause",
    "resume",
    "retry",
    "set",
    "status",
    "error",
    "edit",
    "begin",
    "reload",
    "fills",
    "odd-requests",
    "odd-event",
]
"""``lock``: another program locks the ledger; ``full``: the disk is full; ``io``: the file system
fails to read or write the ledger; ``unremoved``: files of requests cannot be removed; ``error``:
the executor raises; ``edit``, ``begin``: see :mod:`tests.simulation.job_files`; ``fills``: the disk
has less space than jobs ask for; ``odd-requests``, ``odd-event``: what nobody sends."""
COMMANDS = (*("stop", "stop-now", "cancel", "pause", "resume", "retry", "set", "status", "reload"),)
OF_JOBS = ("cancel", "pause", "resume", "retry")


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """Of one attempt."""

    ending: Ending = "done"
    after: int = 0
    """Iterations of this attempt before an ending other than ``done``."""
    start_s: float = 0.5
    iteration_s: float = 0.5
    asked: Asked = "saves"
    lingers: bool = False
    """Whether it goes on for a while when its supervisor has died."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedJob:
    name: str
    iterations: int = 4
    ranks: int = 1
    cores: int = 1
    """Of each rank, as the memory."""
    memory_mib: int = 100
    max_retries: int = 1
    timeout_s: float = 1000.0
    stall_timeout_s: float = 1000.0
    min_free_disk_mib: int = 0
    after: tuple[str, ...] = ()
    behaviours: tuple[Behaviour, ...] = ()
    """Of its attempts, in order; those that follow are ``done``."""
    version: int = 0
    """Stands for all values that decide the result beside the number of env_steps."""
    is_declared: bool = True
    """Whether the job file has it from the beginning."""

    @property
    def job_id(self) -> str:
        return f"{self.name}-s0"

    @property
    def all_cores(self) -> int:
        return self.ranks * self.cores

    @property
    def all_memory_mib(self) -> int:
        return self.ranks * self.memory_mib


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Comes at a time (seconds since the beginning), at a point (the n-th file operation, commit or
    call of the supervisors), or to the n-th event of the executors.
    """

    kind: TroubleKind
    at_s: float | None = None
    at_what: str = ""
    """With a time: it comes at the first point from then on whose name begins so."""
    at_point: int | None = None
    at_event: int | None = None
    for_s: float = 0.0
    """How long it lasts, or by how much a clock jumps."""
    job: str = ""
    number: int = 0
    """For ``set``: jobs at once. For ``io``: statements that succeed before one fails, and all that
    follow for that long; without a duration that one alone. For ``edit``: a value."""
    elsewhere: bool = False
    """Whether the command is given on another host."""
    choice: int = 0
    """Seed of what is lost when the power fails."""
    what: str = ""
    """What is edited in the job file, or how the next supervisor begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    jobs: tuple[SimulatedJob, ...]
    troubles: tuple[Trouble, ...] = ()
    cpus: int = 2
    max_parallel: int | None = None
    grace_s: float = 3.0
    gap_s: float = 2.0
    """Between the end of a supervisor and the start of the next one."""
    order: Literal["longest-first", "as-listed"] = "as-listed"
    if_refused: Literal["undo", "restart"] = "undo"
    """What users do where changed jobs are refused: undo the changes, or run with that option."""
    page_rows: int = 0
    """Jobs that are written to the summary files at once; 0: the program's own number."""

    def to_json(self) -> str:
        """Without what has its default."""
        return json.dumps(_plain(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Scenario:
        values = json.loads(text)
        jobs = tuple(_job(job) for job in values.pop("jobs"))
        troubles = tuple(Trouble(**trouble) for trouble in values.pop("troubles", ()))
        return cls(jobs=jobs, troubles=troubles, **values)

    def shorter(self) -> Iterator[Scenario]:
        """The same with one part left out, larger parts first."""
        half = len(self.troubles) // 2
        if half > 1:
            yield replace(self, troubles=self.troubles[half:])
            yield replace(self, troubles=self.troubles[:half])
        for index in range(len(self.troubles)):
            yield replace(self, troubles=self.troubles[:index] + self.troubles[index + 1 :])
        if len(self.jobs) > 1:
            for job in self.jobs:
                yield self._without(job)
        for index, job in enumerate(self.jobs):
            for simpler in _simpler(job):
                yield replace(self, jobs=(*self.jobs[:index], simpler, *self.jobs[index + 1 :]))

    def _without(self, job: SimulatedJob) -> Scenario:
        left = tuple(
            replace(other, after=tuple(name for name in other.after if name != job.job_id))
            for other in self.jobs
            if other is not job
        )
        troubles = tuple(trouble for trouble in self.troubles if trouble.job != job.job_id)
        return replace(self, jobs=left, troubles=troubles)


def _plain(value: Any) -> dict[str, Any]:
    """The fields of ``value`` that differ from their defaults, and those that have none."""
    required = _required(value)
    defaults = type(value)(**required)
    kept = {
        name: getattr(value, name)
        for name in asdict(value)
        if name in required or getattr(value, name) != getattr(defaults, name)
    }
    for name in ("jobs", "troubles", "behaviours"):
        if name in kept:
            kept[name] = [_plain(part) for part in kept[name]]
    return kept


def _required(value: Any) -> dict[str, Any]:
    names = {SimulatedJob: ("name",), Trouble: ("kind",), Scenario: ("jobs",)}
    return {name: getattr(value, name) for name in names.get(type(value), ())}


def _job(values: Mapping[str, Any]) -> SimulatedJob:
    behaviours = tuple(Behaviour(**one) for one in values.get("behaviours", ()))
    after = tuple(values.get("after", ()))
    return SimulatedJob(**{**values, "behaviours": behaviours, "after": after})


def _simpler(job: SimulatedJob) -> Iterator[SimulatedJob]:
    plain = SimulatedJob(name=job.name)
    names = ("after", "min_free_disk_mib", "ranks", "cores", "memory_mib", "is_declared")
    for name in names:
        if getattr(job, name) != getattr(plain, name):
            yield replace(job, **{name: getattr(plain, name)})
    for index in range(len(job.behaviours)):
        behaviours = job.behaviours[:index] + job.behaviours[index + 1 :]
        yield replace(job, behaviours=behaviours)
    for index, behaviour in enumerate(job.behaviours):
        simple = Behaviour(ending=behaviour.ending, after=behaviour.after)
        if simple != behaviour:
            behaviours = (*job.behaviours[:index], simple, *job.behaviours[index + 1 :])
            yield replace(job, behaviours=behaviours)
