"""Who keeps CPUs busy, from the files of a kernel that is made up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.machine import cpu_load
from orchestrator.machine.cpu_holders import CpuHolders
from orchestrator.machine.cpu_load import LoadSampler
from orchestrator.machine.neighbours import Neighbours

TICKS = os.sysconf("SC_CLK_TCK")
OTHERS = 900_000_000
"""A pid that no process of this machine has."""


class Kernel:
    """A folder such as /proc, and a clock."""

    def __init__(self, proc: Path, cpus: int = 4) -> None:
        self.proc, self.now = proc, 100.0
        self.busy = [0.0] * cpus
        self.processes: dict[int, dict[str, float | int | str]] = {}

    def clock(self) -> float:
        return self.now

    def process(self, pid: int, *, used_s: float = 0.0, cpu: int = 0, **values: int | str) -> None:
        """One that has used ``used_s`` more since it was written last."""
        known = self.processes.setdefault(
            pid, {"used_s": 0.0, "allowed": f"0-{len(self.busy) - 1}", "parent": 1}
        )
        known |= {"cpu": cpu, **values}
        known["used_s"] = float(known["used_s"]) + used_s
        self.busy[cpu] += used_s

    def write(self) -> None:
        self.proc.mkdir(exist_ok=True)
        rows = [
            f"cpu{cpu} {round(used * TICKS)} 0 0 9999 0 0 0 0 0 0"
            for cpu, used in enumerate(self.busy)
        ]
        (self.proc / "stat").write_text("\n".join(["cpu  1 2 3 4 5 6 7 8 9 10", *rows, "intr 1"]))
        for pid, known in self.processes.items():
            folder = self.proc / str(pid)
            folder.mkdir(exist_ok=True)
            fields = ["0"] * 50
            fields[0] = str(known.get("state", "S"))
            fields[1] = str(known["parent"])
            fields[6] = str(known.get("flags", 0))
            fields[11] = str(round(float(known["used_s"]) * TICKS))
            fields[17] = "1"
            fields[36] = str(known["cpu"])
            fields[38] = str(known.get("policy", 0))
            (folder / "stat").write_text(f"{pid} (a (b) c) {' '.join(fields)}")
            (folder / "status").write_text(f"Name:\tx\nCpus_allowed_list:\t{known['allowed']}\n")
            (folder / "cmdline").write_text(str(known.get("command", "hog")))


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path / "proc")


def sampler(kernel: Kernel) -> LoadSampler:
    kernel.write()
    return LoadSampler(kernel.proc, kernel.clock)


def after(kernel: Kernel, seconds: float, of: LoadSampler) -> cpu_load.CpuLoad:
    kernel.now += seconds
    kernel.write()
    of.tick()
    return of.measure()


def test_a_program_that_is_bound_to_a_cpu_wants_that_one(kernel: Kernel) -> None:
    kernel.process(OTHERS, allowed="2")
    of = sampler(kernel)
    kernel.process(OTHERS, used_s=2.0, cpu=2)
    (found,) = after(kernel, 2.0, of).processes
    assert (found.name, found.cores, found.demand) == ("a (b) c", 1.0, {2: 1.0})


def test_a_program_that_gets_little_of_a_contended_cpu_wants_all_of_it(kernel: Kernel) -> None:
    kernel.process(OTHERS, allowed="2", state="R")
    of = sampler(kernel)
    kernel.process(OTHERS, used_s=0.1, cpu=2)
    (found,) = after(kernel, 2.0, of).processes
    assert (found.cores, found.demand) == (0.05, {2: 1.0})


def test_a_program_that_is_free_to_move_is_where_it_ran_last(kernel: Kernel) -> None:
    kernel.process(OTHERS)
    of = sampler(kernel)
    kernel.process(OTHERS, used_s=1.0, cpu=3)
    (found,) = after(kernel, 2.0, of).processes
    assert found.demand == {3: 0.5}


@pytest.mark.parametrize(
    "values",
    [{"parent": os.getpid()}, {"policy": os.SCHED_IDLE}, {"flags": cpu_load.KERNEL_THREAD}],
    ids=["a child of this process", "one that gives way", "a thread of the kernel"],
)
def test_what_takes_nothing_from_others_is_none(kernel: Kernel, values: dict[str, int]) -> None:
    kernel.process(OTHERS, **values)
    kernel.process(os.getpid())
    of = sampler(kernel)
    kernel.process(OTHERS, used_s=2.0)
    kernel.process(os.getpid(), used_s=2.0)
    assert after(kernel, 2.0, of).processes == ()


def test_time_that_no_visible_process_had_is_known_by_its_cpu(kernel: Kernel) -> None:
    kernel.process(OTHERS, allowed="0")
    of = sampler(kernel)
    kernel.process(OTHERS, used_s=2.0, cpu=0)
    kernel.busy[3] += 1.8
    kernel.busy[1] += 0.1
    assert after(kernel, 2.0, of).unexplained == {3: pytest.approx(0.9)}


def test_of_a_training_the_holder_of_its_cpus_speaks(kernel: Kernel, tmp_path: Path) -> None:
    command = "python -m orchestrator.worker /somewhere 0"
    kernel.process(OTHERS, allowed="1", command=command)
    kernel.process(OTHERS + 1, allowed="1", parent=OTHERS, command="its environment")
    of = sampler(kernel)
    kernel.process(OTHERS, used_s=1.0, cpu=1)
    kernel.process(OTHERS + 1, used_s=1.0, cpu=1)
    after(kernel, 2.0, of)
    holders = CpuHolders(tmp_path / "holders", experiment="theirs")
    holders.publish({1: 1})
    ours = Neighbours(CpuHolders(tmp_path / "holders"), of)
    assert [other.name for other in ours.look({}).competitors] == ["run theirs"]
    assert ours.look({}).competition() == {1: 2}
    holders.close()
    assert len(ours.look({}).competitors) == 2, "a training whose run nobody sees is a program"
