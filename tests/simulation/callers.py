"""A Python program that calls the run, with functions that are told of jobs and of progress."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core.job import TERMINAL
from orchestrator.experiment.callbacks import CallbackReporter, ExperimentProgress
from orchestrator.ledger import SummaryRow
from orchestrator.supervisor.events import Reporter
from tests.simulation.monitor import Monitor
from tests.simulation.world import Violation, World


class CallerError(Exception):
    """A function of the calling program has an error."""


@dataclass(slots=True, kw_only=True)
class Caller:
    world: World
    monitor: Monitor

    def reporter(self, inner: Reporter) -> CallbackReporter:
        """That of one run."""
        return CallbackReporter(on_end=self.ended, on_progress=self.progress, inner=inner)

    def ended(self, row: SummaryRow) -> None:
        """A job has ended; of what has ended in an earlier run it is told at first."""
        job_id, state = row["job_id"], row["state"]
        known = self.monitor.records[job_id].state
        if state not in TERMINAL or state != known:
            raise Violation(f"a program is told that {job_id} is {state}, which is {known}")
        self._perhaps_fail()

    def progress(self, seen: ExperimentProgress) -> None:
        for job in seen.running:
            if (known := self.monitor.records[job.job_id].state) != "RUNNING":
                raise Violation(f"a program is told that {job.job_id} runs, which is {known}")
        self._perhaps_fail()

    def _perhaps_fail(self) -> None:
        if self.world.fails_callback:
            self.world.fails_callback = False
            self.monitor.asked_to_stop(1)
            raise CallerError("a function of the calling program has an error")
