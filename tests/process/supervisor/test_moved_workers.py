"""A worker that is moved to other CPUs, with all that it has started."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_helpers import HOPPER, TINY, add_to_server, odd, write_experiment
from executor_helpers import ASLEEP, family, local, make_launch, make_rank_group, until_heard
from server_helpers import reading

import orchestrator
from orchestrator import ExperimentProgress
from orchestrator.core.paths import RunPaths
from orchestrator.core.processes.environment_variables import CPU_LOCKS_VARIABLE
from orchestrator.machine import topology
from orchestrator.machine.process_tree import with_descendants

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")

SPAWNER = """
import os, sys, threading, time
assert os.read(int(os.environ["ORCHESTRATOR_CHANNEL"]), 1)
def spawn():
    while True:
        time.sleep(0.0005)
        if threading.active_count() < 40:
            threading.Thread(target=time.sleep, args=[0.02]).start()
        if os.fork() == 0:
            time.sleep(0.02)
            os._exit(0)
        for _ in range(9):
            try:
                os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
for _ in range(3):
    threading.Thread(target=spawn).start()
from orchestrator.core.messages import Progress
os.write(int(os.environ["ORCHESTRATOR_CHANNEL"]), Progress(phase="starting").to_line())
time.sleep(600)
"""
"""A worker that starts threads and processes without an end."""


SPINNING = """
import os
from odd import Odd


class Spinning(Odd):
    def step(self, action):
        while self.count == self.at and not os.path.exists(os.path.join(os.path.dirname(__file__), "go")):
            pass
        return super().step(action)


def make(xml=None, seed=0):
    return Spinning("nothing", 100)
"""
"""An environment that keeps its core busy amid a training until there is a file ``go``."""
LOAD = """
from pathlib import Path
from orchestrator.machine.cpu_load import CpuLoad
busy = Path({busy!r})
CpuLoad.shares = lambda *_: {{int(busy.read_text()): 1.0}} if busy.exists() else {{}}
"""
"""For a supervisor: other programs keep the CPU busy that a file names."""


def allowed(pid: int) -> set[frozenset[int]]:
    """The sets of CPUs that threads of ``pid`` and of its descendants may use."""
    found = set()
    for member in with_descendants(pid):
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{member}/task"):
                with contextlib.suppress(ProcessLookupError):
                    found.add(frozenset(os.sched_getaffinity(int(thread))))
    return found


def test_every_descendant_and_rank_is_moved(tmp_path: Path) -> None:
    first, second, *_ = sorted(os.sched_getaffinity(0))
    launch = make_rank_group(tmp_path, "a", family(0), family(1, ASLEEP[-1:]), cpus=(first, second))
    with local() as executor:
        handle = executor.submit(launch)
        until_heard(executor, handle)
        workers = executor._groups[handle].running
        while not (tmp_path / "a/daemon-1").exists():
            executor.poll(0.05)
        assert [allowed(worker.pid) for worker in workers] == [
            {frozenset({first})},
            {frozenset({second})},
        ]
        assert executor.move(handle, {first: second, second: first})
        assert [allowed(worker.pid) for worker in workers] == [
            {frozenset({second})},
            {frozenset({first})},
        ]


def test_what_is_started_meanwhile_is_moved_too(tmp_path: Path) -> None:
    first, second, *_ = sorted(os.sched_getaffinity(0))
    launch = make_launch(tmp_path, "a", cpus=(first,))
    with local(worker_command=(sys.executable, "-c", SPAWNER)) as executor:
        handle = executor.submit(launch)
        until_heard(executor, handle)
        (worker,) = executor._groups[handle].running
        assert allowed(worker.pid) == {frozenset({first})}
        assert executor.move(handle, {first: second})
        assert allowed(worker.pid) == {frozenset({second})}


def test_where_the_kernel_refuses_one_rank_all_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, *_ = sorted(os.sched_getaffinity(0))
    launch = make_rank_group(tmp_path, "a", ASLEEP, ASLEEP, cpus=(first, second))
    with local() as executor:
        handle = executor.submit(launch)
        until_heard(executor, handle)
        workers = executor._groups[handle].running
        set_affinity = os.sched_setaffinity

        def refuse(pid: int, cpus: set[int]) -> None:
            if pid == workers[1].pid and cpus == {first}:
                raise OSError(errno.EINVAL, "Invalid argument")
            set_affinity(pid, cpus)

        monkeypatch.setattr(os, "sched_setaffinity", refuse)
        assert not executor.move(handle, {first: second, second: first})
        assert [allowed(worker.pid) for worker in workers] == [
            {frozenset({first})},
            {frozenset({second})},
        ]


@contextlib.contextmanager
def hog(cpu: int) -> Iterator[int]:
    """A program bound to a CPU."""
    command = ["taskset", "-c", str(cpu), sys.executable, "-c", "while True: pass"]
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            yield process.pid
        finally:  # else leaving the block would wait for it without an end
            process.kill()


@pytest.mark.nightly
def test_a_training_that_was_moved_has_the_weights_of_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program comes to use its core. That the other core is idle is made up: this machine may be
    busy."""
    monkeypatch.setenv(
        CPU_LOCKS_VARIABLE, str(tmp_path / "holders")
    )  # runs of other tests are none of this one's
    busy = tmp_path / "busy"
    add_to_server(monkeypatch, LOAD.format(busy=str(busy)))
    monkeypatch.chdir(tmp_path)
    write_experiment(tmp_path, odd("unused", "nothing"))
    (tmp_path / "spinning.py").write_text(SPINNING)
    settings = {
        **tomllib.loads(TINY)["defaults"],
        "entry_point": "spinning:make",
        "max_parallel": 1,
    }
    go = tmp_path / "go"
    go.touch()
    orchestrator.train(HOPPER, run_dir=tmp_path / "undisturbed", **settings)
    go.unlink()
    hogs = contextlib.ExitStack()

    def disturb(progress: ExperimentProgress) -> None:
        if not busy.exists() and progress.running:
            cpus = topology.detect().cpus
            (tmp_path / "busy.new").write_text(str(cpus[0].index))
            (tmp_path / "busy.new").rename(busy)
            hogs.enter_context(hog(cpus[0].index))
        elif busy.exists() and not go.exists():
            with reading(RunPaths(tmp_path / "moved")) as ledger:
                if any(len(attempt["cpu_spans"]) > 1 for attempt in ledger.attempts()):
                    go.touch()

    with hogs:
        orchestrator.train(HOPPER, run_dir=tmp_path / "moved", on_progress=disturb, **settings)
    with reading(RunPaths(tmp_path / "moved")) as ledger:
        (attempt,), (moved,) = ledger.attempts(), ledger.summary()
    with reading(RunPaths(tmp_path / "undisturbed")) as ledger:
        (undisturbed,) = ledger.summary()
    assert [span["cpus"] for span in attempt["cpu_spans"]] == [
        [cpu.index] for cpu in topology.detect().cpus[:2]
    ]
    assert attempt["competitors"] == ["other programs"]
    assert moved["weights_sha256"] == undisturbed["weights_sha256"] is not None
