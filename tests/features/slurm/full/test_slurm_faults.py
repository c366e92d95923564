"""Pilots with puppets in a real Slurm: how they end, are lost, and come back."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from executor_helpers import ASLEEP, await_gone, until_exit, until_heard
from slurm_cluster import CPUS, MEMORY_MIB, SlurmCluster, signal_all, until
from slurm_helpers import UNTIL_GO, Scene, joined

from orchestrator.core.errors import ClusterLostError
from orchestrator.core.exit_codes import ExitCode
from orchestrator.executors.base import Exited, Handle
from orchestrator.features.slurm import pilot_registry
from orchestrator.features.slurm.slurm_settings import SlurmSettings

pytestmark = pytest.mark.nightly


def pair(scene: Scene) -> tuple[Handle, Handle]:
    """Attempts on both nodes that exit when they are asked to."""
    one, other = scene.start("one", node="node0"), scene.start("other", node="node1")
    until_heard(scene.executor, one, other)
    return one, other


def assert_alive(scene: Scene, handle: Handle) -> None:
    scene.executor.cancel(handle, kill=True)
    assert until_exit(scene.executor, handle)[handle] == Exited(handle, -signal.SIGKILL)


def assert_continues(scene: Scene, handle: Handle, node: str = "") -> None:
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


def test_when_all_are_cancelled_the_run_ends(
    slurm_scene: Scene, slurm_cluster: SlurmCluster
) -> None:
    slurm_cluster.run("scancel", slurm_scene.pilots.present[0].task.partition("_")[0])
    with pytest.raises(ClusterLostError, match="scancel"):
        until(lambda: slurm_scene.turn() and False)


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


def test_a_pilot_on_a_drained_node_goes_on_and_its_successor_waits(
    slurm_scene: Scene, slurm_cluster: SlurmCluster
) -> None:
    one, other = (
        slurm_scene.start("one", UNTIL_GO, node="node0"),
        slurm_scene.start("other", UNTIL_GO, node="node1"),
    )
    slurm_cluster.run("scontrol", "update", "NodeName=node1", "State=DRAIN", "Reason=tests")
    try:
        until(lambda: "drng" in slurm_cluster.node_states())
        (slurm_scene.root / "other" / "go").touch()
        assert until_exit(slurm_scene.executor, other)[other] == Exited(other, 0)
        later = slurm_scene.start("later", node="node1")
        until_heard(slurm_scene.executor, later)
        slurm_cluster.run("scancel", "--signal=USR1", "--batch", slurm_scene.task_of(later))
        assert until_exit(slurm_scene.executor, later)[later].returncode == ExitCode.INTERRUPTED
        until(lambda: "1 pilot waits in Slurm's queue" in slurm_scene.turn())
        (slurm_scene.root / "one" / "go").touch()
        assert until_exit(slurm_scene.executor, one)[one] == Exited(one, 0)
    finally:
        slurm_cluster.run("scontrol", "update", "NodeName=node1", "State=RESUME")
    assert_continues(slurm_scene, later, "node1")


def test_a_preempted_pilot_hands_back_and_takes_jobs_again_when_slurm_starts_it_again(
    slurm_scene: Scene, slurm_cluster: SlurmCluster
) -> None:
    """It is requeued, as by `scontrol requeue`."""
    one, other = pair(slurm_scene)
    task, tasks = slurm_scene.task_of(one), slurm_cluster.queue().keys()
    asked = (
        "--partition=urgent",
        "--nodelist=node0",
        f"--cpus-per-task={CPUS}",
        f"--mem={MEMORY_MIB}",
    )
    job = slurm_cluster.run(
        "sbatch", "--parsable", *asked, "--output=/dev/null", "--wrap=sleep 600"
    ).stdout.strip()
    exited = until_exit(slurm_scene.executor, one)[one]
    assert (exited.returncode, bool(exited.lost)) == (ExitCode.INTERRUPTED, True)
    until(lambda: slurm_scene.turn() is not None and slurm_cluster.queue().get(task) == "PENDING")
    until(lambda: slurm_cluster.queue().get(job) == "RUNNING")
    slurm_cluster.run("scancel", job)
    assert_continues(slurm_scene, one, "node0")
    until(lambda: slurm_cluster.queue().keys() == tasks)  # none was submitted in its place
    assert_alive(slurm_scene, other)


def test_a_pilot_that_comes_back_after_it_was_given_up_ends_with_all_that_it_has(
    slurm_scene: Scene, slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing on its node runs for a while, also nothing of Slurm."""
    monkeypatch.setattr(pilot_registry, "GIVE_UP_AFTER_S", 8.0)
    one, other = (
        slurm_scene.start("one", ASLEEP, node="node0"),
        slurm_scene.start("other", node="node1"),
    )
    until_heard(slurm_scene.executor, one, other)
    pids = slurm_cluster.pids(slurm_scene.task_of(one))
    signal_all(pids, signal.SIGSTOP)
    try:
        assert "is silent" in (until_exit(slurm_scene.executor, one)[one].lost or "")
        assert_alive(slurm_scene, other)
        again = slurm_scene.start("one", node="node1", number=1)
        until_heard(slurm_scene.executor, again)
    finally:
        signal_all(pids, signal.SIGCONT)
    await_gone(pids)
    assert_continues(slurm_scene, other, "node0")
    assert_alive(slurm_scene, again)


def test_a_queue_that_never_starts_is_told_with_slurms_reason(
    slurm_scenes: list[Scene], tmp_path: Path
) -> None:
    slurm_scenes.append(
        Scene(tmp_path, SlurmSettings(array=2, cpus_per_task=1, options={"begin": "now+1hour"}))
    )
    until(lambda: "2 pilots wait in Slurm's queue: BeginTime" in slurm_scenes[0].turn())


def test_sbatch_that_refuses_ends_the_run_with_its_words(
    slurm_scenes: list[Scene], tmp_path: Path
) -> None:
    slurm_scenes.append(Scene(tmp_path, SlurmSettings(partition="nirvana")))
    with pytest.raises(ClusterLostError, match="partition"):
        until(lambda: slurm_scenes[0].turn() and False)
