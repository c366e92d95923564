"""Which node a job goes to, and which nodes are used at all. Nothing here needs Ray."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.core.errors import UsageError
from orchestrator.executors.ray import node_versions
from orchestrator.executors.ray.cluster_slots import ClusterSlots
from orchestrator.executors.ray.compatible_nodes import CompatibleNodes
from orchestrator.executors.ray.node_agent import NodeFacts
from orchestrator.executors.ray.node_registry import (
    NodeChange,
    NodeFailed,
    NodeLeft,
    RayNode,
    failure_reason,
)
from orchestrator.executors.ray.node_versions import CODE, VersionDifferences, differences
from orchestrator.executors.ray.transport import TransferMode, Transport
from orchestrator.machine.slots import RankSlot, Slot


def pool(*nodes: tuple[int, int, int], max_parallel: int | None = None) -> ClusterSlots:
    """Of nodes ``a``, ``b`` … with so many cores, GPUs and MiB."""
    made = ClusterSlots(max_parallel)
    for name, (cores, gpus, memory_mib) in zip("abcdef", nodes, strict=False):
        made.add(name, cores=cores, gpus=gpus, memory_mib=memory_mib)
    return made


def nodes_of(slots: Iterable[Slot | None]) -> list[str | None]:
    return [None if slot is None else "+".join(place.node for place in slot.rank_slots) for slot in slots]


# -- the pool


def test_jobs_go_where_most_cores_are_free() -> None:
    rooms = pool((2, 0, 100), (4, 0, 100))
    assert nodes_of(rooms.acquire(1) for _ in range(7)) == ["b", "b", "a", "b", "a", "b", None]


def test_what_is_given_back_is_handed_out_again() -> None:
    rooms = pool((1, 0, 100), (1, 0, 100))
    first, second = rooms.acquire(1), rooms.acquire(1)
    assert first is not None
    assert second is not None
    assert rooms.acquire(1) is None
    rooms.release(first)
    again = rooms.acquire(1)
    assert again == first
    with pytest.raises(ValueError, match="is not held"):
        rooms.release(Slot(index=7))


def test_a_node_with_too_little_memory_or_without_gpus_is_passed_by() -> None:
    rooms = pool((8, 0, 1000), (2, 1, 4000))
    assert nodes_of([rooms.acquire(1, memory_mib=3000), rooms.acquire(1, 1)]) == ["b", "b"]
    assert rooms.acquire(1, 1) is None
    assert rooms.acquire(1, memory_mib=1001) is None


def test_max_parallel_holds_over_all_nodes_and_is_told_when_it_is_too_much() -> None:
    rooms = pool((2, 0, 100), (2, 0, 100), max_parallel=3)
    assert (rooms.lanes, rooms.warnings()) == (3, ())
    assert nodes_of(rooms.acquire(1) for _ in range(4)).count(None) == 1
    assert "the cluster has 4 cores now" in pool((4, 0, 100), max_parallel=5).warnings()[0]


def test_a_node_that_joins_adds_lanes_and_one_that_leaves_takes_its_own_along() -> None:
    rooms = pool((1, 0, 100))
    held = rooms.acquire(1)
    assert held is not None
    rooms.add("late", cores=2, gpus=0, memory_mib=100)
    assert rooms.lanes == 3
    rooms.remove("a")
    rooms.release(held)
    assert rooms.lanes == 2
    assert nodes_of(rooms.acquire(1) for _ in range(3)) == ["late", "late", None]


def test_ranks_stay_together_where_a_node_has_room_for_all() -> None:
    rooms = pool((2, 0, 100), (4, 0, 100))
    slot = rooms.acquire(4, memory_mib=40, ranks=4)
    assert slot is not None
    assert slot.rank_slots == (RankSlot(node="b", ranks=4, cores=4, memory_mib=40),)


def test_ranks_that_fit_nowhere_together_are_spread() -> None:
    rooms = pool((2, 0, 100), (2, 0, 100), (2, 0, 100))
    slot = rooms.acquire(4, memory_mib=40, ranks=4)
    assert slot is not None
    assert slot.rank_slots == (
        RankSlot(node="a", ranks=2, cores=2, memory_mib=20),
        RankSlot(node="b", ranks=2, cores=2, memory_mib=20),
    )
    assert rooms.acquire(4, ranks=4) is None
    assert rooms.acquire(4, ranks=1) is None
    assert rooms.acquire(2) is not None


def test_ranks_are_spread_over_nodes_of_one_kind_only() -> None:
    rooms = ClusterSlots()
    for node, kind in (("a", "Kx"), ("b", "Zy"), ("c", "Kx")):
        rooms.add(node, cores=2, gpus=0, memory_mib=100, kind=kind)
    assert nodes_of([rooms.acquire(4, ranks=2)]) == ["a+c"]
    assert rooms.fits_ever(4, ranks=2)
    assert not rooms.fits_ever(6, ranks=3), "the third would be on another kind"


def test_a_node_that_is_paused_gets_nothing_more_until_it_is_resumed() -> None:
    rooms = pool((4, 0, 100), (2, 0, 100))
    held = rooms.acquire(1)
    assert held is not None
    rooms.pause("a")
    assert nodes_of(rooms.acquire(1) for _ in range(3)) == ["b", "b", None]
    rooms.release(held)
    assert rooms.acquire(1) is None
    assert rooms.fits_ever(4), "it may come back"
    rooms.resume("a")
    assert nodes_of(rooms.acquire(1) for _ in range(5)) == ["a"] * 4 + [None]


def test_what_would_never_fit_is_known() -> None:
    rooms = pool((2, 0, 100), (2, 1, 50))
    rooms.acquire(2), rooms.acquire(2)
    assert rooms.fits_ever(2, 1, memory_mib=50)
    assert not rooms.fits_ever(2, 1, memory_mib=51)
    assert rooms.fits_ever(4, memory_mib=100, ranks=2)
    assert not rooms.fits_ever(6, ranks=3)


# -- versions

HERE = {"python": "3.11.7", "torch": "2.13.0+cpu", "numpy": "2.4.6", "psutil": "7.2.2", CODE: "abc"}


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
def test_versions_that_change_results_are_told_from_others(changed: dict[str, str | None], deciding: bool) -> None:
    found = differences(HERE, {**HERE, **changed})
    told, silent = (found.deciding, found.others) if deciding else (found.others, found.deciding)
    assert len(told) == 1
    assert not silent
    assert next(iter(changed)) in told[0]


def test_the_code_of_this_package_is_part_of_what_is_compared() -> None:
    assert node_versions.installed_versions()[CODE] is not None
    assert {"torch", "numpy", "mujoco", "gymnasium", "stable-baselines3"} <= node_versions.installed_versions().keys()


# -- the fleet


class FakeNodes:
    """What nodes tell, without any."""

    def __init__(self, *first: NodeChange) -> None:
        self.told = list(first)
        self.driver_node = "a"
        self.head = SimpleNamespace(missing_s=0.0)

        self.suspected: list[str] = []

    def settle(self, timeout_s: float) -> bool:
        return True

    def suspect(self, node_id: str) -> None:
        self.suspected.append(node_id)

    def changes(self) -> list[NodeChange]:
        told, self.told = self.told, []
        return told


def joined(name: str, *deciding: str, others: tuple[str, ...] = (), **facts: Any) -> RayNode:
    values = {
        "host": name,
        "cores": 2,
        "memory_mib": 100,
        "cpu_model": "Kx",
        "versions": {},
        "sees_run_dir": True,
        "storage_problem": None,
    }
    return RayNode(
        node_id=name,
        name=name,
        cores=2,
        gpus=0,
        memory_mib=100,
        facts=NodeFacts(**values | facts),
        agent=None,
        differences=VersionDifferences(deciding=deciding, others=others),
    )


def assembled(*changes: NodeChange, mode: TransferMode | None = None) -> tuple[CompatibleNodes, FakeNodes, list[str]]:
    told: list[str] = []
    nodes = FakeNodes(*changes)
    made = CompatibleNodes(nodes, ClusterSlots(), Transport(mode))  # type: ignore[arg-type]
    made.report = lambda kind, text: told.append(f"{kind}: {text}")
    return made, nodes, told


def test_why_a_node_cannot_be_used_is_one_line_without_a_traceback() -> None:
    inside = "Traceback (most recent call last):\n  File\nModuleNotFoundError: No module named"
    assert failure_reason(f"The actor died.\n{inside} 'orchestrator'") == "this package is not installed there"
    assert failure_reason(f"The actor died.\n{inside} 'numpy'\n") == "ModuleNotFoundError: No module named 'numpy'"
    assert failure_reason("") == "unknown reason"
    other = "No module named 'orchestrator.executors.ray.driver_directory'"
    assert failure_reason(f"{inside} {other[16:]}").startswith("another version of this package is installed there (")


def test_a_cluster_whose_nodes_differ_in_what_decides_results_is_refused_with_the_list() -> None:
    made, _, _ = assembled(
        joined("good"),
        joined("old", "numpy 2.1.0, here 2.4.6", "torch missing, here 2.13.0"),
        NodeFailed("x", "bare", "No Ray"),
    )
    with pytest.raises(UsageError) as refused:
        made.assemble()
    assert "on 2 nodes of the cluster" in str(refused.value)
    assert "old: numpy 2.1.0, here 2.4.6, torch missing, here 2.13.0" in str(refused.value)
    assert "bare: No Ray" in str(refused.value)


def test_other_differences_and_kinds_of_cpu_are_warnings() -> None:
    made, _, _ = assembled(joined("a", others=("psutil 6.0.0, here 7.2.2",)), joined("b", cpu_model="Zy"))
    warnings = made.assemble()
    assert warnings[0] == "a: psutil 6.0.0, here 7.2.2; results do not depend on it."
    assert "2 kinds of CPU (Kx, Zy)" in warnings[1]
    assert made.slots.lanes == 4


def test_a_late_node_that_differs_is_told_of_and_not_used() -> None:
    made, nodes, told = assembled(joined("a"))
    made.assemble()
    nodes.told = [
        joined("late", "numpy 2.1.0, here 2.4.6"),
        joined("fine"),
        NodeFailed("y", "broken", "it has no disk"),
    ]
    made.update()
    assert told == [
        "warning: late has joined the cluster and is not used: numpy 2.1.0, here 2.4.6",
        "node: fine has joined the cluster: 2 cores",
        "warning: broken has joined the cluster and is not used: it has no disk",
    ]
    assert made.slots.lanes == 4
    nodes.told = [NodeLeft("late"), NodeLeft("a")]
    made.update()
    assert told[3:] == ["warning: a has left the cluster; its jobs continue elsewhere"]
    assert made.slots.lanes == 2


def test_nodes_without_the_run_directory_are_refused_only_where_it_must_be_shared() -> None:
    made, _, _ = assembled(joined("a", sees_run_dir=False), mode="shared")
    with pytest.raises(UsageError, match="does not see the run directory"):
        made.assemble()
    made, _, _ = assembled(joined("a", sees_run_dir=False), joined("b"))
    made.assemble()
    assert [made.transfer_mode(node) for node in made.all] == ["stream", "shared"]


def test_a_node_where_something_was_lost_gets_no_more_until_it_has_answered() -> None:
    made, nodes, told = assembled(joined("a"), joined("b"))
    made.assemble()
    made.suspect("a")
    assert nodes.suspected == ["a"]
    assert nodes_of(made.slots.acquire(1) for _ in range(3)) == ["b", "b", None]
    nodes.told = [joined("a")]
    made.update()
    assert nodes_of([made.slots.acquire(1)]) == ["a"]
    assert not told, "nobody needs to know"


def test_a_node_that_was_given_up_is_not_used_again_whatever_is_heard_of_it() -> None:
    made, nodes, told = assembled(joined("a"), joined("b"))
    made.assemble()
    slot = made.slots.acquire(2)
    assert nodes_of([slot]) == ["a"]
    made.exclude("a", "its disk is full")
    made.suspect("a")
    assert nodes.suspected == []
    nodes.told = [joined("a"), NodeFailed("a", "a", "gone")]
    made.update()
    assert told == ["warning: a is no longer used: its disk is full"]
    assert made.slots.lanes == 2
    assert made.all_excluded is None
    made.exclude("b", "it cannot start anything")
    assert made.all_excluded == "a: its disk is full; b: it cannot start anything"


def test_a_node_in_use_that_becomes_unfit_is_given_up() -> None:
    made, nodes, told = assembled(joined("a"), joined("b"))
    made.assemble()
    nodes.told = [joined("a", storage_problem="checking --storage s3://b: denied")]
    made.update()
    assert made.get("a") is None
    assert told == ["warning: a is no longer used: checking --storage s3://b: denied"]


def test_a_node_that_cannot_be_reached_is_no_obstacle_and_gets_nothing_until_it_can() -> None:
    made, nodes, told = assembled(joined("a"), NodeFailed("b", "b", "the actor never ran", is_silent=True))
    assert made.assemble() == ["b cannot be reached now, and will be used once it can."]
    nodes.told = [NodeFailed("a", "a", "the actor never ran", is_silent=True), joined("b")]
    made.update()
    assert nodes_of(made.slots.acquire(1) for _ in range(3)) == ["b", "b", None]
    nodes.told = [joined("a")]
    made.update()
    assert nodes_of([made.slots.acquire(1)]) == ["a"]
    assert told == ["node: b has joined the cluster: 2 cores"]


def test_a_node_that_the_storage_does_not_reach_is_refused() -> None:
    made, _, _ = assembled(joined("a", storage_problem="--storage s3://b: needs a package that is not installed here"))
    with pytest.raises(UsageError, match="a: --storage s3://b: needs a package"):
        made.assemble()


def test_a_storage_that_is_another_place_on_a_node_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    here = Transport.from_option(f"file://{tmp_path}/here", tmp_path)
    assert here.problem() is None
    assert here.storage is not None
    elsewhere = dataclasses.replace(here.storage, uri=f"file://{tmp_path}/there")
    problem = dataclasses.replace(here, storage=elsewhere).problem()
    assert problem is not None
    assert "every machine must see the same folder" in problem
    here.close()
    assert not list((tmp_path / "here").iterdir())


@pytest.mark.parametrize("option", ["nfs", "sharde"])
def test_an_unknown_way_of_storing_is_answered_with_the_valid_ones(option: str, tmp_path: Any) -> None:
    with pytest.raises(UsageError, match="auto, shared, stream, or a URI"):
        Transport.from_option(option, tmp_path)


def test_what_an_earlier_driver_left_in_the_storage_is_taken_away(tmp_path: Any) -> None:
    uri = f"file://{tmp_path}/place"
    with contextlib.closing(Transport.from_option(uri, tmp_path / "run")) as first:
        assert first.storage is not None
        left = tmp_path / "place" / first.storage.subfolder / "left"
        left.parent.mkdir(parents=True, exist_ok=True)
        left.write_text("x")
        with contextlib.closing(Transport.from_option(uri, tmp_path / "other")):
            assert left.exists(), "another run directory's is none of ours"
        Transport.from_option(uri, tmp_path / "run")
        assert not left.exists()
