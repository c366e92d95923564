"""A simulated Slurm below the real feature: the real backend, its registry and queue of pilots, the
real pilots with their mailboxes. Simulated are Slurm's commands, and the workers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import os
import re
import secrets
import shutil
import signal
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.core.errors import ClusterLostError, UsageError
from orchestrator.executors.base import BackendSettings, Event, Handle, Launch
from orchestrator.features.slurm import (
    accounting,
    left_pilots,
    pilot,
    pilot_attempts,
    slurm_backend,
    slurm_executor,
    submission,
)
from orchestrator.features.slurm.command_runner import PATIENCE_S, CommandAnswer
from orchestrator.features.slurm.mailbox import Outbox
from orchestrator.features.slurm.pilot import SESSION_PATIENCE_S, Pilot
from orchestrator.features.slurm.session_file import FOLDER, read_session
from orchestrator.features.slurm.slurm_backend import SlurmBackend
from orchestrator.features.slurm.slurm_kind import LeftPilots
from orchestrator.features.slurm.slurm_settings import SlurmSettings
from orchestrator.features.slurm.submission import PRESENT
from tests.simulation.executor import OddError, Processes, SimulatedExecutor, SimulatedKind
from tests.simulation.machines import MACHINE_MIB, Room, machine
from tests.simulation.outer import OuterExecutor
from tests.simulation.scenario import SimulatedPilot, Trouble
from tests.simulation.world import Violation, World

TICK_S = 0.25
"""A turn of a pilot's loop."""
ANSWER_S = 0.1
"""Until a command has answered."""
SILENCE_S = 6.0
"""Until a command gives up a controller that does not answer."""
LATE_SCANCEL = "late scancel"
"""Counts what a supervisor that was killed had asked for, and Slurm does when the next one runs: batch
jobs of a run directory have one name, by which they are cancelled."""
START_S = 0.3
"""Until the process of a pilot has started."""
WARNING_S = 5.0
"""Before its time limit a pilot is told of it."""
KILL_WAIT_S = 30.0
"""After SIGTERM Slurm kills what is left."""
FORGOTTEN_S = 300.0
"""After which Slurm does not know of a job that has ended."""
LAST_S = 300.0
"""After which no pilot is left, whatever has happened."""
NODE_FAIL_S = 4.0
"""Until Slurm notices that a node has failed."""


@dataclass(slots=True, kw_only=True, eq=False)
class BatchJob:
    """A task of an array, and the process of its pilot."""

    slurm: Slurm
    task: str
    name: str
    spec: SimulatedPilot
    state: str = "PENDING"
    ended_at: float | None = None
    process: PilotProcess | None = None
    starts: int = 0

    @property
    def world(self) -> World:
        return self.slurm.world

    def wait(self) -> None:
        self.state = "PENDING"
        self.world.after(self.spec.waits_s, self._begin)

    def _begin(self) -> None:
        if self.state != "PENDING":
            return
        self.state = "RUNNING"
        self.starts += 1
        process = self.process = PilotProcess(job=self)
        self.world.log(f"pilot {self.task} begins")
        process.start()
        if (limit_s := self.spec.limit_s) is not None:
            self.world.after(limit_s - WARNING_S, lambda: process.signalled(signal.SIGUSR1))
            self.world.after(limit_s, lambda: self._end(process, "TIMEOUT"))

    def cancel(self) -> None:
        if self.state == "PENDING":
            self.over("CANCELLED")
        elif self.state == "RUNNING" and self.process is not None:
            self._end(self.process, "CANCELLED")

    def _end(self, process: PilotProcess, state: str) -> None:
        """Slurm ends it: with SIGTERM, and after a while with SIGKILL."""
        if self.state != "RUNNING":
            return
        self.state = "COMPLETING"
        if process.is_over:  # its node has failed, which Slurm has not noticed yet
            return
        process.ends_as = state
        process.terminate()
        self.world.after(KILL_WAIT_S, process.kill_when_awake)

    def fail(self, *, comes_back: bool) -> None:
        """Its node fails."""
        process = self.process
        if self.state not in ("RUNNING", "COMPLETING") or process is None or process.is_over:
            return
        process.ends_as = ""
        process.kill()

        def noticed() -> None:
            if comes_back and self.state == "RUNNING":
                self.wait()
            else:
                self.over("NODE_FAIL")

        self.world.after(NODE_FAIL_S, noticed)

    @property
    def is_lost(self) -> bool:
        """Whether it was to end, and its node failed meanwhile, which Slurm has not noticed yet."""
        return self.state == "COMPLETING" and self.process is not None and self.process.is_over

    def over(self, state: str) -> None:
        self.world.log(f"pilot {self.task} has ended: {state}")
        self.state, self.ended_at = state, self.world.now


