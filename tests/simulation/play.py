"""Plays a scenario: one supervisor after another in the same directory, until nothing is left to do."""

from __future__ import annotations

import contextlib
import gc
import signal
import sqlite3
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.errors import OrchestratorError
from orchestrator.core.paths import RunPaths
from orchestrator.server.ledger import ServerLedger
from orchestrator.server.leftovers import settle_left_attempts
from orchestrator.server.start_policies import NoPolicies
from orchestrator.server.supervisor import Supervisor
from tests.simulation.clients import Clients
from tests.simulation.disk import LEDGER, UnsimulatedError
from tests.simulation.machine import Machine, SimulatedExecutor
from tests.simulation.monitor import Monitor
from tests.simulation.scenario import VERBS, Scenario, Trouble
from tests.simulation.seams import SimulatedExaminer, SimulatedSqlite, installed
from tests.simulation.world import DeathError, Violation, World

MOST_LIVES = 100
COLLECT_EVERY = 20_000
"""New objects between two garbage collections, instead of Python's 700."""
SCRATCH = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
PATIENCE_S = 30.0
"""How long the ledger waits for another program's lock."""
CLIENT_GONE = "the program that started the run has ended"


@dataclass(slots=True, kw_only=True)
class Outcome:
    """How a scenario was played."""

    violation: str
    """What did not hold; empty if everything did."""
    trace: list[str]
    counts: Counter[str]


def play(scenario: Scenario) -> Outcome:
    """Play a scenario in a folder of its own, which is removed."""
    with _rarely_collected(), tempfile.TemporaryDirectory(prefix="simulation-", dir=SCRATCH) as at:
        root = Path(at)
        world = World(root=root, scenario=scenario)
        violation = ""
        try:
            Player(world).play()
        except Violation as error:
            violation = str(_first(error))
        except UnsimulatedError as error:
            violation = f"not simulated: {error}"
        except Exception as error:
            world.log("".join(traceback.format_exception(error)))
            violation = f"the simulated world has failed: {error!r}"
        world.log(f"result: {violation or 'all holds'}")
        violation = violation.replace(str(root), "")
        return Outcome(violation=violation, trace=world.trace, counts=world.counts)


