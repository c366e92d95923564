"""Which run directories are refused, because others may have put something into them."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from supervisor_helpers import Run, make_job

from orchestrator.client import control, run_snapshot, worker_logs
from orchestrator.core.errors import LedgerError, RunDirError
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.experiment import run_directory
from orchestrator.ledger import Ledger
from orchestrator.report import experiment as report_experiment

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def refusal(root: Path) -> str:
    """Why it is refused: by a run, and by ``--fresh``, which would rename it."""
    with pytest.raises(RunDirError) as fresh, run_directory.put_aside(root):
        pass
    with pytest.raises(RunDirError) as claimed, run_directory.claim(root):
        pass
    assert str(fresh.value) == str(claimed.value)
    return str(claimed.value)


@AS_ROOT
@pytest.mark.parametrize("is_empty", [True, False])
def test_a_directory_of_another_user_is_refused(is_empty: bool, tmp_path: Path) -> None:
    if not is_empty:
        (tmp_path / "supervisor.lock").write_text("")
    os.chown(tmp_path, 12345, -1)
    message = refusal(tmp_path)
    assert "pickles" in message
    assert list(tmp_path.iterdir()) == ([] if is_empty else [tmp_path / "supervisor.lock"])


@AS_ROOT
def test_root_changes_no_job_in_a_directory_of_another_user(tmp_path: Path) -> None:
    Run(tmp_path, [make_job("waits")]).ledger.close()
    (tmp_path / "supervisor.lock").touch()
    os.chown(tmp_path, 12345, -1)
    with pytest.raises(RunDirError, match="belongs to another user"):
        control.move_jobs(tmp_path, ["waits"], "pause")
    (row,) = run_snapshot.status(tmp_path).rows
    assert row["state"] == "PENDING"


def test_a_directory_that_everybody_may_write_into_is_refused(tmp_path: Path) -> None:
    (tmp_path / "supervisor.lock").write_text("")
    tmp_path.chmod(0o777)
    assert f"chmod o-w {tmp_path}" in refusal(tmp_path)
    tmp_path.chmod(0o775)  # a group's folder, as umask 002 makes them
    with run_directory.claim(tmp_path):
        pass


def test_a_directory_that_is_refused_can_be_read_and_no_pickle_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = Run(tmp_path, [make_job("a")])
    experiment.go()
    experiment.ledger.close()
    directory = experiment.paths.job("a")
    directory.checkpoints.mkdir()
    for file in (directory.checkpoints / "checkpoint-000000000128.pt", directory.vecnormalize):
        file.write_bytes(pickle.dumps("anything"))
    directory.attempt(0).worker_log.write_text("hello\n")
    tmp_path.chmod(0o777)
    if os.geteuid() == 0:
        os.chown(tmp_path, 12345, -1)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a pickle was loaded")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    assert [row["state"] for row in run_snapshot.status(tmp_path).rows] == ["SUCCEEDED"]
    assert [job["job_id"] for job in report_experiment.read(tmp_path)["jobs"]] == ["a"]
    log = worker_logs.log(tmp_path, "a", follow=False, lines=0, attempt=None)
    assert "".join(log) == "hello\n"


def test_a_new_run_directory_is_not_for_everybody_whatever_the_umask(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        with run_directory.claim(tmp_path / "run") as paths:
            paths.jobs.mkdir()
            assert paths.root.stat().st_mode & 0o777 == 0o775
    finally:
        os.umask(umask)
    with run_directory.claim(tmp_path / "run"):
        pass


def test_a_lock_that_is_a_link_is_refused_and_its_target_kept(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("content")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/supervisor.lock").symlink_to(tmp_path / "precious")
    with (
        pytest.raises(RunDirError),
        run_directory.claim(tmp_path / "run"),
    ):
        pass
    assert (tmp_path / "precious").read_text() == "content"


def test_a_ledger_that_is_a_link_is_refused(tmp_path: Path) -> None:
    Ledger.create(tmp_path / "other.sqlite3").close()
    (tmp_path / "ledger.sqlite3").symlink_to("other.sqlite3")
    with pytest.raises(LedgerError):
        Ledger.open(tmp_path / "ledger.sqlite3")


def test_no_file_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("content")
    (tmp_path / "summary.json").symlink_to("precious")
    write_whole(tmp_path / "summary.json", "new")
    assert ((tmp_path / "precious").read_text(), (tmp_path / "summary.json").is_symlink()) == (
        "content",
        False,
    )
    (tmp_path / f".spec.json.{os.getpid()}.tmp").symlink_to("precious")
    with pytest.raises(OSError, match="symbolic links"):
        write_whole(tmp_path / "spec.json", "new")
    assert (tmp_path / "precious").read_text() == "content"


def test_a_run_directory_has_one_supervisor(tmp_path: Path) -> None:
    with run_directory.claim(tmp_path), pytest.raises(RunDirError), run_directory.claim(tmp_path):
        pass
