"""Plays a scenario: one supervisor after another in the same directory, until nothing is left to
do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib.util
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.core.errors import (
    ChangedError,
    ClusterLostError,
    DiskFullError,
    LedgerBusyError,
    LedgerError,
    RunDirError,
    SupervisorError,
    UsageError,
)
from orchestrator.core.job import Attempt, AttemptOutcome, Job, Resources, State
from orchestrator.core.paths import RunPaths
from orchestrator.core.worker_spec import INIT_JOB, WorkerSpec
from orchestrator.experiment import session
from orchestrator.ledger import Ledger
from orchestrator.ledger.rows import DeclaredJob
from orchestrator.supervisor.events import View
from orchestrator.supervisor.job_directory import RobotCopies
from tests.simulation import policies, seams, spoiling
from tests.simulation.added_jobs import Searcher, SimulatedSource
from tests.simulation.callers import Caller, CallerError
from tests.simulation.commands import Commands
from tests.simulation.declared_jobs import DeclaredJobs
from tests.simulation.disk import UnsimulatedError
from tests.simulation.executor import Processes, SimulatedKind
from tests.simulation.job_files import JobFiles
from tests.simulation.monitor import Monitor
from tests.simulation.onlookers import Onlooker
from tests.simulation.robots import Robots
from tests.simulation.scenario import STEPS, Scenario, SimulatedJob, Trouble
from tests.simulation.terminals import Listener, Terminal
from tests.simulation.worker import GIVEN, INVALID, VERSION
from tests.simulation.world import FAILS, DeathError, Violation, World

MOST_LIVES = 300
"""With a ledger that others have locked, a run ends soon, and its user tries again at once."""
REFUSED_S = 10.0
"""After which a user tries again who was told that machines are missing."""
HAS_RAY, HAS_SLURM = (
    importlib.util.find_spec(f"orchestrator.features.{name}") is not None
    for name in ("ray", "slurm")
)
COLLECT_EVERY = 20_000
"""New objects, in place of Python's 700."""
SCRATCH = Path("/dev/shm") if Path("/dev/shm").is_dir() else None


@dataclass(slots=True, kw_only=True)
class Outcome:
    """How a scenario was played."""

    violation: str
    """What did not hold; empty where everything did."""
    trace: list[str]
    digest: str
    counts: Counter[str]
    simulated_s: float


class _Reporter:
    """Tells the monitor what the supervisor reports, and of every turn."""

    def __init__(self, monitor: Monitor, onlooker: Onlooker | None = None) -> None:
        self._monitor = monitor
        self._onlooker = onlooker
        self.violation: Violation | None = None

    def event(self, kind: str, message: str, **facts: Any) -> None:
        self._monitor.event(kind, message, **facts)

    def tick(self, view: Callable[[], View]) -> None:
        self._monitor.turn()
        if self._onlooker is not None:
            self._onlooker.tick(view)


def play(scenario: Scenario) -> Outcome:
    """Play ``scenario`` in a folder of its own, which is removed."""
    with _rarely_collected():
        return _play(scenario)


