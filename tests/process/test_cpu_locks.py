"""Two experiments at once keep out of each other's way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from command_helpers import HOPPER, REPOSITORY, Run, stubbed, write_experiment
from supervisor_helpers import make_machine

from orchestrator.machine import topology
from orchestrator.machine.cpu_locks import CpuLocks, shared_directory
from orchestrator.machine.slots import SlotPool


def pool(directory: Path | None, cpus: int = 4, max_parallel: int | None = None) -> SlotPool:
    return SlotPool(make_machine(cpus), max_parallel, CpuLocks(directory, range(cpus)))


def test_a_second_pool_takes_what_the_first_left(tmp_path: Path) -> None:
    first, second = pool(tmp_path), pool(tmp_path)
    assert [first.acquire(1).cpus, second.acquire(2).cpus, first.acquire(1).cpus] == [(0,), (1, 2), (3,)]
    first.close()
    second.close()


def test_where_all_is_held_cpus_are_shared_rather_than_waited_for(tmp_path: Path) -> None:
    first, second = pool(tmp_path, 2), pool(tmp_path, 2)
    assert [first.acquire(1).cpus, first.acquire(1).cpus] == [(0,), (1,)]
    assert "other experiments of yours use 2 of 2 usable CPUs" in second.warnings()[0]
    assert second.acquire(1).cpus == (0,)
    first.close()
    second.close()


def test_a_pool_that_waits_for_others_never_shares_a_cpu_with_them(tmp_path: Path) -> None:
    first = pool(tmp_path, 2)
    second = SlotPool(make_machine(2), None, CpuLocks(tmp_path, range(2)), waits_for_others=True)
    taken = first.acquire(1)
    assert second.acquire(2) is None
    assert second.acquire(1).cpus == (1,)
    assert second.acquire(1) is None
    first.release(taken)
    assert second.acquire(1, in_use_elsewhere={0}) is None
    assert second.acquire(1).cpus == (0,)
    for each in (first, second):
        each.close()


def test_what_is_released_is_free_for_others(tmp_path: Path) -> None:
    first, second = pool(tmp_path), pool(tmp_path)
    slot = first.acquire(1)
    assert slot.cpus == (0,)
    first.release(slot)
    assert second.acquire(1).cpus == (0,)
    second.close()
    assert first.acquire(1).cpus == (0,)
    first.close()


def test_a_shared_cpu_is_held_until_its_last_job_is_over(tmp_path: Path) -> None:
    first, second = pool(tmp_path, 1, 2), pool(tmp_path, 1)
    one, other = first.acquire(1), first.acquire(1)
    first.release(one)
    assert second.warnings(), "still held"
    first.release(other)
    assert not second.warnings()


HOLDER = """
import sys, time
from pathlib import Path
from orchestrator.machine.cpu_locks import CpuLocks
locks = CpuLocks(Path(sys.argv[1]), range(4))
locks.take([0, 1])
print("held", flush=True)
time.sleep(600)
"""


def test_the_locks_of_a_killed_process_are_released(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with CpuLocks(tmp_path, range(4)).choosing() as elsewhere:
            assert elsewhere == {0, 1}
        holder.kill()
    with CpuLocks(tmp_path, range(4)).choosing() as elsewhere:
        assert elsewhere == frozenset()


def test_without_a_directory_a_pool_works_without_locks(tmp_path: Path) -> None:
    assert pool(None).acquire(2).cpus == (0, 1)
    assert pool(tmp_path / "missing").acquire(2).cpus == (0, 1)


def test_a_directory_that_others_may_write_to_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = shared_directory()
    assert found is not None
    assert found.parent == tmp_path
    assert found.stat().st_mode & 0o777 == 0o700
    found.chmod(0o777)
    assert shared_directory() is None
    found.rmdir()
    found.symlink_to(tmp_path)
    assert shared_directory() is None


@pytest.mark.skipif(topology.detect().capacity < 2, reason="needs two cores")
def test_two_commands_at_once_train_on_different_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # other experiments on this machine hold no locks there
    cpus = []
    for name in ("a", "b"):
        write_experiment(tmp_path / name, {"name": name, "xml": HOPPER, "total_timesteps": 10**7})
    with Run("jobs.toml", "--max-parallel", "1", cwd=tmp_path / "a", typed=stubbed) as first:
        cpus += first.until("launched")["cpus"]
        with Run("jobs.toml", "--max-parallel", "1", cwd=tmp_path / "b", typed=stubbed) as second:
            cpus += second.until("launched")["cpus"]
            for run in (first, second):
                run.signal(signal.SIGTERM)
            assert [first.end(), second.end()] == [130, 130]
    assert len(set(cpus)) == 2
