"""Plays a scenario: one supervisor after another in the same directory, until nothing is left to
do.
"""

from __future__ import annotations

import contextlib
import gc
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.core.errors import (
    ChangedError,
    DiskFullError,
    LedgerBusyError,
    LedgerError,
    RunDirError,
    SupervisorError,
)
from orchestrator.core.job import Attempt, AttemptOutcome, Job, Resources, State
from orchestrator.core.paths import RunPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.experiment import session
from orchestrator.ledger import Ledger
from orchestrator.ledger.rows import DeclaredJob
from orchestrator.supervisor.events import View
from tests.simulation import seams
from tests.simulation.commands import Commands
from tests.simulation.declared_jobs import DeclaredJobs
from tests.simulation.disk import UnsimulatedError
from tests.simulation.executor import Processes, simulated_kind
from tests.simulation.job_files import JobFiles
from tests.simulation.monitor import Monitor
from tests.simulation.scenario import STEPS, Scenario, SimulatedJob
from tests.simulation.worker import VERSION
from tests.simulation.world import FAILS, DeathError, Violation, World

MOST_LIVES = 300
"""With a ledger that others have locked, a run ends soon, and its user tries again at once."""
COLLECT_EVERY = 20_000
"""New objects between two garbage collections, instead of Python's 700."""
SCRATCH = Path("/dev/shm") if Path("/dev/shm").is_dir() else None


@dataclass(slots=True, kw_only=True)
class Outcome:
    """How a scenario was played."""

    violation: str
    """What did not hold; empty where everything did."""
    trace: list[str]
    counts: Counter[str]


