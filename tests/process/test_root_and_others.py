"""What root may do in the run directory of another user."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_helpers import finish, give
from slurm_helpers import FakeSlurm
from supervisor_helpers import Experiment, make_job

from orchestrator.core.errors import RunDirError
from orchestrator.core.job import Cause, Failed
from orchestrator.core.paths import RunPaths
from orchestrator.executors.slurm.session_file import Session, write_session
from orchestrator.experiment import control, done_by_owner
from orchestrator.machine.process_identity import process_start

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
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
def run_dir(of_root: int) -> Iterator[Path]:
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
    return {row["job_id"]: row["state"] for row in control.status(run_dir).rows}


def test_root_pauses_and_retries_jobs_of_an_idle_run_as_the_user_to_whom_it_belongs(
    run_dir: Path,
) -> None:
    assert give("pause", run_dir, "waits", "runs", cwd=run_dir.parent).returncode == 0
    assert states(run_dir) == {"waits": "PAUSED", "failed": "FAILED", "runs": "PAUSED"}
    assert give("retry", run_dir, cwd=run_dir.parent).returncode == 0
    assert give("resume", run_dir, "waits", cwd=run_dir.parent).returncode == 0
    assert give("stop", run_dir, "runs", cwd=run_dir.parent).returncode == 0
    assert states(run_dir) == {"waits": "PENDING", "failed": "PENDING", "runs": "CANCELLED"}
    owners = {path.stat().st_uid for path in (run_dir, *run_dir.rglob("*"))}
    assert owners == {OWNER}, "the user can go on"


def test_what_the_user_may_not_do_root_does_not_do_for_them(run_dir: Path) -> None:
    victim = run_dir.parent / "precious"
    victim.write_text("content")
    victim.chmod(0o600)
    paths = RunPaths(run_dir)
    paths.lock.unlink()
    paths.lock.symlink_to(victim)
    done = give("pause", run_dir, "waits", cwd=run_dir.parent)
    assert done.returncode == 2
    assert "symbolic link" in done.stderr
    paths.lock.unlink()
    paths.lock.touch(0o600)
    done = give("pause", run_dir, "waits", cwd=run_dir.parent)
    assert done.returncode == 2
    assert "Permission denied" in done.stderr
    assert victim.read_text() == "content"
    assert states(run_dir)["waits"] == "PENDING"


def test_root_does_nothing_itself_where_it_cannot_act_as_the_owner(run_dir: Path) -> None:
    over = threading.Event()
    another = threading.Thread(target=over.wait)
    another.start()
    try:
        with pytest.raises(
            RunDirError, match=r"process with threads cannot\. Run the command as that user"
        ):
            control.ask(run_dir, ["waits"], "pause")
    finally:
        over.set()
        another.join()
    assert states(run_dir)["waits"] == "PENDING"


def test_root_does_nothing_itself_where_it_cannot_learn_whether_it_may(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(done_by_owner.tempfile, "TemporaryFile", full)
    with pytest.raises(RunDirError, match=r"No space left on device\. Run the command as the user"):
        done_by_owner.owner_if_not_root(run_dir)


PACKAGE_OUT_OF_REACH = """
import sys
from pathlib import Path
from orchestrator.experiment import control, done_by_owner

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


def test_slurm_is_asked_before_root_acts_as_a_user_who_cannot_read_the_package(
    run_dir: Path, fake_slurm: FakeSlurm
) -> None:
    slurm = RunPaths(run_dir).slurm
    slurm.mkdir()
    write_session(slurm, Session(session="first", batch_jobs="tiny-12ab"))
    os.chown(slurm / "session.json", OWNER, OWNER)
    fake_slurm.enter("100_0", "tiny-12ab", uid=OWNER)
    command = [sys.executable, "-c", PACKAGE_OUT_OF_REACH, str(run_dir)]
    done = finish(command, cwd=run_dir.parent)
    assert "batch job 100_0 may still train" in done.stderr.lower()
    assert states(run_dir)["runs"] == "PENDING"
    fake_slurm.enter("100_0", "tiny-12ab", "COMPLETED")
    done = finish(command, cwd=run_dir.parent)
    assert "paused 1 job (runs)" in done.stdout, done.stderr
    assert states(run_dir)["runs"] == "PAUSED"
