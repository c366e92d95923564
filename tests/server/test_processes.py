"""Supervisors, clients and workers as real processes that are killed, stopped and started together."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from executor_helpers import await_gone
from server_helpers import (
    HELPERS,
    assert_finished,
    client,
    enter,
    family_of,
    finish,
    go_on,
    little_job,
    server_command,
    serving,
    states_in,
    trained,
    until,
)
from supervisor_helpers import FOREVER, Run, ledgers_closed, make_job  # noqa: F401

from orchestrator.client import requests
from orchestrator.client.follow import Follower
from orchestrator.core.errors import RunDirError, SupervisorError
from orchestrator.core.job import Attempt, Running
from orchestrator.experiment import run_directory, run_end
from orchestrator.machine import process_identity
from orchestrator.machine.process_identity import process_start

LONG = 1_000_000


@pytest.mark.parametrize("forks", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_a_killed_client_takes_its_run_with_it_resumably(tmp_path: Path, forks: bool) -> None:
    paths = enter(tmp_path / "run", *[little_job(name, sleep_s=0.05) for name in "ab"])
    with client(paths.root, forks=forks) as started:
        go_on(paths)
        until(lambda: trained(paths))
        holder = run_directory.holder(paths)
        assert holder is not None
        pids = family_of(holder.pid)
        os.kill(started.pid, signal.SIGKILL)  # its fork goes on
        await_gone(pids)
    end = run_end.read(paths)
    assert end is not None
    assert end.exit_code == 130
    assert "RUNNING" not in states_in(paths).values()
    assert_finished(finish(paths.root))


def test_a_detached_supervisor_does_not_wait_for_jobs_of_a_killed_client(tmp_path: Path) -> None:
    paths = enter(tmp_path / "run", little_job("a"))
    with client(paths.root, forks=False, is_detached=True) as started:
        holder = run_directory.holder(paths)
        assert holder is not None
        os.kill(started.pid, signal.SIGKILL)
        await_gone(family_of(holder.pid))
    assert states_in(paths) == {"a": "PENDING"}


def test_a_client_that_hangs_delays_no_limit(tmp_path: Path) -> None:
    paths = enter(tmp_path / "run", little_job("a", LONG, timeout_s=1.0), little_job("b"))
    with client(paths.root, forks=False) as started:
        go_on(paths)
        os.kill(started.pid, signal.SIGSTOP)
        until(lambda: run_end.read(paths) is not None)
    assert states_in(paths) == {"a": "FAILED", "b": "SUCCEEDED"}


def test_a_client_that_dies_before_it_has_begun_leaves_no_supervisor(tmp_path: Path) -> None:
    fork = "import os, time\nif os.fork():\n  time.sleep(600)\ntime.sleep(600)"
    code = f"""
import os, subprocess, sys
os.environ["ORCHESTRATOR_CLIENT"] = str(os.getpid())
popen = subprocess.Popen({server_command(tmp_path / "run")!r}, stdin=subprocess.PIPE, start_new_session=True)
print(popen.pid, flush=True)
{fork}
"""
    environment = {**os.environ, "PYTHONPATH": str(HELPERS.parents[1])}
    started = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    assert started.stdout is not None
    pid = int(started.stdout.readline())
    time.sleep(0.5)  # it imports
    started.kill()
    await_gone([pid])
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    started.stdout.close()
    assert not (tmp_path / "run").exists()


def test_of_two_supervisors_one_is_refused_and_two_may_follow(tmp_path: Path) -> None:
    paths = enter(tmp_path / "run", little_job("a", LONG))
    with serving(paths.root) as first:
        assert first.ready.holder
        with serving(paths.root) as second:
            assert str(first.popen.pid) in second.ready.error
        first.until_running(1)
        first.ask("stop")
        seen = []
        for _ in range(2):
            with contextlib.closing(Follower(paths.root, cursor=0)) as follower:
                events = follower.to_end(first.ready.holder)
                seen.append([event.kind for event in events if event is not None])
        assert first.wait() == 130
    assert seen[0] == seen[1]
    assert "stopping" in seen[0]


def test_a_follower_sleeps_between_two_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, [make_job("a")])
    run.ledger.commit()
    reads: list[float] = []
    monkeypatch.setattr(Follower, "new", lambda _: reads.append(time.monotonic()) or [])
    with contextlib.ExitStack() as stack:
        holder = run_directory.holder(stack.enter_context(run_directory.claim(tmp_path)))
        assert holder is not None
        threading.Timer(0.5, stack.pop_all().close).start()
        with contextlib.closing(Follower(tmp_path)) as follower:
            for _ in follower.to_end(holder.key):
                pass
    assert 1 < len(reads) < 15


def test_a_supervisor_that_does_not_answer_is_named_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Run(tmp_path, [make_job("a")]).end()
    with run_directory.claim(tmp_path) as paths:  # it is stuck
        holder = run_directory.holder(paths)
        assert holder is not None
        monkeypatch.setattr(requests, "PATIENCE_S", 0.2)
        with pytest.raises(RunDirError, match=str(os.getpid())):
            requests.ask(tmp_path, "pause")
        assert not list(paths.requests.glob("*.json"))


# -- a ledger that another process has locked


@pytest.mark.parametrize("ends", [True, False])
def test_a_locked_ledger_is_waited_for_and_then_the_run_stops_resumably(
    tmp_path: Path, ends: bool
) -> None:
    run = Run(tmp_path, [make_job("a"), make_job("b")], lambda _: FOREVER, grace_s=1.0)
    run.ledger.wait_for_lock(1.0 if ends else 0.05)
    connection = sqlite3.connect(run.paths.ledger, isolation_level=None, check_same_thread=False)

    def lock_file() -> None:
        connection.execute("BEGIN IMMEDIATE")
        if ends:
            threading.Timer(0.2, lambda: connection.execute("ROLLBACK")).start()

    run.at(3.0, lock_file)
    run.at(6.0, lambda: run.supervisor.request_stop("SIGINT"))
    if ends:
        assert set(run.go().values()) == {"PENDING"}
    else:
        with pytest.raises(SupervisorError):
            run.go()
        connection.execute("ROLLBACK")
    connection.close()
    with contextlib.suppress(Exception):
        run.end()
    assert set(Run(tmp_path).go().values()) == {"SUCCEEDED"}


# -- what a dead supervisor has left


@pytest.mark.parametrize("knows_boots", [True, False])
def test_a_stranger_with_the_pid_of_a_worker_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knows_boots: bool
) -> None:
    if not knows_boots:
        monkeypatch.setattr(process_identity, "_boot_fraction", lambda: 0.0)
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    stranger = subprocess.Popen(command, start_new_session=True)
    try:
        start = process_start(stranger.pid)
        assert start is not None
        run = Run(tmp_path, [make_job("a")])
        attempt = Attempt(
            job_id="a",
            number=0,
            cpus=(),
            gpus=(),
            started_at=0.0,
            pid=stranger.pid,
            pid_start=start + 1 if knows_boots else start,
        )
        run.ledger.start_attempt(attempt, queue_s=0.0)
        run.ledger.set_state("a", Running(attempt=attempt))
        run.end()
        assert Run(tmp_path).go() == {"a": "SUCCEEDED"}
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
