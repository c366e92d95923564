"""Attempts on a real Ray cluster of several nodes: what runs where, and what is left when something dies."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import command_helpers as commands
import psutil
import pytest
from command_helpers import Run, give, summary, wait_until, write_experiment
from executor_helpers import (
    PUPPET,
    READY,
    Order,
    await_files,
    await_gone,
    family,
    make_gang,
    make_launch,
    until_exit,
    until_heard,
)
from ray_helpers import SHORT, Cluster, options, until_gone, until_known, weights

from orchestrator.contract import ExitCode
from orchestrator.executors.base import Exited, Handle, Launch, Placed
from orchestrator.executors.ray.executor import RayExecutor
from orchestrator.executors.ray.fleet import Fleet
from orchestrator.executors.ray.task import Task
from orchestrator.executors.ray.transport import Transport
from orchestrator.slots import Place

pytestmark = pytest.mark.cluster

ASLEEP: list[Order] = [("when asked", None), ("say", READY), ("sleep", None)]


@pytest.fixture
def executor(ray_fleet: Fleet) -> Iterator[RayExecutor]:
    executor = RayExecutor(fleet=ray_fleet, worker_command=PUPPET)
    yield executor
    executor.close()


def on_node(root: Path, node: str, job_id: str, orders: list[Order]) -> Launch:
    return dataclasses.replace(make_launch(root, job_id, orders), cpus=(), places=(Place(node=node),))


def placed(executor: RayExecutor, launch: Launch) -> Placed:
    """The attempt, once it runs and has said something."""
    handle = executor.submit(launch)
    events = until_heard(executor, handle)
    return next(event for event in events if isinstance(event, Placed))


def task_of(pid: int) -> int:
    """The process of the Ray task that has started ``pid``."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_neighbours_on_a_node_have_cpus_of_their_own(tmp_path: Path, executor: RayExecutor) -> None:
    node = executor.fleet.home_node
    here = sorted(os.sched_getaffinity(0))[:4]
    taken = [placed(executor, on_node(tmp_path, node, f"j{number}", ASLEEP)).cpus for number in range(len(here))]
    assert sorted(taken) == [(cpu,) for cpu in here]


def test_a_worker_has_the_thread_budget_and_no_gpu_that_it_did_not_ask_for(
    tmp_path: Path, executor: RayExecutor
) -> None:
    launch = on_node(tmp_path, executor.fleet.home_node, "a", [("look", None), ("say", READY), ("sleep", None)])
    event = placed(executor, launch)
    seen = json.loads((launch.job_dir / "seen.json").read_text())
    assert (seen["CUDA_VISIBLE_DEVICES"], seen["OMP_NUM_THREADS"]) == ("", "1")
    assert (seen["cpus"], seen["pid"]) == (str(event.cpus[0]), str(event.pid))


def test_a_task_whose_process_is_killed_is_lost_and_leaves_nothing(tmp_path: Path, executor: RayExecutor) -> None:
    launch = on_node(tmp_path, executor.fleet.home_node, "a", family(0))
    event = placed(executor, launch)
    assert event.pid is not None
    pids = [event.pid, *map(int, await_files(launch.job_dir / "child-0", launch.job_dir / "daemon-0"))]
    os.kill(task_of(event.pid), signal.SIGKILL)
    end = until_exit(executor, event.handle)[event.handle]
    assert (end.returncode, end.oom_killed) == (None, False)
    assert "was killed" in (end.lost or "")
    await_gone(pids)


def test_a_node_that_joins_late_is_used_and_one_that_dies_is_lost_with_all_that_ran_there(
    tmp_path: Path, ray_cluster: Cluster, executor: RayExecutor
) -> None:
    late = ray_cluster.add(num_cpus=3)
    until_known(executor.fleet, late.node_id)
    cores = executor.fleet.pool.lanes
    launch = on_node(tmp_path, late.node_id, "a", family(0))
    event = placed(executor, launch)
    assert event.pid is not None
    pids = [event.pid, *map(int, await_files(launch.job_dir / "child-0", launch.job_dir / "daemon-0"))]
    ray_cluster.kill(late)
    end = until_exit(executor, event.handle)[event.handle]
    assert end.returncode is None
    assert executor.fleet.name(late.node_id) in (end.lost or "")
    await_gone(pids)
    until_gone(executor.fleet, late.node_id)
    assert executor.fleet.pool.lanes == cores - 3


