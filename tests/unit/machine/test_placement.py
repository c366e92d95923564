"""Which CPUs are chosen, on machines of any size."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from supervisor_helpers import make_machine

from orchestrator.machine.cpu_locks import Holder
from orchestrator.machine.slots import CpuUse, SlotPool, choose
from orchestrator.machine.topology import Cpu, _preference


def machine(cores: int, smt: int = 1, nodes: int = 1) -> tuple[Cpu, ...]:
    """Cores in all nodes alike; siblings are numbered after all cores, as the kernel does."""
    return _preference(
        Cpu(index=core + thread * cores, core=core, package=0, numa_node=core * nodes // cores)
        for thread in range(smt)
        for core in range(cores)
    )


def loaded(*cpus: int) -> CpuUse:
    return CpuUse(load=dict.fromkeys(cpus, 1.0))


def place(cpus: tuple[Cpu, ...], use: CpuUse, cores: int = 1) -> tuple[int, ...]:
    chosen = choose(cores, cpus, cpus, use)
    assert chosen is not None
    return chosen


def test_an_idle_cpu_comes_before_one_that_somebody_uses() -> None:
    cpus = machine(4)
    assert place(cpus, loaded(0)) == (1,)
    assert place(cpus, loaded(0, 1, 2)) == (3,)
    assert place(cpus, CpuUse(own={0: 1, 3: 1}, load={1: 1.0})) == (2,)
    assert place(cpus, CpuUse(load={0: 0.1})) == (0,), "so little is nothing"


def test_where_all_are_used_it_is_the_one_that_the_fewest_use() -> None:
    cpus = machine(3)
    holders = [Holder(cpu=cpu, place=place) for cpu, place in ((0, 0), (0, 1), (2, 0))]
    use = CpuUse(own={2: 1}, holders=holders, load={1: 1.0})
    assert place(cpus, use) == (1,)
    assert use.names_on([0, 1]) == ("another run", "other programs")


def test_an_idle_core_comes_before_the_sibling_of_a_busy_one() -> None:
    cpus = machine(4, smt=2)
    assert place(cpus, loaded(0, 5)) == (2,)
    assert place(cpus, loaded(0, 1, 2, 3)) == (4,), "a sibling before a CPU in use"


def test_several_cores_come_from_the_node_that_is_idle() -> None:
    cpus = machine(8, nodes=2)
    assert place(cpus, loaded(1), cores=4) == (4, 5, 6, 7)
    assert set(place(cpus, loaded(1, 2, 5), cores=4)) <= {0, 3, 4, 6, 7}


def test_too_few_cpus_are_none() -> None:
    cpus = machine(2)
    assert choose(3, cpus, cpus, CpuUse()) is None
    assert choose(1, (), cpus, CpuUse()) is None


@settings(max_examples=60)
@given(
    cores=st.integers(1, 128),
    smt=st.sampled_from([1, 2]),
    nodes=st.sampled_from([1, 2, 4]),
    seed=st.integers(0, 10_000),
)
def test_no_cpu_is_shared_while_another_is_idle(
    cores: int, smt: int, nodes: int, seed: int
) -> None:
    """On machines of 1 to 256 CPUs, whoever uses whichever of them."""
    rng = random.Random(seed)
    cpus = machine(cores, smt, min(nodes, cores))
    busy = {cpu.index for cpu in cpus if rng.random() < 0.5}
    idle = len(cpus) - len(busy)
    asked = rng.randint(1, len(cpus))
    chosen = place(cpus, loaded(*busy), cores=asked)
    assert len(set(chosen)) == asked
    assert len(busy & set(chosen)) == max(0, asked - idle)


@pytest.mark.parametrize("hogs", [{0, 1, 2}, {0, 5, 6}])
def test_idle_means_idle_cores_and_not_their_siblings(
    hogs: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = SlotPool(dataclasses.replace(make_machine(8), cpus=machine(4, smt=2)), "idle")
    monkeypatch.setattr(pool, "look", lambda: loaded(*hogs))
    assert pool.acquire(1).cpus == (3,)
    monkeypatch.setattr(pool, "look", lambda: CpuUse(own={3: 1}, load=dict.fromkeys(hogs, 1.0)))
    assert pool.acquire(1) is None
