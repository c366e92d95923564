"""Attempts on a real Ray cluster of several nodes: placement, failures, and that nothing is left
behind."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from executor_helpers import (
    IGNORES_STOP,
    PUPPET,
    READY,
    Order,
    await_files,
    await_gone,
    events_until,
    family,
    make_launch,
    make_rank_group,
    until_exit,
)
from ray_helpers import Cluster, until_unused, until_used

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.processes.procfs import process_stat
from orchestrator.executors.executor import Event, Exited, Placed, Progressed
from orchestrator.executors.launcher import Launch
from orchestrator.features.ray.compatible_nodes import CompatibleNodes
from orchestrator.features.ray.ray_launcher import RayLauncher
from orchestrator.features.ray.transport import Transport
from orchestrator.machine.cpu_load import CpuLoad
from orchestrator.machine.slots import RankSlot

pytestmark = pytest.mark.nightly


@pytest.fixture
def executor(ray_nodes: CompatibleNodes) -> Iterator[RayLauncher]:
    executor = RayLauncher(nodes=ray_nodes, worker_command=PUPPET)
    yield executor
    executor.close()


def on_node(root: Path, node: str, job_id: str, orders: list[Order]) -> Launch:
    return dataclasses.replace(
        make_launch(root, job_id, orders), cpus=(), rank_slots=(RankSlot(node=node),)
    )


def placed(executor: RayLauncher, launch: Launch) -> Placed:
    """Submit, and wait until the attempt runs; on a single node, also until it has reported
    progress."""
    handle = executor.submit(launch)
    awaited = (
        {Placed, Progressed} if len(launch.rank_slots) == 1 else {Placed}
    )  # one rank's progress is dropped

    def has_begun(events: list[Event]) -> bool:
        return {type(event) for event in events if event.attempt == handle} >= awaited

    return next(event for event in events_until(executor, has_begun) if isinstance(event, Placed))


def task_of(pid: int) -> int:
    """Pid of the Ray task that started ``pid``."""
    stat = process_stat(pid)
    assert stat is not None
    return stat.parent


def test_attempts_on_a_node_have_different_cpus(tmp_path: Path, executor: RayLauncher) -> None:
    node = executor.nodes.registry.driver_node
    at_once = min(len(os.sched_getaffinity(0)), 4)
    taken = [
        placed(executor, on_node(tmp_path, node, f"j{number}", IGNORES_STOP)).cpus
        for number in range(at_once)
    ]
    assert [len(cpus) for cpus in taken] == [1] * at_once
    assert {cpu for (cpu,) in taken} <= os.sched_getaffinity(0)
    if len({*taken}) < at_once:  # right only where other programs keep the remaining CPUs busy
        load = CpuLoad().shares(())
        busy = {cpu for cpu, share in load.items() if share > 0.2}
        assert os.sched_getaffinity(0) - {cpu for (cpu,) in taken} <= busy, load


@pytest.mark.parametrize("nice", [0, 7])
def test_a_worker_has_its_thread_budget_and_niceness_and_no_gpu_unless_requested(
    tmp_path: Path, executor: RayLauncher, nice: int
) -> None:
    launch = on_node(
        tmp_path,
        executor.nodes.registry.driver_node,
        "a",
        [("look", None), ("say", READY), ("sleep", None)],
    )
    event = placed(executor, dataclasses.replace(launch, nice=nice))
    seen = json.loads((launch.job_dir / "seen.json").read_text())
    assert (seen["CUDA_VISIBLE_DEVICES"], seen["OMP_NUM_THREADS"]) == ("", "1")
    assert (seen["cpus"], seen["pid"]) == (str(event.cpus[0]), str(event.pid))
    assert psutil.Process(event.pid).nice() == max(nice, os.nice(0)), (
        "not that of Ray's own processes"
    )


def test_a_task_whose_process_is_killed_is_lost_and_leaves_nothing(
    tmp_path: Path, executor: RayLauncher
) -> None:
    launch = on_node(tmp_path, executor.nodes.registry.driver_node, "a", family(0))
    event = placed(executor, launch)
    assert event.pid is not None
    pids = [
        event.pid,
        *map(int, await_files(launch.job_dir / "child-0", launch.job_dir / "daemon-0")),
    ]
    os.kill(task_of(event.pid), signal.SIGKILL)
    end = until_exit(executor, event.attempt)[event.attempt]
    assert (end.returncode, end.oom_killed) == (None, False)
    assert "was killed" in (end.lost or "")
    await_gone(pids)


# -- ranks on several nodes


def over_two_nodes(
    root: Path,
    nodes: CompatibleNodes,
    job_id: str,
    *orders: list[Order],
    node_ids: Sequence[str] = (),
) -> Launch:
    """Two ranks, each so large that no node has room for both.

    :param node_ids: the nodes for the ranks; empty: the first two.
    """
    node_ids = node_ids or [node.node_id for node in nodes.all[:2]]
    rank_slots = tuple(RankSlot(node=node, cores=3) for node in node_ids)
    return dataclasses.replace(
        make_rank_group(root, job_id, *orders), cpus=(), rank_slots=rank_slots
    )


def test_ranks_on_several_nodes_know_each_other_and_the_rendezvous(
    tmp_path: Path, executor: RayLauncher
) -> None:
    look: list[Order] = [("look", None), ("say", READY), ("sleep", None)]
    launch = over_two_nodes(tmp_path, executor.nodes, "a", look, look)
    event = placed(executor, launch)
    names = {node.name for node in executor.nodes.all}
    assert len(set(event.node.split(", ")) & names) == 2
    assert len(event.cpus) == 6
    seen = [
        json.loads(text)
        for text in await_files(launch.job_dir / "seen.json", launch.job_dir / "seen-1.json")
    ]
    assert [(rank["RANK"], rank["WORLD_SIZE"], rank["LOCAL_RANK"]) for rank in seen] == [
        ("0", "2", "0"),
        ("1", "2", "0"),
    ]
    assert seen[0]["MASTER_ADDR"] == seen[1]["MASTER_ADDR"] == "127.0.0.1"
    assert seen[0]["MASTER_PORT"] == seen[1]["MASTER_PORT"]
    assert event.pid == int(seen[0]["pid"])
    executor.cancel(event.attempt, kill=True)
    assert until_exit(executor, event.attempt)[event.attempt].returncode == -signal.SIGKILL
    await_gone(int(rank["pid"]) for rank in seen)


@pytest.mark.parametrize("fails", [0, 1])
def test_a_rank_that_fails_ends_those_on_other_nodes_and_is_named(
    tmp_path: Path, executor: RayLauncher, fails: int
) -> None:
    orders: list[list[Order]] = [[*family(rank)[:3], ("sleep", None)] for rank in range(2)]
    orders[fails] = [
        ("await", f"child-{1 - fails}"),
        ("await", f"daemon-{1 - fails}"),
        ("exit", 10),
    ]
    launch = over_two_nodes(tmp_path, executor.nodes, f"a{fails}", *orders)
    handle = executor.submit(launch)
    assert until_exit(executor, handle)[handle] == Exited(handle, 10, rank=fails)
    pid_files = (launch.job_dir / f"{name}-{1 - fails}" for name in ("child", "daemon"))
    await_gone(map(int, await_files(*pid_files)))


def test_a_node_that_joins_late_is_used_and_one_that_dies_is_lost_with_all_that_ran_there(
    tmp_path: Path, ray_cluster: Cluster, executor: RayLauncher
) -> None:
    """Ranks on other nodes end with those that ran there."""
    late = ray_cluster.add(num_cpus=4)
    until_used(executor.nodes, late.node_id)
    cores = executor.nodes.slots.jobs_at_once
    nodes = [executor.nodes.registry.driver_node, late.node_id]
    ranks = over_two_nodes(tmp_path, executor.nodes, "a", family(0), family(1), node_ids=nodes)
    single = on_node(tmp_path, late.node_id, "b", family(0))
    events = [placed(executor, launch) for launch in (ranks, single)]
    names = [f"{name}-{rank}" for name in ("a/child", "a/daemon") for rank in range(2)]
    pids = [
        int(pid)
        for pid in await_files(*(tmp_path / name for name in (*names, "b/child-0", "b/daemon-0")))
    ]
    ray_cluster.kill(late)
    for end in until_exit(executor, *(event.attempt for event in events)).values():
        assert end.returncode is None
        assert ray_cluster.name(late) in (end.lost or "")
    await_gone([*pids, *(event.pid for event in events if event.pid is not None)])
    until_unused(executor.nodes, late.node_id)
    assert executor.nodes.slots.jobs_at_once == cores - 4


# -- ends


def test_a_node_with_a_full_disk_is_excluded(
    tmp_path: Path, ray_nodes: CompatibleNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = ray_nodes.all[-1]
    monkeypatch.setattr(ray_nodes, "transport", Transport("stream"))
    full = (sys.executable, "-c", f"import os; os._exit({ExitCode.DISK_FULL:d})")
    executor = RayLauncher(nodes=ray_nodes, worker_command=full)
    launch = on_node(tmp_path, node.node_id, "a", [])
    (launch.job_dir / "spec.json").write_text("{}")
    try:
        handle = executor.submit(launch)
        assert (
            until_exit(executor, handle)[handle].lost == f"no space left on the disk of {node.name}"
        )
        assert ray_nodes.get(node.node_id) is None
        assert node.node_id not in [room.node for room in ray_nodes.slots.nodes]
    finally:
        executor.close()
        ray_nodes._excluded.pop(node.node_id, None)
        if node.node_id not in [room.node for room in ray_nodes.slots.nodes]:
            ray_nodes._use(node)
