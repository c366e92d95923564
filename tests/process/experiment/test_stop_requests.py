"""A ``stop`` reaches the supervisor that it was meant for, however early it comes, and no other."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from command_helpers import odd, write_experiment
from supervisor_helpers import Experiment, ledgers_closed, make_job  # noqa: F401 - a fixture

from orchestrator import jobfile
from orchestrator.core.paths import RunPaths
from orchestrator.experiment import session
from orchestrator.experiment.directory import run_directory
from orchestrator.experiment.examination import preflight
from orchestrator.experiment.from_outside import control
from orchestrator.experiment.planning import run_plan
from orchestrator.experiment.resuming.recovery import apply_late_requests
from orchestrator.ledger import Ledger
from orchestrator.supervisor.events import SilentReporter


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The run directory of an earlier run, which is to be resumed."""
    folder = tmp_path / "run"
    folder.mkdir()
    Experiment(folder, [make_job("a")]).ledger.close()
    return folder


def key(paths: RunPaths) -> str:
    holder = run_directory.holder(paths)
    assert holder is not None
    return holder.key


def test_a_stop_before_the_ledger_is_read_is_kept_for_who_holds_the_lock(root: Path) -> None:
    with run_directory.claim(root) as paths:
        assert "to stop" in control.stop(root, [])
        assert apply_late_requests(Ledger.open(paths.ledger), key(paths))


def test_a_stop_for_an_earlier_supervisor_does_not_stop_the_next_one(root: Path) -> None:
    with run_directory.claim(root) as paths:
        control.stop(root, [])
        earlier = key(paths)
    with run_directory.claim(root) as paths:  # the same process holds it again, in the same second
        assert key(paths) != earlier
        assert not apply_late_requests(Ledger.open(paths.ledger), key(paths))


def test_a_stop_now_says_that_it_kills_and_asks_twice(root: Path) -> None:
    with run_directory.claim(root) as paths:
        assert "kill" in control.stop(root, [], now=True)
        assert [request.verb for request in Ledger.open(paths.ledger).take_requests()] == [
            "stop",
            "stop",
        ]


def test_requests_reach_a_supervisor_that_has_its_ledger_locked_while_it_enters_its_jobs(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.ledger.database_file.BUSY_S", 0.05)
    with (
        run_directory.claim(root) as paths,
        contextlib.closing(sqlite3.connect(paths.ledger, isolation_level=None)) as entering,
    ):
        entering.execute("BEGIN IMMEDIATE")
        control.ask(root, ["a"], "pause")
        first, second = control.stop(root, []), control.stop(root, [])
        entering.execute("COMMIT")
        control.set_max_parallel(root, 2)
        assert "save a checkpoint" in first
        assert "kill" in second
        taken = [request.verb for request in Ledger.open(paths.ledger).take_requests()]
    assert taken == ["pause", "stop", "stop", "set"]


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


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_stop_is_heard_while_the_robots_are_examined(
    is_resumed: bool, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = root if is_resumed else tmp_path / "new"
    experiment = jobfile.load(write_experiment(tmp_path, odd("one", "nothing")))
    messages: list[str] = []

    def examine(*_: Any, watch: Callable[[int, int], None], **__: Any) -> NoReturn:
        watch(0, 1)
        messages.append(control.stop(run_dir, []))
        watch(0, 1)
        pytest.fail("the request was not heard")

    monkeypatch.setattr(preflight, "examine", examine)
    with pytest.raises(KeyboardInterrupt):
        session.run(experiment, run_plan.RunOptions(run_dir=run_dir), SilentReporter())
    assert "asked its supervisor" in messages[0]
    assert run_dir.exists() == is_resumed
    assert "nothing to stop" in control.stop(root, [])
    assert "has ended" in control.wait_for_end(run_dir)
