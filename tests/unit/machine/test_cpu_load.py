"""How busy others keep CPUs, from figures of a kernel that is made up."""

from __future__ import annotations

import os

import pytest

from orchestrator.core.processes.procfs import TICKS_PER_S
from orchestrator.machine import cpu_load
from orchestrator.machine.cpu_load import CpuLoad


class Kernel:
    """Times of CPUs and own threads, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.busy_s = dict.fromkeys(range(4), 50.0)
        self.threads: dict[int, tuple[int, float]] = {}
        monkeypatch.setattr(
            cpu_load,
            "busy_ticks",
            lambda: {cpu: round(used * TICKS_PER_S) for cpu, used in self.busy_s.items()},
        )
        monkeypatch.setattr(
            cpu_load,
            "_threads",
            lambda _: {
                thread: (cpu, round(used * TICKS_PER_S))
                for thread, (cpu, used) in self.threads.items()
            },
        )

    def run(self, cpu: int, used_s: float, thread: int | None = None) -> None:
        """Somebody uses a CPU: a thread of this run, or another program."""
        self.busy_s[cpu] += used_s
        if thread is not None:
            before = self.threads.get(thread, (cpu, 0.0))[1]
            self.threads[thread] = cpu, before + used_s


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(monkeypatch)


def after(kernel: Kernel, load: CpuLoad, held: set[int] = frozenset()) -> dict[int, float]:
    kernel.now += 2.0
    load.tick(lambda: held)
    return {cpu: share for cpu, share in load.shares(held).items() if share}


def test_what_own_threads_used_is_left_out(kernel: Kernel) -> None:
    load = CpuLoad(now=lambda: kernel.now)
    kernel.run(0, 2.0, thread=1)
    kernel.run(1, 1.0, thread=2)
    kernel.run(1, 1.0)
    kernel.run(3, 2.0)
    assert after(kernel, load) == pytest.approx({1: 0.5, 3: 1.0})
    assert after(kernel, load) == {}


def test_a_cpu_that_another_run_held_is_not_loaded_by_programs(kernel: Kernel) -> None:
    load = CpuLoad(now=lambda: kernel.now)
    kernel.run(0, 2.0)
    assert after(kernel, load, held={0}) == {}
    kernel.run(0, 1.0)  # until the job ended
    assert after(kernel, load) == {}


def test_a_job_that_has_just_ended_was_no_other_program(kernel: Kernel) -> None:
    load = CpuLoad(now=lambda: kernel.now)
    kernel.run(0, 2.0, thread=1)
    kernel.run(1, 2.0, thread=2)
    kernel.run(1, 1.0)
    assert after(kernel, load) == pytest.approx({1: 0.5})
    for cpu in (0, 1):
        kernel.run(cpu, 1.0)
    kernel.threads.clear()
    load.note_left([0, 1])
    assert after(kernel, load) == pytest.approx({1: 0.5}), "as before"
    assert after(kernel, load) == {}


def test_threads_of_descendants_are_found_with_their_cpus() -> None:
    (here,) = {
        cpu
        for thread, (cpu, _) in cpu_load._threads([os.getpid()]).items()
        if thread == os.getpid()
    }
    assert here in range(os.cpu_count() or 1)
