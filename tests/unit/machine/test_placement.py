"""Which CPUs are chosen, from snapshots of machines of any size."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.machine.placement import Competitor, CpuUse, choose
from orchestrator.machine.topology import Cpu, _preference


def machine(cores: int, smt: int = 1, nodes: int = 1) -> tuple[Cpu, ...]:
    """Cores in all nodes alike; siblings are numbered after all cores, as the kernel does."""
    return _preference(
        Cpu(index=core + thread * cores, core=core, package=0, numa_node=core * nodes // cores)
        for thread in range(smt)
        for core in range(cores)
    )


def program(*cpus: int, demand: float = 1.0) -> Competitor:
    return Competitor(name="hog", demand=dict.fromkeys(cpus, demand))


def place(cpus: tuple[Cpu, ...], use: CpuUse, cores: int = 1) -> tuple[int, ...]:
    chosen = choose(cores, cpus, cpus, use)
    assert chosen is not None
    return chosen


def test_an_idle_cpu_comes_before_one_that_somebody_uses() -> None:
    cpus = machine(4)
    assert place(cpus, CpuUse(competitors=[program(0)])) == (1,)
    assert place(cpus, CpuUse(competitors=[program(0, 1, 2)])) == (3,)
    assert place(cpus, CpuUse(own={0: 1, 3: 1}, competitors=[program(1)])) == (2,)


def test_where_all_are_used_it_is_the_one_that_the_fewest_use() -> None:
    cpus = machine(3)
    use = CpuUse(own={2: 1}, competitors=[program(0), program(0), program(1), program(2)])
    assert place(cpus, use) == (1,)


def test_an_idle_core_comes_before_the_sibling_of_a_busy_one() -> None:
    cpus = machine(4, smt=2)
    assert place(cpus, CpuUse(competitors=[program(0), program(5)])) == (2,)
    assert place(cpus, CpuUse(competitors=[program(0, 1, 2, 3)])) == (4,), (
        "a sibling before a CPU in use"
    )


def test_several_cores_come_from_the_node_that_is_idle() -> None:
    cpus = machine(8, nodes=2)
    assert place(cpus, CpuUse(competitors=[program(1)]), cores=4) == (4, 5, 6, 7)
    assert set(place(cpus, CpuUse(competitors=[program(1, 2, 5)]), cores=4)) <= {0, 3, 4, 6, 7}


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
    use = CpuUse(competitors=[program(cpu) for cpu in busy])
    idle = len(cpus) - len(busy)
    (one,) = place(cpus, use)
    assert one not in busy or not idle
    asked = rng.randint(1, len(cpus))
    chosen = place(cpus, use, cores=asked)
    assert len(set(chosen)) == asked
    if smt == 1:
        assert len(busy & set(chosen)) == max(0, asked - idle)


@pytest.mark.parametrize("seed", range(2))
def test_eight_users_and_three_hogs_are_spread_over_64_cpus(seed: int) -> None:
    """Each user places jobs of its own, and sees those of the others and the hogs."""
    rng = random.Random(seed)
    cpus = machine(64, nodes=2)
    hogs = [program(cpu) for cpu in rng.sample(range(64), 3)]
    held: list[Counter[int]] = [Counter() for _ in range(8)]
    jobs = [user for user in range(8) for _ in range(rng.randint(4, 16))]
    rng.shuffle(jobs)
    for user in jobs:
        others = [
            Competitor(name=f"user {other}", demand=dict(cpus_of), is_run=True)
            for other, cpus_of in enumerate(held)
            if other != user
        ]
        (chosen,) = place(cpus, CpuUse(own=held[user], competitors=[*others, *hogs]))
        held[user][chosen] += 1
        competitors = sum(held, Counter({cpu: 1 for hog in hogs for cpu in hog.demand}))
        counts = [competitors[cpu.index] for cpu in cpus]
        assert max(counts) - min(counts) <= 1
