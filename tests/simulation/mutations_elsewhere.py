"""Faults that are planted in what runs jobs on several machines: nodes, ranks and pilots."""

from __future__ import annotations

from orchestrator.executors.cluster_slots import ClusterSlots
from orchestrator.executors.rank_group import RankGroup
from orchestrator.supervisor import retry_policy
from tests.simulation.mutations import Mutation
from tests.simulation.play import HAS_RAY, HAS_SLURM

ELSEWHERE: list[Mutation] = [
    Mutation(
        name="the slot of a node is given back twice",
        function=ClusterSlots.release,
        before="self._change_free(rank_slot, 1)",
        after="self._change_free(rank_slot, 1); self._change_free(rank_slot, 1)",
    ),
    Mutation(
        name="a slot takes nothing of its node",
        function=ClusterSlots.acquire,
        before="self._change_free(slot, -1)",
        after="pass",
    ),
    Mutation(
        name="the memory of nodes is not counted",
        function=ClusterSlots._change_free,
        before="free.add(slot, sign)",
        after="free.cores += sign * slot.cores",
    ),
    Mutation(
        name="an attempt that is lost with its node counts as failed",
        function=retry_policy.next_state,
        before="case Cause.NODE_LOST if losses <= MOST_LOSSES:",
        after="case Cause.NODE_LOST if losses < 1:",
    ),
    Mutation(
        name="the other ranks stay when one has died",
        function=RankGroup.settle,
        before="self.kill()",
        after="pass",
    ),
]
if HAS_RAY:
    from tests.simulation.mutations_of_ray import MUTATIONS as OF_RAY

    ELSEWHERE += OF_RAY
if HAS_SLURM:
    from tests.simulation.mutations_of_slurm import MUTATIONS as OF_SLURM

    ELSEWHERE += OF_SLURM
