"""Jobs made of nothing, and a supervisor over a fake executor whose clock is simulated."""

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
from orchestrator.executors.launcher import Launch
from orchestrator.experiment.examination.preflight import JobVerdict
from orchestrator.ledger import Ledger
from orchestrator.ledger.rows import DeclaredJob
from orchestrator.machine.gpu import Gpu
from orchestrator.machine.slots import SlotPool, Slots
from orchestrator.machine.topology import Cpu, Machine
from orchestrator.server.declaration import job_values
from orchestrator.server.entering import Addition, addition_args
from orchestrator.server.examiner import Examination, Examined
from orchestrator.server.ledger import INTERNAL, ServerLedger
from orchestrator.server.leftovers import settle_left_attempts
from orchestrator.server.requests import Answer, Request
from orchestrator.server.supervisor import Supervisor
from orchestrator.supervisor.start_policies import NoPolicies

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


class GivenVerdicts:
    """An examiner that finds what it is given: every other job is valid."""

    is_busy = False
    progress = (0, 0)

    def __init__(self) -> None:
        self.verdicts: dict[str, JobVerdict] = {}
        self._begun: list[Examination] = []

    def begin(self, examination: Examination) -> None:
        self._begun.append(examination)

    def take(self) -> list[Examined]:
        begun, self._begun = self._begun, []
        return [
            Examined(
                examination=one,
                verdicts={
                    job.job_id: self.verdicts.get(job.job_id, JobVerdict()) for job in one.jobs
                },
            )
            for one in begun
        ]

    def abort(self) -> None:
        """Nothing is examined."""

    def close(self) -> None:
        """Nothing is open."""


class Reported:
    """The events of a ledger."""

    def __init__(self, ledger: ServerLedger) -> None:
        self._ledger = ledger

    @property
    def events(self) -> list[tuple[str, str, Mapping[str, Any]]]:
        return [
            (event.kind, event.message, event.facts)
            for event in self._ledger.events_after(0)
            if event.kind not in INTERNAL
        ]

    def kinds(self, job_id: str | None = None) -> list[str]:
        return [
            kind
            for kind, _, facts in self.events
            if job_id is None or facts.get("job_id") == job_id
        ]

    def messages(self) -> str:
        return "\n".join(message for _, message, _ in self.events)


class Experiment:
    """A run directory with a ledger, and a supervisor over it whose executor and clock are
    simulated."""

    def __init__(
        self,
        root: Path,
        jobs: Iterable[Job],
        behave: Callable[[Launch], Behaviour] | None = None,
        *,
        cpus: int = 2,
        gpus: int = 0,
        max_parallel: int | None = None,
        executor: Any = None,
        slots: Slots | None = None,
        now: Callable[[], float] | None = None,
        memory_mib: int = 1 << 20,
        **settings: Any,
    ) -> None:
        self.jobs = list(jobs)
        self.paths = RunPaths(root)
        ledger = (
            ServerLedger.open(self.paths.ledger)
            if self.paths.ledger.exists()
            else ServerLedger.create(self.paths.ledger)
        )
        assert isinstance(ledger, ServerLedger)
        self.ledger = ledger
        if not ledger.jobs():
            ledger.put_jobs(
                DeclaredJob(position=index, job=job) for index, job in enumerate(self.jobs)
            )
            ledger.commit()
        self.reporter = Reported(ledger)
        self.fake = SimulatedLauncher(behave=behave or (lambda _: Behaviour()))
        slots = slots or SlotPool(make_machine(cpus, gpus), max_parallel)
        simulated = SimulatedLocal(executor or self.fake, slots, memory_mib)
        self.examiner = GivenVerdicts()
        clock = now or self.fake.now
        defaults: dict[str, Any] = {"policies": NoPolicies(), "holder": "this supervisor"}
        self.supervisor = Supervisor(
            paths=self.paths,
            ledger=ledger,
            executor=simulated,
            examiner=self.examiner,  # type: ignore[arg-type]
            now=clock,
            **defaults | settings,
        )

    def run(self) -> dict[str, str]:
        """States by job, once no more is done."""
        settle_left_attempts(self.paths, self.ledger, self.supervisor.report)
        self.supervisor.jobs.load(self.ledger.jobs())
        for entry in self.supervisor.jobs:
            self.supervisor.jobs.settle(entry)
        self.exit_code = self.supervisor.go()
        return {row.job_id: row.state.name for row in self.ledger.jobs()}

    def add(
        self, jobs: Sequence[Job], verdicts: Mapping[str, JobVerdict], **addition: Any
    ) -> Answer:
        """Declare jobs, whose robots are as in ``verdicts``. Return the answer."""
        settle_left_attempts(self.paths, self.ledger, self.supervisor.report)
        self.examiner.verdicts = dict(verdicts)
        declared = Addition(jobs=[job_values(job) for job in jobs], whole=True, **addition)
        request = Request(verb="add", args=addition_args(declared))
        self.supervisor.entering.begin("add", request)
        self.supervisor.entering.take_examined()
        answer = self.ledger.answer("add")
        assert answer is not None
        return answer

    def begin(self, job_id: str, state: State | None = None, **facts: Any) -> Attempt:
        """Enter a first attempt of a job without the supervisor; it is then in ``state``, RUNNING
        if none is given."""
        values: dict[str, Any] = {"number": 0, "cpus": (0,), "gpus": (), "started_at": 0.0, **facts}
        attempt = Attempt(job_id=job_id, **values)
        self.ledger.start_attempt(attempt, queue_s=0.0)
        self.ledger.set_state(job_id, state or Running(attempt=attempt))
        if isinstance(state, Paused):
            self.ledger.set_wanted(job_id, "pause")
        return attempt

    @property
    def order(self) -> list[str]:
        return [launch.job_id for launch in self.fake.launches]


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
) -> Experiment:
    """An experiment whose jobs have copies of the staged robot in their directories."""
    root.mkdir()
    jobs = [make_job(job_id, max_retries=1, spec={"xml": "robot/hopper.xml"}) for job_id in job_ids]
    experiment = Experiment(root, jobs, **settings)
    digest = hash_of_copy(staged, "hopper.xml")
    experiment.ledger.put_jobs(
        DeclaredJob(position=index, job=job, robot_hash=digest) for index, job in enumerate(jobs)
    )
    experiment.ledger.commit()
    for job_id in job_ids:
        experiment.paths.job(job_id).root.mkdir(parents=True)
        shutil.copytree(staged, experiment.paths.job(job_id).robot)
    return experiment


def edit_robot(robot: Path) -> None:
    (robot / "hopper.xml").write_text("<mujoco model='other'/>")
