"""Faults that are planted in what runs jobs on several machines: nodes, ranks and pilots."""

from __future__ import annotations

from orchestrator.executors.cluster_slots import ClusterSlots
from orchestrator.executors.rank_group import RankGroup
from orchestrator.experiment import session
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
    from orchestrator.features.ray.ray_executor import RayExecutor

    ELSEWHERE += [
        Mutation(
            name="tasks on a node that has left are still awaited",
            function=RayExecutor._lose,
            before="self._merge(stream, self._tasks[stream][1].lose())",
            after="pass",
        ),
    ]
if HAS_SLURM:
    from orchestrator.features.slurm import handover
    from orchestrator.features.slurm.pilot_attempts import PilotAttempts
    from orchestrator.features.slurm.pilot_registry import PilotRegistry
    from orchestrator.features.slurm.submission import BatchQueue

    ELSEWHERE += [
        Mutation(
            name="pilots of an earlier supervisor need not hand back",
            function=handover.begin_session,
            before="while awaited and time.monotonic() < deadline:",
            after="while False:",
        ),
        Mutation(
            name="a stop while a run starts leaves pilots of an earlier supervisor",
            function=session._open,
            before="stack.enter_context(_left_batch_jobs_stopped(paths, stops, beside))",
            after="pass",
        ),
        Mutation(
            name="an attempt that Slurm has ended counts as failed",
            function=PilotAttempts._end,
            before="why = self._why or SIGNALLED",
            after="return exited; why = SIGNALLED",
        ),
        Mutation(
            name="a silent pilot is never given up",
            function=PilotRegistry._judge_silent,
            before="if not is_gone and (",
            after="if True or (",
        ),
        Mutation(
            name="the last message of a pilot counts twice",
            function=PilotRegistry._read,
            before="if pilot.name in self._pilots:",
            after="if True:",
        ),
        Mutation(
            name="pilots that were cancelled before count as cancelled by the user",
            function=BatchQueue._take_answer,
            before="self._ending_before = set(completing)",
            after="self._ending_before = set()",
        ),
    ]