@dataclass(slots=True, kw_only=True)
class PilotWorkers(SimulatedExecutor):
    """In the place of the local executor of a pilot."""

    worker_command: Any = None
    environment: Any = None

    def submit(self, launch: Launch) -> Handle:
        try:
            return super(PilotWorkers, self).submit(launch)
        except OddError as error:
            raise OSError(errno.EIO, str(error)) from error

    def poll(self, timeout_s: float) -> Sequence[Event]:
        events = self._ready[:]
        self._ready.clear()
        return events

    @property
    def _is_heard(self) -> bool:
        return not self.is_closed

    def _announce(self, launch: Launch) -> None:
        """Its supervisor has announced it."""

    def _raise_if_due(self) -> None:
        """Errors are the supervisor's."""

    def _send(self, event: Event) -> None:
        self.world.after(0.0, lambda: self._arrive(event))


class NetworkOutbox(Outbox):
    """What a pilot writes is seen late, or comes twice.

    What it has written earlier is seen earlier, and is not delayed by what it writes later.
    """

    def __init__(self, path: Path, world: World) -> None:
        super().__init__(path)
        self._world = world
        self._late: deque[Sequence[Any]] = deque()
        self._until = 0.0

    def send(self, *messages: Any) -> None:
        if not messages:
            super().send()
            return
        is_twice = False
        for trouble in self._world.of_next_event():
            if trouble.kind == "late":
                self._until = max(self._until, self._world.now + trouble.for_s)
            is_twice |= trouble.kind == "twice"
        if self._late or self._until > self._world.now:
            self._late.append(messages)
            self._world.at(self._until, self._send_late)
            return
        super().send(*messages)
        if is_twice:
            super().send(*messages)

    def _send_late(self) -> None:
        with self._world.other_process(0):
            super().send(*self._late.popleft())

    def finish(self, patience_s: float) -> None:
        until = self._world.now + patience_s

        def again() -> None:
            with self._world.other_process(0):
                Outbox.send(self)
            if self._unsent and self._world.now < until:
                self._world.after(0.5, again)

        again()


class SteppedPilot(Pilot):
    """The real pilot, of which each turn is an event of the agenda."""

    def __init__(self, folder: Path, variables: Mapping[str, str], world: World) -> None:
        cpus = world.scenario.cpus
        super().__init__(folder, variables)
        self._world = world
        self._machine = machine(cpus)
        self._hello = dataclasses.replace(self._hello, cores=cpus, memory_mib=MACHINE_MIB)

    @property
    def name(self) -> str:
        return self._name

    @property
    def session(self) -> str:
        return self._session

    @property
    def is_leaving(self) -> bool:
        return self._leaves or self._ends

    def close(self) -> None:
        self._attempts.close()


