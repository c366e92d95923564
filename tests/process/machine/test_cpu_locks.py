"""Runs at once keep out of each other's way, whoever started them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_helpers import HOPPER, REPOSITORY, Run, stubbed, write_experiment
from supervisor_helpers import (
    Run as SimulatedRun,
)
from supervisor_helpers import (
    ledgers_closed,  # noqa: F401 - a fixture
    make_job,
    make_machine,
)

from orchestrator.core.processes.environment_variables import CPU_LOCKS_VARIABLE
from orchestrator.machine import topology
from orchestrator.machine.cpu_locks import FOLDER_MODE, CpuLocks, HeldCpu, Holder
from orchestrator.machine.slots import MaxParallel, SlotPool

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "locks"


def pool(
    folder: Path | None,
    cpus: int = 4,
    max_parallel: MaxParallel = None,
    *,
    name: str = "",
    is_exclusive: bool = False,
) -> SlotPool:
    locks = CpuLocks(folder, experiment=name)
    return SlotPool(make_machine(cpus), max_parallel, locks=locks, is_exclusive=is_exclusive)


def held(folder: Path) -> list[tuple[str, int]]:
    return [(holder.name, holder.cpu) for holder in CpuLocks(folder).others()]


def test_a_second_pool_takes_what_the_first_left(folder: Path) -> None:
    first, second = pool(folder), pool(folder)
    slots = [first.acquire(1), second.acquire(2), first.acquire(1)]
    assert [slot.cpus for slot in slots] == [(0,), (1, 2), (3,)]
    first.release(slots[0])
    assert second.acquire(1).cpus == (0,)
    first.close()
    second.close()
    assert held(folder) == []


def test_where_all_is_held_jobs_are_spread_over_the_cpus(folder: Path) -> None:
    pools = [pool(folder, 2, 1, name=f"run-{number}") for number in range(6)]
    slots = [each.acquire(1) for each in pools]
    assert [slot.cpus for slot in slots] == [(0,), (1,)] * 3
    assert [slot.shares_with for slot in slots[:3]] == [(), (), ("run run-0",)]
    assert [slot.expected_share for slot in slots] == pytest.approx(
        [1, 1, 1 / 2, 1 / 2, 1 / 3, 1 / 3]
    )


def test_idle_means_that_jobs_wait_for_a_core_of_their_own(folder: Path) -> None:
    other, ours = pool(folder, 4), pool(folder, 4, "idle")
    taken = [other.acquire(1) for _ in range(3)]
    assert ours.acquire(1).cpus == (3,)
    assert ours.acquire(1) is None
    other.release(taken[1])
    assert ours.acquire(1).cpus == (1,)


def test_an_exclusive_pool_never_shares_a_cpu_with_other_runs(folder: Path) -> None:
    first, second = pool(folder, 2), pool(folder, 2, is_exclusive=True)
    first.acquire(1)
    assert second.acquire(2) is None
    assert second.acquire(1).cpus == (1,)
    assert second.acquire(1) is None


def test_of_two_that_choose_at_the_same_moment_one_chooses_again(folder: Path) -> None:
    first, second = pool(folder, 2), pool(folder, 2)
    look = first.look

    def look_too_early() -> object:
        """The second one chooses after the first has looked."""
        use = look()
        first.look = look
        assert second.acquire(1).cpus == (0,)
        return use

    first.look = look_too_early
    assert first.acquire(1).cpus == (1,)


def test_a_holder_says_who_and_what_it_is(folder: Path) -> None:
    locks = CpuLocks(folder, experiment="it", run_dir="/runs/it")
    locks.take(3, (), "hopper-s0")
    (found,) = CpuLocks(folder).others()
    assert (found.cpu, found.pid, found.uid) == (3, os.getpid(), os.getuid())
    assert (found.name, found.run_dir, found.job_id) == ("run it", "/runs/it", "hopper-s0")
    assert found.since > 0
    assert not locks.others(), "a run is none of its own others"


HOLDER = """
import os, sys, time
from pathlib import Path
from orchestrator.machine.cpu_locks import CpuLocks
os.umask(0o077)
os.setuid(int(sys.argv[2]))
locks = CpuLocks(Path(sys.argv[1]), experiment="it", run_dir="/runs/it")
print(sorted(holder.name for holder in locks.others()), flush=True)
locks.take(0, ())
locks.take(1, ())
if sys.stdin.readline():
    os.fork()  # a process of the user's own, which outlives the run
os.write(1, b"held\\n")  # at once, since two processes may write
time.sleep(600)
"""


def start_holder(
    folder: Path, *, uid: int = os.getuid(), forks: bool = False
) -> subprocess.Popen[str]:
    """A process that holds CPUs 0 and 1, once its second line is read."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder), str(uid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write("fork\n" if forks else "")
    process.stdin.close()
    return process


@pytest.fixture
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    with start_holder(folder, forks=True) as process:
        assert process.stdout is not None
        try:
            assert [process.stdout.readline() for _ in range(3)] == ["[]\n", "held\n", "held\n"]
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_what_a_killed_process_held_is_free_although_its_fork_lives(
    folder: Path, holder: subprocess.Popen[str]
) -> None:
    assert held(folder) == [("run it", 0), ("run it", 1)]
    holder.kill()
    holder.wait()
    assert held(folder) == []


