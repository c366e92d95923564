"""A Slurm for tests: a real one, a fake one, whose commands come first on PATH, and pilots without
an experiment."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from executor_helpers import ASLEEP, PUPPET, Order, make_launch
from slurm_cluster import CPUS, SlurmCluster, slurm_at_hand, until

from orchestrator.core.exit_codes import ExitCode
from orchestrator.executors.executor import AttemptId, Exited
from orchestrator.features.slurm import handover, submission
from orchestrator.features.slurm.batch_script import batch_script
from orchestrator.features.slurm.pilot_registry import PilotRegistry
from orchestrator.features.slurm.pilot_slots import PilotSlots
from orchestrator.features.slurm.slurm_launcher import SlurmLauncher
from orchestrator.features.slurm.slurm_settings import SlurmSettings
from orchestrator.features.slurm.submission import BatchQueue
from orchestrator.machine.slots import RankSlot

OBEDIENT: list[Order] = [("when asked", int(ExitCode.INTERRUPTED)), *ASLEEP]
UNTIL_GO: list[Order] = [ASLEEP[0], ("await", "go"), ("exit", 0)]
SCRIPT = Path(__file__).with_name("fake_slurm.py")


class FakeSlurm:
    """See ``fake_slurm.py``."""

    def __init__(self, root: Path) -> None:
        self.root, self.commands = root / "state", root / "bin"
        self.root.mkdir()
        self.commands.mkdir()
        for name in ("sbatch", "squeue", "scancel", "sacct"):
            path = self.commands / name
            path.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {SCRIPT} {name} "$@"\n')
            path.chmod(0o755)

    @property
    def variables(self) -> dict[str, str]:
        return {
            "FAKE_SLURM": str(self.root),
            "PATH": f"{self.commands}{os.pathsep}{os.environ['PATH']}",
        }

    def put(self, name: str, text: str = "") -> None:
        (self.root / name).write_text(text)

    def remove(self, name: str) -> None:
        (self.root / name).unlink()

    def enter(self, task: str, name: str, state: str = "PENDING", uid: int | None = None) -> None:
        """Add a task, or change it, as if ``uid`` had submitted it; no process belongs to it.

        :param uid: None: whoever asks.
        """
        folder = self.root / task
        folder.mkdir(exist_ok=True)
        (folder / "name").write_text(name)
        (folder / "state").write_text(state)
        if uid is not None:
            (folder / "uid").write_text(str(uid))

    def calls(self, name: str) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            lines = (
                line.split(" ", 1) for line in (self.root / "calls.log").read_text().splitlines()
            )
            return [arguments for _, arguments in lines if arguments.split()[0] == name]
        return []

    def states(self) -> dict[str, str]:
        return {path.parent.name: path.read_text() for path in sorted(self.root.glob("*_*/state"))}

    def pids(self) -> list[int]:
        """Of the pilots that run."""
        running = [task for task, state in self.states().items() if state == "RUNNING"]
        return [int((self.root / task / "pid").read_text()) for task in running]

    def scancel(self, *tasks: str) -> None:
        """As somebody else than the program."""
        os.spawnve(
            os.P_WAIT,
            str(self.commands / "scancel"),
            ["scancel", *tasks],
            {**os.environ, **self.variables},
        )

    def end(self) -> None:
        """Kill every pilot that is left, and wait until it has ended."""
        (self.root / "linger").unlink(missing_ok=True)
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for path in self.root.glob("*_*/state"):
            if path.read_text() == "PENDING":
                path.write_text("CANCELLED")
        until(lambda: "RUNNING" not in self.states().values())


@contextlib.contextmanager
def fake_slurm_at(root: Path) -> Iterator[FakeSlurm]:
    slurm = FakeSlurm(root)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in slurm.variables.items():
            patch.setenv(name, value)
        try:
            yield slurm
        finally:
            slurm.end()


@pytest.fixture
def fake_slurm(tmp_path: Path) -> Iterator[FakeSlurm]:
    """Slurm's commands of this process and its children are fake."""
    root = tmp_path / "fake-slurm"
    root.mkdir()
    with fake_slurm_at(root) as slurm:
        yield slurm


def registry(run_dir: Path, settings: SlurmSettings, session: str = "first") -> PilotRegistry:
    """Pilots of a session in ``run_dir`` that has begun."""
    folder = run_dir / "slurm"
    queue = BatchQueue(
        name="tests",
        folder=folder,
        pilots=settings.array,
        script=lambda pilots: batch_script(settings, name="tests", folder=folder, pilots=pilots),
    )
    handover.begin_session(folder, session, queue)
    return PilotRegistry(
        folder=folder / session, queue=queue, slots=PilotSlots(), cores=settings.cpus_per_task or 1
    )


