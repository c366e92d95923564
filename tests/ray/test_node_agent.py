"""What keeps a node in order. Ray is only its way to be called."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_helpers import wait_until

from orchestrator.executors.ray import node_agent as keepers
from orchestrator.executors.ray.driver_directory import DriverDirectory
from orchestrator.executors.ray.node_agent import CpuGrant, NodeAgent
from orchestrator.executors.ray.scratch_directory import ScratchDirectory, lock
from orchestrator.executors.ray.transport import Transport
from orchestrator.machine.process_identity import process_start


@pytest.fixture
def head() -> Iterator[socket.socket]:
    """What stands for the cluster's head: it can be reached as long as this listens."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        yield listening


@pytest.fixture
def task() -> Iterator[subprocess.Popen[bytes]]:
    """The process of an attempt."""
    process = subprocess.Popen(["sleep", "600"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DriverDirectory:
    monkeypatch.setattr(keepers, "head_has_given_up", lambda node_id: False)
    for name in ("tmp", "run"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return DriverDirectory.at(tmp_path / "run")


def keeper(home: DriverDirectory, head: socket.socket, session: str = "s1", node: str = "node") -> NodeAgent:
    host, port = head.getsockname()
    return NodeAgent(session, node, len(os.sched_getaffinity(0)), home, Transport(None), f"{host}:{port}")


def take(kept: NodeAgent, key: str, pid: int, cores: int = 1) -> CpuGrant | None:
    return kept.take(key, cores, pid, process_start(pid))


def begin(granted: CpuGrant | None) -> CpuGrant:
    """What an attempt does first."""
    assert granted is not None
    granted.folder.mkdir(parents=True)
    granted.holder.write(granted.folder)
    return granted


def test_an_attempt_whose_process_is_gone_holds_nothing(
    home: DriverDirectory, head: socket.socket, task: subprocess.Popen[bytes]
) -> None:
    kept = keeper(home, head)
    every = len(os.sched_getaffinity(0))
    assert take(kept, "a/0", task.pid, every) is not None
    assert take(kept, "b/0", os.getpid()) is None
    task.kill()
    task.wait()
    assert kept.running() == []
    assert take(kept, "b/0", os.getpid()) is not None
    kept.close()


def test_a_keeper_that_comes_after_one_that_died_knows_who_has_which_cpus(
    home: DriverDirectory, head: socket.socket, task: subprocess.Popen[bytes]
) -> None:
    first = keeper(home, head)
    every = len(os.sched_getaffinity(0))
    granted = begin(take(first, "a/0", task.pid, every))
    first._scratch._lock.close()  # type: ignore[union-attr]
    first._head.close()
    first._pool.close()  # as the kernel does when its process ends

    second = keeper(home, head)
    assert [(running.key, running.cpus) for running in second.running()] == [("a/0", granted.holder.cpus)]
    assert take(second, "b/0", os.getpid()) is None
    (granted.folder / "holder").unlink()
    granted.folder.rmdir()  # its process goes on with something else; whom it told of its end is dead
    assert take(second, "b/0", os.getpid()) is not None
    second.close()


def test_a_node_that_is_cut_off_for_too_long_ends_what_runs_there_and_starts_nothing(
    home: DriverDirectory, head: socket.socket, task: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keepers, "FENCE_AFTER_S", 0.5)
    monkeypatch.setattr("orchestrator.executors.ray.liveness.PROBE_EVERY_S", 0.1)
    kept = keeper(home, head)
    assert take(kept, "a/0", task.pid) is not None
    with pytest.raises(subprocess.TimeoutExpired):
        task.wait(2.0)
    head.close()
    assert task.wait(60) == -signal.SIGKILL
    assert take(kept, "b/0", os.getpid()) is None
    kept.close()


def test_a_node_that_was_given_up_ends_what_runs_there_though_it_reaches_the_head(
    home: DriverDirectory, head: socket.socket, task: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up: list[str] = []
    monkeypatch.setattr(keepers, "head_has_given_up", given_up.__contains__)
    monkeypatch.setattr(keepers, "ASK_EVERY_S", 0.0)
    kept = keeper(home, head)
    assert take(kept, "a/0", task.pid) is not None
    with pytest.raises(subprocess.TimeoutExpired):
        task.wait(2.0)
    given_up.append("node")
    assert task.wait(60) == -signal.SIGKILL
    assert take(kept, "b/0", os.getpid()) is None
    kept.close()


def test_orders_lie_where_the_attempt_looks_for_them_and_the_last_one_counts(
    home: DriverDirectory, head: socket.socket, task: subprocess.Popen[bytes]
) -> None:
    from orchestrator.executors.ray.node_attempt import Orders
    from orchestrator.executors.ray.scratch_directory import order_file

    kept = keeper(home, head)
    kept.order("a/0", "leave")  # before it has begun
    granted = take(kept, "a/0", task.pid)
    assert granted is not None
    orders = Orders(order_file(granted.folder))
    assert orders.given() == "leave"
    assert orders.given() is None
    kept.order("a/0", "kill")
    assert orders.given() == "kill"
    kept.close()


def test_what_a_session_before_has_left_running_of_the_same_run_directory_is_ended(
    home: DriverDirectory, head: socket.socket, task: subprocess.Popen[bytes]
) -> None:
    first = keeper(home, head)
    begin(take(first, "a/0", task.pid))
    second = keeper(home, head, "s2")
    assert task.wait(60) == -signal.SIGKILL
    for kept in (first, second):
        kept.close()


def test_a_second_node_on_the_same_machine_leaves_alone_what_runs_on_the_first(
    home: DriverDirectory, head: socket.socket, task: subprocess.Popen[bytes]
) -> None:
    first = keeper(home, head)
    held = lock(begin(take(first, "a/0", task.pid)).folder)
    assert held is not None
    second = keeper(home, head, node="other")
    assert task.poll() is None
    assert [running.key for running in first.running()] == ["a/0"]
    second.close()
    held.close()
    first.close()


def test_of_another_run_directory_nothing_is_ended_or_removed(
    home: DriverDirectory, head: socket.socket, task: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    first = keeper(home, head)
    granted = begin(take(first, "a/0", task.pid))
    held = lock(granted.folder)
    assert held is not None
    second = keeper(DriverDirectory.at(tmp_path / "other"), head, "s2")
    assert task.poll() is None
    assert granted.folder.exists()
    second.close()
    held.close()
    first.close()
    wait_until(lambda: not list((tmp_path / "tmp").glob("*/ray/*")), "both sessions' folders to be removed")


def test_a_folder_that_says_nothing_of_its_holder_is_no_obstacle(home: DriverDirectory, tmp_path: Path) -> None:
    scratch = ScratchDirectory.claimed("s1", "node")
    (scratch.root / "x").mkdir()
    (scratch.root / "y").mkdir()
    (scratch.root / "y/holder").write_text('{"home": 1}')
    assert scratch.holders() == []
    scratch.remove()
