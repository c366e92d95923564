"""Which node a job goes to."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from orchestrator.executors.cluster_slots import ClusterSlots
from orchestrator.machine.provenance import CODE, differences
from orchestrator.machine.slots import RankSlot, Slot


def slots_of(*nodes: tuple[int, int, int], max_parallel: int | None = None) -> ClusterSlots:
    """Slots of nodes ``a``, ``b`` … with so many cores, GPUs and MiB."""
    made = ClusterSlots(max_parallel)
    for name, (cores, gpus, memory_mib) in zip("abcdef", nodes, strict=False):
        made.add(name, cores=cores, gpus=gpus, memory_mib=memory_mib)
    return made


def nodes_of(slots: Iterable[Slot | None]) -> list[str | None]:
    return [
        None if slot is None else "+".join(place.node for place in slot.rank_slots)
        for slot in slots
    ]


def test_jobs_go_where_most_cores_are_free() -> None:
    slots = slots_of((2, 0, 100), (4, 0, 100))
    assert nodes_of(slots.acquire(1) for _ in range(7)) == ["b", "b", "a", "b", "a", "b", None]


def test_a_released_slot_is_handed_out_again() -> None:
    slots = slots_of((1, 0, 100), (1, 0, 100))
    first, second = slots.acquire(1), slots.acquire(1)
    assert first is not None
    assert second is not None
    assert slots.acquire(1) is None
    slots.release(first)
    again = slots.acquire(1)
    assert again == first
    with pytest.raises(ValueError):
        slots.release(Slot(index=7))


def test_a_node_with_too_little_memory_or_without_gpus_is_not_used() -> None:
    slots = slots_of((8, 0, 1000), (2, 1, 4000))
    assert nodes_of([slots.acquire(1, memory_mib=3000), slots.acquire(1, 1)]) == ["b", "b"]
    assert slots.acquire(1, 1) is None
    assert slots.acquire(1, memory_mib=1001) is None


def test_shares_are_counted_gpu_by_gpu() -> None:
    slots = slots_of((9, 2, 1000))
    first, second = slots.acquire(1, 0.6), slots.acquire(1, 0.6)
    assert second is not None
    assert first is not None
    assert slots.acquire(1, 0.6) is None, "0.4 are free of each"
    assert slots.acquire(1, 1) is None
    assert slots.fits_ever(1, 2)
    slots.release(first)
    assert nodes_of([slots.acquire(1, 0.4), slots.acquire(1, 1), slots.acquire(1, 0.1)]) == [
        "a",
        "a",
        None,
    ]


def test_max_parallel_holds_for_all_nodes_together_with_a_warning_if_too_large() -> None:
    slots = slots_of((2, 0, 100), (2, 0, 100), max_parallel=3)
    assert (slots.jobs_at_once, slots.warnings()) == (3, ())
    assert nodes_of(slots.acquire(1) for _ in range(4)).count(None) == 1


def test_a_node_that_joins_adds_jobs_at_once_and_one_that_leaves_removes_its_own() -> None:
    slots = slots_of((1, 0, 100))
    held = slots.acquire(1)
    assert held is not None
    slots.add("late", cores=2, gpus=0, memory_mib=100)
    assert slots.jobs_at_once == 3
    slots.remove("a")
    slots.release(held)
    assert slots.jobs_at_once == 2
    assert nodes_of(slots.acquire(1) for _ in range(3)) == ["late", "late", None]


def test_ranks_stay_together_if_a_node_has_room_for_all() -> None:
    slots = slots_of((2, 0, 100), (4, 0, 100))
    slot = slots.acquire(4, memory_mib=40, ranks=4)
    assert slot is not None
    assert slot.rank_slots == (RankSlot(node="b", ranks=4, cores=4, memory_mib=40),)


def test_ranks_that_fit_nowhere_together_are_spread() -> None:
    slots = slots_of((2, 0, 100), (2, 0, 100), (2, 0, 100))
    slot = slots.acquire(4, memory_mib=40, ranks=4)
    assert slot is not None
    assert slot.rank_slots == (
        RankSlot(node="a", ranks=2, cores=2, memory_mib=20),
        RankSlot(node="b", ranks=2, cores=2, memory_mib=20),
    )
    assert slots.acquire(4, ranks=4) is None
    assert slots.acquire(4, ranks=1) is None
    assert slots.acquire(2) is not None


def test_a_node_that_is_paused_gets_nothing_more_until_it_is_resumed() -> None:
    slots = slots_of((4, 0, 100), (2, 0, 100))
    held = slots.acquire(1)
    assert held is not None
    slots.pause("a")
    assert nodes_of(slots.acquire(1) for _ in range(3)) == ["b", "b", None]
    slots.release(held)
    assert slots.acquire(1) is None
    assert slots.fits_ever(4), "it may come back"
    slots.resume("a")
    assert nodes_of(slots.acquire(1) for _ in range(5)) == ["a"] * 4 + [None]


HERE = {
    "python": "3.11.7",
    "torch": "2.13.0+cpu",
    "numpy": "2.4.6",
    "psutil": "7.2.2",
    CODE: "abc",
}


@pytest.mark.parametrize(
    ("changed", "deciding"),
    [
        ({"numpy": "2.4.5"}, True),
        ({"torch": "2.12.0+cpu"}, True),
        ({"torch": "2.13.0+cu130"}, False),
        ({"python": "3.12.1"}, True),
        ({"python": "3.11.9"}, False),
        ({"psutil": "6.0.0"}, False),
        ({"psutil": None}, False),
        ({"numpy": None}, True),
        ({CODE: "abd"}, True),
    ],
)
def test_versions_that_change_results_are_distinguished(
    changed: dict[str, str | None], deciding: bool
) -> None:
    found = differences(HERE, {**HERE, **changed})
    lines, others = (found.deciding, found.others) if deciding else (found.others, found.deciding)
    assert len(lines) == 1
    assert not others
    assert next(iter(changed)) in lines[0]