class _Reporter:
    """Tells the monitor what the supervisor reports, and of every turn."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor

    def event(self, kind: str, message: str, **facts: Any) -> None:
        self._monitor.event(kind, message, **facts)

    def tick(self, view: Callable[[], View]) -> None:
        self._monitor.turn()


def play(scenario: Scenario) -> Outcome:
    """Play ``scenario`` in a folder of its own, which is removed."""
    with _rarely_collected():
        return _play(scenario)


@contextlib.contextmanager
def _rarely_collected() -> Iterator[None]:
    """Collect garbage less often within the block."""
    before = gc.get_threshold()
    gc.set_threshold(COLLECT_EVERY, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _play(scenario: Scenario) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="simulation-", dir=SCRATCH) as folder:
        root = Path(folder)
        world = World(root=root, scenario=scenario)
        try:
            _Player(world, scenario).play()
            violation = ""
        except Violation as error:
            violation = str(_first(error))
        except UnsimulatedError as error:
            violation = f"not simulated: {error}"
        except Exception as error:
            world.log("".join(traceback.format_exception(error)))
            violation = f"the simulated world has failed: {error!r}"
        world.log(f"result: {violation or 'all holds'}")
        return Outcome(
            violation=violation.replace(str(root), ""),
            trace=world.trace,
            counts=world.counts,
        )


def _first(error: BaseException) -> BaseException:
    """The violation that came before those that unwinding the stack has led to."""
    earlier = error.__context__
    while earlier is not None:
        if isinstance(earlier, Violation):
            error = earlier
        earlier = earlier.__context__
    return error


class _Player:
    def __init__(self, world: World, scenario: Scenario) -> None:
        self.world = world
        self.scenario = scenario
        paths = RunPaths(world.disk.run_dir)
        by_id = {job.job_id: job for job in scenario.jobs}
        self.processes = Processes(world=world, jobs=by_id)
        self.files = JobFiles(
            world=world,
            scenario=scenario,
            paths=paths,
            job_of=_job,
        )
        self.declared = DeclaredJobs(
            paths=paths, files=self.files, originals=dict(by_id), jobs=by_id
        )
        self.monitor = Monitor(
            world=world,
            jobs=by_id,
            processes=self.processes,
            paths=paths,
            declared=self.declared,
        )
        self.processes.submitted = self.monitor.submitted
        self.processes.launched = self.monitor.launched
        self.processes.kills = self.monitor.kills
        world.monitor = self.monitor
        world.processes = self.processes
        world.commands = Commands(world=world, monitor=self.monitor, files=self.files)

    def play(self) -> None:
        kind = simulated_kind(self.world, self.processes)
        with seams.installed(self.world, kind) as sqlite, _observed(self.monitor):
            for _ in range(MOST_LIVES):
                is_over = self._live()
                self.world.forget_supervisors()
                for connection in sqlite.opened:
                    connection.close()
                sqlite.opened.clear()
                if not is_over:
                    self.world.pass_time(self.scenario.gap_s)
                elif (again_s := self.files.next_call_s()) is not None:
                    self.world.pass_time(again_s - self.world.now)
                elif not self.files.is_due:
                    self.monitor.the_end()
                    return
        raise Violation(f"not at an end after {MOST_LIVES} supervisors")

    def _live(self) -> bool:
        """One supervisor. Return whether nothing is left to do."""
        world, monitor = self.world, self.monitor
        monitor.life_begins()
        self.files.begin(self.declared.recorded())
        has_died = False
        try:
            with world.supervised():
                result = session.run(*self.files.arguments(), _Reporter(monitor))
        except DeathError as error:
            if isinstance(earlier := _first(error), Violation):
                raise earlier from None
            has_died = True
        except KeyboardInterrupt:
            world.log("stopped before any launch")
        except (DiskFullError, LedgerBusyError, SupervisorError) as error:
            self._look_at_error(error)
        except ChangedError as error:
            self.declared.refused()
            self.files.refused(error)
        except (LedgerError, RunDirError) as error:
            world.log(f"the run ends: {error}")
            is_founded = self.files.call.is_directory or FAILS in str(error)
            if monitor.has_launched or not is_founded:
                raise Violation(f"the run has failed: {error!r}") from error
        except Exception as error:
            world.log("".join(traceback.format_exception(error)))
            raise Violation(f"the run has failed: {error!r}") from error
        else:
            monitor.life_ended()
            world.log(f"exit code {result.exit_code}")
            if result.interrupted:
                if world.counts["lives"] % 2:  # of all it would take 6 % of the time
                    monitor.interrupted()
                return False
            monitor.everything_agrees(result.exit_code, result.states)
            return not monitor.has_unread_requests()
        if has_died:
            world.bury()
        else:
            world.fall_back()
            monitor.life_ended()
        return False

    def _look_at_error(self, error: Exception) -> None:
        """Errors that end a run are those that the world has caused."""
        counts = self.world.counts
        self.world.log(f"the run ends: {error}")
        endings = {one.ending for job in self.scenario.jobs for one in job.behaviours}
        text = str(error)
        causes = {
            DiskFullError: counts["full"] > 0 or bool(endings & {"full", "refused-full"}),
            LedgerBusyError: self.world.is_locked or counts["lock"] > 0,
            SupervisorError: counts["error"] > 0 or FAILS in text or "still locked" in text,
        }
        if not causes[type(error)]:
            raise Violation(f"the run has failed: {error!r}") from error


@contextlib.contextmanager
def _observed(monitor: Monitor) -> Iterator[None]:
    """The monitor is told of what is written to the ledger of attempts and states."""
    put_jobs, delete_job = Ledger.put_jobs, Ledger.delete_job
    set_state, update = Ledger.set_state, Ledger.update_declaration
    start_attempt, end_attempt = Ledger.start_attempt, Ledger.end_attempt

    def seen_put(ledger: Ledger, jobs: Iterable[DeclaredJob]) -> None:
        entered = list(jobs)
        put_jobs(ledger, entered)
        for declared in entered:
            monitor.put(declared.job)

    def seen_update(ledger: Ledger, position: int, job: Job) -> None:
        update(ledger, position, job)
        monitor.declared.updated(job)

    def seen_delete(ledger: Ledger, job_id: str) -> None:
        delete_job(ledger, job_id)
        monitor.deleted(job_id)

    def seen_state(ledger: Ledger, job_id: str, state: State) -> None:
        set_state(ledger, job_id, state)
        monitor.set_state(job_id, state)

    def seen_start(ledger: Ledger, attempt: Attempt, *, queue_s: float) -> None:
        start_attempt(ledger, attempt, queue_s=queue_s)
        monitor.declared.begun(attempt.job_id)

    def seen_end(ledger: Ledger, job_id: str, number: int, **facts: Any) -> None:
        end_attempt(ledger, job_id, number, **facts)
        outcome: AttemptOutcome = facts["outcome"]
        monitor.attempt_ended(job_id, number, outcome, facts["record"])

    seen = {
        "put_jobs": seen_put,
        "update_declaration": seen_update,
        "delete_job": seen_delete,
        "set_state": seen_state,
        "start_attempt": seen_start,
        "end_attempt": seen_end,
    }
    with contextlib.ExitStack() as stack:
        for name, function in seen.items():
            seams.replace(stack, Ledger, name, function)
        yield


def _job(job: SimulatedJob, number: int) -> Job:
    spec = WorkerSpec(
        job_id=job.job_id,
        name=job.name,
        seed=0,
        algo="ppo",
        learner="auto",
        total_timesteps=job.iterations * STEPS,
        n_envs=1,
        normalize=False,
        checkpoint_every=2 * STEPS,
        eval_episodes=0,
        env="CartPole-v1",
        env_kwargs={VERSION: job.version} if job.version else {},
        ranks=job.ranks,
        after=job.after,
    )
    resources = Resources(
        ranks=job.ranks,
        cores=job.cores,
        threads=1,
        memory_mib=job.memory_mib,
        gpus=0,
        timeout_s=job.timeout_s,
        stall_timeout_s=job.stall_timeout_s,
        min_free_disk_mib=job.min_free_disk_mib,
    )
    return Job(
        job_id=job.job_id,
        where=f"jobs[{number}]",
        spec=spec,
        resources=resources,
        max_retries=job.max_retries,
        xml_source=None,
    )
