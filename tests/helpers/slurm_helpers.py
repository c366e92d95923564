"""A Slurm for tests: the fake one, whose commands come first on PATH, and pilots in it without an experiment."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.executors.slurm import handover
from orchestrator.executors.slurm.batch_queue import BatchQueue
from orchestrator.executors.slurm.batch_script import batch_script
from orchestrator.executors.slurm.pilot_registry import PilotRegistry
from orchestrator.executors.slurm.pilot_slots import PilotSlots
from orchestrator.jobfile.slurm_rules import SlurmSettings

PATIENCE_S = 60.0
"""For an event that is certain to come."""
SCRIPT = Path(__file__).with_name("fake_slurm.py")


class FakeSlurm:
    """See ``fake_slurm.py``."""

    def __init__(self, root: Path) -> None:
        self.root, self.commands = root / "state", root / "bin"
        self.root.mkdir()
        self.commands.mkdir()
        for name in ("sbatch", "squeue", "scancel"):
            path = self.commands / name
            path.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {SCRIPT} {name} "$@"\n')
            path.chmod(0o755)

    @property
    def variables(self) -> dict[str, str]:
        return {"FAKE_SLURM": str(self.root), "PATH": f"{self.commands}{os.pathsep}{os.environ['PATH']}"}

    def put(self, name: str, text: str = "") -> None:
        (self.root / name).write_text(text)

    def remove(self, name: str) -> None:
        (self.root / name).unlink()

    def calls(self, name: str) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            lines = (line.split(" ", 1) for line in (self.root / "calls.log").read_text().splitlines())
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
        os.spawnve(os.P_WAIT, str(self.commands / "scancel"), ["scancel", *tasks], {**os.environ, **self.variables})

    def end(self) -> None:
        """Kill every pilot that is left, and wait until it has ended."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for path in self.root.glob("*_*/state"):
            if path.read_text() == "PENDING":
                path.write_text("CANCELLED")
        until(lambda: "RUNNING" not in self.states().values())


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "in vain"
        time.sleep(0.02)


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
    return PilotRegistry(folder=folder / session, queue=queue, slots=PilotSlots(), cores=settings.cpus_per_task or 1)


def joined(pilots: PilotRegistry) -> PilotRegistry:
    """The same when all of them have joined."""

    def are_there() -> bool:
        pilots.slots.acquire(10**6)  # somebody needs room
        pilots.slots.unfit = ""
        pilots.update()
        return len(pilots.slots.nodes) == pilots.queue.wanted

    until(are_there)
    return pilots


@pytest.fixture(scope="module")
def _lasting_pilot() -> Iterator[Path]:
    """The run directory of a pilot that outlives sessions."""
    root = Path(tempfile.mkdtemp(prefix="slurm-"))
    with fake_slurm_at(root):
        yield root / "run"
    shutil.rmtree(root)


@pytest.fixture
def slurm_pilots(_lasting_pilot: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PilotRegistry]:
    """One pilot with four cores. It was handed over from the test before, and stays when an executor is closed."""
    pilots = joined(registry(_lasting_pilot, SlurmSettings(cpus_per_task=4), secrets.token_hex(4)))
    monkeypatch.setattr(pilots, "close", lambda: None)
    yield pilots
    pilots.queue.wait()
