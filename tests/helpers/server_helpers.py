"""A supervisor over a simulated executor and clock, and supervisors as real processes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fake_launcher import Behaviour, SimulatedLauncher, SimulatedLocal
from little_worker import weights_after
from supervisor_helpers import make_job, make_machine

from orchestrator.core.job import Job
from orchestrator.core.paths import RunPaths
from orchestrator.executors.launcher import Launch
from orchestrator.experiment.directory import run_directory
from orchestrator.experiment.examination.preflight import JobVerdict
from orchestrator.ledger.rows import DeclaredJob
from orchestrator.machine.slots import SlotPool
from orchestrator.server.declaration import job_values
from orchestrator.server.entering import Addition, addition_args
from orchestrator.server.examiner import AbortedExamination, Examination, Examined
from orchestrator.server.ledger import EventRow, ServerLedger
from orchestrator.server.leftovers import settle_left_attempts
from orchestrator.server.requests import Answer, Request, RequestFolder
from orchestrator.server.settings import ReadyLine, RunSettings
from orchestrator.server.supervisor import Supervisor
from orchestrator.supervisor.start_policies import NoPolicies

HOLDER = "this supervisor"


class FakeExaminer:
    """Finds every job valid, but for those that ``verdicts`` tells otherwise of."""

    def __init__(self) -> None:
        self.verdicts: dict[str, JobVerdict] = {}
        self.error: Exception | None = None
        self.takes_turns = 1
        """Turns of the loop that an examination takes."""
        self.progress = (0, 0)
        self._waiting: list[tuple[Examination, int]] = []
        self._is_aborted = False

    @property
    def is_busy(self) -> bool:
        return bool(self._waiting)

    def begin(self, examination: Examination) -> None:
        examination.staging.mkdir(parents=True, exist_ok=True)
        self._waiting.append((examination, self.takes_turns))

    def take(self) -> list[Examined]:
        self._waiting = [(examination, turns - 1) for examination, turns in self._waiting]
        done = [one for one, turns in self._waiting if turns < 0 or self._is_aborted]
        self._waiting = [entry for entry in self._waiting if entry[0] not in done]
        return [self._examined(one) for one in done]

    def _examined(self, examination: Examination) -> Examined:
        error = AbortedExamination() if self._is_aborted else self.error
        verdicts = {
            job.job_id: self.verdicts.get(job.job_id, JobVerdict()) for job in examination.jobs
        }
        return Examined(examination=examination, verdicts=verdicts, error=error)

    def abort(self) -> None:
        self._is_aborted = True

    def close(self) -> None:
        """Nothing is open."""


class Run:
    """A run directory with a supervisor whose executor, clock and examinations are simulated."""

    def __init__(
        self,
        root: Path,
        jobs: Iterable[Job] = (),
        behave: Callable[[Launch], Behaviour] = lambda _: Behaviour(),
        *,
        cpus: int = 2,
        gpus: int = 0,
        max_parallel: int | None = None,
        **settings: Any,
    ) -> None:
        """:param jobs: entered into the ledger without a request."""
        root.mkdir(exist_ok=True)
        self.paths = RunPaths(root)
        self.paths.requests.mkdir(exist_ok=True)
        ledger = (
            ServerLedger.open(self.paths.ledger)
            if self.paths.ledger.exists()
            else ServerLedger.create(self.paths.ledger)
        )
        assert isinstance(ledger, ServerLedger)
        self.ledger = ledger
        ledger.put_jobs(
            DeclaredJob(position=position, job=job) for position, job in enumerate(jobs)
        )
        ledger.commit()
        self.fake = SimulatedLauncher(behave=behave)
        slots = SlotPool(make_machine(cpus, gpus), max_parallel)
        self.executor = SimulatedLocal(self.fake, slots)
        self.examiner = FakeExaminer()
        defaults: dict[str, Any] = {"policies": NoPolicies(), "holder": HOLDER}
        self.supervisor = Supervisor(
            paths=self.paths,
            ledger=ledger,
            executor=self.executor,
            examiner=self.examiner,  # type: ignore[arg-type]
            now=self.fake.now,
            **defaults | settings,
        )
        settle_left_attempts(self.paths, ledger, self.supervisor.report)
        if not self.supervisor.awaits_jobs:
            self.supervisor.jobs.load(ledger.jobs())
            for entry in self.supervisor.jobs:
                self.supervisor.jobs.settle(entry)

    def go(self) -> dict[str, str]:
        """Supervise to the end. Return the states of the jobs."""
        self.exit_code = self.supervisor.go()
        return self.states()

    def states(self) -> dict[str, str]:
        """As the ledger has them."""
        return {row.job_id: row.state.name for row in self.ledger.jobs()}

    def at(self, seconds: float, action: Callable[[], object]) -> None:
        """Do something at a simulated time."""
        self.fake.agenda.append((seconds, action))

    def ask(
        self,
        verb: Any,
        *jobs: str,
        supervisor: str | None = None,
        host: str | None = None,
        **args: Any,
    ) -> str:
        """Leave a request. Return its id."""
        request = Request(verb=verb, jobs=jobs, args=args, supervisor=supervisor)
        id_ = self.supervisor.request_folder.leave(request)
        if host is not None:
            path = self.paths.requests / f"{id_}.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | {"host": host}))
        return id_

    def add(self, *jobs: Job, supervisor: str | None = HOLDER, **values: Any) -> str:
        """Leave a request to add jobs. Return its id."""
        addition = Addition(jobs=[job_values(job) for job in jobs], **values)
        return self.ask("add", supervisor=supervisor, **addition_args(addition))

    def answer(self, id_: str) -> Answer | None:
        return self.ledger.answer(id_)

    def error(self, id_: str) -> str:
        """Why a request was refused; empty if it was not."""
        answer = self.answer(id_)
        assert answer is not None, "it was not answered"
        return answer.error

    def events(self, *kinds: str) -> list[EventRow]:
        return [event for event in self.ledger.events_after(0) if event.kind in kinds]

    def kinds(self, job_id: str) -> list[str]:
        return [event.kind for event in self.ledger.events_after(0) if event.job_id == job_id]

    def attempts(self, job_id: str) -> list[Mapping[str, Any]]:
        sql = "SELECT * FROM attempts WHERE job_id = ? ORDER BY number"
        return [dict(row) for row in self.ledger.select(sql, (job_id,))]

    @property
    def order(self) -> list[str]:
        return [launch.job_id for launch in self.fake.launches]

    def end(self) -> None:
        """Close the ledger, as the end of the process does."""
        self.ledger.close()


# -- real processes

HELPERS = Path(__file__).parent
PATIENCE_S = 60.0
"""Only reached if something is wrong."""


def little_job(
    name: str, total_timesteps: int = 200, *, sleep_s: float = 0.01, **values: Any
) -> Job:
    """A job of ``little_worker.py``."""
    spec = {"total_timesteps": total_timesteps, "hyperparameters": {"sleep_s": sleep_s}}
    return make_job(name, spec=spec | values.pop("spec", {}), start="exec", **values)


def enter(root: Path, *jobs: Job) -> RunPaths:
    """Make a run directory with these jobs."""
    root.mkdir()
    paths = RunPaths(root)
    ledger = ServerLedger.create(paths.ledger)
    ledger.put_jobs(DeclaredJob(position=place, job=job) for place, job in enumerate(jobs))
    ledger.close()
    paths.requests.mkdir()
    return paths


def until(condition: Callable[[], object], what: str = "") -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.01)


@dataclass(slots=True, kw_only=True)
class Server:
    """The process of a supervisor."""

    paths: RunPaths
    popen: subprocess.Popen[bytes]
    ready: ReadyLine

    def ask(self, verb: Any, *jobs: str, **args: Any) -> str:
        folder = RequestFolder(self.paths.requests)
        return folder.leave(Request(verb=verb, jobs=jobs, args=args, supervisor=self.ready.holder))

    def until_running(self, count: int) -> list[int]:
        """Return the pids of workers when so many have trained for a while."""
        until(lambda: len(trained(self.paths)) >= count, f"{count} jobs run")
        return workers(self.paths)

    def wait(self) -> int:
        return self.popen.wait(PATIENCE_S)


def settings_line(root: Path, **settings: Any) -> bytes:
    values: dict[str, Any] = {"client_pid": os.getpid(), "is_listed": False, "grace_s": 5.0}
    if "run_dir" in {field.name for field in dataclasses.fields(RunSettings)}:
        values["run_dir"] = str(root)
    return RunSettings(**values | settings).to_line()


def server_command(root: Path) -> list[str]:
    return [sys.executable, str(HELPERS / "little_server.py"), str(root)]


@contextlib.contextmanager
def serving(
    root: Path, *, environment: Mapping[str, str] | None = None, **settings: Any
) -> Iterator[Server]:
    """A supervisor of the jobs in the ledger of ``root``; it ends with the block."""
    popen = subprocess.Popen(
        server_command(root),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(HELPERS.parents[1]), **(environment or {})},
        start_new_session=True,
    )
    assert popen.stdin is not None
    assert popen.stdout is not None
    try:
        with contextlib.suppress(BrokenPipeError):
            popen.stdin.write(settings_line(root, **settings))
            popen.stdin.flush()
        line = popen.stdout.readline()
        ready = ReadyLine.from_line(line) if line else ReadyLine()
        server = Server(paths=RunPaths(root), popen=popen, ready=ready)
        if ready.holder:
            addition = addition_args(Addition(as_it_is=True))
            with contextlib.suppress(OSError):
                server.ask("add", **addition)
        yield server
    finally:
        popen.kill()
        popen.wait()
        for stream in (popen.stdin, popen.stdout):
            with contextlib.suppress(BrokenPipeError):
                stream.close()


@contextlib.contextmanager
def reading(paths: RunPaths) -> Iterator[ServerLedger]:
    ledger = ServerLedger.open(paths.ledger, read_only=True, is_sound=True)
    assert isinstance(ledger, ServerLedger)
    try:
        yield ledger
    finally:
        ledger.abandon()


def states_in(paths: RunPaths) -> dict[str, str]:
    with reading(paths) as ledger:
        return {row.job_id: row.state.name for row in ledger.jobs()}


def trained(paths: RunPaths) -> list[str]:
    """Jobs that have checkpoints."""
    return [path.name for path in paths.jobs.glob("*") if list(path.glob("checkpoints/*.pt"))]


def workers(paths: RunPaths) -> list[int]:
    """Pids of the workers of RUNNING jobs."""
    sql = (
        "SELECT pid FROM attempts JOIN jobs USING (job_id)"
        " WHERE state = 'RUNNING' AND ended_at IS NULL AND pid IS NOT NULL"
    )
    with reading(paths) as ledger:
        return [pid for (pid,) in ledger.select(sql)]


def weights(paths: RunPaths) -> dict[str, str]:
    return {path.parent.name: path.read_text() for path in paths.jobs.glob("*/model.zip")}


def family_of(pid: int) -> list[int]:
    """A process with all of its descendants."""
    import psutil

    process = psutil.Process(pid)
    return [pid, *(child.pid for child in process.children(recursive=True))]


CLIENT = """
import os, subprocess, sys, time
command, line, forks = sys.argv[1].split("|"), sys.argv[2], sys.argv[3]
popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
popen.stdin.write(line.replace("CLIENT", str(os.getpid())).encode())
popen.stdin.flush()
print(popen.stdout.readline().decode(), end="", flush=True)
if forks == "forks" and os.fork() == 0:  # it holds the pipes
    time.sleep(600)
