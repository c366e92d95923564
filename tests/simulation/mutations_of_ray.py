"""Faults that are planted in what runs jobs on the nodes of a cluster."""

from __future__ import annotations

from orchestrator.features.ray.ray_executor import RayExecutor
from tests.simulation.mutations import Mutation

MUTATIONS = [
    Mutation(
        name="tasks on a node that has left are still awaited",
        function=RayExecutor._lose,
        before="self._merge(stream, self._tasks[stream][1].lose())",
        after="pass",
    ),
]
