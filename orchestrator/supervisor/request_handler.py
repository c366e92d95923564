"""Acts on the requests of other processes: to stop, and to cancel or retry single jobs."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core.job import Cancelled, Pending, Running
from orchestrator.ledger import Verb
from orchestrator.supervisor.active_attempts import ActiveAttempts
from orchestrator.supervisor.events import Reporter
from orchestrator.supervisor.job_table import JobTable
from orchestrator.supervisor.recorder import Recorder
from orchestrator.supervisor.termination import Termination


@dataclass(slots=True, kw_only=True)
class RequestHandler:
    """A request whose time has passed, because its job has moved on meanwhile, does nothing."""

    recorder: Recorder
    jobs: JobTable
    active: ActiveAttempts
    termination: Termination
    reporter: Reporter
    holder: str
    """Names the supervisor in requests to stop; see :attr:`Supervisor.holder`."""

    def handle(self) -> None:
        """Act on the requests since the last call, and on stops that signals have requested."""
        for request in self.recorder.take_requests():
            if request.verb == "stop":
                if request.job_id in (None, self.holder):  # or it is late, for a supervisor that has ended
                    self.termination.request_stop("requested by `stop`")
            elif request.job_id in self.jobs.states:
                self._handle_job_request(request.verb, request.job_id)
        was_stopping = self.termination.stage > 0
        self.termination.apply_stops()
        if self.termination.stage and not was_stopping:
            self.recorder.ledger.note_stop(self.holder)

    def _handle_job_request(self, verb: Verb, job_id: str) -> None:
        state = self.jobs.states[job_id]
        if verb == "retry" and state.name in ("FAILED", "CANCELLED"):
            self.jobs.move(job_id, Pending())
            self.reporter.event("retrying", f"{job_id} is queued again, requested by `retry`", job_id=job_id)
        elif verb == "cancel" and isinstance(state, Pending):
            self.jobs.move(job_id, Cancelled())
            self.reporter.event("cancelled", f"{job_id} cancelled before its launch", job_id=job_id)
        elif verb == "cancel" and isinstance(state, Running):
            attempt = self.active.of(job_id)
            assert attempt is not None
            self.termination.cancel(attempt)
