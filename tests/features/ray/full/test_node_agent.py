"""The node agent, called directly instead of by Ray."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_helpers import wait_until

from orchestrator.core.processes.environment_variables import HOLDERS_VARIABLE
from orchestrator.features.ray import internals, node_agent
from orchestrator.features.ray.driver_directory import DriverDirectory
from orchestrator.features.ray.node_agent import CpuGrant, NodeAgent
from orchestrator.features.ray.scratch_directory import ScratchDirectory, lock, take_order
from orchestrator.features.ray.transport import Transport
from orchestrator.machine.process_identity import process_start

pytestmark = pytest.mark.nightly


@pytest.fixture
def head() -> Iterator[socket.socket]:
    """A stand-in for the cluster's head, which can be reached while this socket listens."""
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
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DriverDirectory:
    monkeypatch.setattr(internals, "is_declared_dead", lambda node_id: False)
    for name in ("tmp", "run"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv(HOLDERS_VARIABLE, str(tmp_path / "tmp/cpu-holders"))
    return DriverDirectory.create(tmp_path / "run")


def start_agent(
    run_dir: DriverDirectory, head: socket.socket, session: str = "s1", node: str = "node"
) -> NodeAgent:
    host, port = head.getsockname()
    return NodeAgent(
        session, node, len(os.sched_getaffinity(0)), run_dir, Transport(None), f"{host}:{port}"
    )


def acquire(agent: NodeAgent, key: str, pid: int, cores: int = 1) -> CpuGrant | None:
    return agent.acquire_cpus(key, cores, pid, process_start(pid))


def begin(granted: CpuGrant | None) -> CpuGrant:
    """Do what an attempt does first."""
    assert granted is not None
    granted.folder.mkdir(parents=True)
    granted.holder.write(granted.folder)
    return granted


def test_an_attempt_whose_process_has_ended_holds_no_cpus(
    run_dir: DriverDirectory, head: socket.socket, task: subprocess.Popen[bytes]
) -> None:
    agent = start_agent(run_dir, head)
    every = len(os.sched_getaffinity(0))
    assert acquire(agent, "a/0", task.pid, every) is not None
    assert acquire(agent, "b/0", os.getpid()) is None
    task.kill()
    task.wait()
    assert agent.attempts() == []
    assert acquire(agent, "b/0", os.getpid()) is not None
    agent.close()


def test_an_agent_that_replaces_one_that_died_knows_which_cpus_are_held(
    run_dir: DriverDirectory, head: socket.socket, task: subprocess.Popen[bytes]
) -> None:
    first = start_agent(run_dir, head)
    every = len(os.sched_getaffinity(0))
    granted = begin(acquire(first, "a/0", task.pid, every))
    first._scratch._lock.close()  # type: ignore[union-attr]
    first._head.close()
    first._slots.close()  # as the kernel does when its process ends

    second = start_agent(run_dir, head)
    assert [(running["key"], running["cpus"]) for running in second.attempts()] == [
        ("a/0", granted.holder.cpus)
    ]
    assert acquire(second, "b/0", os.getpid()) is None
    (granted.folder / "holder").unlink()
    # the attempt has ended, its process runs another; the notified agent is dead
    granted.folder.rmdir()
    assert acquire(second, "b/0", os.getpid()) is not None
    second.close()


def test_a_node_cut_off_for_too_long_kills_its_attempts_and_starts_none(
    run_dir: DriverDirectory,
    head: socket.socket,
    task: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_agent, "FENCE_AFTER_S", 0.5)
    monkeypatch.setattr("orchestrator.features.ray.head_liveness.PROBE_EVERY_S", 0.1)
    agent = start_agent(run_dir, head)
    assert acquire(agent, "a/0", task.pid) is not None
    with pytest.raises(subprocess.TimeoutExpired):
        task.wait(2.0)
    head.close()
    assert task.wait(60) == -signal.SIGKILL
    assert acquire(agent, "b/0", os.getpid()) is None
    agent.close()


def test_a_node_that_was_declared_dead_kills_its_attempts_although_it_reaches_the_head(
    run_dir: DriverDirectory,
    head: socket.socket,
    task: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    declared_dead: list[str] = []
    monkeypatch.setattr(internals, "is_declared_dead", declared_dead.__contains__)
    monkeypatch.setattr(node_agent, "ASK_EVERY_S", 0.0)
    agent = start_agent(run_dir, head)
    assert acquire(agent, "a/0", task.pid) is not None
    with pytest.raises(subprocess.TimeoutExpired):
        task.wait(2.0)
    declared_dead.append("node")
    assert task.wait(60) == -signal.SIGKILL
    assert acquire(agent, "b/0", os.getpid()) is None
    agent.close()


def test_an_attempt_finds_the_last_order_in_its_folder(
    run_dir: DriverDirectory, head: socket.socket, task: subprocess.Popen[bytes]
) -> None:
    agent = start_agent(run_dir, head)
    agent.send_order("a/0", "exit")  # before it has begun
    granted = acquire(agent, "a/0", task.pid)
    assert granted is not None
    assert take_order(granted.folder) == "exit"
    assert take_order(granted.folder) is None
    agent.send_order("a/0", "kill")
    assert take_order(granted.folder) == "kill"
    agent.close()


def test_attempts_left_by_an_earlier_session_of_the_same_run_directory_are_killed(
    run_dir: DriverDirectory, head: socket.socket, task: subprocess.Popen[bytes]
) -> None:
    first = start_agent(run_dir, head)
    begin(acquire(first, "a/0", task.pid))
    second = start_agent(run_dir, head, "s2")
    assert task.wait(60) == -signal.SIGKILL
    for agent in (first, second):
        agent.close()


def test_a_second_node_on_the_same_machine_does_not_touch_attempts_of_the_first(
    run_dir: DriverDirectory, head: socket.socket, task: subprocess.Popen[bytes]
) -> None:
    first = start_agent(run_dir, head)
    held = lock(begin(acquire(first, "a/0", task.pid)).folder)
    assert held is not None
    second = start_agent(run_dir, head, node="other")
    assert task.poll() is None
    assert [running["key"] for running in first.attempts()] == ["a/0"]
    second.close()
    held.close()
    first.close()


def test_attempts_of_another_run_directory_are_neither_killed_nor_removed(
    run_dir: DriverDirectory, head: socket.socket, task: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    first = start_agent(run_dir, head)
    granted = begin(acquire(first, "a/0", task.pid))
    held = lock(granted.folder)
    assert held is not None
    second = start_agent(DriverDirectory.create(tmp_path / "other"), head, "s2")
    assert task.poll() is None
    assert granted.folder.exists()
    second.close()
    held.close()
    first.close()
    wait_until(
        lambda: not list((tmp_path / "tmp").glob("*/ray/*")), "both sessions' folders to be removed"
    )


def test_a_folder_without_a_valid_holder_file_is_ignored(
    run_dir: DriverDirectory, tmp_path: Path
) -> None:
    scratch = ScratchDirectory.create("s1", "node")
    (scratch.root / "x").mkdir()
    (scratch.root / "y").mkdir()
    (scratch.root / "y/holder").write_text('{"home": 1}')
    assert scratch.holders() == []
    scratch.remove()


def second_driver(run_dir: DriverDirectory, head: socket.socket, tmp_path: Path) -> NodeAgent:
    (tmp_path / "other").mkdir()
    return start_agent(DriverDirectory.create(tmp_path / "other"), head, "s2")


def test_agents_of_two_drivers_never_give_a_cpu_to_two_attempts(
    run_dir: DriverDirectory, head: socket.socket, task: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    agents = [start_agent(run_dir, head), second_driver(run_dir, head, tmp_path)]
    cpus = sorted(os.sched_getaffinity(0))
    grants = [acquire(agents[number % 2], f"a/{number}", task.pid) for number in range(len(cpus))]
    assert sorted(cpu for grant in grants if grant is not None for cpu in grant.holder.cpus) == cpus
    assert [acquire(agent, "b/0", os.getpid()) for agent in agents] == [None, None]
    agents[0].release_cpus("a/0")
    grant = acquire(agents[1], "b/0", os.getpid())
    assert grant is not None
    assert grants[0] is not None
    assert grant.holder.cpus == grants[0].holder.cpus
    for agent in agents:
        agent.close()


def test_the_cpus_of_an_attempt_are_not_free_while_its_agent_is_replaced(
    run_dir: DriverDirectory, head: socket.socket, task: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    first, second = start_agent(run_dir, head), second_driver(run_dir, head, tmp_path)
    granted = begin(acquire(first, "a/0", task.pid, len(os.sched_getaffinity(0))))
    held = lock(granted.folder)
    assert held is not None
    first._slots.close()  # as the kernel does when its process ends
    assert acquire(second, "b/0", os.getpid()) is None
    task.kill()
    task.wait()
    assert acquire(second, "b/0", os.getpid()) is not None
    held.close()
    for agent in (first, second):
        agent.close()