def joined(pilots: PilotRegistry) -> PilotRegistry:
    """The same when all of them have joined."""

    def are_there() -> bool:
        pilots.slots.acquire(10**6)  # there are jobs that need room
        pilots.slots.unfit = ""
        pilots.update()
        return len(pilots.slots.nodes) == pilots.queue.wanted

    until(are_there)
    return pilots


class Scene:
    """An executor over the pilots of one session, and what it reports."""

    def __init__(self, root: Path, settings: SlurmSettings, session: str = "first") -> None:
        self.root = root
        self.pilots = registry(root / "run", settings, session)
        self.executor = SlurmLauncher(pilots=self.pilots, worker_command=PUPPET)
        self.told: list[tuple[str, str]] = []
        self.pilots.queue.report_to(lambda kind, text: self.told.append((kind, text)))

    def start(
        self,
        job_id: str,
        orders: list[Order] = OBEDIENT,
        *,
        node: str = "",
        gpus: float = 0,
        number: int = 0,
    ) -> AttemptId:
        """On the first pilot of a node."""
        pilots = sorted(
            (one.name, one.hello.node) for one in self.pilots.present if one.hello is not None
        )
        name = next(name for name, of_node in pilots if node in of_node)
        launch = make_launch(self.root, job_id, orders, number=number)
        return self.executor.submit(
            dataclasses.replace(launch, cpus=(), rank_slots=(RankSlot(node=name, gpus=gpus),))
        )

    def task_of(self, handle: AttemptId) -> str:
        return next(pilot.task for pilot in self.pilots.present if handle in pilot.attempts)

    def has_handed_back(self, handle: AttemptId) -> bool:
        """Whether the pilot has said so, of an attempt of a supervisor that is served no longer."""
        return any(
            isinstance(event, Exited) and event.lost
            for event in self.pilots.receive()
            if event.attempt == handle
        )

    def texts(self, kind: str = "") -> str:
        return "\n".join(text for one, text in self.told if kind in one)

    def need_room(self) -> None:
        self.pilots.slots.acquire(10**6)
        self.pilots.slots.unfit = ""

    def turn(self) -> str:
        """A turn of a supervisor with jobs that wait; what it was told so far."""
        self.need_room()
        self.executor.poll(0.1)
        return self.texts()


@pytest.fixture(scope="module")
def _lasting_pilot() -> Iterator[Path]:
    """The run directory of a pilot that outlives sessions."""
    root = Path(tempfile.mkdtemp(prefix="slurm-"))
    with fake_slurm_at(root):
        yield root / "run"
    shutil.rmtree(root)


@pytest.fixture
def slurm_pilots(_lasting_pilot: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PilotRegistry]:
    """One pilot with four cores. It was handed over from the test before, and stays when an
    executor is closed."""
    pilots = joined(registry(_lasting_pilot, SlurmSettings(cpus_per_task=4), secrets.token_hex(4)))
    monkeypatch.setattr(pilots, "close", lambda: None)
    yield pilots
    pilots.queue.wait()


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[SlurmCluster]:
    with contextlib.ExitStack() as stack:
        try:
            cluster = stack.enter_context(slurm_at_hand())
        except FileNotFoundError as error:
            pytest.skip(str(error))
        yield cluster


@pytest.fixture
def slurm_scenes(
    slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Scene]]:
    """Scenes in the real Slurm, which is asked more often. They are closed, and leave two idle
    nodes."""
    monkeypatch.setattr(submission, "ASK_EVERY_S", 2.0)
    monkeypatch.setattr(submission, "RETRY_S", 4.0)
    made: list[Scene] = []
    yield made
    for scene in made:
        scene.executor.close()
    until(lambda: not slurm_cluster.queue())
    until(lambda: slurm_cluster.node_states() == {"idle"})


@pytest.fixture
def slurm_scene(slurm_scenes: list[Scene], tmp_path: Path) -> Scene:
    """With a pilot on each node."""
    slurm_scenes.append(Scene(tmp_path, SlurmSettings(array=2, cpus_per_task=CPUS, mem_mib=1000)))
    joined(slurm_scenes[0].pilots)
    return slurm_scenes[0]