@pytest.mark.nightly
@as_root
@pytest.mark.parametrize("is_first", [True, False])
def test_two_users_see_and_avoid_each_other(is_first: bool) -> None:
    """Whoever of them has made the folder and the files."""
    with tempfile.TemporaryDirectory(dir="/tmp") as temporary:  # which every user may enter
        Path(temporary).chmod(0o777)
        folder = Path(temporary) / "locks"
        mine = pool(folder, 3, name="mine")
        if is_first:
            mine.release(mine.acquire(3))
        with start_holder(folder, uid=NOBODY) as theirs:
            assert theirs.stdout is not None
            assert [theirs.stdout.readline() for _ in range(2)] == ["[]\n", "held\n"]
            assert [holder.name for holder in CpuLocks(folder).others()] == ["run it of nobody"] * 2
            assert mine.acquire(1).cpus == (2,)
            assert mine.acquire(1).shares_with == ("run it of nobody",)
            theirs.kill()
        assert mine.acquire(1).shares_with == ()
        mine.close()


SAID = {"pid": 1, "uid": 0, "experiment": "", "run_dir": "", "job_id": "", "since": 1.0}
ANYTHING = [
    *("", "[]", "{}", "[" * 8_000, "\0"),
    json.dumps(SAID | {"uid": "x"}),
    json.dumps(SAID | {"run_dir": "\ud800"}),
    json.dumps(SAID | {"since": float("nan")}),
    json.dumps(SAID | {"pid": float("inf")}),
]


@pytest.mark.parametrize("content", ANYTHING)
def test_whatever_is_in_a_locked_file_somebody_holds_the_cpu(folder: Path, content: str) -> None:
    locks = CpuLocks(folder)
    taken = locks.take(1, ())
    (folder / "1.0").write_text(content)
    assert CpuLocks(folder).others() == [Holder(cpu=1, place=0)]
    assert isinstance(taken, HeldCpu)


def spoil_folder_with_link(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir()
    folder.symlink_to(folder.parent / "elsewhere")


def spoil_folder_mode(folder: Path) -> None:
    folder.mkdir(mode=0o755)


def spoil_folder_with_file(folder: Path) -> None:
    folder.touch()


@pytest.mark.parametrize(
    "spoil", [spoil_folder_with_link, spoil_folder_mode, spoil_folder_with_file]
)
def test_in_a_folder_that_cannot_be_trusted_a_pool_works_alone(
    folder: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(folder)
    before = sorted(path.name for path in folder.parent.rglob("*"))
    first, second = pool(folder), pool(folder)
    assert [first.acquire(1).cpus, second.acquire(1).cpus] == [(0,), (0,)]
    assert CpuLocks(folder).problem() is not None
    assert sorted(path.name for path in folder.parent.rglob("*")) == before


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_nothing_is_written_through_a_link(
    folder: Path, tmp_path: Path, link: Callable[[Path, Path], None]
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("it")
    folder.mkdir()
    folder.chmod(FOLDER_MODE)
    link(folder / "0.0", precious)
    assert pool(folder).acquire(1).cpus == (0,)
    assert precious.read_text() == "it"


def test_without_a_folder_a_pool_works_alone() -> None:
    assert pool(None).acquire(2).cpus == (0, 1)


@pytest.mark.nightly
@pytest.mark.skipif(topology.detect().capacity < 2, reason="needs two cores")
def test_two_commands_at_once_train_on_different_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CPU_LOCKS_VARIABLE, str(tmp_path / "locks"))
    launched = []
    for name in ("a", "b"):
        write_experiment(tmp_path / name, {"name": name, "xml": HOPPER, "total_timesteps": 10**7})
    with Run("jobs.toml", "--max-parallel", "1", cwd=tmp_path / "a", typed=stubbed) as first:
        launched.append(first.until("launched"))
        with Run("jobs.toml", "--max-parallel", "1", cwd=tmp_path / "b", typed=stubbed) as second:
            launched.append(second.until("launched"))
            for run in (first, second):
                run.signal(signal.SIGTERM)
            assert [first.end(), second.end()] == [130, 130]
    # On a machine that is busy elsewhere, too, they may share one, and say so.
    assert launched[0]["cpus"] != launched[1]["cpus"] or "run tiny" in launched[1]["shares_with"]


def test_jobs_that_wait_for_memory_or_a_gpu_are_seen_by_no_other_run(
    folder: Path, tmp_path: Path
) -> None:
    slots = SlotPool(make_machine(4, gpus=1), locks=CpuLocks(folder))
    seen: set[str] = set()
    jobs = [
        make_job("first", gpus=1, cores=1, memory_mib=10),
        make_job("waits-for-a-gpu", gpus=1, cores=1, memory_mib=10),
        make_job("waits-for-memory", cores=1, memory_mib=1000),
    ]
    experiment = SimulatedRun(tmp_path, jobs, slots=slots, memory_mib=100)
    acquire = slots.acquire

    def acquire_noted(*arguments: object, **how: object) -> object:
        slot = acquire(*arguments, **how)
        seen.add(json.dumps([holder.job_id for holder in CpuLocks(folder).others()]))
        return slot

    slots.acquire = acquire_noted
    states = experiment.go()
    assert set(states.values()) == {"SUCCEEDED"}
    assert seen == {json.dumps([job.job_id]) for job in jobs}
    assert experiment.order == [job.job_id for job in jobs]
