"""Job files that change, and how users begin the next run with them: what they edit, with which
options they call `run`, and what they do when it refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from orchestrator.core.errors import ChangedError
from orchestrator.core.job import Job
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.from_outside import reload
from orchestrator.experiment.planning.run_plan import RunOptions
from orchestrator.experiment.resuming import resume
from orchestrator.experiment.resuming.declared_changes import OnChange
from orchestrator.jobfile import Experiment
from tests.simulation.scenario import Scenario, SimulatedJob, Trouble
from tests.simulation.world import World

CALLS = ("edit", "begin", "reload")
"""After these troubles a user calls `run` once more, also when all was done before."""
ON_CHANGE: tuple[OnChange, ...] = ("refuse", "restart", "extend")


@dataclass(slots=True, kw_only=True)
class Call:
    """How the supervisor that lives was begun."""

    jobs: dict[str, SimulatedJob]
    """What it is to train, by id."""
    on_change: OnChange = "refuse"
    is_directory: bool = False
    """Whether `run RUN_DIR` has begun it, with the jobs that are there."""


@dataclass(slots=True, kw_only=True)
class JobFiles:
    """The job file, and the user who edits and runs it."""

    world: World
    scenario: Scenario
    paths: RunPaths
    job_of: Callable[[SimulatedJob, int], Job]
    file: dict[str, SimulatedJob] = field(init=False)
    """What the job file declares, by id."""
    accepted: dict[str, SimulatedJob] = field(default_factory=dict, init=False)
    """What it declared when it was run last, and was not refused."""
    call: Call = field(init=False)
    _on_change: OnChange = field(default="refuse", init=False)
    _is_directory_next: bool = field(default=False, init=False)
    """Whether the next call is `run RUN_DIR`."""

    def __post_init__(self) -> None:
        jobs = self.scenario.jobs
        listed = [job for job in jobs if job.is_declared] or jobs  # a job file has at least one
        self.file = {job.job_id: job for job in listed}
        self.call = Call(jobs={})

    # -- troubles

    def happens(self, trouble: Trouble) -> None:
        if trouble.kind == "edit":
            self._edit(trouble)
        elif trouble.what == "directory":
            self._is_directory_next = True
        else:
            (self._on_change,) = (one for one in ON_CHANGE if one == trouble.what)

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

    # -- calls of `run`

    def begin(self, recorded: Mapping[str, SimulatedJob]) -> None:
        """The user calls `run`.

        :param recorded: what the ledger has, by id, except jobs that are not declared any more.
        """
        is_directory, self._is_directory_next = self._is_directory_next, False
        self.call = Call(
            jobs=dict(recorded if is_directory else self.file),
            on_change=self._on_change,
            is_directory=is_directory,
        )

    def arguments(self) -> tuple[Experiment, RunOptions]:
        """Return those of :func:`orchestrator.experiment.session.run`, as `run` makes them."""
        call, run_dir = self.call, self.paths.root
        verdicts = None
        if call.is_directory:
            self.world.log("run: the directory as it is")
            experiment, verdicts = resume.load(run_dir)
        else:
            self.world.log(f"run: {call.on_change}")
            experiment = self.declared()
        options = RunOptions(
            run_dir=run_dir,
            verdicts=verdicts,
            grace_s=self.scenario.grace_s,
            on_change=call.on_change,
        )
        return experiment, options

    def declared(self) -> Experiment:
        """As it is read from the job file."""
        order, max_parallel = self.scenario.order, self.scenario.max_parallel
        written = '"auto"' if max_parallel is None else max_parallel
        text = f'name = "simulated"\nmax_parallel = {written}\norder = "{order}"\n'
        jobs = [as_declared(job, self.file) for job in self.file.values()]
        return Experiment(
            name="simulated",
            max_parallel=max_parallel,
            order=order,
            skip_invalid=True,
            jobs=tuple(self.job_of(job, number) for number, job in enumerate(jobs)),
            source="simulated.toml",
            text=text.encode(),
            base=self.world.root,
        )

    def queued(self) -> None:
        """The supervisor is about to launch jobs: what `run` was called with is accepted."""
        if not (self.call.is_directory and self.accepted):  # else nothing new was declared
            self.accepted = dict(self.call.jobs)

    def refused(self, error: ChangedError) -> None:
        """`run` has refused jobs that have changed."""
        self.world.log(f"refused: {str(error).partition(chr(10))[0]}")
        if self.scenario.if_refused == "undo" and self.file != self.accepted:
            self.file = dict(self.accepted)
        else:
            self._on_change = "restart"

    @property
    def is_due(self) -> bool:
        """Whether the next run would be another one than the last."""
        return self._is_directory_next or self.file != self.accepted

    def next_call_s(self) -> float | None:
        """When a user calls `run` once more although all was done; None if nobody does."""
        due = [
            trouble.at_s
            for trouble in self.scenario.troubles
            if trouble.kind in CALLS and trouble.at_s is not None and trouble.at_s > self.world.now
        ]
        return min(due, default=None)

    # -- the command `reload`

    def reload(self, known: Collection[str]) -> str:
        """:param known: ids of the jobs in the ledger."""
        before = dict(self.call.jobs)
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


def as_declared(job: SimulatedJob, file: Mapping[str, SimulatedJob]) -> SimulatedJob:
    """``job`` as a file declares it that has the jobs of ``file``: it waits for no others."""
    return replace(job, after=tuple(name for name in job.after if name in file))


def _edited(now: SimulatedJob, original: SimulatedJob, what: str, number: int) -> SimulatedJob:
    match what:
        case "longer":
            return replace(now, iterations=now.iterations + number)
        case "other":
            return replace(now, version=now.version + 1)
        case "undo":
            return original
        case "retries":
            return replace(now, max_retries=number)
    raise AssertionError(what)
