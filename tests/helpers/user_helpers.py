"""Users of one machine, of whom root can act as each."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.experiment.directory import run_directory
from orchestrator.experiment.processes import done_by_owner
from orchestrator.machine.cpu_holders import CpuHolders, holders_folder

ANN = 12345
BOB = 12346
NAMES = {ANN: "ann", BOB: "bob"}
ROW = {
    "state": "RUNNING",
    "cause": None,
    "env_steps": 400,
    "total_timesteps": 1000,
    "env_steps_per_s": 20.0,
}
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


class Acting:
    """A process of a user that holds CPUs for a run, and its supervisor's lock."""

    def __init__(self, uid: int, run_dir: Path, cpus: dict[int, int]) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                done_by_owner._become(uid)
                with self.held(run_dir, cpus):
                    os.write(writing, b"!")
                    signal.pause()
            finally:
                os._exit(1)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            assert pipe.read(1) == b"!"

    @contextlib.contextmanager
    def held(self, run_dir: Path, cpus: dict[int, int]) -> Iterator[None]:
        holders = CpuHolders(holders_folder(), experiment=run_dir.name, run_dir=str(run_dir))
        with run_directory.claim(run_dir):
            holders.publish(cpus)
            yield

    def __enter__(self) -> Acting:
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
