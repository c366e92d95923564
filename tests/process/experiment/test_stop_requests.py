"""A ``stop`` reaches the supervisor that it was meant for, however early it comes, and no other."""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from pathlib import Path

import pytest
from command_helpers import (
    EXAMINE_NOTHING,
    Run,
    invoke,
    odd,
    server_command,
    stubbed,
    with_worker,
    write_experiment,
)
from supervisor_helpers import Run as SimulatedRun
from supervisor_helpers import ledgers_closed, make_job  # noqa: F401 - a fixture

from orchestrator.client import control, requests
from orchestrator.core.errors import RunDirError, UsageError
from orchestrator.experiment import run_directory

EXAMINE_SLOWLY = """
import time
from pathlib import Path
from orchestrator.examination import preflight
def examine(jobs, *, watch, **_):
    Path("examining").touch()
    while True:
        watch(0, 1)
        time.sleep(0.01)
preflight.examine = examine
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The run directory of an earlier run, which is to be resumed."""
    folder = tmp_path / "run"
    folder.mkdir()
    SimulatedRun(folder, [make_job("a")]).ledger.close()
    return folder


def test_a_supervisor_that_does_not_answer_is_named_and_the_request_withdrawn(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "PATIENCE_S", 0.2)
    with run_directory.claim(root) as paths:
        holder = run_directory.holder(paths)
        with pytest.raises(RunDirError, match="has not answered") as caught:
            control.stop(root)
        assert str(holder) in str(caught.value)
        assert list(paths.requests.glob("*.json")) == []
    assert "nothing to stop" in control.stop(root)


def test_who_may_not_write_to_a_run_directory_does_not_control_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(requests.RequestFolder, "leave", refuse)
    with run_directory.claim(root), pytest.raises(UsageError, match=re.escape(str(root))):
        control.stop(root)


def test_wait_returns_when_the_supervisor_has_ended(root: Path) -> None:
    ended: list[bool] = []

    def supervise() -> None:
        with run_directory.claim(root):
            begun.set()
            time.sleep(0.5)
            ended.append(True)

    begun = threading.Event()
    supervisor = threading.Thread(target=supervise)
    supervisor.start()
    begun.wait()
    assert "has ended" in control.wait_for_end(root)
    assert ended
    supervisor.join()


def test_a_stop_is_heard_while_the_robots_are_examined(tmp_path: Path) -> None:
    write_experiment(tmp_path, odd("one", "nothing"))
    server = server_command(EXAMINE_NOTHING + EXAMINE_SLOWLY + with_worker(""))

    def typed(*arguments: str | Path) -> list[str]:
        command = stubbed(*arguments)
        command[2] = command[2].replace(
            "from orchestrator import __main__",
            f"start.COMMAND = {server!r}\nfrom orchestrator import __main__",
        )
        return command

    with Run("jobs.toml", "--run-dir", "run", cwd=tmp_path, typed=typed) as run:
        while not (tmp_path / "examining").exists():
            time.sleep(0.01)
        assert "asked to stop" in invoke("stop", "run", cwd=tmp_path).stdout
        assert run.end() == 130
    assert "nothing was launched" in run.stderr
    assert not (tmp_path / "run").exists()
