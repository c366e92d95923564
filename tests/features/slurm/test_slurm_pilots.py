"""Pilots with puppets, in a Slurm whose commands are fake: handing back, loss, cancellation, queue
and end."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from executor_helpers import (
    ASLEEP,
    Order,
    await_files,
    await_gone,
    make_launch,
    until_exit,
    until_heard,
)
from slurm_cluster import until
from slurm_helpers import OBEDIENT, UNTIL_GO, FakeSlurm, Scene, joined, registry
from supervisor_helpers import Experiment, make_job, once

from orchestrator.core.errors import ClusterLostError
from orchestrator.core.exit_codes import ExitCode
from orchestrator.executors.base import Exited, Handle
from orchestrator.features.slurm import accounting, pilot_registry, submission
from orchestrator.features.slurm.command_runner import SlurmCommand
from orchestrator.features.slurm.mailbox import Inbox, Outbox
from orchestrator.features.slurm.pilot_messages import (
    EndPilotOrder,
    PilotBeat,
    PilotBye,
    PilotHello,
)
from orchestrator.features.slurm.pilot_registry import PilotRegistry
from orchestrator.features.slurm.pilot_slots import PilotSlots
from orchestrator.features.slurm.session_file import Session, write_session
from orchestrator.features.slurm.slurm_settings import SlurmSettings
from orchestrator.machine.provenance import CODE, installed_versions
from orchestrator.machine.slots import RankSlot


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


@pytest.mark.timeout(60)
def test_the_first_pilot_is_submitted_for_a_job_that_has_found_no_room(tmp_path: Path) -> None:
    slots = PilotSlots()
    slots.expected_cores = 4
    assert slots.is_full, "none has joined"
    run = Experiment(tmp_path, [make_job("a")], slots=slots)
    run.reporter.each_turn = once(
        lambda view: slots.has_refused(within_s=60.0),
        lambda: run.supervisor.request_stop("it was refused"),
    )
    assert run.run() == {"a": "PENDING"}
    assert run.fake.launches == []


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
def test_what_succeeds_while_its_pilot_leaves_has_succeeded(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    scene = scene_of(scenes, tmp_path)
    handle = scene.start("a", [("when asked", 0), *ASLEEP])
    until_heard(scene.executor, handle)
    os.kill(*fake_slurm.pids(), signal.SIGUSR1)
    assert until_exit(scene.executor, handle)[handle] == Exited(handle, 0)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("orders", "returncode"), [(OBEDIENT, ExitCode.INTERRUPTED), (ASLEEP, None)]
)
def test_a_worker_that_slurm_signals_before_its_pilot_costs_its_job_nothing(
    orders: list[Order],
    returncode: int | None,
    scenes: list[Scene],
    tmp_path: Path,
    fake_slurm: FakeSlurm,
) -> None:
    scene = scene_of(scenes, tmp_path)
    handle = scene.start("a", [("look", None), *orders])
    until_heard(scene.executor, handle)
    os.kill(worker_of(tmp_path / "a"), signal.SIGTERM)
    exited = until_exit(scene.executor, handle)[handle]
    assert exited.returncode == returncode
    assert exited.lost


@pytest.mark.nightly
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
def test_a_pilot_that_ends_may_be_requeued_and_is_not_replaced_at_once(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = scene_of(scenes, tmp_path)
    os.kill(*fake_slurm.pids(), signal.SIGTERM)
    until(lambda: "RUNNING" not in fake_slurm.states().values())
    fake_slurm.put("100_0/state", "COMPLETING")
    asked = len(fake_slurm.calls("squeue"))
    until(
        lambda: (
            [scene.need_room(), scene.executor.poll(0.0), len(fake_slurm.calls("squeue"))][-1]
            > asked + 2
        )
    )
    assert len(fake_slurm.calls("sbatch")) == 1
    monkeypatch.setattr(submission, "COMPLETING_S", 0.1)
    joined(scene.pilots)
    assert len(fake_slurm.calls("sbatch")) == 2


@pytest.mark.nightly
def test_a_restarted_pilot_ends_the_attempts_of_the_one_before_and_is_not_cancelled(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    scene = scene_of(scenes, tmp_path)
    handle = scene.start("a")
    until_heard(scene.executor, handle)
    (before,) = scene.pilots.present
    assert before.hello is not None
    later = Outbox(tmp_path / f"run/slurm/first/100_0.{before.began + 1}.events")
    later.send(before.hello)
    assert "restarted by Slurm" in (until_exit(scene.executor, handle)[handle].lost or "")
    assert [pilot.began for pilot in scene.pilots.present] == [before.began + 1]
    assert not fake_slurm.calls("scancel")
    later.send(PilotBye())


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


@pytest.mark.nightly
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
    until(lambda: before.has_handed_back(handle))
    until(lambda: list((folder / "second").glob("100_0.*.events.0")))
    write_session(folder, Session(session="second", ended=True))
    until(lambda: not fake_slurm.pids())
    before.pilots.queue.wait()


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


def test_sbatch_that_refuses_ends_the_run_with_its_words(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    fake_slurm.put("refuse", "invalid partition specified: nirvana")
    scene = Scene(tmp_path, SlurmSettings(partition="nirvana"))
    scenes.append(scene)
    with pytest.raises(ClusterLostError, match="invalid partition specified: nirvana"):
        until(lambda: [scene.need_room(), scene.executor.poll(0.1)][0])


def test_variables_do_not_change_what_slurm_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "SBATCH_JOB_NAME",
        "SQUEUE_PARTITION",
        "SCANCEL_NAME",
        "SLURM_CLUSTERS",
        "SLURM_CONF",
    ):
        monkeypatch.setenv(name, "there")
    names = {line.partition("=")[0] for line in SlurmCommand("env").wait().output.splitlines()}
    assert {
        name for name in names if name.startswith(("SBATCH", "SQUEUE", "SCANCEL", "SLURM_C"))
    } == {"SLURM_CONF"}


def test_a_run_waits_for_its_file_system_and_for_processes(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "RETRY_S", 0.5)
    scene = Scene(tmp_path, SlurmSettings())
    scenes.append(scene)
    (tmp_path / "run" / "slurm").rename(tmp_path / "away")
    until(
        lambda: [
            scene.need_room(),
            scene.executor.poll(0.0),
            "cannot be written" in scene.texts("waiting"),
        ][-1]
    )
    (tmp_path / "away").rename(tmp_path / "run" / "slurm")
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        until(
            lambda: [
                scene.need_room(),
                scene.executor.poll(0.0),
                "cannot be started" in scene.texts("waiting"),
            ][-1]
        )
    joined(scene.pilots)


def test_pilots_that_squeue_hides_are_submitted_once_and_end_the_run(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    fake_slurm.put("hide")
    fake_slurm.put("hold", "Resources")
    scene = Scene(tmp_path, SlurmSettings())
    scenes.append(scene)
    with pytest.raises(ClusterLostError, match="job 100, which squeue does not show"):
        until(lambda: [scene.need_room(), scene.executor.poll(0.1)][0])
    assert len(fake_slurm.calls("sbatch")) == 1


def test_pilots_that_cannot_start_end_the_run_with_the_last_line_of_their_log(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    settings = SlurmSettings(setup=("echo module: command not found >&2", "exit 1"))
    scene = Scene(tmp_path, settings)
    scenes.append(scene)
    with pytest.raises(ClusterLostError, match="module: command not found"):
        until(lambda: [scene.need_room(), scene.executor.poll(0.1)][0])


def test_pilots_that_hang_before_they_report_are_cancelled_and_end_the_run(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "SILENT_START_S", 0.5)
    settings = SlurmSettings(array=2, setup=("echo waiting for a licence", "exec sleep 600"))
    scene = Scene(tmp_path, settings)
    scenes.append(scene)
    with pytest.raises(ClusterLostError, match=r"hang, before they report.*waiting for a licence"):
        until(lambda: [scene.need_room(), scene.executor.poll(0.1)][0])
    assert "100_0 has run for" in scene.texts("warning")
    until(lambda: {fake_slurm.states()[task] for task in ("100_0", "100_1")} == {"CANCELLED"})


@pytest.mark.nightly
@pytest.mark.parametrize("words", ["", "Job violates accounting/QOS policy (job submit limit)"])
def test_a_pilot_goes_on_when_none_can_take_the_place_of_another(
    words: str, scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    begin = tmp_path / "begin"
    begin.touch()
    settings = SlurmSettings(array=2, setup=(f"test -e {begin} || exit 1",))
    scene = Scene(tmp_path, settings)
    scenes.append(scene)
    joined(scene.pilots)
    handle = scene.start("a", UNTIL_GO)
    until_heard(scene.executor, handle)
    if words:
        fake_slurm.put("refuse", words)
    begin.unlink()
    os.kill(fake_slurm.pids()[1], signal.SIGUSR1)

    def is_told() -> bool:
        scene.need_room()
        scene.executor.poll(0.0)
        return (words or "pilots end, or hang, before they report") in scene.texts("warning")

    until(is_told)
    asked = len(fake_slurm.calls("sbatch"))
    (tmp_path / "a" / "go").touch()
    assert until_exit(scene.executor, handle)[handle] == Exited(handle, 0)
    assert len(fake_slurm.calls("sbatch")) == asked


@pytest.mark.nightly
def test_a_job_that_fits_no_pilot_ends_the_run_when_nothing_runs(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    scene = scene_of(scenes, tmp_path)
    with pytest.raises(ClusterLostError, match="asks for 2 cores"):
        until(lambda: [scene.pilots.slots.acquire(2, memory_mib=100), scene.executor.poll(0.1)][0])


@pytest.mark.nightly
def test_idle_pilots_are_ended_while_nothing_waits_and_submitted_again_for_further_jobs(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pilot_registry, "IDLE_AFTER_S", 1.0)
    scene = scene_of(scenes, tmp_path, array=2)
    handle = scene.start("busy")
    until_heard(scene.executor, handle)
    until(
        lambda: (
            [scene.executor.poll(0.1), list(fake_slurm.states().values()).count("RUNNING")][-1] == 1
        )
    )
    joined(scene.pilots)
    assert len(fake_slurm.pids()) == 2


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


@pytest.mark.nightly
def test_pilots_that_wait_or_do_not_end_are_cancelled_at_the_end(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "END_S", 0.5)
    monkeypatch.setattr(pilot_registry, "CLOSE_S", 0.5)
    scene = scene_of(scenes, tmp_path)
    (stopped,) = fake_slurm.pids()
    fake_slurm.enter("200_0", scene.pilots.queue.name)
    os.kill(stopped, signal.SIGSTOP)
    scene.executor.close()
    os.kill(stopped, signal.SIGCONT)
    assert fake_slurm.states() == {"100_0": "CANCELLED", "200_0": "CANCELLED"}


def test_slurm_is_asked_at_most_once_in_ten_seconds(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "ASK_EVERY_S", 10.0)
    monkeypatch.setattr(submission, "ASK_AT_EASE_S", 60.0)
    began = time.monotonic()
    scene = scene_of(scenes, tmp_path, array=2)
    handles = [
        scene.start(f"j{number}", [("exit", 0)], node=f"node-{number % 2}") for number in range(20)
    ]
    until_exit(scene.executor, *handles)
    assert len(fake_slurm.calls("sbatch")) == 1
    assert len(fake_slurm.calls("squeue")) <= 1 + (time.monotonic() - began) // 10


NVIDIA_SMI = "#!/bin/sh\nfor i in 0 1 2 3; do echo $i, GPU-$i, NVIDIA H200, 143771, 143000; done\n"


@pytest.mark.nightly
def test_each_job_sees_a_gpu_of_those_that_slurm_gave_its_pilot(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    program = fake_slurm.commands / "nvidia-smi"
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    scene = scene_of(scenes, tmp_path, array=2, gpus=2, cpus_per_task=2)
    assert [len(node.gpus) for node in scene.pilots.slots.nodes] == [2, 2]
    handles = [
        scene.start(name, [("look", None), *OBEDIENT], node="node-1", gpus=1)
        for name in ("one", "other")
    ]
    until_heard(scene.executor, *handles)
    seen = [json.loads((tmp_path / name / "seen.json").read_text()) for name in ("one", "other")]
    assert sorted(variables["CUDA_VISIBLE_DEVICES"] for variables in seen) == ["2", "3"]


ACCOUNTS = """100_0|COMPLETED|node-0|2026-01-02T03:04:05|2026-01-02T03:05:05|2026-01-02T04:05:05|3600|2|01:30:00|
100_0.batch|COMPLETED|node-0|2026-01-02T03:05:05|2026-01-02T03:05:05|2026-01-02T04:05:05|3600|2|01:30:00|524288K
99_0|COMPLETED|node-0|2026-01-02T03:04:05|2026-01-02T03:05:05|2026-01-02T04:05:05|3600|2|01:30:00|"""


@pytest.mark.nightly
@pytest.mark.parametrize("accounts", [ACCOUNTS, ""])
def test_figures_of_sacct_are_told_beside_ours_where_there_is_accounting(
    accounts: str, scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    fake_slurm.put("accounts", accounts)
    scene = scene_of(scenes, tmp_path)
    handles = [scene.start(name, [("exit", 0)]) for name in ("one", "other")]
    until_exit(scene.executor, *handles)
    scene.executor.close()
    file = tmp_path / "run/slurm/accounting.csv"
    assert file.exists() == bool(accounts)
    told = scene.texts("accounted")
    assert bool(told) == bool(accounts)
    if accounts:
        assert "1 pilot: 2.0 core-hours allocated, 1.5 used by Slurm's account, 0" in told
        (row,) = csv.DictReader(file.read_text().splitlines())
        assert (row["task"], row["max_rss_mib"], row["attempts"]) == ("100_0", "512.0", "2")
        assert float(row["attempts_core_s"]) >= 0.0


@pytest.mark.nightly
def test_cores_of_all_ranks_are_counted_once(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    scene = scene_of(scenes, tmp_path)
    (pilot,) = scene.pilots.present
    launch = dataclasses.replace(
        make_launch(tmp_path, "two-ranks", OBEDIENT),
        cpus=(),
        ranks=2,
        rank_slots=(RankSlot(node=pilot.name, cores=2, ranks=2),),
    )
    handle = scene.executor.submit(launch)
    assert pilot.attempts[handle] == 2
    scene.executor.cancel(handle, kill=True)
    until_exit(scene.executor, handle)


@pytest.mark.nightly
def test_costs_that_cannot_be_recorded_are_reported(
    scenes: list[Scene], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    fake_slurm.put("accounts", ACCOUNTS)
    scene = scene_of(scenes, tmp_path)
    until_exit(scene.executor, scene.start("one", [("exit", 0)]))
    (tmp_path / "run/slurm/accounting.csv").mkdir()
    scene.executor.close()
    assert "what the pilots have cost is not recorded: Is a directory" in scene.texts("warning")


@pytest.fixture
def quiet_pilots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PilotRegistry:
    """Pilots of files alone; Slurm is not asked, and has all of them RUNNING."""
    monkeypatch.setattr(pilot_registry, "LIST_EVERY_S", 0.0)
    pilots = registry(tmp_path, SlurmSettings())
    monkeypatch.setattr(pilots.queue, "update", lambda **_: None)
    monkeypatch.setattr(pilots.queue, "state", lambda _: "RUNNING")
    return pilots


def hello_of(code: str | None = None) -> PilotHello:
    versions = dict(installed_versions()) | ({} if code is None else {CODE: code})
    return PilotHello(
        node="n", cores=1, gpus=0, memory_mib=1000, cpu_model="a CPU", versions=versions
    )


def test_a_silent_pilot_is_not_cancelled_while_a_later_one_has_its_task(
    tmp_path: Path, quiet_pilots: PilotRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled: list[str] = []
    monkeypatch.setattr(quiet_pilots.queue, "cancel", lambda *tasks: cancelled.extend(tasks))
    for clock in (2000, 1000):  # the second one's node is behind
        Outbox(tmp_path / f"slurm/first/7_0.{clock}.events").send(hello_of())
        quiet_pilots.update()
    earlier, later = quiet_pilots.present
    earlier.heard -= pilot_registry.GIVE_UP_AFTER_S
    quiet_pilots.update()
    assert (quiet_pilots.present, cancelled) == ([later], [])
    later.heard -= pilot_registry.GIVE_UP_AFTER_S
    quiet_pilots.update()
    assert (quiet_pilots.present, cancelled) == ([], ["7_0"])


@pytest.mark.parametrize("is_left", [True, False])
def test_a_pilot_of_another_version_is_told_and_ended(
    is_left: bool, tmp_path: Path, quiet_pilots: PilotRegistry
) -> None:
    told: list[str] = []
    quiet_pilots.queue.report_to(lambda _, text: told.append(text))
    quiet_pilots.queue.record_joined_before({"7_0"} if is_left else set())
    outbox = Outbox(tmp_path / "slurm/first/7_0.1000.events")
    outbox.send(hello_of("0a1b"))
    quiet_pilots.update()
    assert "code of orchestrator 0a1b" in told[0]
    assert EndPilotOrder() in Inbox(tmp_path / "slurm/first/7_0.1000.orders").receive()
    outbox.send(PilotBye())
    if is_left:
        quiet_pilots.update()  # others are submitted in its place
    else:
        with pytest.raises(ClusterLostError, match="no pilot can be used"):
            quiet_pilots.update()


def test_beside_one_that_is_used_pilots_of_another_version_are_not_submitted_again_at_once(
    tmp_path: Path, quiet_pilots: PilotRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = quiet_pilots.queue
    queue.pilots = 2
    submitted: list[int] = []
    monkeypatch.setattr(queue, "submit", submitted.append)
    told: list[str] = []
    queue.report_to(lambda _, text: told.append(text))

    def turn() -> None:
        queue._answer_began = time.monotonic()  # as if Slurm had answered just now
        quiet_pilots.slots.acquire(10**6)
        quiet_pilots.slots.unfit = ""
        quiet_pilots.update()

    used = Outbox(tmp_path / "slurm/first/7_0.1000.events")
    used.send(hello_of())
    turn()
    assert submitted == [2], "squeue shows none"
    for task in (1, 2):
        other = Outbox(tmp_path / f"slurm/first/7_{task}.1000.events")
        other.send(hello_of("0a1b"))
        turn()
        other.send(PilotBye())
        turn()
    assert submitted == [2]
    assert told.count("The others go on; further pilots are tried later") == 2
    another = Outbox(tmp_path / "slurm/first/7_3.1000.events")
    another.send(hello_of())
    turn()
    for outbox in (used, another):
        outbox.send(PilotBye())
    turn()
    assert quiet_pilots.present == [], "and no error: since they were excluded one was used"


def test_what_is_handed_back_to_another_supervisor_is_not_recorded_by_the_one_before(
    tmp_path: Path, quiet_pilots: PilotRegistry
) -> None:
    outbox = Outbox(tmp_path / "slurm/first/7_0.1000.events")
    outbox.send(hello_of())
    quiet_pilots.update()
    handles = [Handle("a", 0), Handle("b", 0)]
    quiet_pilots.present[0].attempts.update(dict.fromkeys(handles, 1))
    ours = Exited(handles[0], int(ExitCode.INTERRUPTED), lost="the time limit of its pilot is near")
    outbox.send(PilotBeat(), ours)
    assert quiet_pilots.update() == [ours]
    write_session(tmp_path / "slurm", Session(session="second"))
    outbox.send(
        Exited(handles[1], int(ExitCode.INTERRUPTED), lost="another supervisor has taken over")
    )
    with pytest.raises(ClusterLostError, match="another supervisor"):
        quiet_pilots.update()


@pytest.mark.parametrize("damage", [b"\xff\xfe,", b"x" * 200_000])
def test_a_damaged_file_of_accounts_is_written_anew(damage: bytes, tmp_path: Path) -> None:
    rows = accounting.read(ACCOUNTS, {})
    accounting.write(tmp_path, rows)
    file = tmp_path / accounting.FILE
    whole = file.read_text()
    file.write_bytes(file.read_bytes() + damage)
    accounting.write(tmp_path, rows)
    assert file.read_text() == whole
    assert accounting.sentence([], file).startswith("0 pilots: 0 core-hours allocated, 0 used")


@pytest.mark.parametrize("sacct", ["exec sleep 60", "echo '7_0|RUNNING|n|||Unknown|1|1|00:01|'"])
def test_the_end_waits_for_slurms_accounting_no_longer_than_its_patience(
    sacct: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sacct").write_text(f"#!/bin/sh\n{sacct}\n")
    (tmp_path / "sacct").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(accounting, "PATIENCE_S", 2.0)
    given: list[float] = []
    make = accounting.SlurmCommand

    def noted(*command: str, patience_s: float) -> SlurmCommand:
        given.append(patience_s)
        return make(*command, patience_s=patience_s)

    monkeypatch.setattr(accounting, "SlurmCommand", noted)
    assert [row.task for row in accounting.collect({"7_0"}, {})] == (
        [] if "sleep" in sacct else ["7_0"]
    )
    assert len(given) == 1
    assert given[0] <= 2.0
