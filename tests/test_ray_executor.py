"""Attempts on a real Ray cluster of several nodes: what runs where, and what is left when something dies."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import command_helpers as commands
import psutil
import pytest
import ray_helpers
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
from ray_helpers import Cluster

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


def until_known(fleet: Fleet, node_id: str) -> None:
    def is_known() -> bool:
        fleet.update()
        return fleet.node(node_id) is not None

    wait_until(is_known, f"{node_id} in the fleet")


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

    def is_gone() -> bool:
        executor.fleet.update()
        return executor.fleet.node(late.node_id) is None

    wait_until(is_gone, "the fleet without the node")
    assert executor.fleet.pool.lanes == cores - 3


def test_what_rays_memory_monitor_ends_is_told_from_a_crash(
    tmp_path: Path, ray_cluster: Cluster, executor: RayExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = psutil.virtual_memory()
    monkeypatch.setenv("RAY_memory_usage_threshold", f"{memory.percent / 100 + 0.03:.3f}")
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "250")
    late = ray_cluster.add(num_cpus=3)
    try:
        until_known(executor.fleet, late.node_id)
        too_much_mib = (memory.total >> 20) // 25 + 512
        event = placed(
            executor, on_node(tmp_path, late.node_id, "a", [("say", READY), ("allocate", too_much_mib), *ASLEEP])
        )
        end = until_exit(executor, event.handle)[event.handle]
        assert (end.returncode, end.oom_killed) == (-9, True)
        assert event.pid is not None
        await_gone([event.pid])
    finally:
        ray_cluster.kill(late)


def test_one_that_was_never_placed_leaves_at_once(tmp_path: Path, executor: RayExecutor) -> None:
    node = executor.fleet.home_node
    running = [executor.submit(on_node(tmp_path, node, f"j{number}", ASLEEP)) for number in range(4)]
    until_heard(executor, *running)
    waiting = executor.submit(on_node(tmp_path, node, "waiting", ASLEEP))
    executor.cancel(waiting, kill=False)
    assert until_exit(executor, waiting)[waiting] == Exited(waiting, 11)


# -- ranks on several nodes


def over_two_nodes(root: Path, fleet: Fleet, job_id: str, *orders: list[Order]) -> Launch:
    """Two ranks, each so large that no node has room for both."""
    nodes = [node.node_id for node in fleet.nodes][:2]
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

SHORT = {"name": "short", "xml": commands.BALANCER, "task": "balance"}
LONG = {"name": "long", "xml": commands.BALANCER, "task": "balance", "total_timesteps": 10_000_000}
"""Until it is stopped."""


def options(cluster: Cluster, storage: str) -> tuple[str, ...]:
    """For a run directory that is called like ``storage``."""
    where = ("--executor", "ray", "--ray-address", cluster.address)
    return ("--run-dir", storage, "--storage", storage, *where)


def has_progressed(run_dir: Path, since: dict[str, int]) -> bool:
    return all(row["env_steps"] > since[job_id] for job_id, row in summary(run_dir).items())


def weights(run_dir: Path) -> dict[str, str]:
    return {job_id: row["weights_sha256"] for job_id, row in summary(run_dir).items()}


def test_an_experiment_over_three_nodes_gives_the_weights_of_one_machine(tmp_path: Path, ray_cluster: Cluster) -> None:
    jobs = write_experiment(tmp_path, {**SHORT, "seeds": [0, 1]}, {"name": "hopper", "xml": commands.HOPPER})
    assert give("run", jobs, "--run-dir", "local", cwd=tmp_path).returncode == 0
    for storage in ("shared", "stream"):
        done = give("run", jobs, *options(ray_cluster, storage), "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        events = [json.loads(line) for line in done.stdout.splitlines()]  # and nothing else is there
        assert len({event["node"] for event in events if event["event"] == "launched"}) == 3
        assert weights(tmp_path / storage) == weights(tmp_path / "local")
        assert all(weights(tmp_path / storage).values())
        shown = give("status", storage, cwd=tmp_path).stdout
        assert all(row["node"] in shown for row in summary(tmp_path / storage).values())


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


def test_a_stop_lets_every_node_checkpoint_and_the_same_command_goes_on(tmp_path: Path, ray_cluster: Cluster) -> None:
    jobs = write_experiment(tmp_path, {**LONG, "seeds": [0, 1, 2]})
    run_dir = tmp_path / "stream"
    left = {f"long-s{seed}": 512 for seed in range(3)}
    for attempt in range(2):
        with Run(jobs, *options(ray_cluster, "stream"), cwd=tmp_path) as run:
            for _ in left:
                run.until("launched")
            wait_until(lambda: has_progressed(run_dir, left), "progress")  # noqa: B023 - called before it changes
            run.signal(signal.SIGINT)
            assert run.end() == 130
        assert [event["event"] for event in run.events].count("paused") == len(left)
        for name in left if attempt else ():
            record = json.loads((run_dir / "jobs" / name / "attempts/1/exit.json").read_text())
            assert record["resumed_from"] == left[name], "it went on from where it was left"
        left = {name: row["env_steps"] for name, row in summary(run_dir).items()}


@pytest.mark.slow
def test_a_job_whose_node_dies_goes_on_elsewhere_from_the_checkpoint_that_came_home(
    tmp_path: Path, ray_cluster: Cluster
) -> None:
    jobs = write_experiment(tmp_path, {**LONG, "total_timesteps": 256_000, "checkpoint_every": 12_800})
    assert give("run", jobs, "--run-dir", "local", cwd=tmp_path).returncode == 0
    late = ray_cluster.add(num_cpus=8)  # the most cores: it gets the job
    with Run(jobs, *options(ray_cluster, "stream"), cwd=tmp_path) as run:
        first = run.until("launched")
        wait_until(lambda: list((tmp_path / "stream/jobs/long-s0/checkpoints").glob("*.pt")), "a checkpoint at home")
        ray_cluster.kill(late)
        assert run.end() == 0
    row = summary(tmp_path / "stream")["long-s0"]
    assert row["attempts"] > 1, "it was in the middle of it"
    assert row["node"] != first["node"]
    # The first attempt after it may still have been meant for the dead node, which is not known to be dead at once.
    last = tmp_path / f"stream/jobs/long-s0/attempts/{row['attempts'] - 1}/exit.json"
    assert json.loads(last.read_text())["resumed_from"] >= 12_800
    assert weights(tmp_path / "stream") == weights(tmp_path / "local")


def test_no_training_outlives_a_driver_that_is_killed_and_the_same_command_goes_on(
    tmp_path: Path, ray_cluster: Cluster
) -> None:
    jobs = write_experiment(tmp_path, {**LONG, "seeds": [0, 1, 2]})
    run_dir = tmp_path / "shared"
    with Run(jobs, *options(ray_cluster, "shared"), cwd=tmp_path) as run:
        pids = [run.until("launched")["pid"] for _ in range(3)]
        wait_until(lambda: list((run_dir / "jobs/long-s0/checkpoints").glob("*.pt")), "a checkpoint")
        run.signal(signal.SIGKILL)
        run.popen.wait()
    await_gone(pids)
    before = summary(run_dir)["long-s0"]["env_steps"]
    with Run(jobs, *options(ray_cluster, "shared"), cwd=tmp_path) as again:
        again.until("launched", "long-s0")
        wait_until(lambda: summary(run_dir)["long-s0"]["env_steps"] > max(before, 512), "progress")
        again.signal(signal.SIGINT)
        assert again.end() == 130
    record = json.loads((run_dir / "jobs/long-s0/attempts/1/exit.json").read_text())
    assert record["resumed_from"] is not None


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
    ("error", "expected"),
    [
        ("OutOfMemoryError('too much')", {"returncode": -9, "oom_killed": True}),
        ("WorkerCrashedError()", {"returncode": None, "lost": "the process that ran it on n1 was killed"}),
        ("NodeDiedError('gone')", {"returncode": None, "lost": "its node n1 was lost"}),
        ("TaskCancelledError()", {"returncode": -9}),
    ],
)
@pytest.mark.usefixtures("ray_cluster")
def test_what_ray_says_of_a_dead_task_is_told_apart(error: str, expected: dict[str, Any]) -> None:
    import ray.exceptions

    handle = Handle("a", 0)
    fleet: Any = SimpleNamespace(name=lambda node: "n1")
    task = Task(handle=handle, assignment=Any, node="x", fleet=fleet, stream=None, home=None, keeper=None)  # type: ignore[arg-type]
    died = task._died(eval(error, vars(ray.exceptions)))
    assert died == Exited(handle, **expected)


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


@pytest.mark.slow
def test_a_head_that_dies_ends_the_driver_with_a_clear_message_and_nothing_is_left(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, {**LONG, "seeds": [0, 1, 2]})
    with ray_helpers.cluster() as own, Run(jobs, *options(own, "stream"), cwd=tmp_path) as run:
        pids = [run.until("launched")["pid"] for _ in range(3)]
        wait_until(lambda: list((tmp_path / "stream/jobs/long-s0/checkpoints").glob("*.pt")), "a checkpoint at home")
        own.kill_head()
        assert run.end() == 1
        assert "the head of the Ray cluster has not answered" in run.said
        await_gone(pids)
        assert "INTERRUPTED" in give("status", "stream", cwd=tmp_path).stdout
