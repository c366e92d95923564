"""Runs at once keep out of each other's way, whoever started them."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from command_helpers import HOPPER, REPOSITORY, Run, stubbed, write_experiment
from supervisor_helpers import (
    Experiment,
    ledgers_closed,  # noqa: F401 - a fixture
    make_job,
    make_machine,
)

from orchestrator.core.processes.environment_variables import HOLDERS_VARIABLE
from orchestrator.machine import cpu_holders, topology
from orchestrator.machine.cpu_holders import CpuHolders
from orchestrator.machine.neighbours import Neighbours
from orchestrator.machine.placement import Competitor, CpuUse
from orchestrator.machine.slots import MaxParallel, SlotPool
from orchestrator.machine.topology import Cpu

NOBODY = 65534


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "holders"


def pool(
    folder: Path | None,
    cpus: int = 4,
    max_parallel: MaxParallel = None,
    *,
    name: str = "",
    waits: bool = False,
) -> SlotPool:
    neighbours = Neighbours(CpuHolders(folder, experiment=name))
    return SlotPool(make_machine(cpus), max_parallel, neighbours, waits_for_others=waits)


def held(folder: Path) -> dict[str, dict[int, int]]:
    return {holder.name: dict(holder.cpus) for holder in CpuHolders(folder).others()}


def test_a_second_pool_takes_what_the_first_left(folder: Path) -> None:
    first, second = pool(folder), pool(folder)
    assert [first.acquire(1).cpus, second.acquire(2).cpus, first.acquire(1).cpus] == [
        (0,),
        (1, 2),
        (3,),
    ]
    first.close()
    second.close()


def test_where_all_is_held_jobs_are_spread_over_the_cpus(folder: Path) -> None:
    pools = [pool(folder, 2, 1, name=f"run-{number}") for number in range(6)]
    slots = [each.acquire(1) for each in pools]
    assert [slot.cpus for slot in slots] == [(0,), (1,)] * 3
    assert [slot.shares_with for slot in slots[:3]] == [(), (), ("run run-0",)]
    for each in pools:
        each.close()
    assert held(folder) == {}


def test_idle_means_that_jobs_wait_for_a_core_of_their_own(folder: Path) -> None:
    other, ours = pool(folder, 4), pool(folder, 4, "idle")
    taken = [other.acquire(1) for _ in range(3)]
    first = ours.acquire(1)
    assert first.cpus == (3,)
    assert ours.acquire(1) is None
    other.release(taken[1])
    assert ours.acquire(1).cpus == (1,)
    ours.release(first)
    other.close()
    ours.close()


def test_a_pool_that_waits_for_others_never_shares_a_cpu_with_them(folder: Path) -> None:
    first, second = pool(folder, 2), pool(folder, 2, waits=True)
    taken = first.acquire(1)
    assert second.acquire(2) is None
    assert second.acquire(1).cpus == (1,)
    assert second.acquire(1) is None
    first.release(taken)
    assert second.acquire(1, in_use_elsewhere={0}) is None
    assert second.acquire(1).cpus == (0,)
    for each in (first, second):
        each.close()


def test_what_is_released_is_free_for_others(folder: Path) -> None:
    first, second = pool(folder), pool(folder)
    slot = first.acquire(1)
    assert slot.cpus == (0,)
    first.release(slot)
    assert second.acquire(1).cpus == (0,)
    second.close()
    assert first.acquire(1).cpus == (0,)
    first.close()


def test_a_shared_cpu_is_held_until_its_last_job_is_over(folder: Path) -> None:
    first = pool(folder, 1, 2, name="first")
    one, other = first.acquire(1), first.acquire(1)
    assert held(folder) == {"run first": {0: 2}}
    first.release(one)
    assert held(folder) == {"run first": {0: 1}}
    first.release(other)
    assert held(folder) == {}


def test_two_that_choose_at_the_same_moment_do_not_stay_on_one_cpu(folder: Path) -> None:
    first, second = pool(folder, 2), pool(folder, 2)
    look = first._neighbours.look

    def look_too_early(*arguments: object) -> object:
        """The second one chooses after the first has looked, and before others see what the first
        has chosen."""
        use = look(*arguments)
        first._neighbours.look = look
        assert second.acquire(1).cpus == (0,)
        return use

    first._neighbours.look = look_too_early
    first._neighbours._holders._locked_turn = lambda: (
        None
    )  # as a run of another user: its turn is its own
    assert first.acquire(1).cpus == (1,)
    first.close()
    second.close()


HOLDER = """
import sys, time
from pathlib import Path
from orchestrator.machine.cpu_holders import CpuHolders
holders = CpuHolders(Path(sys.argv[1]), experiment="it", run_dir="/runs/it")
holders.publish({0: 1, 1: 2})
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLDER, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_what_a_killed_process_held_is_free(folder: Path, holder: subprocess.Popen[str]) -> None:
    assert held(folder) == {"run it": {0: 1, 1: 2}}
    holder.kill()
    holder.wait()
    assert held(folder) == {}
    assert not [path for path in (folder / str(os.getuid())).iterdir() if path.name[0].isdecimal()]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_a_run_of_another_user_is_seen_by_its_name(
    folder: Path, holder: subprocess.Popen[str]
) -> None:
    own = folder / str(os.getuid())
    theirs = own.rename(folder / str(NOBODY))
    for path in [theirs, *theirs.iterdir()]:
        os.chown(path, NOBODY, NOBODY)
    (found,) = CpuHolders(folder).others()
    assert (found.name, found.run_dir) == ("run it of nobody", "/runs/it")
    mine = pool(folder, 3, name="mine")
    assert mine.acquire(1).cpus == (2,)
    assert mine.acquire(1).shares_with == ("run it of nobody",)
    mine.close()
    assert theirs.exists()


