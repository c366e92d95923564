"""What happens in one simulated world, as data: jobs, how their workers behave, and the troubles.

All chance is here: :func:`made` draws a scenario from a seed, and playing it draws nothing. A
scenario is therefore its own trace, which can be shortened by leaving parts out, kept as a file,
and played again when the generator has changed.
"""

from __future__ import annotations

import itertools
import json
import random
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
    "checkpoints",
    "cancel",
    "pause",
    "resume",
    "retry",
    "set",
    "status",
    "error",
    "unreachable",
    "program",
    "run",
    "edit",
    "begin",
    "damage",
    "reload",
    "clean",
    "searcher",
    "examiner",
    "examiner-hangs",
    "hangup",
    "fills",
    "terminal",
    "template",
    "odd-requests",
    "odd-event",
    "robot",
    "callback",
    "node-dies",
    "node-cut",
    "node-sleeps",
    "head-cut",
    "task-dies",
    "pilot-cancelled",
    "pilot-dies",
    "pilot-sleeps",
    "slurm-away",
    "slurm-refuses",
]
"""``io``: the file system fails to read or write the ledger; ``edit`` to ``examiner-hangs`` are of
:mod:`tests.simulation.job_files`, :mod:`tests.simulation.added_jobs` and
:mod:`tests.simulation.policies`. ``hangup``: the signal of a terminal that closes; ``fills``: the
disk has less space than jobs ask for; ``terminal``: what is printed cannot be written any more;
``template``: the process ends that workers are forked from; ``odd-requests``, ``odd-event``: what
nobody sends; ``robot``: a copy in the directory of a job is changed; ``callback``: a function of the
calling program raises. What follows: see :data:`OF_NODES`."""
PolicyKind: TypeAlias = Literal["", "told", "untold", "gone"]
"""``told``: it says for how many env_steps it was trained; ``untold``: it does not; ``gone``: it lay
in the directory of a job of this run that there is no more."""
COMMANDS = (
    *("stop", "stop-now", "cancel", "pause", "resume", "retry", "set", "status"),
    *("reload", "clean"),
)
OF_JOBS = ("cancel", "pause", "resume", "retry")
SOURCE_TABLE = "simulated"
"""The table of a job file that has its jobs made beside the run, and the feature that does it."""
OTHERS: tuple[TroubleKind, ...] = ("program", "run")
"""Others come who use a CPU: a program, and another run, which says so."""
OF_NODES: tuple[TroubleKind, ...] = (
    *("node-dies", "node-cut", "node-sleeps", "head-cut", "task-dies"),
    *("pilot-cancelled", "pilot-dies", "pilot-sleeps", "slurm-away", "slurm-refuses"),
)
"""What happens to machines of a cluster: they are gone, cannot be reached, are suspended; the head
cannot be reached; the process of a task is killed. To pilots: others cancel one, its node fails, it
is suspended; Slurm does not answer, or refuses further ones."""
DELIVERIES: tuple[TroubleKind, ...] = ("late", "twice", "lost", "stray")
"""What happens to an event of the executor on its way to the supervisor."""


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
    is_bound: bool = False
    """Whether the kernel lets it run on no other CPUs."""


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
    pause_at: int | None = None
    """env_steps of a rung."""
    after: tuple[str, ...] = ()
    starts: bool = False
    """Whether it starts from the policy of the first job that it waits for."""
    behaviours: tuple[Behaviour, ...] = ()
    """Of its attempts, in order; those that follow are ``done``."""
    version: int = 0
    """In the place of all values that decide the result beside the number of env_steps."""
    is_invalid: bool = False
    """Whether the examination before the launch finds that it cannot be trained."""
    is_declared: bool = True
    """Whether the job file has it from the beginning."""
    promotions: int = 0
    """How often a search lets it go on from a rung, each time for as many env_steps again."""
    robot: int = 0
    """Which contents its robot has; 0: it has none."""
    start: Literal["auto", "exec", "fork"] = "auto"
    """How its worker is to be started."""
    is_measured: bool = False
    """Whether its evaluation has measures."""
    policy: PolicyKind = ""
    """The policy that it starts from and that is declared by its path; empty: there is none."""
    misfits: bool = False
    """Whether the policy of another job that it starts from does not fit it."""
    is_given: bool = False
    """Whether its robot, where it is invalid, is no file of its user."""

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
class SimulatedNode:
    """A machine of a cluster."""

    name: str
    cpus: int = 2
    memory_mib: int = 1000
    joins_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPilot:
    """A batch job of Slurm."""

    waits_s: float = 1.0
    limit_s: float | None = None
    """Its time limit."""
    fails: bool = False
    """Whether it ends before it reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Comes at a time (seconds since the beginning), at a point (the so-many-th file operation,
    commit or call of the supervisors), or to the so-many-th event of the executors.
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
    """For ``set``: jobs at once. For others who come: their CPU. For ``io``: statements that succeed
    before one fails, and all that follow for so long; with no duration that one alone."""
    node: int = 0
    """The machine of a cluster that it concerns."""
    elsewhere: bool = False
    """Whether the command is given on another host."""
    choice: int = 0
    """What of the unsaved writes is lost when the power fails, how a ledger is damaged, or how the end
    of a machine is noticed."""
    what: str = ""
    """What is edited in the job file, or how the next supervisor begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    jobs: tuple[SimulatedJob, ...]
    troubles: tuple[Trouble, ...] = ()
    cpus: int = 2
    nodes: tuple[SimulatedNode, ...] = ()
    """Of the cluster on which the jobs run; none: they run on this machine."""
    array: int = 0
    """Pilots of Slurm in which the jobs run, each with ``cpus``; 0: they do not."""
    pilots: tuple[SimulatedPilot, ...] = ()
    """In the order in which they are submitted; those that follow are as by default."""
    max_parallel: int | None = None
    grace_s: float = 3.0
    gap_s: float = 2.0
    """Between the end of a supervisor and the start of the next one."""
    order: Literal["longest-first", "as-listed"] = "as-listed"
    if_refused: Literal["undo", "restart", "keep"] = "undo"
    """What users do where changed jobs are refused: undo the changes, or run with that option."""
    searcher_s: float = 0.0
    """Seconds from one look to the next of a search that makes the jobs; 0: there is none."""
    searcher_jobs: int = 2
    """It makes no more while so many have not ended."""
    looks_s: float = 0.0
    """Seconds between the looks of others at the run; 0: nobody looks."""
    page_rows: int = 0
    """Jobs that are written to the summary files at once; 0: as many as always."""
    until_s: float = 0.0
    """By when all is to have ended that is begun before; 0: there is no such time."""
    template_s: float = 0.0
    """How long the process takes to be ready that workers are forked from."""
    is_nohup: bool = False
    """Whether the signal of a terminal that closes is ignored."""
    is_called: bool = False
    """Whether a Python program calls the run, with functions that are told of jobs."""

    def to_json(self) -> str:
        """Without what has its default."""
        return json.dumps(_plain(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Scenario:
        values = json.loads(text)
        jobs = tuple(_job(job) for job in values.pop("jobs"))
        troubles = tuple(Trouble(**trouble) for trouble in values.pop("troubles", ()))
        nodes = tuple(SimulatedNode(**node) for node in values.pop("nodes", ()))
        pilots = tuple(SimulatedPilot(**pilot) for pilot in values.pop("pilots", ()))
        return cls(jobs=jobs, troubles=troubles, nodes=nodes, pilots=pilots, **values)

    @property
    def has_others(self) -> bool:
        """Whether others use the machine, too."""
        return any(trouble.kind in OTHERS for trouble in self.troubles)

    @property
    def is_elsewhere(self) -> bool:
        """Whether the jobs run on a cluster, or in pilots of Slurm."""
        return bool(self.nodes or self.array)

    def without_others(self) -> Scenario:
        troubles = tuple(trouble for trouble in self.troubles if trouble.kind not in OTHERS)
        return replace(self, troubles=troubles)

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
        if self.nodes:
            yield replace(self, nodes=())
        if self.array:
            yield replace(self, array=0, pilots=())
        for name in RICHER:
            plain = Scenario.__dataclass_fields__[name].default
            if getattr(self, name) != plain:
                yield replace(self, **{name: plain})
        for index in range(len(self.pilots)):
            pilots = (*self.pilots[:index], SimulatedPilot(), *self.pilots[index + 1 :])
            if pilots != self.pilots:
                yield replace(self, pilots=pilots)
        for index in range(1, len(self.nodes)):
            yield self._without_node(index)
        for index, job in enumerate(self.jobs):
            for simpler in _simpler(job):
                yield replace(self, jobs=(*self.jobs[:index], simpler, *self.jobs[index + 1 :]))

    def _without_node(self, index: int) -> Scenario:
        nodes = self.nodes[:index] + self.nodes[index + 1 :]
        troubles = tuple(one for one in self.troubles if one.node != index)
        later = {one: one - 1 for one in range(index + 1, len(self.nodes))}
        moved = tuple(replace(one, node=later.get(one.node, one.node)) for one in troubles)
        return replace(self, nodes=nodes, troubles=moved)

    def _without(self, job: SimulatedJob) -> Scenario:
        left = tuple(
            replace(other, after=tuple(name for name in other.after if name != job.job_id))
            for other in self.jobs
            if other is not job
        )
        troubles = tuple(trouble for trouble in self.troubles if trouble.job != job.job_id)
        return replace(self, jobs=left, troubles=troubles)


RICHER = ("looks_s", "page_rows", "until_s", "template_s", "is_nohup", "is_called")
"""Fields of a scenario that are left out when it is shortened."""


def _plain(value: Any) -> dict[str, Any]:
    defaults = type(value)(**_required(value))
    kept = {
        name: getattr(value, name)
        for name in asdict(value)
        if getattr(value, name) != getattr(defaults, name) or name in _required(value)
    }
    for name in ("jobs", "troubles", "behaviours", "nodes", "pilots"):
        if name in kept:
            kept[name] = [_plain(one) for one in kept[name]]
    return kept


def _required(value: Any) -> dict[str, Any]:
    names = {
        SimulatedJob: ("name",),
        SimulatedNode: ("name",),
        Trouble: ("kind",),
        Scenario: ("jobs",),
    }
    return {name: getattr(value, name) for name in names.get(type(value), ())}


def _job(values: Mapping[str, Any]) -> SimulatedJob:
    behaviours = tuple(Behaviour(**one) for one in values.get("behaviours", ()))
    after = tuple(values.get("after", ()))
    return SimulatedJob(**{**values, "behaviours": behaviours, "after": after})


def _simpler(job: SimulatedJob) -> Iterator[SimulatedJob]:
    plain = SimulatedJob(name=job.name)
    names = ("pause_at", "after", "min_free_disk_mib", "ranks", "cores", "memory_mib")
    flags = ("is_invalid", "is_declared", "promotions", "starts", "robot", "start", "is_measured")
    policies = ("policy", "misfits", "is_given")
    for name in (*names, *flags, *policies):
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


# -- drawn from a seed

ENDINGS: tuple[Ending, ...] = (
    *("error", "diverged", "killed", "killed", "crashed", "oom", "hangs", "grows", "silent"),
    *("garbled", "leaves", "orphaned", "full", "refused", "refused-full", "refused-odd"),
)
LONGEST_S = 25.0
"""Troubles come within this time."""
MOST_POINTS = 500
"""Deaths and commands come within so many points."""
MOST_EVENTS = 60


def made(seed: int) -> Scenario:
    """The scenario of a seed. On other machines there are no others who use CPUs, no search and no job
    files that change: nobody has thought that through.
    """
    # These have the types of this module.
    from tests.simulation import added_jobs, denser, job_files, policies, rarer, richer, stories

    scenario = _elsewhere(random.Random(f"{seed} elsewhere"), _made(seed))
    if scenario.is_elsewhere:
        scenario = scenario.without_others()
    else:
        scenario = job_files.with_changes(scenario, random.Random(f"{seed} job files"))
        scenario = added_jobs.with_searcher(scenario, random.Random(f"{seed} search"))
    scenario = policies.with_policies(scenario, random.Random(f"{seed} policies"))
    scenario = stories.with_story(scenario, random.Random(f"{seed} story"))
    scenario = richer.richer(scenario, random.Random(f"{seed} richer"))
    scenario = rarer.rarer(scenario, random.Random(f"{seed} rarer"))
    return denser.denser(scenario, random.Random(f"{seed} denser"))


def _made(seed: int) -> Scenario:
    chance = random.Random(seed)
    jobs: list[SimulatedJob] = []
    for number in range(chance.choice((1, 2, 2, 3, 3, 4, 5, 6))):
        jobs.append(_made_job(chance, number, jobs))
    troubles: list[Trouble] = []
    if chance.random() < 0.06:
        troubles += chance.choice((_made_unseen_start, _made_hasty_user))(chance, jobs)
    for _ in range(chance.choice((1, 2, 3, 4, 6, 8, 12))):
        troubles.append(made_trouble(chance, jobs))
    for _ in range(chance.choice((0, 0, 1, 1, 2))):
        troubles += _made_story(chance, jobs)
    for _ in range(chance.choice((0, 0, 4, 12, 24))):
        troubles.append(made_delivery(chance))
    cpus = chance.choice((1, 2, 2, 3, 4))
    if chance.random() < 0.18:
        jobs = [_made_longer(chance, job) for job in jobs]
        troubles += _made_others(chance, cpus)
    return Scenario(
        jobs=tuple(jobs),
        troubles=tuple(troubles),
        cpus=cpus,
        max_parallel=chance.choice((None, None, None, 1, 2)),
        grace_s=chance.choice((0.0, 1.0, 3.0, 12.0)),
        gap_s=chance.choice((0.5, 2.0, 10.0)),
        order=chance.choice(("as-listed", "longest-first")),
    )


DEATH_POINTS = ("", "commit", "committed", "remove requests/", "ask ", "submitted", "polled")
"""Beginnings of the names of points at which deaths in stories come."""
POINTS = (
    *("", "", "", "commit", "committed", "submit ", "submitted", "ask ", "kill ", "cancelled"),
    *("remove ", "remove requests/", "rename .summary", "rename jobs/", "fsync content"),
    *("mkdir jobs/", "close the executor", "rename .ended", "remove live", "poll", "polled"),
)
"""Beginnings of the names of points at which troubles come."""


def _made_job(chance: random.Random, number: int, before: list[SimulatedJob]) -> SimulatedJob:
    is_stalling = chance.random() < 0.3
    parents = [job.job_id for job in before] if chance.random() < 0.2 else []
    return SimulatedJob(
        name=f"j{number}",
        iterations=chance.choice((1, 2, 4, 6)),
        cores=chance.choice((1, 1, 1, 2)),
        memory_mib=chance.choice((100, 100, 400)),
        max_retries=chance.choice((0, 1, 1, 2)),
        timeout_s=chance.choice((1000.0, 1000.0, 1000.0, 3.0)),
        stall_timeout_s=2.5 if is_stalling else 1000.0,
        min_free_disk_mib=chance.choice((0, 0, 0, 500)),
        pause_at=chance.choice((None, None, None, None, None, None, None, 2 * STEPS)),
        after=tuple(chance.sample(parents, min(len(parents), chance.choice((1, 1, 2))))),
        behaviours=_made_behaviours(chance, is_stalling=is_stalling),
    )


def _made_behaviours(chance: random.Random, *, is_stalling: bool) -> tuple[Behaviour, ...]:
    behaviours = [
        _made_behaviour(chance, is_stalling=is_stalling)
        for _ in range(chance.choice((0, 1, 1, 2, 3, 5)))
    ]
    if chance.random() < 0.15:  # it fails again and again
        ending = chance.choice(("killed", "crashed", "leaves", "refused"))
        behaviours = [replace(behaviour, ending=ending) for behaviour in behaviours]
    return tuple(behaviours)


def _made_behaviour(chance: random.Random, *, is_stalling: bool) -> Behaviour:
    endings = [one for one in ENDINGS if one != "hangs" or is_stalling]
    return Behaviour(
        ending=chance.choice(endings) if chance.random() < 0.5 else "done",
        after=chance.choice((0, 1, 1, 2, 3)),
        start_s=chance.choice((0.1, 0.5, 1.0)),
        iteration_s=chance.choice((0.2, 0.5, 1.0, 1.5)),
        asked=chance.choice(("saves", "saves", "saves", "slow", "deaf")),
        lingers=chance.random() < 0.3,
    )


KINDS: tuple[TroubleKind, ...] = (
    *("kill", "kill", "kill", "power", "power", "lock", "full", "io", "jump"),
    *("stop", "stop-now", "signal", "checkpoints"),
    *("cancel", "pause", "pause", "resume", "resume", "retry", "retry", "set", "status", "error"),
    "unreachable",
)


def made_trouble(chance: random.Random, jobs: list[SimulatedJob]) -> Trouble:
    kind = chance.choice(KINDS)
    may_wait = kind in ("kill", "power", *COMMANDS)
    comes_at_point = may_wait and chance.random() < 0.4
    needs_job = kind in OF_JOBS
    return Trouble(
        kind=kind,
        at_point=chance.randrange(1, MOST_POINTS) if comes_at_point else None,
        at_s=None if comes_at_point else round(chance.uniform(0.0, LONGEST_S), 2),
        at_what=chance.choice(POINTS) if may_wait and not comes_at_point else "",
        for_s=_duration(chance, kind),
        job=chance.choice(jobs).job_id if needs_job else "",
        number=_number(chance, kind),
        elsewhere=kind in COMMANDS and chance.random() < 0.3,
        choice=chance.randrange(1000) if kind == "power" else 0,
    )


def _number(chance: random.Random, kind: TroubleKind) -> int:
    match kind:
        case "set":
            return chance.choice((1, 2, 3))
        case "io":
            return chance.choice((0, 1, 2, 4, 9, 20))
    return 0


def _made_longer(chance: random.Random, job: SimulatedJob) -> SimulatedJob:
    """Perhaps so long that it is moved, more than once."""
    iterations = chance.choice((job.iterations, job.iterations, 12, 30))
    first, *later = job.behaviours or (Behaviour(),)
    if iterations > job.iterations:
        first = replace(first, ending="done", is_bound=chance.random() < 0.3)
    return replace(job, iterations=iterations, behaviours=(first, *later))


def _made_others(chance: random.Random, cpus: int) -> list[Trouble]:
    """Others on CPUs of their own, or one that goes from CPU to CPU."""
    kind = chance.choice(OTHERS)
    begin = round(chance.uniform(0.0, LONGEST_S), 2)
    if chance.random() < 0.3:
        stay_s = chance.choice((4.0, 10.0))
        return [
            Trouble(
                kind=kind, at_s=round(begin + step * stay_s, 2), for_s=stay_s, number=step % cpus
            )
            for step in range(2 * cpus)
        ]
    return [
        Trouble(
            kind=chance.choice(OTHERS),
            at_s=round(chance.uniform(0.0, LONGEST_S), 2),
            for_s=chance.choice((2.0, 8.0, 30.0, 100.0)),
            number=chance.randrange(cpus),
        )
        for _ in range(chance.choice((1, 2, 3, 5)))
    ]


STORIES: tuple[tuple[TroubleKind, ...], ...] = (
    ("pause", "resume"),
    ("pause", "resume", "pause", "resume"),
    ("cancel", "retry"),
    ("retry", "retry"),
    ("pause", "cancel", "retry"),
    ("pause", "kill", "resume"),
    ("kill", "pause", "kill"),
    ("pause", "power", "cancel"),
    ("lock", "pause", "kill", "resume"),
    ("lock", "cancel", "stop", "kill"),
    ("unremoved", "retry", "kill"),
    ("cancel", "kill"),
    ("set", "stop", "kill"),
    ("pause", "resume", "pause", "resume", "kill"),
    ("unremoved", "cancel", "retry", "kill"),
    ("unremoved", "pause", "resume", "kill"),
    ("cancel", "kill", "retry"),
    ("lock", "kill"),
    ("lock", "power"),
    ("kill", "io", "retry"),
    ("io", "resume", "io", "cancel"),
    ("io", "stop"),
    ("io", "kill"),
)
"""Troubles that follow each other, about one job."""


def _made_story(chance: random.Random, jobs: list[SimulatedJob]) -> list[Trouble]:
    job = chance.choice(jobs).job_id
    elsewhere = chance.choice((0.0, 0.0, 0.5, 1.0))
    when = chance.uniform(0.0, LONGEST_S / 2)
    told: list[Trouble] = []
    for kind in chance.choice(STORIES):
        dies = kind in ("kill", "power")
        points = DEATH_POINTS
        if any(trouble.elsewhere for trouble in told):
            points = (*DEATH_POINTS, *["remove requests/"] * 4)
        told.append(
            Trouble(
                kind=kind,
                at_s=round(when, 2),
                at_what=chance.choice(points) if dies else "",
                for_s=_duration(chance, kind),
                job=job if kind in OF_JOBS else "",
                number=_number(chance, kind),
                elsewhere=kind in COMMANDS and chance.random() < elsewhere,
                choice=chance.randrange(1000) if kind == "power" else 0,
            )
        )
        when += chance.choice((0.0, 0.3, 1.0, 4.0))
    return told


def _made_unseen_start(chance: random.Random, _: list[SimulatedJob]) -> list[Trouble]:
    """The first launches cannot be recorded, and soon after the next ones the power fails."""
    died = round(chance.uniform(2.0, 8.0), 2)
    what = chance.choice(("rename .summary", "rename .summary", "polled", "committed"))
    return [
        Trouble(kind="lock", at_s=0.05, for_s=20.0),
        Trouble(kind="kill", at_s=died),
        Trouble(
            kind="power", at_s=round(died + 0.1, 2), at_what=what, choice=chance.randrange(1000)
        ),
    ]


def _made_hasty_user(chance: random.Random, jobs: list[SimulatedJob]) -> list[Trouble]:
    """Pauses one of two jobs and resumes it at once, on two hosts, before the supervisor dies."""
    behaviours = (Behaviour(), Behaviour(asked="slow"))
    jobs[:] = [
        SimulatedJob(name="j0", iterations=12, behaviours=behaviours),
        SimulatedJob(name="j1", iterations=20),
    ]
    gaps = chance.choice((0.8, 1.2, 1.6)), chance.choice((0.1, 0.27)), 0.3, 0.3
    times = itertools.accumulate(gaps, initial=chance.uniform(0.3, 4.0))
    kinds: tuple[TroubleKind, ...] = ("pause", "resume", "pause", "resume")
    *asked, died = (round(when, 2) for when in times)
    return [
        *(
            Trouble(kind=kind, at_s=when, job=jobs[0].job_id, elsewhere=number == 3)
            for number, (kind, when) in enumerate(zip(kinds, asked, strict=True))
        ),
        Trouble(kind="kill", at_s=died),
    ]


def made_delivery(chance: random.Random) -> Trouble:
    kind = chance.choice(DELIVERIES)
    return Trouble(
        kind=kind,
        at_event=chance.randrange(1, MOST_EVENTS),
        for_s=chance.choice((0.3, 1.0, 4.0)) if kind == "late" else 0.0,
    )


def _duration(chance: random.Random, kind: TroubleKind) -> float:
    match kind:
        case "unremoved":
            return chance.choice((2.0, 8.0, 20.0))
        case "lock":
            return chance.choice((0.3, 2.0, 8.0))
        case "full":
            return chance.choice((0.3, 2.0, 8.0))
        case "io":
            return chance.choice((0.0, 0.0, 0.3, 2.0, 8.0))
        case "jump":
            return chance.choice((-7200.0, -1.0, 3600.0))
    return 0.0


# -- of some seeds on several machines


def _elsewhere(chance: random.Random, scenario: Scenario) -> Scenario:
    """The same jobs on this machine or, for some seeds, on others."""
    where = chance.random()
    if chance.random() < RANKS_SHARE:
        scenario = _with_ranks(chance, scenario)
    if where < CLUSTER_SHARE:
        return _on_cluster(chance, scenario)
    if where < CLUSTER_SHARE + PILOTS_SHARE:
        return _in_pilots(chance, scenario)
    return scenario


CLUSTER_SHARE = 0.2
PILOTS_SHARE = 0.15
RANKS_SHARE = 0.2


def _with_ranks(chance: random.Random, scenario: Scenario) -> Scenario:
    jobs = [_ranked(chance, job) if chance.random() < 0.6 else job for job in scenario.jobs]
    return replace(scenario, jobs=tuple(jobs))


def _ranked(chance: random.Random, job: SimulatedJob) -> SimulatedJob:
    behaviours = tuple(
        replace(behaviour, ending="rank-dies") if chance.random() < 0.4 else behaviour
        for behaviour in job.behaviours
    )
    ranks = chance.choice((2, 2, 3))
    return replace(job, ranks=ranks, cores=1, memory_mib=100, behaviours=behaviours)


NODE_KINDS: tuple[TroubleKind, ...] = (
    *("node-dies", "node-dies", "node-cut", "node-cut", "node-sleeps", "head-cut", "task-dies"),
)


def _on_cluster(chance: random.Random, scenario: Scenario) -> Scenario:
    """The first machine stays: the supervisor is there. The largest one has room for each job, and
    always comes back.
    """
    cpus = [chance.choice((1, 2, 2, 4)) for _ in range(chance.choice((2, 2, 3, 4)))]
    largest = max(range(len(cpus)), key=cpus.__getitem__)
    cpus[largest] = max(cpus[largest], *(job.all_cores for job in scenario.jobs))
    nodes = tuple(
        SimulatedNode(
            name=f"n{index}",
            cpus=number,
            memory_mib=2000 if index == largest else chance.choice((500, 1000, 1000)),
            joins_s=chance.choice((0.0, 0.0, 0.0, 3.0, 12.0)) if index else 0.0,
        )
        for index, number in enumerate(cpus)
    )
    troubles = [
        made_node_trouble(chance, len(nodes), largest)
        for _ in range(chance.choice((0, 1, 1, 2, 3, 5)))
    ]
    return replace(scenario, nodes=nodes, troubles=(*scenario.troubles, *troubles))


def made_node_trouble(chance: random.Random, nodes: int, largest: int) -> Trouble:
    kind = chance.choice(NODE_KINDS)
    node = chance.randrange(1, nodes)
    durations = {
        "node-dies": (1.0, 6.0, 20.0, *((0.0,) if node != largest else ())),
        "node-cut": (2.0, 10.0, 32.0, 45.0),
        "node-sleeps": (2.0, 15.0, 40.0),
        "head-cut": (3.0, 12.0, 28.0, 40.0),
        "task-dies": (0.0,),
    }
    return Trouble(
        kind=kind,
        at_s=round(chance.uniform(0.5, chance.choice((8.0, 8.0, LONGEST_S))), 2),
        for_s=chance.choice(durations[kind]),
        node=0 if kind == "head-cut" else node,
        choice=chance.randrange(1000),
    )


PILOT_KINDS: tuple[TroubleKind, ...] = (
    *("pilot-cancelled", "pilot-dies", "pilot-dies", "pilot-sleeps"),
    *("slurm-away", "slurm-refuses"),
)


def _in_pilots(chance: random.Random, scenario: Scenario) -> Scenario:
    """Each pilot has room for each job."""
    cpus = max(scenario.cpus, *(job.all_cores for job in scenario.jobs))
    pilots = tuple(
        SimulatedPilot(
            waits_s=chance.choice((0.5, 0.5, 2.0, 8.0, 20.0)),
            limit_s=chance.choice((None, None, 15.0, 25.0)),
            fails=chance.random() < 0.05,
        )
        for _ in range(chance.choice((0, 1, 2, 4)))
    )
    troubles = [made_pilot_trouble(chance) for _ in range(chance.choice((0, 0, 1, 1, 2, 4)))]
    return replace(
        scenario,
        cpus=cpus,
        array=chance.choice((1, 1, 2, 3)),
        pilots=pilots,
        troubles=(*scenario.troubles, *troubles),
    )


def made_pilot_trouble(chance: random.Random) -> Trouble:
    kind = chance.choice(PILOT_KINDS)
    durations: Mapping[str, tuple[float, ...]] = {
        "pilot-sleeps": (4.0, 30.0, 200.0),
        "slurm-away": (5.0, 20.0),
        "slurm-refuses": (5.0, 40.0),
    }
    return Trouble(
        kind=kind,
        at_s=round(chance.uniform(0.5, chance.choice((8.0, 8.0, LONGEST_S))), 2),
        for_s=chance.choice(durations.get(kind, (0.0,))),
        choice=chance.randrange(1000),
    )
