"""Supervisors that are killed at any moment: nothing is left, and nothing is lost."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import pytest
from executor_helpers import await_gone
from server_helpers import (
    assert_finished,
    client,
    enter,
    family_of,
    finish,
    go_on,
    little_job,
    serving,
    states_in,
    workers,
)

from orchestrator.experiment import run_directory
from orchestrator.server.ledger import ServerLedger


def test_a_killed_supervisor_leaves_nothing_and_the_next_one_resumes(tmp_path: Path) -> None:
    jobs = [little_job(name, sleep_s=0.05) for name in "abc"]
    paths = enter(tmp_path / "run", *jobs, little_job("ranks", sleep_s=0.05, ranks=2))
    with serving(paths.root, max_parallel=4) as server:
        server.until_running(2)
        pids = family_of(server.popen.pid)
        assert len(pids) >= 4  # with the workers and the orphan reaper
        server.popen.kill()
        begun = time.monotonic()
        await_gone(pids)
        assert time.monotonic() - begun < 5.0
    assert_finished(finish(paths.root))


def kill_at_each(root: Path, numbers: range) -> None:
    """Kill a supervisor at one access to its ledger after the other; nothing may be lost."""
    paths = enter(root, *[little_job(name, 100) for name in "abc"])
    for number in numbers:
        with serving(root, environment={"KILL_AT": str(number)}) as server:
            if server.ready.holder:
                asked = server.ask("pause", "c")
                code = server.wait()
                assert code in (0, 130, -signal.SIGKILL)
                with contextlib.suppress(OSError):
                    (paths.requests / f"{asked}.json").unlink()
        pids = workers(paths)
        await_gone(pids)
    with serving(root) as server:
        server.ask("resume", "c")
        server.wait()
    finish(root)
    assert_finished(paths, 100)
    with contextlib.closing(ServerLedger.open(paths.ledger, read_only=True)) as ledger:
        for name in "abc":
            sql = "SELECT number FROM attempts WHERE job_id = ? ORDER BY number"
            found = [row[0] for row in ledger.select(sql, (name,))]
            assert found == sorted(set(found))


def test_a_supervisor_killed_at_any_access_to_its_ledger_loses_nothing(tmp_path: Path) -> None:
    kill_at_each(tmp_path / "run", range(20, 60, 20))


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(4))
def test_a_supervisor_killed_at_41_successive_accesses_loses_nothing(
    tmp_path: Path, first: int
) -> None:
    kill_at_each(tmp_path / "run", range(1 + 11 * first, 12 + 11 * first))


@pytest.mark.nightly
@pytest.mark.parametrize("victim", ["supervisor", "client", "both", "worker"])
def test_28_random_kills_change_no_weights(tmp_path: Path, victim: str) -> None:
    rng = random.Random(victim)
    total = 25_000  # so much that work is left after all kills
    jobs = [little_job(name, total, max_retries=99) for name in "abcd"]
    paths = enter(tmp_path / "run", *jobs, little_job("ranks", total, ranks=2, max_retries=99))
    for _ in range(28):
        with client(paths.root, forks=rng.random() < 0.5, max_parallel=2) as started:
            holder = run_directory.holder(paths)
            assert holder is not None
            go_on(paths)
            pids = family_of(holder.pid)
            time.sleep(rng.uniform(0.0, 2.0))
            with contextlib.suppress(Exception):
                pids = family_of(holder.pid)
            if victim in ("supervisor", "both"):
                os.kill(holder.pid, signal.SIGKILL)
            if victim in ("client", "both"):
                os.kill(started.pid, signal.SIGKILL)
            if victim == "worker":
                for pid in workers(paths)[:1]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                os.kill(started.pid, signal.SIGKILL)
            await_gone(pids)
    assert set(states_in(paths).values()) != {"SUCCEEDED"}
    with serving(paths.root) as server:
        server.popen.wait(300.0)
    assert_finished(paths, total)


@pytest.mark.nightly
def test_trainings_of_a_slow_disk_are_not_lost(tmp_path: Path) -> None:
    """Each commit takes long; the supervisor is killed while it waits for the disk."""
    paths = enter(tmp_path / "run", *[little_job(name, 1000) for name in "abcd"])
    for kill_s in (0.5, 1.5, 3.0, None):
        with serving(paths.root, environment={"COMMIT_S": "0.3"}) as server:
            if kill_s is None:
                assert server.wait() == 0
            else:
                time.sleep(kill_s)
                pids = family_of(server.popen.pid)
                server.popen.kill()
                await_gone(pids)
    assert_finished(paths, 1000)
