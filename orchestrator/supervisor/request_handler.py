"""Acts on the requests of other processes: to stop, to change a setting or single jobs, and to take
new jobs.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from orchestrator.core.errors import (
    LedgerBusyError,
    LedgerError,
    LedgerUnavailableError,
    OrchestratorError,
)
from orchestrator.core.job import Cause, Pending, Running, Succeeded
from orchestrator.core.text import count, listed
from orchestrator.ledger import JobRow, Request
from orchestrator.machine.slots import Slots
from orchestrator.supervisor.active_attempts import ActiveAttempt
from orchestrator.supervisor.job_directory import RobotCopies
from orchestrator.supervisor.job_table import JobTable
from orchestrator.supervisor.recorder import Recorder
from orchestrator.supervisor.requested_state import promoted_job, requested_state
from orchestrator.supervisor.termination import Termination

SHOWN = 10
"""Jobs that are named in a message."""


@dataclass(slots=True, kw_only=True)
class RequestHandler:
    """A request whose time has passed, because its job has moved on meanwhile, does nothing."""

    recorder: Recorder
    jobs: JobTable
    slots: Slots
    robots: RobotCopies
    termination: Termination
    holder: str
    """Names the supervisor in requests that are meant for it alone; see
    :attr:`Supervisor.holder`."""
    _to_resume: dict[str, None] = field(default_factory=dict, init=False)
    """Jobs that were resumed while they are being paused: queued again, in their order, when their
    workers have exited."""
    _taken: deque[Request] = field(default_factory=deque, init=False)
    """Requests that are to be acted on. Until then they are left for the next supervisor, too."""
    _is_reload_due: bool = field(default=False, init=False)
    """Whether the ledger has new jobs, which could not be read yet if it is locked."""
    _is_asked_by_user: bool = field(default=False, init=False)
    """Whether who asked for that waits for an answer: ``reload`` does, a process that makes jobs
    does not."""

    def handle(self) -> bool:
        """Act on the requests since the last call, and on stops that signals have requested.

        Returns False while a request waits for the ledger, which another process has locked.
        """
        self._taken.extend(self.recorder.take_requests())
        self.act_on_taken()
        if self._is_reload_due:
            self._take_new_jobs()
        was_stopping = self.termination.stage > 0
        self.termination.apply_stops()
        if self.termination.stage and not was_stopping:
            self.recorder.ledger.note_stop(self.holder)
        self.termination.apply_checkpoints()
        return not self._taken

    def resume_exited(self) -> None:
        """Queue the jobs again that were resumed while they were being paused, and whose workers
        have exited. To be called before that exit is committed: only this supervisor knows of it.
        """
        for job_id in list(self._to_resume):
            if not isinstance(self.jobs.states[job_id], Running):
                del self._to_resume[job_id]
                self.resume(job_id)

    def act_on_taken(self) -> bool:
        """Act on the requests that wait, in their order. Returns False while one has to wait on."""
        with contextlib.suppress(LedgerBusyError):  # the rest waits for the next turn
            while self._taken:
                self._handle(self._taken[0])
                self.recorder.ledger.mark_handled(self._taken.popleft())
        return not self._taken

    def _handle(self, request: Request) -> None:
        """Act on ``request``. An error in that ends no job: any program can write into a ledger.

        :raises LedgerUnavailableError: nothing was done.
        """
        try:
            self._act_on(request)
        except LedgerUnavailableError:
            raise
        except LedgerError as error:  # of a job that was over, and that nobody has read before
            job_id = request.job_id
            if request.promotion is not None:
                job_id, _ = request.promotion
            self._warn_unheeded(request, job_id, str(error))
        except OrchestratorError:  # not of this request
            raise
        except Exception as error:
            text = f"a request could not be handled, and is ignored ({error!r}); {self.recorder.log_error(error)}"
            self.recorder.reporter.event("warning", text)

    def _act_on(self, request: Request) -> None:
        if self._is_reload_due and request.verb not in ("reload", "add"):
            self._take_new_jobs()  # it may be about one of them
            if self._is_reload_due:
                raise LedgerBusyError(f"`{request.verb}` waits for the new jobs")
        match request.verb:
            case "stop":
                # One for another supervisor is late: that has ended.
                if request.job_id in (None, self.holder):
                    self.termination.request_stop("requested by `stop`")
            case "reload" | "add":
                self._is_reload_due |= request.job_id == self.holder
                self._is_asked_by_user |= request.verb == "reload"
            case "set":
                self._set(request)
            case "promote":
                if request.promotion is not None:
                    self.promote(*request.promotion)
            case "cancel":
                self._act_on_job(request, self.cancel)
            case "retry":
                self._act_on_job(request, self.retry)
            case "pause":
                self._act_on_job(request, self.pause)
            case "resume":
                self._act_on_job(request, self.resume)

    def _set(self, request: Request) -> None:
        """Change a setting. Another one than those that there are has no effect."""
        if request.max_parallel is not None:
            self.set_max_parallel(request.max_parallel)

    def _act_on_job(self, request: Request, act: Callable[[str], None]) -> None:
        job_id = request.job_id
        if job_id in self.jobs.states:
            act(job_id)
        else:  # the job file no longer declares it, for example
            self._warn_unheeded(request, job_id, "this run does not have that job")

    def _warn_unheeded(self, request: Request, job_id: str | None, why: str) -> None:
        text = f"{job_id}: its `{request.verb}` has no effect: {why}"
        self.recorder.reporter.event("warning", text, job_id=job_id, unheeded=request.verb)

    def _take_new_jobs(self) -> None:
        """Read the new jobs, unless the ledger is locked: then :attr:`_is_reload_due` remains."""
        rows = self.recorder.new_jobs(self.jobs.states.keys())
        if rows is None:
            return
        is_answer_awaited = self._is_asked_by_user
        self._is_asked_by_user = False
        self._is_reload_due = False
        self.robots.hashes.update({row.job_id: row.robot_hash for row in rows})
        self.jobs.load(rows, {})
        if is_answer_awaited:
            self._answer_reload(rows)

    def _answer_reload(self, rows: Sequence[JobRow]) -> None:
        if queued := [row.job_id for row in rows if isinstance(row.state, Pending)]:
            text = f"{count(len(queued), 'new job')} queued, added by `reload`: {listed(queued, SHOWN)}"
            self.recorder.reporter.event("reloaded", text, jobs=queued)
        elif not rows:  # it was asked for while robots were examined: the job file was read before
            self.recorder.reporter.event(
                "warning", "`reload` has added no new jobs to the ledger; call it again"
            )

    def set_max_parallel(self, asked: int) -> None:
        """Launch jobs up to ``asked`` at once from now on, as far as there is room; no job is ended
        for it.
        """
        jobs_at_once = self.slots.resize(asked)
        running = len(self.termination.active)
        until = f"up to {count(jobs_at_once, 'job')} at once until this run ends"
        text = f"max_parallel = {asked}, set by `set`: {until}"
        if jobs_at_once < asked and self.slots.grows:
            text += "; beyond that they wait for further nodes"
        elif jobs_at_once < asked:
            text += "; this machine has slots for no more"
        if running > jobs_at_once:
            text += f"; {running} run now, and none is launched before there are fewer than {jobs_at_once}"
        self.recorder.reporter.event(
            "set", text, max_parallel=jobs_at_once, asked=asked, running=running
        )

    def retry(self, job_id: str) -> None:
        """Queue a failed or cancelled job again."""
        new = requested_state("retry", self.jobs.states[job_id])
        if new is None:
            return
        self.jobs.job(job_id)  # if it cannot be read, before anything has changed
        self.jobs.move(job_id, new)
        self.recorder.ledger.withdraw_notes(job_id)  # it was invalid, and held back before
        text = f"{job_id} is queued again, requested by `retry`"
        self.recorder.reporter.event("retrying", text, job_id=job_id)

    def cancel(self, job_id: str) -> None:
        """Cancel a job that has not ended."""
        state = self.jobs.states[job_id]
        if isinstance(state, Running):
            self.termination.cancel(self._attempt(job_id))
            self.recorder.ledger.note("cancel", job_id)
            return
        new = requested_state("cancel", state)
        if new is None:
            return
        self.jobs.move(job_id, new)
        when = "before its launch" if isinstance(state, Pending) else "while it was paused"
        self.recorder.reporter.event("cancelled", f"{job_id} cancelled {when}", job_id=job_id)

    def pause(self, job_id: str) -> None:
        """Keep a waiting job from being launched; let the worker of a running one save a checkpoint
        and exit.
        """
        state = self.jobs.states[job_id]
        self._to_resume.pop(job_id, None)
        if isinstance(state, Running):
            self.termination.pause(self._attempt(job_id))
            self.recorder.ledger.note("pause", job_id)
            return
        new = requested_state("pause", state)
        if new is None:
            return
        self.jobs.move(job_id, new)
        if isinstance(state, Pending):
            text = f"{job_id} paused while it was queued; `resume` queues it again"
        else:  # it ran when that was asked for
            text = f"{job_id} paused at a rung, from which it can be promoted after `resume`"
        self.recorder.reporter.event("paused", text, job_id=job_id, state="PAUSED")

    def resume(self, job_id: str) -> None:
        """Queue a paused job again; one that is just being paused as soon as its worker has
        exited.
        """
        state = self.jobs.states[job_id]
        if isinstance(state, Running):
            if self._is_pausing(job_id):
                self._to_resume[job_id] = None
                self.termination.active.note_resume(self._attempt(job_id))
                self.recorder.ledger.withdraw_notes(job_id)
            return
        new = requested_state("resume", state)
        if new is None:
            return
        self.jobs.move(job_id, new)
        text = f"{job_id} is queued again, requested by `resume`"
        self.recorder.reporter.event("resumed", text, job_id=job_id)

    def promote(self, job_id: str, pause_at: int | None) -> None:
        """Let a job train on to ``pause_at`` env_steps, or to its end; one that is on the way to
        its rung passes it.
        """
        state = self.jobs.states.get(job_id)
        if isinstance(state, Succeeded | None):
            return
        after = promoted_job(self.jobs.job(job_id), state, pause_at)
        if after is None:
            return
        job, new = after
        self.jobs.replace(job)
        if new is not state:
            self.jobs.move(job_id, new)
            end = job.spec.total_timesteps if pause_at is None else pause_at
            text = f"{job_id} is queued again, to train on to {end:,} env_steps"
            self.recorder.reporter.event("promoted", text, job_id=job_id, pause_at=pause_at)

    def _is_pausing(self, job_id: str) -> bool:
        held = self._attempt(job_id).held
        return held is not None and held.cause is Cause.PAUSED

    def _attempt(self, job_id: str) -> ActiveAttempt:
        attempt = self.termination.active.of_job(job_id)
        assert attempt is not None
        return attempt
