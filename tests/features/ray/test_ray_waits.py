"""Tasks on a cluster keep their CPUs while they wait; without Ray."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from orchestrator.features.ray import node_attempt, user_code


class Waits:
    """In place of Ray: an object is its own reference, and what waits for one is recorded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.in_main_thread: list[bool] = []
        ray, strategies = ModuleType("ray"), ModuleType("ray.util.scheduling_strategies")
        stubs = {
            "get": self.get,
            "remote": lambda _: self,
            "exceptions": SimpleNamespace(GetTimeoutError=TimeoutError),
        }
        vars(ray).update(stubs)
        vars(strategies).update(NodeAffinitySchedulingStrategy=lambda *_, **__: None)
        for module in (ray, ModuleType("ray.util"), strategies):
            monkeypatch.setitem(sys.modules, module.__name__, module)

    def get(self, reference: Any, timeout: float | None = None) -> Any:
        self.in_main_thread.append(threading.current_thread() is threading.main_thread())
        return reference

    def options(self, **_: Any) -> Waits:
        return self

    def remote(self, *_: Any, **__: Any) -> Iterator[str]:
        for chunk in ("first", "second"):
            yield self.get(chunk)


def test_a_task_waits_for_ray_in_another_thread_than_its_main_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While its main thread waits, Ray lends its CPUs to another task (``test_ray_internals.py``
    shows that)."""
    waits = Waits(monkeypatch)
    agent: Any = SimpleNamespace(acquire_cpus=SimpleNamespace(remote=lambda *_, **__: "granted"))
    launch = SimpleNamespace(job_id="a", work="w", job_dir=None)
    assignment: Any = SimpleNamespace(
        key="a/0", cores=1, launch=launch, storage=None, ranks=None, driver_node="node", cpus=()
    )
    with pytest.raises(StopIteration, match="granted"):
        next(node_attempt._acquire_cpus(assignment, agent))
    assert list(node_attempt._chunks_from_driver(assignment)) == ["first", "second"]
    user_code._fetch(Path("code"), "node")
    assert len(waits.in_main_thread) == 6
    assert not any(waits.in_main_thread)
