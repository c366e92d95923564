"""Faults that are planted in what runs jobs in pilots."""

from __future__ import annotations

from orchestrator.experiment import session
from orchestrator.features.slurm import handover
from orchestrator.features.slurm.pilot_attempts import PilotAttempts
from orchestrator.features.slurm.pilot_registry import PilotRegistry
from orchestrator.features.slurm.submission import BatchQueue
from tests.simulation.mutations import Mutation

MUTATIONS = [
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