@dataclass(slots=True, kw_only=True, eq=False)
class PilotProcess:
    job: BatchJob
    pid: int = 0
    pilot: SteppedPilot | None = None
    ends_as: str = "COMPLETED"
    is_over: bool = False
    frozen_until: float = 0.0
    executor: PilotWorkers | None = None

    def __post_init__(self) -> None:
        self.pid = self.world.new_pid()

    @property
    def world(self) -> World:
        return self.job.world

    @property
    def node(self) -> str:
        return f"{self.job.task}.{self.job.starts}"

    @property
    def folder(self) -> Path:
        return self.world.disk.run_dir / FOLDER

    def start(self) -> None:
        begun = self.world.now
        self.world.after(START_S, lambda: self._look_for_session(begun))

    def signalled(self, number: int) -> None:
        if not self.is_over and self.pilot is not None:
            self.pilot.on_signal(number)

    def terminate(self) -> None:
        """All of its processes get SIGTERM, one after the other."""
        if self.executor is not None:
            for worker in self.executor.workers.values():
                if worker.is_alive:
                    worker.ask(by_slurm=True)
        if self.pilot is None:
            self.kill()
        else:
            self.world.after(TICK_S, lambda: self.signalled(signal.SIGTERM))

    def sleep(self, for_s: float) -> None:
        """It stands still, with its workers. One that stands still already goes on no sooner: a
        virtual machine that is paused cannot be paused again.
        """
        self.frozen_until = max(self.frozen_until, self.world.now + for_s)
        if self.executor is None:
            return
        for ranks in self.executor.ranks.values():
            for process in ranks.processes:
                process.frozen_until = self.frozen_until
                process.is_apart = True
        self.world.at(self.frozen_until, self._wake)

    def _wake(self) -> None:
        if self.executor is not None and self.frozen_until <= self.world.now:
            for ranks in self.executor.ranks.values():
                for process in ranks.processes:
                    process.is_apart = self.is_given_up

    @property
    def is_given_up(self) -> bool:
        """Whether its supervisor no longer counts on it."""
        return self.job.slurm.is_given_up(self)

    def _look_for_session(self, begun: float) -> None:
        if self.is_over:
            return
        with self.world.other_process(self.pid):
            first = read_session(self.folder)
        if self.job.spec.fails and self.job.starts == 1:
            self.ends_as = "FAILED"
            self.kill()
        elif first is None and self.world.now - begun < SESSION_PATIENCE_S:
            self.world.after(1.0, lambda: self._look_for_session(begun))
        elif first is None or first.ended:
            self.ends_as = self.ends_as if first is not None else "FAILED"
            self.kill()
        else:
            self._serve(first.session)

    def _serve(self, session: str) -> None:
        array, _, task = self.job.task.partition("_")
        variables = {
            "SLURM_ARRAY_JOB_ID": array,
            "SLURM_ARRAY_TASK_ID": task,
            "SLURMD_NODENAME": self.node,
        }
        with self._at_work():
            self.pilot = SteppedPilot(self.folder, variables, self.world)
            self.pilot.begin(session)
        self.world.after(TICK_S, self._tick)

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        slurm = self.job.slurm
        slurm.at_work = self
        try:
            with self.world.other_process(self.pid):
                yield
        finally:
            slurm.at_work = None

    def _tick(self) -> None:
        if self.is_over or self.pilot is None:
            return
        if self.frozen_until > self.world.now:
            self.world.at(self.frozen_until, self._tick)
            return
        with self._at_work():
            if self.pilot.turn():
                self.pilot.close()
                if (session := self.pilot.next) is None:
                    self.kill()
                    return
                self.pilot.begin(session)
        self.world.after(TICK_S, self._tick)

    def kill_when_awake(self) -> None:
        """Slurm kills it by a daemon on its node, which stands still with it."""
        if self.frozen_until > self.world.now:
            self.world.at(self.frozen_until, self.kill_when_awake)
        else:
            self.kill()

    def kill(self) -> None:
        """It is gone, and its workers with it."""
        if self.is_over:
            return
        self.is_over = True
        self.world.lives.pop(self.pid, None)
        if self.executor is not None:
            self.executor.is_closed = True
            for ranks in self.executor.ranks.values():
                ranks.kill()
        if self.ends_as:
            self.job.over(self.ends_as)


