"""Job files that change, and how users begin the next run with them: what they edit, with which
options they call `run`, and what they do when it refuses.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator.core.errors import ChangedError, LedgerError, RunDirError
from orchestrator.core.job import Job
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.from_outside import cleaning, reload
from orchestrator.experiment.planning.run_plan import RunOptions
from orchestrator.experiment.resuming import resume
from orchestrator.experiment.resuming.declared_changes import OnChange
from orchestrator.jobfile import Experiment
from orchestrator.jobfile.job_source import JobSource
from tests.simulation import spoiling
from tests.simulation.scenario import (
    LONGEST_S,
    SOURCE_TABLE,
    Behaviour,
    Scenario,
    SimulatedJob,
    Trouble,
    TroubleKind,
)
from tests.simulation.world import Violation, World

KINDS: tuple[TroubleKind, ...] = ("edit", "begin", "damage")
"""Troubles that change what the next supervisor finds, and are no commands."""
CALLS: tuple[TroubleKind, ...] = (*KINDS, "reload")
"""After these a user calls `run` once more, also when all was done before."""
ON_CHANGE: tuple[OnChange, ...] = ("refuse", "restart", "keep", "extend")
MOVE_AWAY = re.compile("move (.*) away to train that job again")
GARBLED = b"this is no database"
DAMAGES = 3


@dataclass(slots=True, kw_only=True)
class Call:
    """How the supervisor that lives was begun."""

    jobs: dict[str, SimulatedJob]
    """What it is to train, by id."""
    on_change: OnChange = "refuse"
    is_directory: bool = False
    """Whether `run RUN_DIR` has begun it, with the jobs that are there."""
    is_rebuilding: bool = False
    is_fresh: bool = False


@dataclass(slots=True, kw_only=True)
class JobFiles:
    """The job file, and the user who edits and runs it."""

    world: World
    scenario: Scenario
    paths: RunPaths
    job_of: Callable[[SimulatedJob, int], Job]
    recorded: Callable[[], Mapping[str, SimulatedJob]]
    """What the ledger has, by id, but for jobs that are not declared any more."""
    in_ledger: Callable[[], Collection[str]]
    """Ids of all jobs there."""
    orphans: Callable[[], list[int]]
    """Pids of workers that have outlived their supervisor."""
    job_source: JobSource
    """Of the job file, where that says that jobs are made as the run goes on."""
    tables: Mapping[str, Any]
    """Of executors in the job file."""
    moved_away: Callable[[str], None]
    """Told of a job whose directory a user has moved away, as `run` has advised."""
    has_nothing: Callable[[], None]
    """Told that users have left neither ledger nor jobs, so that the next run begins anew."""
    file: dict[str, SimulatedJob] = field(init=False)
    """What the job file declares, by id."""
    accepted: dict[str, SimulatedJob] = field(default_factory=dict, init=False)
    """What it declared when it was run last, and was not refused."""
    call: Call = field(init=False)
    is_damaged: bool = field(default=False, init=False)
    """Whether the ledger is lost, and none was made in its place."""
    has_odd_rows: bool = field(default=False, init=False)
    """Whether there may be rows in it that cannot be read, which nobody may have tried."""
    lost: set[str] = field(default_factory=set, init=False)
    """Jobs whose directories users have removed."""
    without_results: set[str] = field(default_factory=set, init=False)
    """Jobs whose results users have removed."""
    _on_change: OnChange = field(default="refuse", init=False)
    _once: list[str] = field(default_factory=list, init=False)
    """Other options of the next call of `run` alone."""
    _is_unreadable: bool = field(default=False, init=False)
    """Whether the last call of `run` has ended with the advice to make a new ledger."""
    _damages: list[Trouble] = field(default_factory=list, init=False)
    """For which the supervisor has to end first."""
    _is_rebuilding: bool = field(default=False, init=False)
    """Whether `run --rebuild-ledger` was called, and has not come to launch jobs."""

    def __post_init__(self) -> None:
        jobs = self.scenario.jobs
        listed = [job for job in jobs if job.is_declared] or jobs  # a job file has at least one
        self.file = {job.job_id: job for job in listed}
        self.call = Call(jobs={})

    # -- troubles

    def happens(self, trouble: Trouble) -> None:
        match trouble.kind:
            case "edit":
                self._edit(trouble)
            case "begin":
                chosen = next((one for one in ON_CHANGE if one == trouble.what), None)
                if chosen is None:
                    self._once.append(trouble.what)
                else:
                    self._on_change = chosen
            case "damage":
                self._damages.append(trouble)

    def _edit(self, trouble: Trouble) -> None:
        jobs = {job.job_id: job for job in self.scenario.jobs}
        original, now = jobs.get(trouble.job), self.file.get(trouble.job)
        if trouble.what == "remove":
            if len(self.file) > 1:
                self.file.pop(trouble.job, None)
        elif trouble.what == "add" and original is not None:
            self.file.setdefault(trouble.job, original)
        elif now is not None and original is not None:
            self.file[trouble.job] = _edited(now, original, trouble.what, trouble.number)
        self.file = {job_id: self.file[job_id] for job_id in jobs if job_id in self.file}

    def _damage(self, trouble: Trouble) -> None:
        ledger = self.paths.ledger
        with self.world.own_work():
            if not ledger.exists():
                return
            self.world.disk.others_change()
            if trouble.what in spoiling.OF_JOBS:
                self._remove_files(trouble)
                return
            if trouble.what:
                self.is_damaged |= spoiling.spoil(self.paths, trouble)
                self.has_odd_rows |= trouble.what in spoiling.PERHAPS_READ
            else:
                self._lose_ledger(trouble.choice)
        for pid in self.orphans():  # a ledger that is made anew knows of no process
            self.world.killed(pid)

    def _remove_files(self, trouble: Trouble) -> None:
        """A user has removed the directory of a job, or what it was trained for."""
        directory = self.paths.job(trouble.job)
        if any(self.world.lives.get(pid) for pid in self.orphans()) or not directory.root.exists():
            return
        if trouble.what == "results":
            directory.model.unlink(missing_ok=True)
            self.without_results.add(trouble.job)
            return
        shutil.rmtree(directory.root)
        self.lost.add(trouble.job)
        self.moved_away(trouble.job)

    def _lose_ledger(self, choice: int) -> None:
        ledger, self.is_damaged = self.paths.ledger, True
        for path in self.paths.root.glob(f"{ledger.name}-*"):
            path.unlink()
        match choice % DAMAGES:
            case 0:
                ledger.unlink()
            case 1:
                ledger.write_bytes(b"")
            case 2:
                ledger.write_bytes(GARBLED + ledger.read_bytes()[len(GARBLED) :])

    # -- calls of `run`

    def begin(self) -> None:
        """The user calls `run`."""
        for trouble in self._damages:
            self._damage(trouble)
        self._damages.clear()
        once, self._once = self._once, []
        has_ledger = self.paths.ledger.exists()
        has_jobs = self.paths.jobs.exists() and any(self.paths.jobs.iterdir())
        if self.is_damaged and not (has_ledger or has_jobs):
            self.has_nothing()
        self._is_rebuilding |= self._is_unreadable or ("rebuild" in once and has_ledger)
        self._is_unreadable = False
        is_directory = "directory" in once and not self._is_rebuilding
        is_recorded = is_directory or bool(self.scenario.searcher_s)
        self.call = Call(
            jobs=dict(self.recorded() if is_recorded else self.file),
            on_change=self._on_change,
            is_directory=is_directory,
            is_rebuilding=self._is_rebuilding,
            is_fresh="fresh" in once and not is_directory and not self._is_rebuilding,
        )

    def arguments(self) -> tuple[Experiment, RunOptions]:
        """Those of :func:`orchestrator.experiment.session.run`, as `run` makes them."""
        call, run_dir = self.call, self.paths.root
        verdicts = None
        if call.is_directory:
            self.world.log("run: the directory as it is")
            experiment, verdicts = resume.load(run_dir)
        else:
            flags = [name for name in ("is_fresh", "is_rebuilding") if getattr(call, name)]
            self.world.log(f"run: {' '.join([call.on_change, *flags])}")
            experiment = self.declared()
        options = RunOptions(
            run_dir=run_dir,
            verdicts=verdicts,
            grace_s=self.scenario.grace_s,
            fresh=call.is_fresh,
            on_change=call.on_change,
            rebuild_ledger=call.is_rebuilding,
        )
        return experiment, options

    def declared(self) -> Experiment:
        """As it is read from the job file."""
        order, max_parallel = self.scenario.order, self.scenario.max_parallel
        written = '"auto"' if max_parallel is None else max_parallel
        text = f'name = "simulated"\nmax_parallel = {written}\norder = "{order}"\n'
        makes_jobs = bool(self.scenario.searcher_s)
        jobs = [] if makes_jobs else [as_declared(job, self.file) for job in self.file.values()]
        return Experiment(
            name="simulated",
            max_parallel=max_parallel,
            order=order,
            skip_invalid=not self.scenario.is_elsewhere,  # there its user waits for machines
            jobs=tuple(self.job_of(job, number) for number, job in enumerate(jobs)),
            source="simulated.toml",
            text=text.encode(),
            base=self.world.root,
            job_source=self.job_source if makes_jobs else None,
            source_table=SOURCE_TABLE if makes_jobs else "",
            tables=self.tables,
        )

    def queued(self) -> None:
        """The supervisor is about to launch jobs: what `run` was called with is accepted."""
        self.has_odd_rows &= not self._is_rebuilding
        self.is_damaged = self._is_rebuilding = False
        if not self.call.is_directory:
            self.accepted = dict(self.file if self.scenario.searcher_s else self.call.jobs)
        elif not self.accepted:  # a run had entered them, and came no further
            self.accepted = dict(self.call.jobs)

    def refused(self, error: ChangedError) -> None:
        """`run` has refused jobs that have changed."""
        self.world.log(f"refused: {str(error).partition(chr(10))[0]}")
        if self.scenario.if_refused != "undo":
            self._on_change = self.scenario.if_refused
        elif self.file != self.accepted:
            self.file = dict(self.accepted)
        else:
            self._on_change = "keep"

    def unreadable(self, error: LedgerError | RunDirError) -> None:
        """`run` says that it cannot use the run directory as it is."""
        self.world.log(f"the run ends: {error}")
        is_known = self.is_damaged or self.has_odd_rows
        if not (is_known or self.call.is_directory or self.call.is_rebuilding):
            raise Violation(f"the run has failed: {error!r}") from error
        self._is_unreadable = is_known or self.call.is_rebuilding
        if (advice := MOVE_AWAY.search(str(error))) is not None:
            folder = Path(advice[1])
            self.world.counts["moved away"] += 1
            self.world.disk.others_change()
            with self.world.own_work():
                folder.rename(self.world.root / f"moved-{self.world.counts['moved away']}")
            self.moved_away(folder.name)

    @property
    def is_due(self) -> bool:
        """Whether the next run would be another one than the last."""
        return bool(self._damages or self._once) or self.file != self.accepted

    def next_call_s(self) -> float | None:
        """When a user calls `run` once more although all was done; None if nobody does."""
        due = [
            trouble.at_s
            for trouble in self.scenario.troubles
            if trouble.kind in CALLS and trouble.at_s is not None and trouble.at_s > self.world.now
        ]
        return min(due, default=None)

    # -- other commands

    def reload(self) -> str:
        """The command `reload`."""
        before, known = dict(self.call.jobs), self.in_ledger()
        self.call.jobs |= {
            job_id: as_declared(job, self.file)
            for job_id, job in self.file.items()
            if job_id not in known
        }
        try:
            return reload.reload(self.paths.root, None)
        except BaseException:
            self.call.jobs = before
            raise

    def clean(self) -> str:
        """The command `clean`."""
        cleaned = cleaning.clean(self.paths.root, dry_run=False)
        kinds = sorted({leftover.kind for leftover in cleaned.leftovers})
        return f"removed {len(cleaned.leftovers)}: {', '.join([*kinds, *cleaned.problems])}"


def as_declared(job: SimulatedJob, file: Mapping[str, SimulatedJob]) -> SimulatedJob:
    """``job`` as a file declares it that has the jobs of ``file``: it waits for no others."""
    after = tuple(name for name in job.after if name in file)
    return replace(job, after=after, starts=job.starts and bool(after))


def _edited(now: SimulatedJob, original: SimulatedJob, what: str, number: int) -> SimulatedJob:
    match what:
        case "longer":
            return replace(now, iterations=now.iterations + number)
        case "shorter":
            return replace(now, iterations=max(1, now.iterations - number))
        case "other":
            return replace(now, version=now.version + 1)
        case "undo":
            return original
        case "retries":
            return replace(now, max_retries=number)
        case "timeout":
            return replace(now, timeout_s=1000.0 if now.timeout_s < 1000.0 else 3.0)
        case "cores":
            return replace(now, cores=number, memory_mib=100 * number)
        case "validity":
            return replace(now, is_invalid=not now.is_invalid)
        case "robot":
            return replace(now, robot=now.robot + 1 if now.robot else 0)
        case "alone":
            return replace(now, after=())
    raise AssertionError(what)


# -- drawn from a seed

SHARE = 0.35
"""Of all scenarios, those whose job files change."""
EDITS = (
    *("longer", "longer", "shorter", "other", "other", "undo", "retries", "timeout", "cores"),
    *("validity", "alone", "remove", "remove", "add", "add"),
)
BEGINS = (
    *("refuse", "restart", "restart", "keep", "extend", "extend", "extend"),
    *("fresh", "directory", "directory", "rebuild"),
)
POINTS = ("", "", "poll", "commit", "submitted", "rename .summary", "close the executor")


def with_changes(scenario: Scenario, chance: random.Random) -> Scenario:
    """``scenario`` with job files that change; often as it is."""
    if chance.random() > SHARE:
        return scenario
    jobs = [
        replace(
            job,
            is_declared=chance.random() < 0.7,
            is_invalid=chance.random() < 0.05,
            behaviours=_fewer(chance, job.behaviours),
        )
        for job in scenario.jobs
    ]
    names = [job.job_id for job in jobs]
    troubles: list[Trouble] = []
    for job in jobs:
        if not job.is_declared and chance.random() < 0.5:
            troubles += _made_addition(chance, job.job_id)
    when = chance.uniform(0.5, LONGEST_S / 3)
    for _ in range(chance.choice((1, 1, 2, 3))):
        troubles += _made_change(chance, names, when)
        when += chance.choice((0.5, 3.0, 8.0))
    troubles.sort(key=lambda trouble: trouble.at_s or 0.0)
    return replace(
        scenario,
        jobs=tuple(jobs),
        troubles=(*scenario.troubles, *troubles),
        if_refused=chance.choice(("undo", "restart", "keep")),
    )


def _fewer(chance: random.Random, behaviours: tuple[Behaviour, ...]) -> tuple[Behaviour, ...]:
    """So that more jobs have come to their end when they are changed."""
    return behaviours[:1] if chance.random() < 0.5 else behaviours


def _made_change(chance: random.Random, names: list[str], when: float) -> list[Trouble]:
    """Edits that come together, and what the user does then."""
    made = []
    for _ in range(chance.choice((1, 1, 2))):
        what = chance.choice(EDITS)
        number = chance.choice((1, 2)) if what != "retries" else chance.choice((0, 1, 3))
        made.append(
            Trouble(
                kind="edit",
                at_s=round(when, 2),
                job=chance.choice(names),
                what=what,
                number=number,
            )
        )
    later_s = round(when + chance.choice((0.0, 0.2, 1.0)), 2)
    kind: TroubleKind
    for kind, share in (("reload", 0.4), ("damage", 0.1), ("begin", 0.6), ("clean", 0.2)):
        if chance.random() < share:
            made.append(_made_call(chance, kind, later_s))
    if chance.random() < 0.5:
        made.append(_made_call(chance, chance.choice(("stop", "kill", "kill", "power")), later_s))
    return made


def _made_addition(chance: random.Random, job_id: str) -> list[Trouble]:
    """A job that is added while others run."""
    at_s = round(chance.uniform(0.3, LONGEST_S / 4), 2)
    edit = Trouble(kind="edit", at_s=at_s, job=job_id, what="add")
    return [edit, _made_call(chance, "reload", at_s)]


def _made_call(chance: random.Random, kind: TroubleKind, at_s: float) -> Trouble:
    return Trouble(
        kind=kind,
        at_s=at_s,
        at_what=chance.choice(POINTS) if kind not in KINDS else "",
        elsewhere=kind in ("reload", "clean", "stop") and chance.random() < 0.1,
        what=chance.choice(BEGINS) if kind == "begin" else "",
        choice=chance.randrange(1000) if kind in ("power", "damage") else 0,
    )
