"""Jobs made of nothing, and a supervisor over a simulated executor and clock."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_launcher import NEVER, Behaviour, SimulatedLauncher, SimulatedLocal

from orchestrator.core.job import Attempt, Job, Paused, Resources, Running, State
from orchestrator.core.paths import RunPaths
from orchestrator.core.robot_hash import hash_of_copy
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.examination.preflight import JobVerdict
from orchestrator.executors.launcher import Launch
from orchestrator.ledger import Ledger
from orchestrator.ledger.rows import DeclaredJob
from orchestrator.machine.gpu import Gpu
from orchestrator.machine.slots import SlotPool, Slots
from orchestrator.machine.topology import Cpu, Machine
from orchestrator.server.declaration import job_values
from orchestrator.server.entering import Addition, addition_args
from orchestrator.server.examiner import AbortedExamination, Examination, Examined
from orchestrator.server.ledger import EventRow, ServerLedger
from orchestrator.server.leftovers import settle_left_attempts
from orchestrator.server.requests import Answer, Request
from orchestrator.server.start_policies import NoPolicies
from orchestrator.server.supervisor import Supervisor

HOLDER = "this supervisor"
"""The key of the simulated supervisor."""
RESOURCES = Resources(
    cores=1, threads=1, memory_mib=100, gpus=0, timeout_s=1e6, stall_timeout_s=1e6
)


def make_spec(job_id: str, **changes: Any) -> WorkerSpec:
    values: dict[str, Any] = {
        "job_id": job_id,
        "name": job_id,
        "seed": 0,
        "algo": "ppo",
        "learner": "auto",
        "total_timesteps": 1000,
        "n_envs": 1,
        "normalize": False,
        "checkpoint_every": 100,
        "eval_episodes": 0,
        "env": "CartPole-v1",
    }
    return WorkerSpec(**values | changes)


def make_job(
    job_id: str = "a-s0",
    *,
    max_retries: int = 0,
    spec: dict[str, Any] | None = None,
    **resources: Any,
) -> Job:
    return Job(
        job_id=job_id,
        where="jobs[0]",
        spec=make_spec(job_id, **{"ranks": resources.get("ranks", 1)} | (spec or {})),
        resources=replace(RESOURCES, **resources),
        max_retries=max_retries,
        xml_source=None,
    )


def filled(path: Path, jobs: int = 3) -> Ledger:
    """A new ledger with jobs ``j0``, ``j1``, …"""
    ledger = Ledger.create(path)
    ledger.put_jobs(
        DeclaredJob(position=index, job=make_job(f"j{index}"), robot_hash=f"hash{index}")
        for index in range(jobs)
    )
    ledger.commit()
    return ledger


def make_machine(cpus: int, gpus: int = 0) -> Machine:
    return Machine(
        cpus=tuple(Cpu(index=index, core=index, package=0, numa_node=0) for index in range(cpus)),
        quota=None,
        memory_total_mib=1 << 20,
        gpus=tuple(Gpu(index=str(index), name="fake", memory_mib=1000) for index in range(gpus)),
    )


@pytest.fixture(autouse=True)
def ledgers_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Closes the ledgers that a test leaves open."""
    opened: list[Ledger] = []
    initialise = Ledger.__init__

    def noted(self: Ledger, *values: Any) -> None:
        initialise(self, *values)
        opened.append(self)

    monkeypatch.setattr(Ledger, "__init__", noted)
    yield
    for ledger in opened:
        ledger.abandon()


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
        launcher: Any = None,
        slots: Slots | None = None,
        memory_mib: int = 1 << 20,
        now: Callable[[], float] | None = None,
        **settings: Any,
    ) -> None:
        """:param jobs: entered into a new ledger without a request."""
        self.jobs = list(jobs)
        root.mkdir(exist_ok=True)
        self.paths = RunPaths(root)
        self.paths.requests.mkdir(exist_ok=True)
        ledger = (
            ServerLedger.open(self.paths.ledger)
            if self.paths.ledger.exists()
            else ServerLedger.create(self.paths.ledger)
        )
        self.ledger = ledger
        if not ledger.jobs():
            ledger.put_jobs(
                DeclaredJob(position=position, job=job) for position, job in enumerate(self.jobs)
            )
            ledger.commit()
        self.fake = SimulatedLauncher(behave=behave)
        slots = slots or SlotPool(make_machine(cpus, gpus), max_parallel)
        self.executor = SimulatedLocal(launcher or self.fake, slots, memory_mib)
        self.examiner = FakeExaminer()
        defaults: dict[str, Any] = {"policies": NoPolicies(), "holder": HOLDER}
        self.supervisor = Supervisor(
            paths=self.paths,
            ledger=ledger,
            executor=self.executor,
            examiner=self.examiner,  # type: ignore[arg-type]
            now=now or self.fake.now,
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

    def enter(
        self, jobs: Sequence[Job], verdicts: Mapping[str, JobVerdict], **addition: Any
    ) -> Answer:
        """Declare all jobs of the experiment, whose robots are as in ``verdicts``."""
        settle_left_attempts(self.paths, self.ledger, self.supervisor.report)
        self.examiner.verdicts = dict(verdicts)
        declared = Addition(jobs=[job_values(job) for job in jobs], whole=True, **addition)
        self.supervisor.entering.begin("add", Request(verb="add", args=addition_args(declared)))
        while self.supervisor.entering.is_busy:
            self.supervisor.entering.take_examined()
        answer = self.answer("add")
        assert answer is not None
        return answer

    def begin(self, job_id: str, state: State | None = None, **facts: Any) -> None:
        """Enter a first attempt of a job without the supervisor; the ledger has it then in ``state``,
        RUNNING if none is given."""
        values: dict[str, Any] = {"number": 0, "cpus": (0,), "gpus": (), "started_at": 0.0, **facts}
        attempt = Attempt(job_id=job_id, **values)
        self.ledger.start_attempt(attempt, queue_s=0.0)
        self.ledger.set_state(job_id, state or Running(attempt=attempt))
        if isinstance(state, Paused):
            self.ledger.set_wanted(job_id, "pause")

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

    def messages(self) -> str:
        return "\n".join(event.message for event in self.ledger.events_after(0))

    def attempts(self, job_id: str) -> list[Mapping[str, Any]]:
        sql = "SELECT * FROM attempts WHERE job_id = ? ORDER BY number"
        return [dict(row) for row in self.ledger.select(sql, (job_id,))]

    @property
    def order(self) -> list[str]:
        return [launch.job_id for launch in self.fake.launches]

    def end(self) -> None:
        """Close the ledger, as the end of the process does."""
        self.ledger.close()


def behaviours(table: dict[str, Behaviour | list[Behaviour]]) -> Callable[[Launch], Behaviour]:
    """Behaviour by job; a list has one for each attempt."""

    def behave(launch: Launch) -> Behaviour:
        behaviour = table.get(launch.job_id, Behaviour())
        return behaviour[launch.number] if isinstance(behaviour, list) else behaviour

    return behave


FOREVER = Behaviour(after_s=NEVER)


def names(count: int) -> list[str]:
    return [f"j{number:04}" for number in range(count)]


def rows(root: Path) -> dict[str, dict[str, Any]]:
    return {row["job_id"]: row for row in json.loads((root / "summary.json").read_text())}


# -- robots in the directories of jobs


def staged_robot(folder: Path) -> Path:
    (folder / "meshes").mkdir(parents=True)
    (folder / "hopper.xml").write_text("<mujoco/>")
    (folder / "meshes/.leg.stl").write_text("solid")
    return folder


def with_robots(
    root: Path,
    staged: Path,
    *job_ids: str,
    **settings: Any,
) -> Run:
    """A run whose jobs have copies of the staged robot in their directories."""
    root.mkdir()
    jobs = [make_job(job_id, max_retries=1, spec={"xml": "robot/hopper.xml"}) for job_id in job_ids]
    run = Run(root, jobs, **settings)
    digest = hash_of_copy(staged, "hopper.xml")
    run.ledger.put_jobs(
        DeclaredJob(position=index, job=job, robot_hash=digest) for index, job in enumerate(jobs)
    )
    run.ledger.commit()
    for job_id in job_ids:
        run.paths.job(job_id).root.mkdir(parents=True)
        shutil.copytree(staged, run.paths.job(job_id).robot)
    run.supervisor.jobs.load(run.ledger.jobs())
    return run


def edit_robot(robot: Path) -> None:
    (robot / "hopper.xml").write_text("<mujoco model='other'/>")
