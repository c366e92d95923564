"""Pilots with puppets in a real Slurm, without its controller, and in a folder that is slow, full
or used twice."""

from __future__ import annotations

import signal
import time

import pytest
from executor_helpers import until_exit, until_heard
from slurm_cluster import SlurmCluster, signal_all, until
from slurm_helpers import UNTIL_GO, Scene

from orchestrator.core.exit_codes import ExitCode
from orchestrator.executors.executor import Exited

pytestmark = pytest.mark.nightly


DOWN_S, SLOW_S = 30.0, 3.0


PILOT = b"features.slurm.pilot"


def test_while_the_controller_is_down_for_half_a_minute_jobs_go_on_and_pilots_end(
    slurm_scene: Scene, slurm_cluster: SlurmCluster
) -> None:
    one, other = (
        slurm_scene.start("one", UNTIL_GO, node="node0"),
        slurm_scene.start("other", node="node1"),
    )
    until_heard(slurm_scene.executor, one, other)
    pids = slurm_cluster.pids(slurm_scene.task_of(other), PILOT)
    slurm_cluster.end_controller()
    back_at = time.monotonic() + DOWN_S
    try:
        (slurm_scene.root / "one" / "go").touch()
        assert until_exit(slurm_scene.executor, one)[one] == Exited(one, 0)
        signal_all(pids, signal.SIGUSR1)  # as slurmd does near the limit
        assert until_exit(slurm_scene.executor, other)[other].returncode == ExitCode.INTERRUPTED
        until(lambda: "squeue does not answer" in slurm_scene.turn())
        two = slurm_scene.start("two", [("exit", 3)], node="node0")
        assert until_exit(slurm_scene.executor, two)[two] == Exited(two, 3)
        until(lambda: slurm_scene.turn() and time.monotonic() > back_at)
    finally:
        slurm_cluster.start_controller()
    until(lambda: slurm_scene.turn() and len(slurm_scene.pilots.slots.nodes) == 2)
    again = slurm_scene.start("other", [("exit", 0)], node="node1", number=1)
    assert until_exit(slurm_scene.executor, again)[again] == Exited(again, 0)