def test_a_node_that_falls_silent_is_lost_though_its_connections_stand(
    tmp_path: Path, ray_cluster: Cluster, executor: RayExecutor
) -> None:
    with ray_cluster.further(num_cpus=3) as late:
        until_known(executor.fleet, late.node_id)
        event = placed(executor, on_node(tmp_path, late.node_id, "a", ASLEEP))
        (raylet,) = late.all_processes["raylet"]
        machine = psutil.Process(raylet.process.pid)
        processes = [machine, *machine.children(recursive=True)]
        for process in processes:
            process.suspend()
        try:
            end = until_exit(executor, event.handle)[event.handle]
        finally:
            for process in processes:
                process.resume()
        assert (end.returncode, end.lost) == (None, f"its node {ray_cluster.name(late)} was lost")
        assert event.pid is not None
        await_gone([event.pid])  # its keeper finds that the node is given up; Ray there goes on


def test_what_rays_memory_monitor_ends_is_told_from_a_crash(
    tmp_path: Path, ray_cluster: Cluster, executor: RayExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = psutil.virtual_memory()
    monkeypatch.setenv("RAY_memory_usage_threshold", f"{memory.percent / 100 + 0.03:.3f}")
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "250")
    with ray_cluster.further(num_cpus=3) as late:
        until_known(executor.fleet, late.node_id)
        too_much_mib = (memory.total >> 20) // 25 + 512
        event = placed(
            executor, on_node(tmp_path, late.node_id, "a", [("say", READY), ("allocate", too_much_mib), *ASLEEP])
        )
        end = until_exit(executor, event.handle)[event.handle]
        assert (end.returncode, end.oom_killed) == (-9, True)
        assert event.pid is not None
        await_gone([event.pid])
    until_gone(executor.fleet, late.node_id)


def test_one_that_was_never_placed_leaves_at_once(tmp_path: Path, executor: RayExecutor) -> None:
    node = executor.fleet.home_node
    running = [executor.submit(on_node(tmp_path, node, f"j{number}", ASLEEP)) for number in range(4)]
    until_heard(executor, *running)
    waiting = executor.submit(on_node(tmp_path, node, "waiting", ASLEEP))
    executor.cancel(waiting, kill=False)
    assert until_exit(executor, waiting)[waiting] == Exited(waiting, 11)


# -- ranks on several nodes


def over_two_nodes(root: Path, fleet: Fleet, job_id: str, *orders: list[Order], nodes: Sequence[str] = ()) -> Launch:
    """Two ranks, each so large that no node has room for both.

    :param nodes: those that they are meant for.
    """
    nodes = nodes or [node.node_id for node in fleet.nodes][:2]
    places = tuple(Place(node=node, cores=3) for node in nodes)
    return dataclasses.replace(make_gang(root, job_id, *orders), cpus=(), places=places)


def test_ranks_over_nodes_know_each_other_and_where_to_meet(tmp_path: Path, executor: RayExecutor) -> None:
    look: list[Order] = [("look", None), ("say", READY), ("sleep", None)]
    launch = over_two_nodes(tmp_path, executor.fleet, "a", look, look)
    event = placed(executor, launch)
    names = {node.name for node in executor.fleet.nodes}
    assert len(set(event.node.split(", ")) & names) == 2
    assert len(event.cpus) == 6
    seen = [json.loads(text) for text in await_files(launch.job_dir / "seen.json", launch.job_dir / "seen-1.json")]
    assert [(rank["RANK"], rank["WORLD_SIZE"], rank["LOCAL_RANK"]) for rank in seen] == [
        ("0", "2", "0"),
        ("1", "2", "0"),
    ]
    assert seen[0]["MASTER_ADDR"] == seen[1]["MASTER_ADDR"] == "127.0.0.1"
    assert seen[0]["MASTER_PORT"] == seen[1]["MASTER_PORT"]
    assert event.pid == int(seen[0]["pid"])
    executor.cancel(event.handle, kill=True)
    assert until_exit(executor, event.handle)[event.handle].returncode == -signal.SIGKILL
    await_gone(int(rank["pid"]) for rank in seen)


