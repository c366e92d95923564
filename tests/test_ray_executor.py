"""Attempts on a real Ray cluster of several nodes: what runs where, and what is left when something dies."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import command_helpers as commands
import pytest
from command_helpers import Run, give, summary, wait_until, write_experiment
from executor_helpers import (
    PUPPET,
    READY,
    Order,
    await_files,
    await_gone,
    family,
    make_launch,
    until_exit,
    until_heard,
)
from ray_helpers import Cluster

from orchestrator.executors.base import Exited, Launch, Placed
from orchestrator.executors.ray.executor import RayExecutor
from orchestrator.executors.ray.fleet import Fleet
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


def test_one_that_was_never_placed_leaves_at_once(tmp_path: Path, executor: RayExecutor) -> None:
    node = executor.fleet.home_node
    running = [executor.submit(on_node(tmp_path, node, f"j{number}", ASLEEP)) for number in range(4)]
    until_heard(executor, *running)
    waiting = executor.submit(on_node(tmp_path, node, "waiting", ASLEEP))
    executor.cancel(waiting, kill=False)
    assert until_exit(executor, waiting)[waiting] == Exited(waiting, 11)


# -- the command

SHORT = {"name": "short", "xml": commands.BALANCER, "task": "balance"}
LONG = {"name": "long", "xml": commands.BALANCER, "task": "balance", "total_timesteps": 10_000_000}
"""Until it is stopped."""


def options(cluster: Cluster, storage: str) -> tuple[str, ...]:
    """For a run directory that is called like ``storage``."""
    where = ("--executor", "ray", "--ray-address", cluster.address)
    return ("--run-dir", storage, "--storage", storage, *where)


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


def test_a_stop_lets_every_node_checkpoint_and_the_same_command_goes_on(tmp_path: Path, ray_cluster: Cluster) -> None:
    jobs = write_experiment(tmp_path, {**LONG, "seeds": [0, 1, 2]})
    run_dir = tmp_path / "stream"
    left = {f"long-s{seed}": 512 for seed in range(3)}
    for attempt in range(2):
        with Run(jobs, *options(ray_cluster, "stream"), cwd=tmp_path) as run:
            for _ in left:
                run.until("launched")
            wait_until(lambda: all(row["env_steps"] > left[name] for name, row in summary(run_dir).items()), "progress")
            run.signal(signal.SIGINT)
            assert run.end() == 130
        assert [event["event"] for event in run.events].count("paused") == len(left)
        for name in left if attempt else ():
            record = json.loads((run_dir / "jobs" / name / "attempts/1/exit.json").read_text())
            assert record["resumed_from"] == left[name], "it went on from where it was left"
        left = {name: row["env_steps"] for name, row in summary(run_dir).items()}


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
