"""Jobs made of nothing, and a supervisor over a fake executor whose clock is simulated."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.job import Attempt, Job, Resources, Running, State
from orchestrator.core.paths import RunPaths
from orchestrator.core.robot_hash import hash_of_copy
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.executors.base import Executor, Launch
from orchestrator.executors.fake import NEVER, Behaviour, FakeExecutor
from orchestrator.ledger import Ledger, Request
from orchestrator.ledger.rows import DeclaredJob
from orchestrator.machine.gpu import Gpu
from orchestrator.machine.slots import SlotPool, Slots
from orchestrator.machine.topology import Cpu, Machine
from orchestrator.supervisor.events import View
from orchestrator.supervisor.supervisor import Supervisor

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


class RecordingReporter:
    """A reporter that records events, and may call something at every turn."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, dict[str, Any]]] = []
        self.each_turn: Callable[[View], None] = lambda view: None

    def event(self, kind: str, message: str, **facts: Any) -> None:
        self.events.append((kind, message, facts))

    def tick(self, view: Callable[[], View]) -> None:
        self.each_turn(view())

    def kinds(self, job_id: str | None = None) -> list[str]:
        return [
            kind
            for kind, _, facts in self.events
            if job_id is None or facts.get("job_id") == job_id
        ]

    def messages(self) -> str:
        return "\n".join(message for _, message, _ in self.events)


class Experiment:
    """A run directory with a ledger, a supervisor over it, and its reporter."""

    def __init__(
        self,
        root: Path,
        jobs: Iterable[Job],
        behave: Callable[[Launch], Behaviour] | None = None,
        *,
        cpus: int = 2,
        gpus: int = 0,
        max_parallel: int | None = None,
        executor: Executor | None = None,
        slots: Slots | None = None,
        **settings: Any,
    ) -> None:
        self.jobs = list(jobs)
        self.paths = RunPaths(root)
        self.reporter = RecordingReporter()
        self.fake = FakeExecutor(behave=behave or (lambda launch: Behaviour()))
        if self.paths.ledger.exists():
            self.ledger = Ledger.open(self.paths.ledger)
        else:
            self.ledger = Ledger.create(self.paths.ledger)
            self.ledger.put_jobs(
                DeclaredJob(position=index, job=job) for index, job in enumerate(self.jobs)
            )
            self.ledger.commit()
        settings = {"exit_record_expected": False} | settings
        if executor is None:
            settings = {"now": self.fake.now, "available_memory_mib": lambda: 1 << 20} | settings
        self.supervisor = Supervisor(
            paths=self.paths,
            rows=self.ledger.jobs(),
            ledger=self.ledger,
            executor=executor or self.fake,
            slots=slots or SlotPool(make_machine(cpus, gpus), max_parallel),
            reporter=self.reporter,
            **settings,
        )

    def run(self) -> dict[str, str]:
        """States by job, once no more is done."""
        return {job_id: state.name for job_id, state in self.supervisor.run().items()}

    def begin(self, job_id: str, state: State | None = None, **facts: Any) -> Attempt:
        """Enter a first attempt of a job without the supervisor; it is then in ``state``, RUNNING
        if none is given."""
        values: dict[str, Any] = {"number": 0, "cpus": (0,), "gpus": (), "started_at": 0.0, **facts}
        attempt = Attempt(job_id=job_id, **values)
        self.ledger.start_attempt(attempt, queue_s=0.0)
        self.ledger.set_state(job_id, state or Running(attempt=attempt))
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


def ask(root: Path, *requests: tuple[Any, str | None]) -> None:
    """As ``stop`` and ``retry`` do, over a connection of their own."""
    other = Ledger.open(root / "ledger.sqlite3")
    other.add_requests([Request(verb=verb, job_id=job_id) for verb, job_id in requests])
    other.abandon()


def once(condition: Callable[[View], bool], action: Callable[[], None]) -> Callable[[View], None]:
    """At the first turn at which ``condition`` holds."""
    done: list[bool] = []

    def each_turn(view: View) -> None:
        if not done and condition(view):
            done.append(True)
            action()

    return each_turn


def rows(root: Path) -> dict[str, dict[str, Any]]:
    return {row["job_id"]: row for row in json.loads((root / "summary.json").read_text())}


# -- robots in the directories of jobs


def staged_robot(folder: Path) -> Path:
    (folder / "meshes").mkdir(parents=True)
    (folder / "hopper.xml").write_text("<mujoco/>")
    (folder / "meshes/.leg.stl").write_text("solid")
    return folder


def with_robots(root: Path, staged: Path, *job_ids: str, **settings: Any) -> Experiment:
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
    experiment.ledger.close()
    return Experiment(root, jobs, **settings)


def edit_robot(robot: Path) -> None:
    (robot / "hopper.xml").write_text("<mujoco model='other'/>")