class SimulatedCommand:
    """In the place of :class:`orchestrator.features.slurm.command_runner.SlurmCommand`."""

    def __init__(self, slurm: Slurm, *command: str, patience_s: float = PATIENCE_S) -> None:
        self._slurm, self._command = slurm, command
        self._patience_s = patience_s
        self._answer: CommandAnswer | None = None
        self._supervisor = slurm.world.pid
        self.began = slurm.world.monotonic
        slurm.world.point(command[0])
        if slurm.world.is_supervisor_at_work:
            delay_s = min(patience_s, SILENCE_S) if slurm.is_away else ANSWER_S
            slurm.world.after(delay_s, self._run)
        else:
            self._run()

    def answer(self) -> CommandAnswer | None:
        return self._answer

    def wait(self) -> CommandAnswer:
        world = self._slurm.world
        world.point("wait for Slurm")
        if self._answer is None:
            world.pass_time(self._patience_s, until=lambda: self._answer is not None)
        assert self._answer is not None
        return self._answer

    def _run(self) -> None:
        world = self._slurm.world
        if self._command[0] == "scancel" and self._supervisor != world.pid:
            world.counts[LATE_SCANCEL] += 1
        self._answer = self._slurm.answer(self._command)


@dataclass(slots=True, kw_only=True)
class Slurm:
    """The controller, with its queue."""

    world: World
    processes: Processes
    jobs: dict[str, BatchJob] = field(default_factory=dict)
    at_work: PilotProcess | None = None
    """The pilot that runs at this moment."""
    backend: Any = None
    """Of the supervisor that lives, or that was the last one."""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(100))
    _specs: Iterator[SimulatedPilot] = field(init=False)
    _away_until: float = -1.0
    _loses_answers: bool = False
    """Whether, while it does not answer, it does what it is asked for."""
    _refuses_until: float = -1.0

    def __post_init__(self) -> None:
        self._specs = itertools.chain(
            self.world.scenario.pilots, itertools.repeat(SimulatedPilot())
        )

    @property
    def is_away(self) -> bool:
        return self.world.now < self._away_until

    @property
    def present(self) -> list[BatchJob]:
        """Those that wait or run."""
        return [job for job in self.jobs.values() if job.state in PRESENT]

    def pilots(self) -> list[PilotProcess]:
        found = (job.process for job in self.jobs.values())
        return [process for process in found if process is not None and not process.is_over]

    def is_given_up(self, process: PilotProcess) -> bool:
        if self.backend is None or process.pilot is None:
            return True
        return process.pilot.name not in self.backend._pilots._pilots

    # -- commands

    def answer(self, command: Sequence[str]) -> CommandAnswer:
        is_lost = self.is_away
        if is_lost and not (self._loses_answers and command[0] == "sbatch"):
            return self._unanswered(command)
        match command[0]:
            case "sbatch" if self.world.now < self._refuses_until:
                answer = CommandAnswer(returncode=1, output="", errors="sbatch: error: no room")
            case "sbatch":
                answer = self._submit(Path(command[-1]))
            case "squeue":
                answer = self._queue(command[1:])
            case "scancel":
                answer = self._cancel(command[1:])
            case _:
                answer = CommandAnswer(returncode=1, output="", errors="there is no accounting")
        return self._unanswered(command) if is_lost else answer

    def _unanswered(self, command: Sequence[str]) -> CommandAnswer:
        text = f"{command[0]}: error: Unable to contact slurm controller (connect failure)"
        return CommandAnswer(returncode=1, output="", errors=text)

    def _submit(self, script: Path) -> CommandAnswer:
        try:
            text = script.read_text()
        except OSError as error:
            return CommandAnswer(returncode=1, output="", errors=f"sbatch: error: {error}")
        options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", text, re.MULTILINE))
        first, _, last = options["array"].partition("-")
        number = next(self._numbers)
        for index in range(int(first), int(last or first) + 1):
            task = f"{number}_{index}"
            job = BatchJob(slurm=self, task=task, name=options["job-name"], spec=next(self._specs))
            self.jobs[task] = job
            job.wait()
        self.world.log(f"pilots {number} are submitted")
        return CommandAnswer(returncode=0, output=f"{number}\n", errors="")

    def _queue(self, options: Sequence[str]) -> CommandAnswer:
        given = dict(option.partition("=")[::2] for option in options)
        names = given["--name"].split(",")
        lines = []
        for job in self.jobs.values():
            is_forgotten = job.ended_at is not None and self.world.now - job.ended_at > FORGOTTEN_S
            if job.name in names and not is_forgotten:
                values = {"%i": job.task, "%T": job.state, "%r": "Priority", "%j": job.name}
                values["%U"] = str(os.geteuid())
                columns = given["--format"].split("|")
                lines.append("|".join(values[column] for column in columns))
        return CommandAnswer(returncode=0, output="\n".join(lines), errors="")

    def _cancel(self, arguments: Sequence[str]) -> CommandAnswer:
        given = dict(one.partition("=")[::2] for one in arguments if one.startswith("--"))
        tasks = [one for one in arguments if not one.startswith("--")]
        for job in list(self.jobs.values()):
            is_meant = job.task in tasks if tasks else job.name == given["--name"]
            if is_meant and ("--state" not in given or job.state == "PENDING"):
                job.cancel()
        return CommandAnswer(returncode=0, output="", errors="")

    # -- troubles

    def happens(self, trouble: Trouble) -> None:
        now, choice = self.world.now, trouble.choice
        match trouble.kind:
            case "slurm-away":
                self._away_until, self._loses_answers = now + trouble.for_s, bool(choice % 2)
            case "slurm-refuses":
                self._refuses_until = now + trouble.for_s
            case "pilot-sleeps":
                if pilots := self.pilots():
                    pilots[choice % len(pilots)].sleep(trouble.for_s)
            case "pilot-cancelled" | "pilot-dies":
                if present := self.present:
                    job = present[choice % len(present)]
                    if trouble.kind == "pilot-cancelled":
                        job.cancel()
                    else:
                        job.fail(comes_back=bool(choice % 2))

    def lose_power(self) -> None:
        """All nodes have failed."""
        for job in self.present:
            if job.process is not None and not job.process.is_over:
                job.process.ends_as = ""
                job.process.kill()
            job.over("NODE_FAIL")


