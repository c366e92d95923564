"""What requests do. A verb about jobs sets what the user wants of them; the loop brings them there."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.core import job_patterns
from orchestrator.core.errors import OrchestratorError, UsageError
from orchestrator.core.job import AttemptOutcome, Cancelled, Cause, Failed, Paused
from orchestrator.core.text import count, listed
from orchestrator.server import error_log
from orchestrator.server.jobs import JobEntry
from orchestrator.server.ledger import INTERNAL
from orchestrator.server.requests import Answer, ReceivedRequest, Request

if TYPE_CHECKING:
    from orchestrator.server.supervisor import Supervisor

STATES = {
    "cancel": ("PENDING", "RUNNING", "PAUSED"),
    "pause": ("PENDING", "RUNNING", "PAUSED"),
    "resume": ("PAUSED",),
    "retry": ("FAILED", "CANCELLED"),
}
"""The states in which a verb has an effect."""


class RefusedRequest(Exception):
    """The request asks for something that cannot be done; the text says why."""


@dataclass(slots=True, kw_only=True)
class Verbs:
    """Applies requests to a supervisor, and records the answers."""

    supervisor: Supervisor

    def apply(self, received: ReceivedRequest) -> None:
        """Apply a request that was not applied before."""
        supervisor = self.supervisor
        request = received.request
        before = supervisor.ledger.answer(received.id)
        if before is not None:  # its file outlived a kill
            supervisor.request_folder.finish(received.id, request, before)
            return
        if request is None:
            with contextlib.suppress(OSError):  # it stays, and is not read again
                supervisor.request_folder.set_aside(received.id)
            text = f"the request {received.id} cannot be read, and is ignored: {received.problem}"
            supervisor.report("warning", text)
            return
        answer: Answer | None
        if request.supervisor not in (None, supervisor.holder):
            answer = Answer(error="the supervisor that it was for has ended")
        else:
            try:
                answer = self._act_on(received.id, request)
            except RefusedRequest as error:
                answer = Answer(error=str(error))
            except OrchestratorError:  # not of this request
                raise
            except Exception as error:  # any program can write one
                where = error_log.record(supervisor.paths, error)
                answer = Answer(error=f"it cannot be handled ({error!r}); {where}")
        if answer is not None:
            supervisor.answer(received.id, request, answer)

    def _act_on(self, id_: str, request: Request) -> Answer | None:
        """Act on a request. Return None if the answer follows later."""
        supervisor = self.supervisor
        match request.verb:
            case "add":
                supervisor.entering.begin(id_, request)
                return None
            case "stop":
                if request.supervisor is None and not supervisor.holder:
                    raise RefusedRequest("no supervisor is running; nothing to stop")
                return self._stop(request.args)
            case "set":
                return self._set(request.args)
            case "checkpoint":
                asked = supervisor.request_checkpoints()
                text = f"{count(asked, 'job saves', 'jobs save')} a checkpoint"
                supervisor.report("checkpoint", text, running=asked)
                return Answer(message=text)
            case "report":
                kind = str(request.args.get("kind", "warning"))
                if kind in INTERNAL:
                    raise RefusedRequest(f"report: events of kind {kind} are not for clients")
                message = str(request.args.get("message", ""))
                supervisor.report(kind, message, **dict(request.args.get("facts", {})))
                return Answer()
            case "release":
                supervisor.is_released = True
                if request.args.get("drop"):
                    supervisor.entering.drop_unclaimed()
                return Answer(message="released")
            case "cancel" | "pause" | "resume" | "retry":
                return self._move_jobs(request)

    def _stop(self, args: Any) -> Answer:
        supervisor = self.supervisor
        is_stopping = supervisor.is_stopping
        supervisor.stop_signal = supervisor.stop_signal or args.get("signal", "")
        for _ in range(2 if args.get("now") else 1):
            supervisor.request_stop(args.get("reason", "requested by `stop`"))
        text = "asked to stop; workers save a checkpoint and exit"
        if is_stopping or args.get("now"):
            already = "was stopping already, and " if is_stopping else ""
            text = f"{already}was asked to kill its workers now; their jobs resume from their last checkpoints"
        return Answer(message=text)

    def _set(self, args: Any) -> Answer:
        """Change how many jobs run at once."""
        asked = args.get("max_parallel")
        if type(asked) is not int or asked < 1:
            raise RefusedRequest("set: expected max_parallel=N, a whole number from 1 on")
        executor = self.supervisor.executor
        jobs_at_once = executor.resize(asked)
        running = len(self.supervisor.attempts)
        text = f"up to {count(jobs_at_once, 'job')} at once until this run ends"
        if jobs_at_once < asked:
            text += f"; there is room for no more than that, of {asked}"
        if running > jobs_at_once:
            text += f"; {running} run now, and none is launched before there are fewer"
        self.supervisor.report("set", text, max_parallel=jobs_at_once, asked=asked, running=running)
        return Answer(message=text, facts={"max_parallel": jobs_at_once})

    def _move_jobs(self, request: Request) -> Answer:
        verb = request.verb
        table = self.supervisor.jobs
        pause_at = request.args.get("pause_at")
        is_promotion = verb == "resume" and "pause_at" in request.args
        if is_promotion and not (pause_at is None or type(pause_at) is int):
            raise RefusedRequest("resume: expected pause_at=N, a whole number, or None")

        def fits(job_id: str) -> bool:
            return is_promotion or not _obstacle(verb, table[job_id])

        if unknown := [job_id for job_id in request.jobs if job_id not in table]:
            raise RefusedRequest(f"no such job: {listed(unknown)}")
        chosen = list(request.jobs) or list(filter(fits, table.entries))
        if names := request.args.get("names"):  # as users type them
            known = {job_id: entry.job.spec.name for job_id, entry in table.entries.items()}
            try:
                chosen = job_patterns.resolve(names, known, fits=fits)
            except UsageError as error:
                raise RefusedRequest(str(error)) from None
        elif not chosen and verb == "retry":
            chosen = [entry.job.job_id for entry in table if _is_invalid(entry)]
        wrong = {job_id: _obstacle(verb, table[job_id]) for job_id in chosen if not fits(job_id)}
        if wrong:
            described = listed([f"{job_id} is {why}" for job_id, why in wrong.items()])
            allowed = " or ".join(STATES[verb])
            raise RefusedRequest(f"{described}; `{verb}` is for jobs that are {allowed}")
        for job_id in chosen:
            self._move_job(table[job_id], request)
        return Answer(
            message=f"{verb}: {count(len(chosen), 'job')} ({listed(chosen)})",
            facts={"jobs": chosen},
        )

    def _move_job(self, entry: JobEntry, request: Request) -> None:
        supervisor = self.supervisor
        match request.verb:
            case "cancel" | "pause" as verb:
                supervisor.jobs.want(entry, verb)
                attempt = supervisor.attempts.of_job(entry.job.job_id)
                if attempt is not None:
                    cause = Cause.CANCELLED if verb == "cancel" else Cause.PAUSED
                    message = "cancelled" if verb == "cancel" else "paused"
                    reason = AttemptOutcome(cause=cause, message=message)
                    supervisor.attempts.ask_to_end(attempt, reason, supervisor.grace_s)
            case "resume":
                if "pause_at" in request.args:
                    supervisor.jobs.promote(entry, request.args["pause_at"])
                else:
                    supervisor.jobs.want(entry, "run")
            case "retry":
                supervisor.jobs.want(entry, "run")
                if isinstance(entry.state, Failed | Cancelled):
                    reason_ = "is queued again, requested by `retry`"
                    supervisor.jobs.requeue(entry, "retrying", reason_)


def _obstacle(verb: str, entry: JobEntry) -> str:
    """Return why a verb has no effect on a job, as what the job is; empty if it has one."""
    state = entry.state
    if verb == "resume" and isinstance(state, Paused) and state.at_rung:
        return "PAUSED at a rung, where it waits to be compared with other jobs"
    if verb == "retry" and _is_invalid(entry):
        return "invalid, and was never launched: correct what `status` says and run the job file"
    is_being_paused = verb == "resume" and entry.wanted == "pause"
    return "" if state.name in STATES[verb] or is_being_paused else state.name


def _is_invalid(entry: JobEntry) -> bool:
    return isinstance(entry.state, Failed) and entry.state.cause is Cause.INVALID
