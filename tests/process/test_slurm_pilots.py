"""Pilots with puppets, in a Slurm whose commands are fake: handing back, loss, cancellation, queue and end."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from executor_helpers import ASLEEP, PUPPET, Order, await_files, await_gone, make_launch, until_exit, until_heard
from slurm_helpers import FakeSlurm, joined, registry, until

from orchestrator.core.errors import ClusterLostError
from orchestrator.core.exit_codes import ExitCode
from orchestrator.executors.base import Exited, Handle
from orchestrator.executors.slurm import batch_queue, pilot_registry
from orchestrator.executors.slurm.mailbox import Outbox
from orchestrator.executors.slurm.pilot_messages import PilotBye
from orchestrator.executors.slurm.pilot_registry import PilotRegistry
from orchestrator.executors.slurm.session_file import Session, write_session
from orchestrator.executors.slurm.slurm_commands import SlurmCommand
from orchestrator.executors.slurm.slurm_executor import SlurmExecutor
from orchestrator.jobfile.slurm_rules import SlurmSettings
from orchestrator.machine.slots import RankSlot

OBEDIENT: list[Order] = [("when asked", int(ExitCode.INTERRUPTED)), *ASLEEP]


class Scene:
    """An executor over the pilots of one session."""

    def __init__(self, root: Path, pilots: PilotRegistry) -> None:
        self.root, self.pilots = root, pilots
        self.executor = SlurmExecutor(pilots=pilots, worker_command=PUPPET)
        self.told: list[tuple[str, str]] = []
        pilots.queue.report = lambda kind, text: self.told.append((kind, text))

    def start(self, job_id: str, orders: list[Order] = OBEDIENT, pilot: int = 0, number: int = 0) -> Handle:
        """On the ``pilot``-th of those that are there, by name."""
        node = sorted(one.name for one in self.pilots.present)[pilot]
        launch = make_launch(self.root, job_id, orders, number=number)
        return self.executor.submit(dataclasses.replace(launch, cpus=(), rank_slots=(RankSlot(node=node),)))

    def texts(self, kind: str) -> str:
        return "\n".join(text for one, text in self.told if one == kind)

    def need_room(self) -> None:
        self.pilots.slots.acquire(10**6)
        self.pilots.slots.unfit = ""


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_queue, "ASK_EVERY_S", 0.2)
    monkeypatch.setattr(batch_queue, "ASK_AT_EASE_S", 0.2)
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
    scene = Scene(root, registry(root / "run", SlurmSettings(**settings), session))
    scenes.append(scene)
    joined(scene.pilots)
    return scene


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
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


def test_what_succeeds_while_its_pilot_leaves_has_succeeded(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    scene = scene_of(scenes, tmp_path)
    handle = scene.start("a", [("when asked", 0), *ASLEEP])
    until_heard(scene.executor, handle)
    os.kill(*fake_slurm.pids(), signal.SIGUSR1)
    assert until_exit(scene.executor, handle)[handle] == Exited(handle, 0)


@pytest.mark.parametrize(("orders", "returncode"), [(OBEDIENT, ExitCode.INTERRUPTED), (ASLEEP, None)])
def test_a_worker_that_slurm_signals_before_its_pilot_costs_its_job_nothing(
    orders: list[Order], returncode: int | None, scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    scene = scene_of(scenes, tmp_path)
    handle = scene.start("a", [("look", None), *orders])
    until_heard(scene.executor, handle)
    os.kill(worker_of(tmp_path / "a"), signal.SIGTERM)
    exited = until_exit(scene.executor, handle)[handle]
    assert exited.returncode == returncode
    assert exited.lost


@pytest.mark.slow
def test_a_launch_that_a_leaving_pilot_reads_costs_nothing(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    scene = scene_of(scenes, tmp_path)
    (pid,) = fake_slurm.pids()
    os.kill(pid, signal.SIGSTOP)
    handle = scene.start("a")
    os.kill(pid, signal.SIGUSR1)
    os.kill(pid, signal.SIGCONT)
    exited = until_exit(scene.executor, handle)[handle]
    assert exited.returncode == ExitCode.INTERRUPTED
    assert exited.lost


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_cancelled_pilot_is_not_replaced_and_the_others_go_on(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    scene = scene_of(scenes, tmp_path, array=2)
    one, other = scene.start("one", pilot=0), scene.start("other", pilot=1)
    until_heard(scene.executor, one, other)
    fake_slurm.scancel("100_0")
    assert until_exit(scene.executor, one)[one].returncode == ExitCode.INTERRUPTED

    def is_told() -> bool:
        scene.need_room()
        scene.executor.poll(0.0)
        return "cancelled (scancel): 100_0" in scene.texts("warning")

    until(is_told)
    asked = len(fake_slurm.calls("squeue"))
    until(lambda: [scene.need_room(), scene.executor.poll(0.0), len(fake_slurm.calls("squeue"))][-1] > asked + 2)
    assert len(fake_slurm.calls("sbatch")) == 1
    scene.executor.cancel(other, kill=True)
    assert until_exit(scene.executor, other)[other].returncode == -signal.SIGKILL


@pytest.mark.slow
def test_a_pilot_that_ends_may_be_requeued_and_is_not_replaced_at_once(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = scene_of(scenes, tmp_path)
    os.kill(*fake_slurm.pids(), signal.SIGTERM)
    until(lambda: "RUNNING" not in fake_slurm.states().values())
    fake_slurm.put("100_0/state", "COMPLETING")
    asked = len(fake_slurm.calls("squeue"))
    until(lambda: [scene.need_room(), scene.executor.poll(0.0), len(fake_slurm.calls("squeue"))][-1] > asked + 2)
    assert len(fake_slurm.calls("sbatch")) == 1
    monkeypatch.setattr(batch_queue, "COMPLETING_S", 0.1)
    joined(scene.pilots)
    assert len(fake_slurm.calls("sbatch")) == 2


@pytest.mark.slow
def test_a_restarted_pilot_ends_the_attempts_of_the_one_before_and_is_not_cancelled(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    scene = scene_of(scenes, tmp_path)
    handle = scene.start("a")
    until_heard(scene.executor, handle)
    (before,) = scene.pilots.present
    assert before.hello is not None
    Outbox(tmp_path / "run/slurm/first/100_0.1.events").send(before.hello)
    assert "restarted by Slurm" in (until_exit(scene.executor, handle)[handle].lost or "")
    assert [pilot.name for pilot in scene.pilots.present] == ["100_0.1"]
    assert not fake_slurm.calls("scancel")
    Outbox(tmp_path / "run/slurm/first/100_0.1.events").send(PilotBye())


def test_when_every_pilot_is_cancelled_the_run_ends_and_says_why(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    scene = scene_of(scenes, tmp_path, array=2)
    fake_slurm.scancel("100")
    with pytest.raises(ClusterLostError, match="scancel"):
        until(lambda: [scene.need_room(), scene.executor.poll(0.1)][0])


@pytest.mark.slow
def test_the_next_supervisor_takes_pilots_over_and_they_hand_back(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    before = scene_of(scenes, tmp_path)
    scenes.clear()  # it is killed: nothing of it is closed
    handle = before.start("a")
    until_heard(before.executor, handle)
    (pid,) = fake_slurm.pids()
    scene = Scene(tmp_path, registry(tmp_path / "run", SlurmSettings(), "second"))
    scenes.append(scene)
    joined(scene.pilots)
    assert fake_slurm.pids() == [pid]
    assert len(fake_slurm.calls("sbatch")) == 1
    again = scene.start("a", number=1)
    until_heard(scene.executor, again)
    assert until_exit(before.executor, handle)[handle].returncode == ExitCode.INTERRUPTED
    before.pilots.queue.wait()


@pytest.mark.slow
def test_a_pilot_that_a_supervisor_does_not_know_of_finds_it_and_its_end(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    before = scene_of(scenes, tmp_path)
    scenes.clear()
    handle = before.start("a")
    until_heard(before.executor, handle)
    folder = tmp_path / "run" / "slurm"
    (folder / "second").mkdir()
    write_session(folder, Session(session="second"))
    assert until_exit(before.executor, handle)[handle].returncode == ExitCode.INTERRUPTED
    await_files(folder / "second" / "100_0.0.events.0")
    write_session(folder, Session(session="second", ended=True))
    until(lambda: not fake_slurm.pids())
    before.pilots.queue.wait()


def test_a_queue_that_does_not_start_is_told_with_slurms_reason(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    fake_slurm.put("hold", "QOSMaxCpuPerUserLimit")
    scene = Scene(tmp_path, registry(tmp_path / "run", SlurmSettings(array=3)))
    scenes.append(scene)

    def is_told() -> bool:
        scene.need_room()
        scene.executor.poll(0.0)
        return "3 pilots wait in Slurm's queue: QOSMaxCpuPerUserLimit" in scene.texts("waiting")

    until(is_told)
    scene.executor.close()
    assert set(fake_slurm.states().values()) == {"CANCELLED"}


@pytest.mark.slow
def test_while_the_controller_is_down_jobs_go_on(scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    scene = scene_of(scenes, tmp_path, array=2)
    one, other = scene.start("one"), scene.start("other", [("say", ASLEEP[0][1]), ("await", "go"), ("exit", 0)], 1)
    until_heard(scene.executor, one, other)
    fake_slurm.put("down")
    os.kill(fake_slurm.pids()[0], signal.SIGUSR1)  # one leaves, so that Slurm is asked

    def is_told() -> bool:
        scene.need_room()
        return (bool(scene.executor.poll(0.0)) and False) or "squeue does not answer" in scene.texts("waiting")

    until(is_told)
    (tmp_path / "other" / "go").touch()
    assert until_exit(scene.executor, other)[other] == Exited(other, 0)
    fake_slurm.remove("down")
    joined(scene.pilots)


def test_sbatch_that_refuses_ends_the_run_with_its_words(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    fake_slurm.put("refuse", "invalid partition specified: nirvana")
    scene = Scene(tmp_path, registry(tmp_path / "run", SlurmSettings(partition="nirvana")))
    scenes.append(scene)
    with pytest.raises(ClusterLostError, match="invalid partition specified: nirvana"):
        until(lambda: [scene.need_room(), scene.executor.poll(0.1)][0])


def test_variables_do_not_change_what_slurm_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SBATCH_JOB_NAME", "SQUEUE_PARTITION", "SCANCEL_NAME", "SLURM_CLUSTERS", "SLURM_CONF"):
        monkeypatch.setenv(name, "there")
    names = {line.partition("=")[0] for line in SlurmCommand("env").wait().output.splitlines()}
    assert {name for name in names if name.startswith(("SBATCH", "SQUEUE", "SCANCEL", "SLURM_C"))} == {"SLURM_CONF"}


def test_a_run_waits_for_its_file_system_and_for_processes(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_queue, "RETRY_S", 0.5)
    scene = Scene(tmp_path, registry(tmp_path / "run", SlurmSettings()))
    scenes.append(scene)
    (tmp_path / "run" / "slurm").rename(tmp_path / "away")
    until(lambda: [scene.need_room(), scene.executor.poll(0.0), "cannot be written" in scene.texts("waiting")][-1])
    (tmp_path / "away").rename(tmp_path / "run" / "slurm")
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        until(lambda: [scene.need_room(), scene.executor.poll(0.0), "cannot be started" in scene.texts("waiting")][-1])
    joined(scene.pilots)


def test_pilots_that_squeue_hides_are_submitted_once_and_end_the_run(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    fake_slurm.put("hide")
    fake_slurm.put("hold", "Resources")
    scene = Scene(tmp_path, registry(tmp_path / "run", SlurmSettings()))
    scenes.append(scene)
    with pytest.raises(ClusterLostError, match="job 100, which squeue does not show"):
        until(lambda: [scene.need_room(), scene.executor.poll(0.1)][0])
    assert len(fake_slurm.calls("sbatch")) == 1


def test_pilots_that_cannot_start_end_the_run_with_the_last_line_of_their_log(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    settings = SlurmSettings(setup=("echo module: command not found >&2", "exit 1"))
    scene = Scene(tmp_path, registry(tmp_path / "run", settings))
    scenes.append(scene)
    with pytest.raises(ClusterLostError, match="module: command not found"):
        until(lambda: [scene.need_room(), scene.executor.poll(0.1)][0])


@pytest.mark.slow
@pytest.mark.parametrize("words", ["", "Job violates accounting/QOS policy (job submit limit)"])
def test_a_pilot_goes_on_when_none_can_take_the_place_of_another(
    words: str, scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    begin = tmp_path / "begin"
    begin.touch()
    settings = SlurmSettings(array=2, setup=(f"test -e {begin} || exit 1",))
    scene = Scene(tmp_path, registry(tmp_path / "run", settings))
    scenes.append(scene)
    joined(scene.pilots)
    handle = scene.start("a", [("say", ASLEEP[0][1]), ("await", "go"), ("exit", 0)])
    until_heard(scene.executor, handle)
    if words:
        fake_slurm.put("refuse", words)
    begin.unlink()
    os.kill(fake_slurm.pids()[1], signal.SIGUSR1)

    def is_told() -> bool:
        scene.need_room()
        scene.executor.poll(0.0)
        return (words or "pilots end before they report") in scene.texts("warning")

    until(is_told)
    asked = len(fake_slurm.calls("sbatch"))
    (tmp_path / "a" / "go").touch()
    assert until_exit(scene.executor, handle)[handle] == Exited(handle, 0)
    assert len(fake_slurm.calls("sbatch")) == asked


def test_a_job_that_fits_no_pilot_ends_the_run_when_nothing_runs(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    scene = scene_of(scenes, tmp_path)
    with pytest.raises(ClusterLostError, match="asks for 2 cores"):
        until(lambda: [scene.pilots.slots.acquire(2, memory_mib=100), scene.executor.poll(0.1)][0])


@pytest.mark.slow
def test_idle_pilots_are_ended_while_nothing_waits_and_submitted_again_for_further_jobs(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pilot_registry, "IDLE_AFTER_S", 1.0)
    scene = scene_of(scenes, tmp_path, array=2)
    handle = scene.start("busy")
    until_heard(scene.executor, handle)
    until(lambda: [scene.executor.poll(0.1), list(fake_slurm.states().values()).count("RUNNING")][-1] == 1)
    joined(scene.pilots)
    assert len(fake_slurm.pids()) == 2


def test_the_end_leaves_nothing_queued_and_nothing_running(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    scene = scene_of(scenes, tmp_path, array=2)
    handle = scene.start("a", ASLEEP)
    until_heard(scene.executor, handle)
    scene.executor.close()
    until(lambda: "RUNNING" not in fake_slurm.states().values())
    assert not list((tmp_path / "run" / "slurm").glob("first*"))


def test_slurm_is_asked_at_most_once_in_ten_seconds(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_queue, "ASK_EVERY_S", 10.0)
    monkeypatch.setattr(batch_queue, "ASK_AT_EASE_S", 60.0)
    began = time.monotonic()
    scene = scene_of(scenes, tmp_path, array=2)
    handles = [scene.start(f"j{number}", [("exit", 0)], number % 2) for number in range(20)]
    until_exit(scene.executor, *handles)
    assert len(fake_slurm.calls("sbatch")) == 1
    assert len(fake_slurm.calls("squeue")) <= 1 + (time.monotonic() - began) // 10