@contextlib.contextmanager
def _rarely_collected() -> Iterator[None]:
    """Within the block, objects that refer to each other are looked for less often: the program is
    begun anew again and again, and leaves few of them each time.
    """
    before = gc.get_threshold()
    gc.set_threshold(COLLECT_EVERY, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _play(scenario: Scenario) -> Outcome:
    if not (HAS_RAY and HAS_SLURM):  # a feature was taken away
        nodes, array = scenario.nodes if HAS_RAY else (), scenario.array if HAS_SLURM else 0
        scenario = dataclasses.replace(scenario, nodes=nodes, array=array)
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
        world.counts["worlds"] += 1
        return Outcome(
            violation=violation.replace(str(root), ""),
            trace=world.trace,
            digest=world.digest(),
            counts=world.counts,
            simulated_s=world.now,
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
        by_id = {job.job_id: job for job in scenario.jobs}
        self.processes = Processes(world=world, jobs=by_id)
        self.kind = _kind(world, self.processes)
        """In the place of the executor that the scenario names."""
        self.paths = RunPaths(world.disk.run_dir)
        self.robots = Robots(world=world, paths=self.paths)
        job_of = self.robots.job_of(policies.job_of(_job, world, self.paths))
        self.files = JobFiles(
            world=world,
            scenario=scenario,
            paths=self.paths,
            job_of=job_of,
            recorded=self._recorded,
            in_ledger=self._in_ledger,
            orphans=self._orphans,
            moved_away=self._moved_away,
            has_nothing=self._has_nothing,
            job_source=SimulatedSource(),
            tables=self.kind.tables,
        )
        self.declared = DeclaredJobs(
            paths=self.paths,
            files=self.files,
            originals=dict(by_id),
            jobs=by_id,
            robots=self.robots,
        )
        self.monitor = Monitor(
            world=world,
            jobs=by_id,
            alive=self.processes.alive,
            followers=self.processes.followers,
            paths=self.paths,
            declared=self.declared,
        )
        self.monitor.machines = self.kind
        self.processes.submitted = self.monitor.submitted
        self.processes.launched = self.monitor.launched
        self.processes.kills = self.monitor.kills
        world.queued = self.monitor.queued
        world.asked_to_stop = self.monitor.asked_to_stop
        world.hung_up = self.monitor.hung_up
        world.others_change = self._others_change
        self.searcher = Searcher(
            world=world,
            scenario=scenario,
            paths=self.paths,
            job_of=job_of,
            files=self.files,
            monitor=self.monitor,
        )
        if scenario.searcher_s:
            world.features = (self.searcher.feature,)
        self.onlooker: Onlooker | None = None
        """Who looks on, while the world is the simulated one."""
        world.declared = self.files.declared
        world.command = Commands(
            world=world, monitor=self.monitor, files=self.files, searcher=self.searcher
        ).give
        world.killed = self.processes.kill
        world.noted = self.monitor.noted
        world.fell_back = self.monitor.fell_back
        world.on_death = lambda is_cut: self.kind.supervisor_died(is_power_cut=is_cut)
        self.kind.is_recorded = lambda pid: pid in self.monitor.recorded_pids()

    def play(self) -> None:
        with seams.installed(self.world, self.kind) as sqlite, _observed(self.monitor):
            if looks_s := self.scenario.looks_s:
                self.onlooker = Onlooker(
                    world=self.world, paths=self.paths, monitor=self.monitor, looks_s=looks_s
                )
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
                    if self.scenario.searcher_s:
                        self.searcher.the_end()
                    self.kind.the_end()
                    return
        raise Violation(f"not at an end after {MOST_LIVES} supervisors")

    def _live(self) -> bool:
        """One supervisor. Returns whether nothing is left to do."""
        world, monitor = self.world, self.monitor
        monitor.life_begins()
        self.kind.supervisor_begins()
        self.files.begin()
        has_died = is_refused = False
        try:
            with world.supervised():
                result = self._run()
        except DeathError as error:
            if isinstance(earlier := _first(error), Violation):
                raise earlier from None
            has_died = True
        except KeyboardInterrupt:
            world.log("stopped before any launch")
            self.kind.was_stopped(is_hurried=monitor.stops > 1)
        except CallerError as error:
            world.log(f"the run ends: {error}")
        except (DiskFullError, LedgerBusyError, SupervisorError) as error:
            self._look_at_error(error)
        except ChangedError as error:
            self.declared.refused()
            self.files.refused(error)
        except (LedgerError, RunDirError) as error:
            if FAILS not in str(error):
                self.files.unreadable(error)
            elif monitor.has_launched:
                raise Violation(f"as if nothing had been launched: {error!r}") from error
            else:
                world.log(f"the run ends: {error}")
        except (ClusterLostError, UsageError) as error:
            self._look_at_refusal(error)
            is_refused = True
        except Exception as error:
            text = "".join(traceback.format_exception(error))
            world.log(text)
            raise Violation(f"the run has failed: {error!r}") from error
        else:
            self._life_ended()
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
            self._life_ended()
        if is_refused:  # its user waits for machines
            world.pass_time(REFUSED_S)
        return False

    def _run(self) -> session.RunResult:
        """As `run` or a Python program calls it."""
        reporter = _Reporter(self.monitor, self.onlooker)
        experiment, options = self.files.arguments()
        if (until := self.scenario.until_s) and self.world.now < until:
            options = dataclasses.replace(options, until=self.world.wall - self.world.now + until)
            self._stop_later(self.world.pid, until - self.scenario.grace_s)
        if self.scenario.is_called:
            experiment = dataclasses.replace(experiment, text=None)
            caller = Caller(world=self.world, monitor=self.monitor).reporter(reporter)
            return session.run(experiment, options, caller, callbacks=caller)
        closes = [one for one in self.scenario.troubles if one.kind == "terminal"]
        if closes:
            error = ValueError("closed file") if closes[0].choice % 2 else OSError("closed")
            terminal = Terminal(world=self.world, error=error)
            listener = Listener(told=self.monitor.event, turn=self.monitor.turn)
            return session.run(experiment, options, terminal, beside=[listener])
        return session.run(experiment, options, reporter)

    def _others_change(self, trouble: Trouble) -> None:
        """Other programs change files of the run directory."""
        if trouble.kind == "robot":
            self.robots.change(trouble)
            return
        with self.world.own_work():
            spoiling.send_odd_requests(self.paths, trouble.choice)

    def _stop_later(self, pid: int, at_s: float) -> None:
        """The supervisor of that pid is to stop by itself then, if it is not stopped before."""

        def stop() -> None:
            if self.world.pid == pid and self.world.is_supervised and not self.monitor.stops:
                self.monitor.asked_to_stop(1)

        self.world.at(max(at_s, self.world.now), stop)

    def _look_at_error(self, error: Exception) -> None:
        """Errors that end a run are those that the world has caused."""
        counts = self.world.counts
        self.world.log(f"the run ends: {error}")
        causes = {
            DiskFullError: counts["full"] > 0 or self._has_full_disks,
            LedgerBusyError: self.world.is_locked or counts["lock"] > 0,
            SupervisorError: counts["error"] > 0
            or FAILS in str(error)
            or "still locked" in str(error),
        }
        if not causes[type(error)]:
            raise Violation(f"the run has failed: {error!r}") from error

    def _life_ended(self) -> None:
        self.monitor.life_ended()
        self.kind.supervisor_ended()

    def _look_at_refusal(self, error: Exception) -> None:
        """What runs where there are several machines needs these."""
        self.world.log(f"the run ends: {error}")
        if not self.kind.explains(error):
            raise Violation(f"the run has failed: {error!r}") from error

    @property
    def _has_full_disks(self) -> bool:
        endings = {one.ending for job in self.scenario.jobs for one in job.behaviours}
        return bool(endings & {"full", "refused-full"})

    def _recorded(self) -> Mapping[str, SimulatedJob]:
        return self.declared.recorded()

    def _in_ledger(self) -> Collection[str]:
        return self.declared.by_id.keys()

    def _moved_away(self, job_id: str) -> None:
        self.monitor.moved_away(job_id)

    def _has_nothing(self) -> None:
        self.monitor.begins_anew()
        self.world.forget_note()

    def _orphans(self) -> list[int]:
        return [worker.pid for worker in self.processes.alive.values() if worker.is_orphan]


def _kind(world: World, processes: Processes) -> SimulatedKind:
    """What takes the place of the executor that the scenario names."""
    if world.scenario.nodes:
        from tests.simulation.cluster import ClusterKind

        return ClusterKind(world=world, processes=processes)
    if world.scenario.array:
        from tests.simulation.pilots import PilotKind

        return PilotKind(world=world, processes=processes)
    return SimulatedKind(world=world, processes=processes)


@contextlib.contextmanager
def _observed(monitor: Monitor) -> Iterator[None]:
    """The monitor is told of what is written to the ledger of attempts and states, and of robots
    that are compared.
    """
    put_jobs, delete_job = Ledger.put_jobs, Ledger.delete_job
    set_state, end_attempt = Ledger.set_state, Ledger.end_attempt
    move_attempt = Ledger.move_attempt
    ensure_intact = RobotCopies.ensure_intact
    respecify = Ledger.update_spec
    update, start_attempt, rebuild = (
        Ledger.update_declaration,
        Ledger.start_attempt,
        session.rebuild,
    )

    def seen_put(ledger: Ledger, jobs: Iterable[DeclaredJob]) -> None:
        entered = list(jobs)
        put_jobs(ledger, entered)
        for declared in entered:
            monitor.declared.with_robot(declared.job, declared.robot_hash)
            monitor.put(declared.job)

    def seen_update(ledger: Ledger, position: int, job: Job) -> None:
        update(ledger, position, job)
        monitor.declared.updated(job)

    def seen_respecified(ledger: Ledger, job: Job) -> None:
        respecify(ledger, job)
        monitor.declared.respecified(job)

    def seen_start(ledger: Ledger, attempt: Attempt, *, queue_s: float) -> None:
        start_attempt(ledger, attempt, queue_s=queue_s)
        monitor.declared.begun(attempt.job_id)

    def seen_rebuild(*arguments: Any) -> list[str]:
        monitor.rebuilds()
        with monitor.declared.rebuilding():
            return rebuild(*arguments)

    def seen_delete(ledger: Ledger, job_id: str) -> None:
        delete_job(ledger, job_id)
        monitor.deleted(job_id)

    def seen_state(ledger: Ledger, job_id: str, state: State) -> None:
        set_state(ledger, job_id, state)
        monitor.set_state(job_id, state)

    def seen_end(ledger: Ledger, job_id: str, number: int, **facts: Any) -> None:
        end_attempt(ledger, job_id, number, **facts)
        outcome: AttemptOutcome = facts["outcome"]
        monitor.attempt_ended(job_id, number, outcome, facts["record"])

    def seen_move(
        ledger: Ledger, job_id: str, number: int, before: Any, after: Any, **when: float
    ) -> None:
        move_attempt(ledger, job_id, number, before, after, **when)
        monitor.moves(job_id, before, after)

    def seen_comparison(copies: RobotCopies, job: Job) -> None:
        ensure_intact(copies, job)
        monitor.declared.robots.compared(job.job_id)

    Ledger.put_jobs, Ledger.delete_job = seen_put, seen_delete  # type: ignore[method-assign]
    Ledger.update_declaration = seen_update  # type: ignore[method-assign]
    Ledger.update_spec = seen_respecified  # type: ignore[method-assign]
    Ledger.start_attempt = seen_start  # type: ignore[method-assign]
    session.rebuild = seen_rebuild  # type: ignore[attr-defined]
    Ledger.set_state, Ledger.end_attempt = seen_state, seen_end  # type: ignore[method-assign]
    Ledger.move_attempt = seen_move  # type: ignore[method-assign]
    RobotCopies.ensure_intact = seen_comparison  # type: ignore[method-assign]
    try:
        yield
    finally:
        Ledger.put_jobs, Ledger.delete_job = put_jobs, delete_job  # type: ignore[method-assign]
        Ledger.update_declaration = update  # type: ignore[method-assign]
        Ledger.update_spec = respecify  # type: ignore[method-assign]
        Ledger.start_attempt = start_attempt  # type: ignore[method-assign]
        session.rebuild = rebuild  # type: ignore[attr-defined]
        Ledger.set_state, Ledger.end_attempt = set_state, end_attempt  # type: ignore[method-assign]
        Ledger.move_attempt = move_attempt  # type: ignore[method-assign]
        RobotCopies.ensure_intact = ensure_intact  # type: ignore[method-assign]


def _distinct(job: SimulatedJob) -> dict[str, Any]:
    """In what jobs differ that are declared otherwise."""
    values = {
        VERSION: job.version,
        policies.MISFITS: job.misfits,
        GIVEN: job.is_given,
    }
    return {name: value for name, value in values.items() if value}


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
        env_kwargs=_distinct(job),
        evaluate={INVALID: [True]} if job.is_invalid else {},
        hyperparameters={"learning_rate": "linear(1e-3, 0)"} if job.is_measured else {},
        pause_at=job.pause_at,
        ranks=job.ranks,
        after=job.after,
        init=f"{INIT_JOB}{job.after[0]}" if job.starts and job.after else None,
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
        start=job.start,
    )
    return Job(
        job_id=job.job_id,
        where=f"jobs[{number}]",
        spec=spec,
        resources=resources,
        max_retries=job.max_retries,
        xml_source=None,
    )