LARGE = '{"experiment": "", "run_dir": "", "pid": 1, "cpus": {"%s": %s}}'


@pytest.mark.nightly
@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "{}", '{"cpus": 3}', "[" * 16_000, '{"pid": "x", "cpus": {}}', "\0"),
        *(
            LARGE % ("0", "9" * 400),
            LARGE % ("0", "1e308"),
            LARGE % ("0", "NaN"),
            LARGE % ("0", "-1"),
        ),
        *(LARGE % ("9" * 9, "1"), LARGE % ("-1", "1")),
    ],
)
def test_a_file_with_anything_in_it_is_no_holder(
    folder: Path, holder: object, content: str
) -> None:
    (path,) = (path for path in (folder / str(os.getuid())).iterdir() if path.name[0].isdecimal())
    path.write_text(content)
    assert held(folder) == {}
    assert pool(folder).acquire(1).cpus == (0,)


def test_nothing_is_looked_for_or_removed_behind_a_link(folder: Path, tmp_path: Path) -> None:
    """Whoever has made the folder may exchange what is in it."""
    precious = tmp_path / "precious"
    precious.mkdir()
    for name in ("3.txt", "2024-05.csv", f"{2**22 + 1}-0123abcd"):
        (precious / name).write_text("")
    holders = CpuHolders(folder)
    (folder / str(os.getuid())).rmdir()
    (folder / str(os.getuid())).symlink_to(precious)
    assert holders.others() == ()
    holders.publish({0: 1})
    holders.close()
    assert len(list(precious.iterdir())) == 3


@pytest.mark.parametrize("hogs", [{0, 1, 2}, {0, 5, 6}])
def test_idle_means_idle_cores_and_not_their_siblings(
    hogs: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cpus = tuple(Cpu(index=index, core=index % 4, package=0, numa_node=0) for index in range(8))
    machine = dataclasses.replace(make_machine(8), cpus=cpus)
    use = [Competitor(name="hog", demand=dict.fromkeys(hogs, 1.0))]
    monkeypatch.setattr(Neighbours, "look", lambda _, own, *__: CpuUse(own=own, competitors=use))
    slots = SlotPool(machine, "idle", Neighbours())
    assert slots.acquire(1).cpus == (3,)
    assert slots.acquire(1) is None


def test_without_a_folder_a_pool_works_alone() -> None:
    assert pool(None).acquire(2).cpus == (0, 1)


def bad_link(folder: Path) -> None:
    folder.symlink_to(folder.parent)


def bad_mode(folder: Path) -> None:
    folder.mkdir(mode=0o755)


def bad_owner(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o1777)
    own = folder / str(os.getuid())
    own.mkdir(mode=0o755)
    if os.geteuid() != 0:
        pytest.skip("only root can make files of another user")
    os.chown(own, NOBODY, NOBODY)


@pytest.mark.parametrize(
    "spoil",
    [
        bad_link,
        bad_mode,
        bad_owner,
    ],
)
def test_in_a_folder_that_cannot_be_trusted_a_pool_works_alone(folder: Path, spoil: object) -> None:
    spoil(folder)
    before = sorted(path.name for path in folder.parent.rglob("*"))
    first, second = pool(folder), pool(folder)
    assert [first.acquire(1).cpus, second.acquire(1).cpus] == [(0,), (0,)]
    assert cpu_holders.prepare(folder) is not None
    assert sorted(path.name for path in folder.parent.rglob("*")) == before


@pytest.mark.nightly
@pytest.mark.skipif(topology.detect().capacity < 2, reason="needs two cores")
def test_two_commands_at_once_train_on_different_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOLDERS_VARIABLE, str(tmp_path / "holders"))
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


class RecordedHolders(CpuHolders):
    """Remembers what it has published."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.published: list[dict[int, int]] = []

    def publish(self, cpus: Mapping[int, int]) -> None:
        self.published.append(dict(cpus))
        super().publish(cpus)


def test_jobs_that_wait_for_memory_or_a_gpu_are_seen_by_no_other_run(
    folder: Path, tmp_path: Path
) -> None:
    holders = RecordedHolders(folder)
    slots = SlotPool(make_machine(4, gpus=1), None, Neighbours(holders))
    jobs = [
        make_job("first", gpus=1, cores=1, memory_mib=10),
        make_job("waits-for-a-gpu", gpus=1, cores=1, memory_mib=10),
        make_job("waits-for-memory", cores=1, memory_mib=1000),
    ]
    experiment = Experiment(tmp_path, jobs, available_memory_mib=lambda: 100)
    experiment.supervisor.slots = experiment.supervisor._launcher.slots = slots
    states = experiment.run()
    slots.close()
    assert set(states.values()) == {"SUCCEEDED"}
    assert [len(cpus) for cpus in holders.published] == [1, 0] * 3
    assert experiment.order == [job.job_id for job in jobs]