@pytest.mark.parametrize("fails", [0, 1])
def test_a_rank_that_fails_ends_those_on_other_nodes_and_is_named(
    tmp_path: Path, executor: RayExecutor, fails: int
) -> None:
    orders: list[list[Order]] = [[*family(rank)[:3], ("sleep", None)] for rank in range(2)]
    orders[fails] = [("await", f"child-{1 - fails}"), ("await", f"daemon-{1 - fails}"), ("exit", 10)]
    launch = over_two_nodes(tmp_path, executor.fleet, f"a{fails}", *orders)
    handle = executor.submit(launch)
    assert until_exit(executor, handle)[handle] == Exited(handle, 10, rank=fails)
    left = (launch.job_dir / f"{name}-{1 - fails}" for name in ("child", "daemon"))
    await_gone(map(int, await_files(*left)))


def test_ranks_whose_node_dies_end_on_the_others_too(
    tmp_path: Path, ray_cluster: Cluster, executor: RayExecutor
) -> None:
    home = executor.fleet.home_node
    with ray_cluster.further(num_cpus=3) as late:
        until_known(executor.fleet, late.node_id)
        nodes = [home, late.node_id]
        launch = over_two_nodes(tmp_path, executor.fleet, "a", family(0), family(1), nodes=nodes)
        handle = executor.submit(launch)
        until_heard(executor, handle)
        names = (f"{name}-{rank}" for name in ("child", "daemon") for rank in range(2))
        pids = [int(pid) for pid in await_files(*(launch.job_dir / name for name in names))]
        ray_cluster.kill(late)
        end = until_exit(executor, handle)[handle]
    assert end.returncode is None
    assert executor.fleet.name(late.node_id) in (end.lost or "")
    await_gone(pids)
    until_gone(executor.fleet, late.node_id)


def test_ranks_over_nodes_leave_together_when_asked(tmp_path: Path, executor: RayExecutor) -> None:
    polite: list[Order] = [("when asked", 11), ("say", READY), ("sleep", None)]
    handle = executor.submit(over_two_nodes(tmp_path, executor.fleet, "a", polite, polite))
    until_heard(executor, handle)
    executor.cancel(handle, kill=False)
    assert until_exit(executor, handle)[handle].returncode == 11


def test_ranks_that_wait_for_room_can_be_cancelled(tmp_path: Path, executor: RayExecutor) -> None:
    whole = [
        executor.submit(over_two_nodes(tmp_path, executor.fleet, f"j{number}", ASLEEP, ASLEEP)) for number in (0, 1)
    ]
    until_heard(executor, whole[0])  # three nodes hold three such ranks, not four
    executor.cancel(whole[1], kill=False)
    assert until_exit(executor, whole[1])[whole[1]] == Exited(whole[1], 11, rank=0)
    third = executor.submit(on_node(tmp_path, executor.fleet.home_node, "third", [("exit", 0)]))
    assert until_exit(executor, third)[third].returncode == 0


