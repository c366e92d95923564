"""What root may do in the run directory of another user."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from command_helpers import give, invoke
from root_helpers import OWNER, states

from orchestrator.core.errors import RunDirError
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.from_outside import control
from orchestrator.experiment.processes import done_by_owner

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.mark.nightly
def test_root_pauses_and_retries_jobs_of_an_idle_run_as_the_user_to_whom_it_belongs(
    run_dir_of_user: Path,
) -> None:
    assert (
        give("pause", run_dir_of_user, "waits", "runs", cwd=run_dir_of_user.parent).returncode == 0
    )
    assert states(run_dir_of_user) == {"waits": "PAUSED", "failed": "FAILED", "runs": "PAUSED"}
    assert give("retry", run_dir_of_user, cwd=run_dir_of_user.parent).returncode == 0
    assert give("resume", run_dir_of_user, "waits", cwd=run_dir_of_user.parent).returncode == 0
    assert give("stop", run_dir_of_user, "runs", cwd=run_dir_of_user.parent).returncode == 0
    assert states(run_dir_of_user) == {"waits": "PENDING", "failed": "PENDING", "runs": "CANCELLED"}
    owners = {path.stat().st_uid for path in (run_dir_of_user, *run_dir_of_user.rglob("*"))}
    assert owners == {OWNER}, "the user can go on"


def test_what_the_user_may_not_do_root_does_not_do_for_them(run_dir_of_user: Path) -> None:
    victim = run_dir_of_user.parent / "precious"
    victim.write_text("content")
    victim.chmod(0o600)
    paths = RunPaths(run_dir_of_user)
    paths.lock.unlink()
    paths.lock.symlink_to(victim)
    done = invoke("pause", run_dir_of_user, "waits", cwd=run_dir_of_user.parent)
    assert done.returncode == 2
    assert "symbolic link" in done.stderr
    paths.lock.unlink()
    paths.lock.touch(0o600)
    done = invoke("pause", run_dir_of_user, "waits", cwd=run_dir_of_user.parent)
    assert done.returncode == 2
    assert "Permission denied" in done.stderr
    assert victim.read_text() == "content"
    assert states(run_dir_of_user)["waits"] == "PENDING"


def test_root_does_nothing_itself_where_it_cannot_act_as_the_owner(run_dir_of_user: Path) -> None:
    over = threading.Event()
    another = threading.Thread(target=over.wait)
    another.start()
    try:
        with pytest.raises(
            RunDirError, match=r"process with threads cannot\. Run the command as that user"
        ):
            control.ask(run_dir_of_user, ["waits"], "pause")
    finally:
        over.set()
        another.join()
    assert states(run_dir_of_user)["waits"] == "PENDING"


def test_root_does_nothing_itself_where_it_cannot_learn_whether_it_may(
    run_dir_of_user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(done_by_owner, "status_of_new_file", full)
    with pytest.raises(RunDirError, match=r"No space left on device\. Run the command as the user"):
        done_by_owner.owner_if_not_root(run_dir_of_user)
