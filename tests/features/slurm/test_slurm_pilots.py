"""Pilots with puppets, in a Slurm whose commands are fake: handing back, loss, cancellation, queue
and end."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from executor_helpers import (
    ASLEEP,
    await_files,
    await_gone,
    until_exit,
    until_heard,
)
from slurm_cluster import until
from slurm_helpers import UNTIL_GO, FakeSlurm, Scene, joined

from orchestrator.core.errors import ClusterLostError
from orchestrator.core.exit_codes import ExitCode
from orchestrator.executors.executor import Exited
from orchestrator.features.slurm import pilot_registry, submission
from orchestrator.features.slurm.slurm_settings import SlurmSettings

pytestmark = pytest.mark.nightly


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "ASK_EVERY_S", 0.2)
    monkeypatch.setattr(submission, "ASK_AT_EASE_S", 0.2)
    monkeypatch.setattr(pilot_registry, "SUSPECT_AFTER_S", 4.0)


@pytest.fixture
def scenes(fake_slurm: FakeSlurm, tmp_path: Path) -> Iterator[list[Scene]]:
    made: list[Scene] = []
    yield made
    for scene in made:
        scene.executor.close()


def worker_of(job_dir: Path) -> int:
    """Pid of a puppet that has looked around."""
    return int(json.loads(*await_files(job_dir / "seen.json"))["pid"])


def scene_of(scenes: list[Scene], root: Path, session: str = "first", **settings: int) -> Scene:
    """One whose pilots have all joined."""
    scene = Scene(root, SlurmSettings(**settings), session)
    scenes.append(scene)
    joined(scene.pilots)
    return scene


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGUSR1, marks=pytest.mark.nightly), signal.SIGTERM]
)
def test_a_pilot_that_slurm_ends_hands_back_what_has_saved_a_checkpoint(
    number: int, scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    scene = scene_of(scenes, tmp_path)
    handle = scene.start("a")
    until_heard(scene.executor, handle)
    os.kill(*fake_slurm.pids(), number)
    exited = until_exit(scene.executor, handle)[handle]
    assert exited.returncode == ExitCode.INTERRUPTED
    assert exited.lost is not None
    until(lambda: [*scene.executor.poll(0.0), scene.pilots.present][-1] == [])
    until(lambda: set(fake_slurm.states().values()) == {"COMPLETED"})
    joined(scene.pilots)  # work is left, so another one is submitted
    assert len(fake_slurm.calls("sbatch")) == 2
    again = scene.start("a", number=1)
    until_heard(scene.executor, again)


@pytest.mark.nightly
def test_a_killed_pilot_takes_its_workers_with_it_and_its_attempts_are_lost(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    scene = scene_of(scenes, tmp_path)
    handle = scene.start("a", [("look", None), *ASLEEP])
    until_heard(scene.executor, handle)
    worker = worker_of(tmp_path / "a")
    os.kill(*fake_slurm.pids(), signal.SIGKILL)
    await_gone([worker])
    exited = until_exit(scene.executor, handle)[handle]
    assert exited.returncode is None
    assert "has ended (FAILED)" in (exited.lost or "")
    joined(scene.pilots)


@pytest.mark.nightly
def test_a_pilot_that_comes_back_after_it_was_given_up_kills_what_it_has(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pilot_registry, "GIVE_UP_AFTER_S", 5.0)
    scene = scene_of(scenes, tmp_path)
    (pid,) = fake_slurm.pids()
    handle = scene.start("a", [("look", None), *ASLEEP])
    until_heard(scene.executor, handle)
    worker = worker_of(tmp_path / "a")
    os.kill(pid, signal.SIGSTOP)
    exited = until_exit(scene.executor, handle)[handle]
    assert "is silent" in (exited.lost or "")
    os.kill(pid, signal.SIGCONT)
    await_gone([worker, pid])


@pytest.mark.nightly
def test_a_cancelled_pilot_is_not_replaced_and_the_others_go_on(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    scene = scene_of(scenes, tmp_path, array=2)
    one, other = scene.start("one", node="node-0"), scene.start("other", node="node-1")
    until_heard(scene.executor, one, other)
    fake_slurm.scancel("100_0")
    assert until_exit(scene.executor, one)[one].returncode == ExitCode.INTERRUPTED

    def is_told() -> bool:
        scene.need_room()
        scene.executor.poll(0.0)
        return "cancelled (scancel): 100_0" in scene.texts("warning")

    until(is_told)
    asked = len(fake_slurm.calls("squeue"))
    until(
        lambda: (
            [scene.need_room(), scene.executor.poll(0.0), len(fake_slurm.calls("squeue"))][-1]
            > asked + 2
        )
    )
    assert len(fake_slurm.calls("sbatch")) == 1
    scene.executor.cancel(other, kill=True)
    assert until_exit(scene.executor, other)[other].returncode == -signal.SIGKILL


@pytest.mark.nightly
def test_when_every_pilot_is_cancelled_the_run_ends_and_says_why(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    scene = scene_of(scenes, tmp_path, array=2)
    fake_slurm.scancel("100")
    with pytest.raises(ClusterLostError, match="scancel"):
        until(lambda: [scene.need_room(), scene.executor.poll(0.1)][0])


@pytest.mark.nightly
def test_the_next_supervisor_takes_pilots_over_and_the_one_before_ends_if_it_still_runs(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    before = scene_of(scenes, tmp_path)
    scenes.clear()
    handle = before.start("a")
    until_heard(before.executor, handle)
    (pid,) = fake_slurm.pids()
    scene = Scene(tmp_path, SlurmSettings(), "second")
    scenes.append(scene)
    joined(scene.pilots)
    assert fake_slurm.pids() == [pid]
    assert len(fake_slurm.calls("sbatch")) == 1
    again = scene.start("a", number=1)
    until_heard(scene.executor, again)
    until(lambda: before.has_handed_back(handle))
    with pytest.raises(ClusterLostError, match="another supervisor"):
        until(lambda: before.turn() and False)
    before.executor.close()
    scene.executor.cancel(again, kill=True)
    assert until_exit(scene.executor, again)[again].returncode == -signal.SIGKILL
    assert fake_slurm.pids() == [pid]


def test_a_queue_that_does_not_start_is_told_with_slurms_reason(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    fake_slurm.put("hold", "QOSMaxCpuPerUserLimit")
    scene = Scene(tmp_path, SlurmSettings(array=3))
    scenes.append(scene)

    def is_told() -> bool:
        scene.need_room()
        scene.executor.poll(0.0)
        return "3 pilots wait in Slurm's queue: QOSMaxCpuPerUserLimit" in scene.texts("waiting")

    until(is_told)
    scene.executor.close()
    assert set(fake_slurm.states().values()) == {"CANCELLED"}


@pytest.mark.nightly
def test_while_the_controller_is_down_jobs_go_on(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    scene = scene_of(scenes, tmp_path, array=2)
    one, other = scene.start("one", node="node-0"), scene.start("other", UNTIL_GO, node="node-1")
    until_heard(scene.executor, one, other)
    fake_slurm.put("down")
    os.kill(fake_slurm.pids()[0], signal.SIGUSR1)  # one leaves, so that Slurm is asked

    def is_told() -> bool:
        scene.need_room()
        return (
            bool(scene.executor.poll(0.0)) and False
        ) or "squeue does not answer" in scene.texts("waiting")

    until(is_told)
    (tmp_path / "other" / "go").touch()
    assert until_exit(scene.executor, other)[other] == Exited(other, 0)
    fake_slurm.remove("down")
    joined(scene.pilots)


def test_pilots_that_cannot_start_end_the_run_with_the_last_line_of_their_log(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    settings = SlurmSettings(setup=("echo module: command not found >&2", "exit 1"))
    scene = Scene(tmp_path, settings)
    scenes.append(scene)
    with pytest.raises(ClusterLostError, match="module: command not found"):
        until(lambda: [scene.need_room(), scene.executor.poll(0.1)][0])


@pytest.mark.nightly
def test_a_job_that_fits_no_pilot_ends_the_run_when_nothing_runs(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    scene = scene_of(scenes, tmp_path)
    with pytest.raises(ClusterLostError, match="asks for 2 cores"):
        until(lambda: [scene.pilots.slots.acquire(2, memory_mib=100), scene.executor.poll(0.1)][0])


def test_the_end_leaves_nothing_queued_and_nothing_running(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    scene = scene_of(scenes, tmp_path, array=2)
    handle = scene.start("a", ASLEEP)
    until_heard(scene.executor, handle)
    fake_slurm.put("linger", "2")
    scene.executor.close()
    assert set(fake_slurm.states().values()) == {"COMPLETED"}, (
        "they end by themselves, with exit code 0"
    )
    assert not list((tmp_path / "run" / "slurm").glob("first*"))
