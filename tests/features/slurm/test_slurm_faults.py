"""Pilots with puppets in a real Slurm: how they end, are lost, and come back."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from executor_helpers import until_exit, until_heard
from slurm_cluster import SlurmCluster, until
from slurm_helpers import Scene, joined

from orchestrator.core.exit_codes import ExitCode
from orchestrator.executors.executor import AttemptId, Exited
from orchestrator.features.slurm.slurm_settings import SlurmSettings

pytestmark = pytest.mark.nightly


def pair(scene: Scene) -> tuple[AttemptId, AttemptId]:
    """Attempts on both nodes that exit when they are asked to."""
    one, other = scene.start("one", node="node0"), scene.start("other", node="node1")
    until_heard(scene.executor, one, other)
    return one, other


def assert_alive(scene: Scene, handle: AttemptId) -> None:
    scene.executor.cancel(handle, kill=True)
    assert until_exit(scene.executor, handle)[handle] == Exited(handle, -signal.SIGKILL)


def assert_continues(scene: Scene, handle: AttemptId, node: str = "") -> None:
    """In a pilot of the node, or in any."""
    until(
        lambda: (
            scene.turn() is not None and len(scene.pilots.slots.nodes) == scene.pilots.queue.wanted
        )
    )
    until_heard(scene.executor, scene.start(handle.job_id, node=node, number=handle.number + 1))


def test_a_cancelled_pilot_hands_back_and_is_not_replaced(
    slurm_scene: Scene, slurm_cluster: SlurmCluster
) -> None:
    one, other = pair(slurm_scene)
    task = slurm_scene.task_of(one)
    slurm_cluster.run("scancel", task)
    exited = until_exit(slurm_scene.executor, one)[one]
    assert (exited.returncode, bool(exited.lost)) == (ExitCode.INTERRUPTED, True)
    until(lambda: f"cancelled (scancel): {task}" in slurm_scene.turn())
    assert len(slurm_cluster.queue()) == 1
    assert_alive(slurm_scene, other)


def test_a_pilot_at_its_time_limit_hands_back_and_another_one_goes_on(
    slurm_scenes: list[Scene], tmp_path: Path
) -> None:
    early = {
        "signal": "B:USR1@45"
    }  # sooner than the program asks for, as a limit is a minute at least
    scene = Scene(tmp_path, SlurmSettings(time_s=60, cpus_per_task=1, options=early))
    slurm_scenes.append(scene)
    joined(scene.pilots)
    handle = scene.start("a")
    before = scene.task_of(handle)
    exited = until_exit(scene.executor, handle)[handle]
    assert exited == Exited(
        handle, ExitCode.INTERRUPTED, lost="the time limit of its pilot is near"
    )
    assert_continues(scene, handle)
    assert before not in {pilot.task for pilot in scene.pilots.present}


def test_jobs_on_a_lost_node_continue_and_a_pilot_without_its_slurmd_goes_on_until_slurm_gives_its_node_up(
    slurm_scene: Scene, slurm_cluster: SlurmCluster
) -> None:
    """On node0 pilot, workers and slurmd are killed at once; on node1 only the slurmd."""
    one, other = pair(slurm_scene)
    tasks, task = slurm_cluster.queue().keys(), slurm_scene.task_of(other)
    slurm_cluster.kill_node("node0", slurm_scene.task_of(one))
    slurm_cluster.kill_slurmd("node1")
    try:
        exited = until_exit(slurm_scene.executor, one)[one]
        assert exited.returncode is None
        assert exited.lost
        until(lambda: slurm_cluster.queue()[task] == "PENDING")
        assert slurm_scene.task_of(other) == task
    finally:
        slurm_cluster.start_node("node0")
        slurm_cluster.start_node("node1")
    assert until_exit(slurm_scene.executor, other)[other].lost
    assert_continues(slurm_scene, one, "node0")
    assert_continues(slurm_scene, other, "node1")
    assert slurm_cluster.queue().keys() == tasks, "none was submitted in their place"
