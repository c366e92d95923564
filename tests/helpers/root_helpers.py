"""A run directory of another user, for tests that root runs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from supervisor_helpers import Experiment, make_job

from orchestrator.core.job import Cause, Failed
from orchestrator.experiment.from_outside import run_snapshot
from orchestrator.machine.process_identity import process_start

OWNER = 12345


@pytest.fixture
def of_root() -> Iterator[int]:
    """A process that the user must not be able to have killed."""
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    ) as process:
        yield process.pid
        assert process.poll() is None
        process.kill()


@pytest.fixture
def run_dir_of_user(of_root: int) -> Iterator[Path]:
    """An idle run of a user: a job that waits, one that has failed, and one that is said to run in
    ``of_root``."""
    with tempfile.TemporaryDirectory() as folder:  # unlike pytest's, within reach of others
        yield of_user(Path(folder) / "run", of_root)


def of_user(root: Path, of_root: int) -> Path:
    root.mkdir()
    experiment = Experiment(root, [make_job(name) for name in ("waits", "failed", "runs")])
    experiment.ledger.set_state("failed", Failed(cause=Cause.ERROR, message="the knee fell off"))
    experiment.begin("runs", pid=of_root, pid_start=process_start(of_root))
    experiment.ledger.close()
    (root / "supervisor.lock").touch()
    for path in (root.parent, root, *root.rglob("*")):
        os.chown(path, OWNER, OWNER)
    return root


def states(run_dir: Path) -> dict[str, str]:
    return {row["job_id"]: row["state"] for row in run_snapshot.status(run_dir).rows}


PACKAGE_OUT_OF_REACH = """
import sys
from pathlib import Path
from orchestrator.experiment.from_outside import control
from orchestrator.experiment.processes import done_by_owner

class Unreadable:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "orchestrator":
            raise ModuleNotFoundError(f"{name} lies in the home of root")

become = done_by_owner._become

def become_without_package(owner):
    become(owner)
    sys.meta_path.insert(0, Unreadable)

done_by_owner._become = become_without_package
print(control.ask(Path(sys.argv[1]), ["runs"], "pause"))
"""
