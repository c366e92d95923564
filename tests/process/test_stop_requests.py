"""A ``stop`` reaches the supervisor that it was meant for, however early it comes, and no other."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from supervisor_helpers import Experiment, ledgers_closed, make_job  # noqa: F401 - a fixture

from orchestrator.core.paths import RunPaths
from orchestrator.experiment import control, run_directory
from orchestrator.experiment.recovery import apply_late_requests
from orchestrator.ledger import Ledger


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


def test_a_stop_for_an_earlier_supervisor_does_not_stop_the_next_one(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_directory.claim(root) as paths:
        control.stop(root, [])
        earlier = key(paths)
    monkeypatch.setattr(time, "strftime", lambda _: "later")  # the same process holds it again
    with run_directory.claim(root) as paths:
        assert key(paths) != earlier
        assert not apply_late_requests(Ledger.open(paths.ledger), key(paths))


@pytest.mark.parametrize("content", [b"", b'{"pid": 4194999, "pid_start": 1.0, "host": "HOST", "since": "x"}'])
def test_a_stop_waits_until_the_lock_names_who_holds_it_now(root: Path, content: bytes) -> None:
    with run_directory.claim(root) as paths:
        written = paths.lock.read_bytes()
        host = json.loads(written)["host"].encode()
        paths.lock.write_bytes(content.replace(b"HOST", host))
        later = threading.Timer(0.3, lambda: paths.lock.write_bytes(written))
        later.start()
        control.stop(root, [])
        later.join()
        assert apply_late_requests(Ledger.open(paths.ledger), key(paths))


def test_a_second_stop_says_that_it_kills(root: Path) -> None:
    with run_directory.claim(root):
        first, second = control.stop(root, []), control.stop(root, [])
    assert "save a checkpoint" in first
    assert "kill" not in first
    assert "kill" in second
    assert "save a checkpoint" not in second


def test_a_stop_now_says_that_it_kills_and_asks_twice(root: Path) -> None:
    with run_directory.claim(root) as paths:
        assert "kill" in control.stop(root, [], now=True)
        assert [request.verb for request in Ledger.open(paths.ledger).take_requests()] == ["stop", "stop"]


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