@contextlib.contextmanager
def _rarely_collected() -> Iterator[None]:
    """Collect garbage less often within the block."""
    before = gc.get_threshold()
    gc.set_threshold(COLLECT_EVERY, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _first(error: BaseException) -> BaseException:
    """Return the violation that came before those that unwinding the stack has led to."""
    earlier = error.__context__
    while earlier is not None:
        if isinstance(earlier, Violation):
            error = earlier
        earlier = earlier.__context__
    return error


class Player:
    def __init__(self, world: World) -> None:
        self.world = world
        self.scenario = world.scenario
        self.paths = RunPaths(world.disk.run_dir)
        jobs = {job.job_id: job for job in self.scenario.jobs}
        self.machine = Machine(world=world, jobs=jobs, limit=self.scenario.jobs_at_once)
        self.monitor = Monitor(world=world, machine=self.machine, paths=self.paths)
        self.clients = Clients(
            scenario=self.scenario, machine=self.machine, monitor=self.monitor, paths=self.paths
        )
        self.supervisor: Supervisor | None = None
        self.loses_ledger = False
        self.lives = 0
        self.last_command_s = max(
            (
                trouble.at_s
                for trouble in self.scenario.troubles
                if trouble.at_s is not None and trouble.kind in (*VERBS, "edit", "lose-ledger")
            ),
            default=0.0,
        )
        world.player = self

    def play(self) -> None:
        with installed(self.machine) as sqlite:
            self.paths.root.mkdir()
            for _ in range(MOST_LIVES):
                is_over = self._live(sqlite)
                if is_over and self.world.now >= self.last_command_s:
                    return
                self._pass_gap()
        raise Violation(f"not at an end after {MOST_LIVES} supervisors")

    def _pass_gap(self) -> None:
        """Let users do what they do while no supervisor runs."""
        self.world.pass_time(self.scenario.gap_s)
        if self.loses_ledger:
            self.loses_ledger = False
            with self.world.own_work():
                self.monitor.ledger_was_lost()
                for worker in list(self.machine.alive):  # nobody would find it by its pid
                    worker.exit(-signal.SIGKILL)
                for path in self.paths.root.glob(f"{LEDGER}*"):
                    path.unlink()

    # -- one supervisor

    def _live(self, sqlite: SimulatedSqlite) -> bool:
        """Let one supervisor live. Return whether nothing is left to do."""
        world, monitor = self.world, self.monitor
        self.lives += 1
        holder = f"supervisor {self.lives}"
        world.begin_life()
        world.log(f"{holder} starts")
        monitor.life_begins(holder)
        with world.other_process():
            self.paths.requests.mkdir(exist_ok=True)
            self.clients.start_run(holder)
        error: Exception | None = None
        exit_code = 0
        try:
            exit_code = self._supervise(holder)
        except DeathError as death:
            if isinstance(earlier := _first(death), Violation):
                raise earlier from None
        except (OrchestratorError, OSError) as raised:
            error = raised
            world.log(f"the run ends: {raised}")
        except Exception as raised:
            world.log("".join(traceback.format_exception(raised)))
            raise Violation(f"the run has failed: {raised!r}") from raised
        finally:
            self.supervisor = None
            has_died = world.end_life(sqlite.close)
        if has_died:
            self._bury()
            return False
        if error is not None and not world.has_erred:
            raise Violation(f"the run has failed: {error!r}") from error
        with world.own_work():
            monitor.life_ended(exit_code, has_failed=error is not None)
        world.log(f"exit code {exit_code}")
        is_stopped = error is not None or monitor.stops or monitor.is_refused
        return not (is_stopped or self.loses_ledger)

    def _supervise(self, holder: str) -> int:
        """Do what :func:`orchestrator.server.process.run` does with a locked run directory."""
        ledger_path = self.paths.ledger
        opened = ServerLedger.open if ledger_path.exists() else ServerLedger.create
        ledger = opened(ledger_path)
        ledger.wait_for_lock(PATIENCE_S)
        executor = SimulatedExecutor(machine=self.machine, monitor=self.monitor)
        executor.resize(self.scenario.jobs_at_once)
        executor.template_ready_at = self.world.now + 1.0
        self.supervisor = supervisor = Supervisor(
            paths=self.paths,
            ledger=ledger,
            executor=executor,
            examiner=SimulatedExaminer(self.machine),  # type: ignore[arg-type]
            policies=NoPolicies(),
            holder=holder,
            grace_s=self.scenario.grace_s,
            awaits_jobs=True,
            reason_to_stop=self._reason_to_stop,
            now=lambda: self.world.monotonic,
        )
        if self.scenario.held_s:
            supervisor.is_held_open = lambda: not supervisor.is_released
        settle_left_attempts(self.paths, ledger, supervisor.report)
        try:
            exit_code = supervisor.go()
        except OrchestratorError:
            with contextlib.suppress(OrchestratorError):
                ledger.close()
            raise
        ledger.record_event("ended", "", {"exit_code": exit_code})
        ledger.close()
        return exit_code

    def _reason_to_stop(self) -> str:
        assert self.supervisor is not None
        is_tied = not self.scenario.is_detached or self.supervisor.awaits_jobs
        if not (self.clients.is_starter_dead and is_tied):
            return ""
        if not self.monitor.stops:
            self.monitor.asked_to_stop()
        return CLIENT_GONE

    def _bury(self) -> None:
        """Let happen what happens when a supervisor has died."""
        world = self.world
        is_power_cut = world.failed_power is not None
        world.failed_power = None
        with world.own_work(), world.other_process():
            if is_power_cut and self.paths.ledger.exists():
                connection = sqlite3.connect(self.paths.ledger)
                connection.row_factory = sqlite3.Row
                with contextlib.closing(connection):
                    self.monitor.power_failed(connection)
            elif is_power_cut:
                self.monitor.power_failed(None)
            recorded = self.monitor.recorded_pids
            self.machine.lose_supervisor(is_power_cut=is_power_cut, recorded=recorded)

    # -- what happens

    def committed(self, connection: sqlite3.Connection) -> None:
        self.monitor.committed(connection)

    def happens(self, trouble: Trouble) -> None:
        supervisor = self.supervisor
        match trouble.kind:
            case "edit":
                self.clients.edit(trouble)
            case "begin":
                self.clients.on_change = trouble.what
            case "client-dies":
                self.clients.is_starter_dead = True
            case "damaged":
                self.clients.damage(trouble)
            case "lose-ledger":
                self.loses_ledger = True
            case "signal":
                if supervisor is not None:
                    self.monitor.asked_to_stop()
                    supervisor.request_stop("SIGTERM")
            case "usr1":
                if supervisor is not None:
                    supervisor.ask_for_checkpoints()
            case _:
                self.clients.give(trouble)