time.sleep(600)
"""


def assert_finished(paths: RunPaths, total_timesteps: int = 200) -> None:
    """All jobs have succeeded, with the weights of trainings that nobody has disturbed."""
    states = states_in(paths)
    assert set(states.values()) == {"SUCCEEDED"}
    assert set(weights(paths).values()) == {weights_after(total_timesteps)}
    assert weights(paths).keys() == states.keys()


@contextlib.contextmanager
def client(root: Path, *, forks: bool, **settings: Any) -> Iterator[subprocess.Popen[str]]:
    """A client that has started a supervisor."""
    own = f'"client_pid": {os.getpid()}'
    line = settings_line(root, **settings).decode().replace(own, '"client_pid": CLIENT')
    command = "|".join(server_command(root))
    arguments = [command, line, "forks" if forks else ""]
    environment = {**os.environ, "PYTHONPATH": str(HELPERS.parents[1])}
    started = subprocess.Popen(
        [sys.executable, "-c", CLIENT, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    assert started.stdout is not None
    try:
        started.stdout.readline()
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()
        started.stdout.close()


def go_on(paths: RunPaths) -> None:
    """Ask the supervisor that runs to go on with the jobs of the ledger."""
    holder = run_directory.holder(paths)
    assert holder is not None
    server = Server(paths=paths, popen=None, ready=ReadyLine(holder=holder.key))  # type: ignore[arg-type]
    server.ask("add", **addition_args(Addition(as_it_is=True)))


def finish(root: Path) -> RunPaths:
    """Let a supervisor bring the jobs of a run directory to their end."""
    with serving(root) as server:
        assert server.wait() == 0
    return RunPaths(root)
