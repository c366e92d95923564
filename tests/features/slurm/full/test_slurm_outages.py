"""Pilots with puppets in a real Slurm, without its controller, and in a folder that is slow, full
or used twice."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from executor_helpers import ASLEEP, until_exit, until_heard
from slurm_cluster import CPUS, SlurmCluster, signal_all, until
from slurm_helpers import OBEDIENT, UNTIL_GO, Scene, joined

from orchestrator.core.errors import ClusterLostError
from orchestrator.core.exit_codes import ExitCode
from orchestrator.executors.base import Exited
from orchestrator.features.slurm import pilot_registry
from orchestrator.features.slurm.slurm_settings import SlurmSettings

pytestmark = pytest.mark.nightly

DOWN_S, SLOW_S = 30.0, 3.0
SLOW_NAMES = Path(__file__).parents[3] / "helpers" / "slow_names.py"
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


def test_a_folder_that_shows_new_and_replaced_files_late_delays_jobs_and_loses_nothing(
    slurm_scenes: list[Scene], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For both sides: pilots open what is new late, the supervisor lists it late."""
    shutil.copy(SLOW_NAMES, tmp_path / "sitecustomize.py")
    monkeypatch.setenv("SLOW_FOLDER", str(tmp_path))
    monkeypatch.setenv("SLOW_S", str(SLOW_S))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    list_at_once, listed = os.listdir, dict[str, float]()

    def list_late(folder: str) -> list[str]:
        now, names = time.monotonic(), list_at_once(folder)
        return [name for name in names if now - listed.setdefault(f"{folder}/{name}", now) > SLOW_S]

    monkeypatch.setattr(pilot_registry.os, "listdir", list_late)
    before = Scene(tmp_path, SlurmSettings(cpus_per_task=1))
    joined(before.pilots)
    first = before.start("a", [("exit", 0)])
    assert until_exit(before.executor, first)[first] == Exited(first, 0)
    second = before.start("a", OBEDIENT, number=1)  # with another spec.json
    until_heard(before.executor, second)
    slurm_scenes.append(Scene(tmp_path, SlurmSettings(cpus_per_task=1), "second"))
    assert before.has_handed_back(second)
    joined(slurm_scenes[0].pilots)
    third = slurm_scenes[0].start("a", [("exit", 3)], number=2)
    assert until_exit(slurm_scenes[0].executor, third)[third] == Exited(third, 3)
    before.pilots.queue.wait()


def test_what_happens_while_the_file_system_is_full_is_told_when_there_is_room(
    small_disk: Path, slurm_scenes: list[Scene], slurm_cluster: SlurmCluster
) -> None:
    scene = Scene(small_disk, SlurmSettings(array=2, cpus_per_task=CPUS, mem_mib=1000))
    slurm_scenes.append(scene)
    joined(scene.pilots)
    one, other = scene.start("one", UNTIL_GO, node="node0"), scene.start("other", node="node1")
    until_heard(scene.executor, one, other)
    task = scene.task_of(other)
    folder = small_disk / "run/slurm"
    for path in (small_disk / "ballast", *folder.glob("*.log"), *folder.glob("first/*.events.0")):
        fill(path)
    (small_disk / "one" / "go").touch()
    slurm_cluster.run("scancel", "--signal=USR1", "--batch", task)
    until(
        lambda: (
            scene.executor.poll(0.1) is not None
            and scene.pilots.present[0].heard < time.monotonic() - 4.0
        )
    )
    (small_disk / "ballast").unlink()
    exits = until_exit(scene.executor, one, other)
    assert exits[one] == Exited(one, 0)
    assert exits[other] == Exited(
        other, ExitCode.INTERRUPTED, lost="the time limit of its pilot is near"
    )
    until(lambda: scene.turn() is not None and len(scene.pilots.slots.nodes) == 2)


def fill(path: Path) -> None:
    """Append to a file until also its last block is full."""
    with path.open("ab", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        file.writelines(itertools.repeat(b"\n" * 4096))


def test_of_two_supervisors_the_later_one_has_the_pilots_and_the_other_ends(
    slurm_scenes: list[Scene], tmp_path: Path, slurm_cluster: SlurmCluster
) -> None:
    """They are on two login nodes, where the file system has no locks."""
    settings = SlurmSettings(array=2, cpus_per_task=CPUS, mem_mib=1000)
    before = Scene(tmp_path, settings)
    joined(before.pilots)
    handle = before.start("a")
    until_heard(before.executor, handle)
    tasks = slurm_cluster.queue().keys()
    scene = Scene(tmp_path, settings, "second")
    slurm_scenes.append(scene)
    assert before.has_handed_back(handle)
    joined(scene.pilots)
    again = scene.start("a", ASLEEP, number=1)
    until_heard(scene.executor, again)
    with pytest.raises(ClusterLostError, match="another supervisor"):
        until(lambda: before.turn() and False)
    before.executor.close()
    assert slurm_cluster.queue().keys() == tasks
    scene.executor.cancel(again, kill=True)
    assert until_exit(scene.executor, again)[again] == Exited(again, -signal.SIGKILL)