# -- the command


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A job file, and the weights that its jobs come to on this machine alone."""
    cwd = tmp_path_factory.mktemp("near")
    jobs = write_experiment(cwd, {**SHORT, "seeds": [0, 1]}, {"name": "hopper", "xml": commands.HOPPER})
    assert give("run", jobs, "--run-dir", "local", cwd=cwd).returncode == 0
    assert all(weights(cwd / "local").values())
    return jobs, weights(cwd / "local")


@pytest.mark.parametrize("way", ["shared", "stream", "file"])
def test_an_experiment_over_three_nodes_gives_the_weights_of_one_machine(
    tmp_path: Path, ray_cluster: Cluster, near: tuple[Path, dict[str, str]], way: str
) -> None:
    between = tmp_path / "between"
    storage = f"file://{between}" if way == "file" else way
    with Run(near[0], *options(ray_cluster, "far", storage), cwd=tmp_path) as run:
        nodes = {run.until("launched")["node"] for _ in near[1]}
        if way == "file":
            wait_until(lambda: list(between.iterdir()), "a file on its way")
        assert run.end() == 0, run.said
    assert len(nodes) == 3
    assert weights(tmp_path / "far") == near[1]
    assert not list(between.glob("*")), "nothing stays there"
    shown = give("status", "far", cwd=tmp_path).stdout
    assert all(row["node"] in shown for row in summary(tmp_path / "far").values())


def test_without_an_address_ray_is_started_here_and_ends_with_the_command(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, SHORT)
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:  # short, as sockets want it
        its_own = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "RAY_TMPDIR": folder}
        done = give("run", jobs, "--run-dir", "run", "--executor", "ray", "--json", cwd=tmp_path, **its_own)
        assert done.returncode == 0, done.stderr
        assert {json.loads(line)["event"] for line in done.stdout.splitlines()} >= {"launched", "succeeded", "ended"}
        wait_until(lambda: not mentioned(folder), "the end of Ray's processes")


def mentioned(text: str) -> list[str]:
    """Pids of processes that have ``text`` in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and text.encode() in (entry / "cmdline").read_bytes():
                found.append(entry.name)
    return found


def test_ranks_over_two_nodes_train_one_policy(tmp_path: Path, ray_cluster: Cluster) -> None:
    resources = {"ranks": 2, "cores": 3, "threads": 1, "memory": "1 GiB"}
    jobs = write_experiment(tmp_path, {**SHORT, "n_envs": 2, "resources": resources})
    done = give("run", jobs, *options(ray_cluster, "stream"), "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    launched = next(event for event in map(json.loads, done.stdout.splitlines()) if event["event"] == "launched")
    assert launched["node"].count(", ") == 1
    attempt = tmp_path / "stream/jobs/short-s0/attempts/0"
    assert {path.name for path in attempt.iterdir()} >= {"worker.log", "rank-1.log", "exit.json", "rank-1.exit.json"}
    assert (tmp_path / "stream/jobs/short-s0/model.zip").exists()


# -- ends


@pytest.mark.parametrize(
    ("error", "expected", "is_doubted"),
    [
        ("OutOfMemoryError('too much')", {"returncode": -9, "oom_killed": True}, False),
        ("WorkerCrashedError()", {"returncode": None, "lost": "the process that ran it on n1 was killed"}, True),
        ("NodeDiedError('gone')", {"returncode": None, "lost": "its node n1 was lost"}, True),
        ("TaskCancelledError()", {"returncode": -9}, False),
    ],
)
@pytest.mark.usefixtures("ray_cluster")
def test_what_ray_says_of_a_dead_task_is_told_apart(error: str, expected: dict[str, Any], is_doubted: bool) -> None:
    import ray.exceptions

    handle = Handle("a", 0)
    doubted: list[str] = []
    fleet: Any = SimpleNamespace(name=lambda node: "n1", doubt=doubted.append)
    task = Task(handle=handle, assignment=Any, node="x", fleet=fleet, stream=None, home=None, keeper=None)  # type: ignore[arg-type]
    died = task._died(eval(error, vars(ray.exceptions)))
    assert died == Exited(handle, **expected)
    assert bool(doubted) == is_doubted


def test_a_node_whose_disk_is_full_is_used_no_more_and_its_jobs_go_elsewhere(
    tmp_path: Path, ray_fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = ray_fleet.nodes[-1]
    monkeypatch.setattr(ray_fleet, "transport", Transport("stream"))
    full = (sys.executable, "-c", f"import os; os._exit({ExitCode.DISK_FULL:d})")
    executor = RayExecutor(fleet=ray_fleet, worker_command=full)
    launch = on_node(tmp_path, node.node_id, "a", [])
    (launch.job_dir / "spec.json").write_text("{}")
    try:
        handle = executor.submit(launch)
        assert until_exit(executor, handle)[handle].lost == f"no space left on the disk of {node.name}"
        assert ray_fleet.node(node.node_id) is None
        assert node.node_id not in ray_fleet.pool
    finally:
        executor.close()
        ray_fleet._take_in(node)
