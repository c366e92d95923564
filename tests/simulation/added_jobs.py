"""A simulated search: a feature whose process beside the run makes the jobs while it goes on, and
lets some of those that wait at rungs train further, through the plug points that all features have.

Like the real one it knows nothing but what is in the ledger, so that it may be killed at any time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from orchestrator.core.errors import OrchestratorError
from orchestrator.core.feature import Feature
from orchestrator.core.job import Job, Paused, Pending, Running, State
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.begun_source import BegunSource
from orchestrator.experiment.beside_run import BesideRun
from orchestrator.experiment.directory import run_directory
from orchestrator.experiment.examination.preflight import JobVerdict
from orchestrator.experiment.from_outside import additions
from orchestrator.experiment.planning.run_plan import RunOptions
from orchestrator.experiment.resuming import resume
from orchestrator.jobfile import Experiment
from orchestrator.jobfile.job_source import JobSource
from orchestrator.ledger import JobRow, Ledger, Request
from tests.simulation.job_files import JobFiles
from tests.simulation.monitor import Monitor
from tests.simulation.scenario import (
    LONGEST_S,
    SOURCE_TABLE,
    STEPS,
    Scenario,
    SimulatedJob,
    Trouble,
)
from tests.simulation.world import Violation, World


class SimulatedSource(JobSource):
    """In the place of a table of the job file."""

    noun = "search"
    makes_jobs = True

    def jobs_to_examine(self, experiment: Experiment) -> tuple[Job, ...]:
        return ()


@dataclass(slots=True, kw_only=True)
class Searcher:
    """The process that makes jobs. There is one beside each supervisor."""

    world: World
    scenario: Scenario
    paths: RunPaths
    job_of: Callable[[SimulatedJob, int], Job]
    files: JobFiles
    monitor: Monitor
    has_ended: bool = False
    _process: int = 0
    """How many there have been."""
    _holder: str = ""
    _down_until: float = 0.0
    _dies_entering: bool = False

    @property
    def feature(self) -> Feature:
        return Feature(
            name=SOURCE_TABLE,
            about="A simulated search.",
            beside_run=lambda _: SimulatedPart(searcher=self),
            begun_source=self.begun,
        )

    def begun(self, paths: RunPaths, ledger: Ledger) -> BegunSource | None:
        rows = {row.job_id: row for row in ledger.jobs()}
        if not rows:
            return None
        is_underway = bool(self._missing(rows) or self._promotions(rows))
        succeeded = any(row.state.name == "SUCCEEDED" for row in rows.values())
        return SimulatedBegun(files=self.files, is_underway=is_underway, succeeded=succeeded)

    # -- its process

    def start(self) -> None:
        """A supervisor is about to launch jobs."""
        self._process += 1
        holder = run_directory.holder(self.paths)
        self._holder = "" if holder is None else holder.key
        self._look_later(self._process)

    def end(self) -> None:
        self._process += 1

    def killed(self, trouble: Trouble) -> None:
        """Its process is gone for a while, or when it is next about to enter a job."""
        self._down_until = self.world.now + trouble.for_s
        self.monitor.searcher_back_at = self._down_until
        self._dies_entering = not trouble.for_s

    def _look_later(self, process: int) -> None:
        self.world.after(self.scenario.searcher_s, lambda: self._look(process))

    def _look(self, process: int) -> None:
        world = self.world
        if process != self._process or not world.is_supervised:
            return
        self._look_later(process)
        if world.now < self._down_until:
            return
        with world.other_process(world.new_pid()):
            try:
                with run_directory.opened_ledger(self.paths) as ledger:
                    self._work(ledger)
            except (OrchestratorError, OSError) as error:
                world.log(f"the searcher: {error}")

    def _work(self, ledger: Ledger) -> None:
        rows = {row.job_id: row for row in ledger.jobs()}
        promotions = self._promotions(rows)
        self._promote(ledger, promotions)
        missing = self._missing(rows)
        left = [row for row in rows.values() if isinstance(row.state, Pending | Running)]
        if missing and len(left) < self.scenario.searcher_jobs:
            self._enter(ledger, missing[0])
        self.has_ended = not (promotions or missing or left)

    def _missing(self, rows: Mapping[str, JobRow]) -> list[int]:
        """Places of the jobs that it has not made."""
        return [place for place, job in enumerate(self.scenario.jobs) if job.job_id not in rows]

    def _promotions(self, rows: Mapping[str, JobRow]) -> dict[str, str]:
        """Jobs that wait at a rung and go on, and how far."""
        found = {}
        for job in self.scenario.jobs:
            row = rows.get(job.job_id)
            if row is not None and isinstance(row.state, Paused) and row.state.at_rung:
                before = row.job.spec.pause_at
                if before is not None and before < _last_rung(job):
                    is_last = 2 * before >= row.job.spec.total_timesteps
                    found[job.job_id] = "end" if is_last else str(2 * before)
        return found

    def _promote(self, ledger: Ledger, promotions: Mapping[str, str]) -> None:
        asked = {one for (one,) in ledger.select("SELECT job_id FROM requests")}
        new = [f"{job_id}={until}" for job_id, until in promotions.items()]
        if requests := [Request(verb="promote", job_id=one) for one in new if one not in asked]:
            ledger.add_requests(requests)
            for request in requests:
                self.world.log(f"the searcher: promote {request.job_id}")
                job_id, _, _ = str(request.job_id).partition("=")
                self.monitor.records[job_id].asked["promote"] += 1

    def _enter(self, ledger: Ledger, place: int) -> None:
        simulated = self.scenario.jobs[place]
        job = self.job_of(simulated, place)
        verdicts = {job.job_id: JobVerdict()}
        self.files.call.jobs[job.job_id] = simulated
        try:
            additions.put_robots(self.paths, [job], verdicts)
            if self._dies_entering:
                self._dies_entering = False
                self.world.log(f"the searcher dies, about to enter {job.job_id}")
                raise OSError
            additions.enter(ledger, [job], verdicts)
            ledger.add_requests([Request(verb="add", job_id=self._holder)])
        except (OrchestratorError, OSError):
            del self.files.call.jobs[job.job_id]
            self.monitor.not_entered(job.job_id)
            raise
        self.world.log(f"the searcher: added {job.job_id}")

    # -- what must hold

    def the_end(self) -> None:
        """Nothing is left to do."""
        for job in self.scenario.jobs:
            record = self.monitor.records[job.job_id]
            if not record.state:
                raise Violation(f"{job.job_id} was not added")


@dataclass(slots=True, kw_only=True)
class SimulatedPart(BesideRun):
    """The search beside one run."""

    searcher: Searcher

    def before_plan(
        self, experiment: Experiment, options: RunOptions, ledger: Ledger | None
    ) -> tuple[Experiment, RunOptions]:
        """With the jobs that it has made so far, as the real one."""
        if ledger is None:
            return experiment, options
        paths, rows = self.searcher.paths, ledger.jobs(decoded=False)
        left = [row for row in rows if not resume.is_settled(row, paths)]
        recorded = {row.job_id: row for row in rows}
        options = replace(options, verdicts=resume.verdicts(left), recorded=recorded)
        return replace(experiment, jobs=tuple(row.job for row in left)), options

    def begin(self, has_free_cores: Callable[[], bool | None]) -> None:
        self.searcher.has_ended = False
        self.searcher.start()

    def may_add_jobs(self) -> bool:
        return not self.searcher.has_ended

    def end(self) -> None:
        self.searcher.end()

    def exit_code(
        self, states: Mapping[str, State], *, is_interrupted: bool, is_stopping: bool
    ) -> int | None:
        return 130 if is_stopping and not self.searcher.has_ended else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedBegun(BegunSource):
    files: JobFiles
    is_underway: bool
    succeeded: bool
    noun: ClassVar[str] = "search"
    makes_jobs: ClassVar[bool] = True

    def has_succeeded(self) -> bool:
        return self.succeeded

    def declared(self) -> Experiment:
        return self.files.declared()

    def take_over(self, experiment: Experiment) -> Sequence[str]:
        return []


def _last_rung(job: SimulatedJob) -> int:
    """env_steps of the rung at which it stays."""
    return 0 if job.pause_at is None else job.pause_at << job.promotions


# -- drawn from a seed

SHARE = 0.1
"""Of all scenarios, those with a search."""


def with_searcher(scenario: Scenario, chance: random.Random) -> Scenario:
    """``scenario`` with jobs that are made as the run goes on; often as it is."""
    if chance.random() > SHARE or any(trouble.what for trouble in scenario.troubles):
        return scenario
    jobs: list[SimulatedJob] = [
        replace(
            job,
            after=(),
            iterations=chance.choice((2, 4, 6)),
            pause_at=chance.choice((None, STEPS, STEPS, 2 * STEPS)),
            promotions=chance.choice((0, 1, 2, 3)),
        )
        for job in scenario.jobs
    ]
    troubles: list[Any] = [
        Trouble(
            kind="searcher",
            at_s=round(chance.uniform(0.0, LONGEST_S / 2), 2),
            for_s=chance.choice((0.0, 0.0, 2.0, 5.0)),
        )
        for _ in range(chance.choice((0, 0, 1, 2)))
    ]
    return replace(
        scenario,
        jobs=tuple(jobs),
        troubles=(*scenario.troubles, *troubles),
        searcher_s=chance.choice((0.3, 1.0)),
        searcher_jobs=chance.choice((1, 2, 3)),
    )
