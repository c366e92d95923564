"""Pilots with puppets in a real Slurm: what is lost with nodes, pilots, limits and the controller."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from executor_helpers import ASLEEP, PUPPET, Order, make_launch, until_exit, until_heard
from slurm_cluster import CPUS, SlurmCluster
from slurm_helpers import joined, registry, until

from orchestrator.core.errors import ClusterLostError
from orchestrator.core.exit_codes import ExitCode
from orchestrator.executors.base import Exited, Handle
from orchestrator.executors.slurm.slurm_executor import SlurmExecutor
from orchestrator.jobfile.slurm_rules import SlurmSettings
from orchestrator.machine.slots import RankSlot

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

OBEDIENT: list[Order] = [("when asked", int(ExitCode.INTERRUPTED)), *ASLEEP]
TWO = SlurmSettings(array=2, cpus_per_task=CPUS, mem_mib=1000)
"""One pilot on each node."""


class Scene:
    def __init__(self, root: Path, settings: SlurmSettings, session: str = "first") -> None:
        self.root = root
        self.pilots = registry(root / "run", settings, session)
        self.executor = SlurmExecutor(pilots=self.pilots, worker_command=PUPPET)
        self.told: list[str] = []
        self.pilots.queue.report = lambda kind, text: self.told.append(f"{kind}: {text}")

    def start(self, job_id: str, orders: list[Order] = OBEDIENT, *, node: str = "", number: int = 0) -> Handle:
        """On the pilot of a node."""
        names = [one.name for one in self.pilots.present if one.hello is not None and node in one.hello.node]
        launch = make_launch(self.root, job_id, orders, number=number)
        return self.executor.submit(dataclasses.replace(launch, cpus=(), rank_slots=(RankSlot(node=names[0]),)))

    def turn(self) -> str:
        """A turn of a supervisor with jobs that wait; what it was told so far."""
        self.pilots.slots.acquire(10**6)
        self.pilots.slots.unfit = ""
        self.executor.poll(0.1)
        return "\n".join(self.told)


@pytest.fixture
def scenes(slurm_cluster: SlurmCluster) -> Iterator[list[Scene]]:
    made: list[Scene] = []
    yield made
    for scene in made:
        scene.executor.close()
    until(lambda: not slurm_cluster.queue())
    until(lambda: slurm_cluster.node_states() == {"idle"})


@pytest.fixture
def scene(scenes: list[Scene], tmp_path: Path) -> Scene:
    scenes.append(Scene(tmp_path, TWO))
    joined(scenes[0].pilots)
    return scenes[0]


def test_a_cancelled_pilot_hands_back_and_is_not_replaced(scene: Scene, slurm_cluster: SlurmCluster) -> None:
    one, other = scene.start("one", node="node0"), scene.start("other", node="node1")
    until_heard(scene.executor, one, other)
    task = next(pilot.task for pilot in scene.pilots.present if one in pilot.attempts)
    slurm_cluster.run("scancel", task)
    exited = until_exit(scene.executor, one)[one]
    assert (exited.returncode, bool(exited.lost)) == (ExitCode.INTERRUPTED, True)
    until(lambda: f"cancelled (scancel): {task}" in scene.turn())
    assert len(slurm_cluster.queue()) == 1
    scene.executor.cancel(other, kill=True)
    assert until_exit(scene.executor, other)[other].returncode == -signal.SIGKILL


def test_when_all_are_cancelled_the_run_ends(scene: Scene, slurm_cluster: SlurmCluster) -> None:
    slurm_cluster.run("scancel", scene.pilots.present[0].task.partition("_")[0])
    with pytest.raises(ClusterLostError, match="scancel"):
        until(lambda: scene.turn() and False)


def test_a_pilot_at_its_time_limit_hands_back_and_another_one_goes_on(
    scenes: list[Scene], tmp_path: Path, slurm_cluster: SlurmCluster
) -> None:
    scene = Scene(tmp_path, SlurmSettings(time_s=60, cpus_per_task=1))
    scenes.append(scene)
    joined(scene.pilots)
    handle = scene.start("a")
    until_heard(scene.executor, handle)

    def has_ended() -> list[Exited]:
        return [event for event in scene.executor.poll(1.0) if isinstance(event, Exited)]

    exited = next(iter(filter(None, (has_ended() for _ in range(120)))))[0]
    assert exited.returncode == ExitCode.INTERRUPTED
    assert exited.lost == "the time limit of its pilot is near"
    before = {pilot.task for pilot in scene.pilots.present}
    until(lambda: scene.turn() is not None and scene.pilots.slots.nodes)
    assert before.isdisjoint(pilot.task for pilot in scene.pilots.present)
    until_heard(scene.executor, scene.start("a", number=1))


def test_jobs_on_a_node_that_is_lost_continue_elsewhere(scene: Scene, slurm_cluster: SlurmCluster) -> None:
    """Its pilot, its workers and its slurmd are killed at once."""
    lost, other = scene.start("lost", node="node1"), scene.start("other", node="node0")
    until_heard(scene.executor, lost, other)
    task = next(pilot.task for pilot in scene.pilots.present if lost in pilot.attempts)
    slurm_cluster.kill_node("node1", task)
    try:
        exited = until_exit(scene.executor, lost)[lost]
        assert exited.returncode is None
        assert exited.lost
    finally:
        slurm_cluster.start_node("node1")
    scene.executor.cancel(other, kill=True)
    assert until_exit(scene.executor, other)[other].returncode == -signal.SIGKILL


def test_jobs_go_on_while_the_controller_is_down(scene: Scene, slurm_cluster: SlurmCluster) -> None:
    one = scene.start("one", [("say", ASLEEP[0][1]), ("await", "go"), ("exit", 0)])
    until_heard(scene.executor, one)
    slurm_cluster.kill("slurmctld")
    try:
        (scene.root / "one" / "go").touch()
        assert until_exit(scene.executor, one)[one] == Exited(one, 0)
        two = scene.start("two", [("exit", 3)])
        assert until_exit(scene.executor, two)[two] == Exited(two, 3)
    finally:
        slurm_cluster.start_controller()
    three = scene.start("three", [("exit", 0)])
    assert until_exit(scene.executor, three)[three] == Exited(three, 0)


def test_a_queue_that_never_starts_is_told_with_slurms_reason(
    scenes: list[Scene], tmp_path: Path, slurm_cluster: SlurmCluster
) -> None:
    scenes.append(Scene(tmp_path, SlurmSettings(array=2, cpus_per_task=1, options={"begin": "now+1hour"})))
    until(lambda: "2 pilots wait in Slurm's queue: BeginTime" in scenes[0].turn())


def test_sbatch_that_refuses_ends_the_run_with_its_words(
    scenes: list[Scene], tmp_path: Path, slurm_cluster: SlurmCluster
) -> None:
    scenes.append(Scene(tmp_path, SlurmSettings(partition="nirvana")))
    with pytest.raises(ClusterLostError, match="partition"):
        until(lambda: scenes[0].turn() and False)


def test_a_requeued_pilot_hands_back_and_is_awaited(scene: Scene, slurm_cluster: SlurmCluster) -> None:
    one = scene.start("one", node="node0")
    until_heard(scene.executor, one)
    task = next(pilot.task for pilot in scene.pilots.present if one in pilot.attempts)
    slurm_cluster.run("scontrol", "requeue", task)
    assert until_exit(scene.executor, one)[one].lost
    until(lambda: scene.turn() is not None and slurm_cluster.queue().get(task) == "PENDING")
    until(lambda: "1 pilot waits in Slurm's queue: BeginTime" in scene.turn())  # Slurm starts it after two minutes
    assert len(slurm_cluster.queue()) == 2, "none was submitted in its place"


def test_the_next_supervisor_takes_pilots_over(
    scenes: list[Scene], tmp_path: Path, slurm_cluster: SlurmCluster
) -> None:
    before = Scene(tmp_path, TWO)  # killed: nothing of it is closed
    joined(before.pilots)
    handle = before.start("a")
    until_heard(before.executor, handle)
    tasks = slurm_cluster.queue().keys()
    scenes.append(Scene(tmp_path, TWO, "second"))
    joined(scenes[0].pilots)
    assert slurm_cluster.queue().keys() == tasks
    assert until_exit(before.executor, handle)[handle].returncode == ExitCode.INTERRUPTED
    until_heard(scenes[0].executor, scenes[0].start("a", number=1))
    before.pilots.queue.wait()
