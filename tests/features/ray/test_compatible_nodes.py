"""Which nodes of a cluster are used, without Ray."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.core.errors import UsageError
from orchestrator.executors.cluster_slots import ClusterSlots
from orchestrator.features.ray.compatible_nodes import CompatibleNodes
from orchestrator.features.ray.node_agent import NodeFacts
from orchestrator.features.ray.node_registry import (
    NodeChange,
    NodeFailed,
    NodeLeft,
    RayNode,
    failure_reason,
)
from orchestrator.features.ray.transport import TransferMode, Transport
from orchestrator.machine.provenance import VersionDifferences
from orchestrator.machine.slots import Slot


def nodes_of(slots: Iterable[Slot | None]) -> list[str | None]:
    return [
        None if slot is None else "+".join(place.node for place in slot.rank_slots)
        for slot in slots
    ]


class FakeNodes:
    """A registry whose changes are given by the test."""

    def __init__(self, *first: NodeChange) -> None:
        self.pending = list(first)
        self.driver_node = "a"
        self.head = SimpleNamespace(missing_s=0.0)

        self.suspected: list[str] = []

    def settle(self, timeout_s: float) -> bool:
        return True

    def suspect(self, node_id: str) -> None:
        self.suspected.append(node_id)

    def changes(self) -> list[NodeChange]:
        reports, self.pending = self.pending, []
        return reports


def joined(name: str, *deciding: str, others: tuple[str, ...] = (), **facts: Any) -> RayNode:
    values = {
        "cores": 2,
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


def assembled(
    *changes: NodeChange, mode: TransferMode | None = None
) -> tuple[CompatibleNodes, FakeNodes, list[str]]:
    reports: list[str] = []
    nodes = FakeNodes(*changes)
    made = CompatibleNodes(nodes, ClusterSlots(), Transport(mode))  # type: ignore[arg-type]
    made.report = lambda kind, text: reports.append(f"{kind}: {text}")
    return made, nodes, reports


def test_why_a_node_cannot_be_used_is_one_line_without_a_traceback() -> None:
    inside = "Traceback (most recent call last):\n  File\nModuleNotFoundError: No module named"
    assert (
        failure_reason(f"The actor died.\n{inside} 'orchestrator'")
        == "this package is not installed there"
    )
    assert (
        failure_reason(f"The actor died.\n{inside} 'numpy'\n")
        == "ModuleNotFoundError: No module named 'numpy'"
    )
    assert failure_reason("") == "unknown reason"
    other = "No module named 'orchestrator.features.ray.driver_directory'"
    assert failure_reason(f"{inside} {other[16:]}").startswith(
        "another version of this package is installed there ("
    )


def test_nodes_that_differ_in_what_changes_results_are_refused_with_a_list() -> None:
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
    made, _, _ = assembled(
        joined("a", others=("psutil 6.0.0, here 7.2.2",)), joined("b", cpu_model="Zy")
    )
    warnings = made.assemble()
    assert warnings[0] == "a: psutil 6.0.0, here 7.2.2; results do not depend on it."
    assert "2 kinds of CPU (Kx, Zy)" in warnings[1]
    assert made.slots.jobs_at_once == 4


def test_a_late_node_that_differs_is_reported_and_not_used() -> None:
    made, nodes, reports = assembled(joined("a"))
    made.assemble()
    nodes.pending = [
        joined("late", "numpy 2.1.0, here 2.4.6"),
        joined("fine"),
        NodeFailed("y", "broken", "it has no disk"),
    ]
    made.update()
    assert reports == [
        "warning: late has joined the cluster but is not used: numpy 2.1.0, here 2.4.6",
        "node: fine has joined the cluster: 2 cores",
        "warning: broken has joined the cluster but is not used: it has no disk",
    ]
    assert made.slots.jobs_at_once == 4
    nodes.pending = [NodeLeft("late"), NodeLeft("a")]
    made.update()
    assert reports[3:] == ["warning: a has left the cluster; its jobs continue elsewhere"]
    assert made.slots.jobs_at_once == 2


def test_an_excluded_node_is_never_used_again() -> None:
    made, nodes, reports = assembled(joined("a"), joined("b"))
    made.assemble()
    slot = made.slots.acquire(2)
    assert nodes_of([slot]) == ["a"]
    made.exclude("a", "its disk is full")
    made.suspect("a")
    assert nodes.suspected == []
    nodes.pending = [joined("a"), NodeFailed("a", "a", "gone")]
    made.update()
    assert reports == ["warning: a is no longer used: its disk is full"]
    assert made.slots.jobs_at_once == 2
    assert made.all_excluded is None
    made.exclude("b", "it cannot start anything")
    assert made.all_excluded == "a: its disk is full; b: it cannot start anything"


def test_a_node_in_use_that_becomes_incompatible_is_excluded() -> None:
    made, nodes, reports = assembled(joined("a"), joined("b"))
    made.assemble()
    nodes.pending = [joined("a", storage_problem="checking --storage s3://b: denied")]
    made.update()
    assert made.get("a") is None
    assert reports == ["warning: a is no longer used: checking --storage s3://b: denied"]