class PilotKind(SimulatedKind):
    """The real kind ``slurm`` over simulated commands."""

    name = "slurm"
    is_elsewhere = True
    batch_jobs: Any = LeftPilots()

    def __init__(self, *, world: World, processes: Processes) -> None:
        super().__init__(world=world, processes=processes)
        self.slurm = Slurm(world=world, processes=processes)
        self._has_opened = False
        """Whether the supervisor that lives has come so far."""
        self._found_ended: str | None = None
        """The session that it has found ended."""
        scenario = world.scenario
        settings = SlurmSettings(
            array=scenario.array, cpus_per_task=scenario.cpus, mem_mib=MACHINE_MIB
        )
        self.tables: Mapping[str, Any] = {"slurm": settings}
        world.on_nodes = self.slurm.happens

    def open(self, settings: BackendSettings) -> Any:
        backend: Any = SlurmBackend(dataclasses.replace(settings, sees_neighbours=False))
        backend.executor = OuterExecutor(
            world=self.world, processes=self.processes, inner=backend.executor
        )
        self.slurm.backend = backend
        self._has_opened = True
        return backend

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        world, slurm = self.world, self.slurm

        def command(*arguments: str, patience_s: float = PATIENCE_S) -> SimulatedCommand:
            return SimulatedCommand(slurm, *arguments, patience_s=patience_s)

        replaced: Sequence[tuple[Any, str, Any]] = (
            (submission, "SlurmCommand", command),
            (left_pilots, "SlurmCommand", command),
            (accounting, "SlurmCommand", command),
            (slurm_backend, "shutil", SimulatedShutil()),
            (left_pilots, "shutil", SimulatedShutil()),
            (slurm_backend, "secrets", SimulatedSecrets()),
            (slurm_backend, "job_name", lambda name, _: name),  # without a part of the folder's
            (slurm_executor, "POLL_S", TICK_S),
            (pilot, "Outbox", lambda path: NetworkOutbox(path, world)),
            (pilot, "log", lambda text: world.log(f"pilot: {text}")),
            (pilot_attempts, "Neighbours", NoNeighbours),
            (pilot_attempts, "LocalExecutor", self._workers),
        )
        before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
        for owner, name, value in replaced:
            setattr(owner, name, value)
        try:
            yield
        finally:
            for owner, name, value in before:
                setattr(owner, name, value)

    def _workers(self) -> PilotWorkers:
        process = self.slurm.at_work
        assert process is not None
        process.executor = PilotWorkers(
            world=self.world, processes=self.processes, node=process.node
        )
        return process.executor

    def room(self, node: str) -> Room:
        return Room(cpus=self.world.scenario.cpus)

    def most_jobs(self) -> int:
        max_parallel = self.world.scenario.max_parallel
        return 1000 if max_parallel is None or self.world.counts["set"] else max_parallel

    def is_disturbed(self) -> bool:
        """Unless the supervisor has pilots, and all that it counts on serve it."""
        slurm, backend = self.slurm, self.slurm.backend
        if slurm.is_away or backend is None:
            return True
        now = self.world.now
        serving = {
            process.pilot.name
            for process in slurm.pilots()
            if process.pilot is not None
            and process.pilot.session == backend._session
            and not process.pilot.is_leaving
            and process.frozen_until <= now
            and process.job.state == "RUNNING"
        }
        return not serving or serving != set(backend._pilots._pilots)

    def supervisor_begins(self) -> None:
        self._found_ended = self._ended_session()

    def _ended_session(self) -> str | None:
        """The last session, if its file tells its pilots to end."""
        session = read_session(self.world.disk.run_dir / FOLDER)
        return None if session is None or not session.ended else session.session

    def supervisor_died(self, *, is_power_cut: bool) -> None:
        """Its pilots go on."""
        self._has_opened = False
        if is_power_cut:
            self.slurm.lose_power()

    @property
    def has_taken_over(self) -> bool:
        """A supervisor that ends before it has a session, as the ledger is locked for example, leaves
        the pilots of the one before as they are: they go on, for the next one that begins.
        """
        return self._has_opened and self.slurm.backend._is_begun

    def supervisor_ended(self) -> None:
        has_begun, self._has_opened = self.has_taken_over, False
        if has_begun and not self.world.counts["slurm-away"]:
            self._look_for_left("the supervisor has ended")

    def was_stopped(self, *, is_hurried: bool) -> None:
        """Then nobody wants them to go on: they are told to end, whether it has a session or not.

        :param is_hurried: whether it was asked again, and need not wait for those that have not
            joined its session, and are told to end by the file of the session. No more need one
            that has found them told so by a supervisor before it.
        """
        ended = self._ended_session()
        if ended is not None and (is_hurried or ended == self._found_ended):
            self._has_opened = False
        elif not self.world.counts["slurm-away"]:
            self._look_for_left("a stop was requested")

    def the_end(self) -> None:
        """Pilots end by themselves where Slurm has not answered."""
        self.world.pass_time(LAST_S)
        self._look_for_left("all is over")

    def _look_for_left(self, when: str) -> None:
        if left := [job.task for job in self.slurm.present if not job.is_lost]:
            raise Violation(f"{when}, and these pilots are left: {left}")

    def explains(self, error: Exception) -> bool:
        counts, text = self.world.counts, str(error)
        if isinstance(error, ClusterLostError):
            causes = {
                "every pilot was cancelled": counts["pilot-cancelled"] + counts[LATE_SCANCEL],
                "sbatch refuses": counts["slurm-refuses"],
                "pilots end, or hang, before they report": any(
                    one.fails for one in self.world.scenario.pilots
                ),
            }
            return any(counted for cause, counted in causes.items() if cause in text)
        return isinstance(error, UsageError) and "cannot be written" in text and counts["full"] > 0


class SimulatedShutil:
    """In the place of the module ``shutil``: Slurm's programs are there."""

    def __getattr__(self, name: str) -> Any:
        return getattr(shutil, name)

    def which(self, program: str) -> str:
        return f"/usr/bin/{program}"


class SimulatedSecrets:
    """In the place of the module ``secrets`` where sessions are named."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def token_hex(self, size: int) -> str:
        return f"{next(self._numbers):0{2 * size}x}"

    token_bytes = secrets.token_bytes


class NoNeighbours:
    """In the place of :class:`orchestrator.machine.neighbours.Neighbours`."""

    @classmethod
    def of_this_machine(cls, **_: Any) -> None:
        return None
