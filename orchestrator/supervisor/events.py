"""What the supervisor reports: events for people and programs, and a view of the whole
experiment.
"""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from orchestrator.core import job_parts
from orchestrator.core.errors import is_disk_full
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.job import (
    AttemptOutcome,
    Cancelled,
    Cause,
    Failed,
    Job,
    Paused,
    Pending,
    State,
)
from orchestrator.core.messages import Progress
from orchestrator.core.text import count, listed
from orchestrator.supervisor.active_attempts import ActiveAttempt, Kill, cpus_by_rank
from orchestrator.supervisor.cpu_mover import Move
from orchestrator.supervisor.remaining_time import NOTHING_ENDED, EndedWork

MOST_OTHERS = 2
"""Of those who share the CPUs of a job, in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskShortage:
    """Why jobs wait for free disk space."""

    text: str
    least_mib: int
    """What the most modest of them asks for; who asks for less does not wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What a feature says of a run directory, besides its jobs."""

    text: str
    """A line."""
    command: str = ""
    """The command that shows more of it when jobs have succeeded; its argument is the run
    directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What has come about in a run directory, as an event of its run."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The whole experiment at one moment."""

    elapsed_s: float
    counts: Counter[str]
    active: Collection[ActiveAttempt]
    """In order of launch; valid until the next turn of the loop."""
    ended: Sequence[tuple[ActiveAttempt, State]]
    """The jobs that ended last, the latest at the end."""
    next_up: Sequence[Job]
    held: Sequence[tuple[Job, str]] = ()
    """Jobs that wait for others, each with the names of those that have not succeeded."""
    steps_to_go: int
    env_steps_per_s: float
    cores_busy: float
    ended_work: EndedWork = NOTHING_ENDED
    """Of the attempts that this supervisor has brought to their end."""
    now: float = 0.0
    """The moment, on the clock of the attempts' times."""
    waiting: DiskShortage | None = None
    """Why jobs that would have a slot are not launched; None: none waits for anything else."""
    notes: Sequence[Note] = ()
    """What features say, which whoever shows the view fills in: the supervisor knows nothing of it."""

    @property
    def remaining_s(self) -> float | None:
        """Seconds until all env_steps are done; None where nothing tells."""
        running = len(self.active)
        return self.ended_work.remaining_s(
            steps_to_go=self.steps_to_go, env_steps_per_s=self.env_steps_per_s, running=running
        )


class Reporter(Protocol):
    """Receives events, and may ask for a view in every turn of the loop."""

    def event(self, kind: str, message: str, **facts: Any) -> None: ...

    def tick(self, view: Callable[[], View]) -> None:
        """Called every turn of the loop; calls ``view`` only when it will show it."""


class SilentReporter:
    """Shows nothing: for callers of the Python API."""

    def event(self, kind: str, message: str, **facts: Any) -> None:
        pass

    def tick(self, view: Callable[[], View]) -> None:
        pass


RecordError = Callable[[Exception], str | None]
"""Records the traceback of an error, and returns a clause that says where it is; None: it cannot be
recorded yet."""


class DetachableReporter:
    """Passes events on. No error of the reporter, such as one of a closed terminal, and none in an
    event ends the experiment: what it would have shown is lost, and the first error is recorded.
    """

    def __init__(self, reporter: Reporter, record: RecordError) -> None:
        self._reporter = reporter
        self._record = record
        self._has_recorded = False
        self._held: deque[Callable[[], None]] | None = None
        """Events that are passed on later; None: they are passed on at once."""

    def event(self, kind: str, message: str, **facts: Any) -> None:
        def report() -> None:
            self._reporter.event(kind, message, **facts)

        if self._held is None:
            self.call(report)
        else:
            self._held.append(report)

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Pass the events within the block on at its end: whoever acts on one finds in the ledger
        what it says.
        """
        self._held = deque()
        try:
            yield
        finally:
            held = self._held
            self._held = None
            for report in held:
                self.call(report)

    def tick(self, view: Callable[[], View]) -> None:
        self.call(lambda: self._reporter.tick(view))

    def call(self, report: Callable[[], None]) -> None:
        """Let the reporter do something else, such as showing the end."""
        try:
            report()
        except Exception as error:
            # What a full disk ends is said elsewhere.
            if not (self._has_recorded or is_disk_full(error)):
                self._note(error)

    def _note(self, error: Exception) -> None:
        # The reporter may fail again, and so may the text of its error.
        with contextlib.suppress(Exception):
            if (where := self._record(error)) is None:
                return
            self._has_recorded = True
            text = f"not everything can be shown of this run ({error!r}); {where}"
            self._reporter.event("warning", text)


def report_launch(reporter: Reporter, attempt: ActiveAttempt, pid: int | None) -> None:
    """Say where ``attempt`` runs. :param pid: of rank 0, on its own machine."""
    job_id = attempt.job.job_id
    number = attempt.handle.number
    node = attempt.node
    cpus = attempt.slot.cpus
    ranks = attempt.job.resources.ranks
    as_ranks = f"as {ranks} ranks " if ranks > 1 else ""
    on_node = "" if node is None else f"{node}, "
    text = f"{job_id} launched {as_ranks}on {on_node}CPU {cpus_by_rank(cpus, ranks)}"
    if gpus := attempt.slot.gpus:
        text += f" with GPU {', '.join(gpus)}"
        gpu_share = attempt.job.resources.gpu_share
        if gpu_share < 1:
            text += f" (share {gpu_share:g})"
    if number:
        text += f", attempt {number + 1}"
    others = attempt.slot.shares_with
    if others:
        names = listed(others, MOST_OTHERS)
        speed = attempt.slot.expected_share
        text += f", shared with {names}: expect about {speed:.0%} of the speed"
    reporter.event(
        "launched",
        text,
        job_id=job_id,
        number=number,
        pid=pid,
        node=node,
        cpus=cpus,
        ranks=ranks,
        shares_with=others,
    )


def report_move(reporter: Reporter, move: Move) -> None:
    job_id = move.attempt.job.job_id
    ranks = move.attempt.job.resources.ranks
    before = cpus_by_rank(move.before.cpus, ranks)
    after = cpus_by_rank(move.after.cpus, ranks)
    others = listed(move.because_of, MOST_OTHERS) or "another job of this run"
    text = f"{job_id} moved from CPU {before} to CPU {after}: it waited {move.wait_share:.0%} of the time"
    text += f" because of {others}"
    reporter.event(
        "moved",
        text,
        job_id=job_id,
        before=move.before.cpus,
        cpus=move.after.cpus,
        because_of=move.because_of,
    )


def report_warning(reporter: Reporter, attempt: ActiveAttempt, warning: str | None) -> None:
    """Report a worker's warning, which comes with each of its progress messages, once."""
    if warning and (attempt.progress is None or attempt.progress.warning != warning):
        job_id = attempt.job.job_id
        reporter.event("warning", f"{job_id}: {warning}", job_id=job_id)


def report_news(reporter: Reporter, attempt: ActiveAttempt, progress: Progress) -> None:
    """Report what is new since the message before by the features in its training; what earlier
    attempts did was reported then.
    """
    job_id = attempt.job.job_id
    before = {} if attempt.progress is None else attempt.progress.parts
    for one in job_parts.news(attempt.job.spec.parts, before, progress.parts):
        reporter.event(one.kind, f"{job_id}: {one.text}", job_id=job_id, **one.values)


def report_end(
    reporter: Reporter,
    attempt: ActiveAttempt,
    outcome: AttemptOutcome,
    state: State,
    record: ExitRecord | None,
    now: float,
) -> None:
    facts: dict[str, Any] = {
        "job_id": attempt.job.job_id,
        "number": attempt.handle.number,
        "state": state.name,
        "cause": outcome.cause,
        "wall_s": round(now - attempt.started, 3),
    }
    if record is not None:
        facts.update(
            env_steps=record.env_steps, ep_rew_mean=record.ep_rew_mean, eval_mean=record.eval_mean
        )
    if isinstance(state, Failed):
        facts["reason"] = state.message
    kind, text = _kind_and_text(attempt, outcome, state, record, now)
    if kind == "paused" and attempt.kill is not None:
        facts["killed_after_s"] = round(attempt.kill.after_s, 3)
        facts["resumes_from"] = attempt.kill.resumes_from
        text = _text_of_kill(attempt.kill, attempt.progress)
        if isinstance(state, Paused):
            text = f"paused: {text}"
    reporter.event(kind, f"{attempt.job.job_id} {text}", **facts)


def retry_text(state: Pending, max_retries: int, now: float) -> str:
    """A clause that says when a job is tried again, after a failure that counts."""
    return f"retry {state.failures} of {max_retries} in {_wait_s(state, now):.0f} s"


def _wait_s(state: Pending, now: float) -> float:
    return max(0.0, (state.not_before or 0.0) - now)


def _kind_and_text(
    attempt: ActiveAttempt,
    outcome: AttemptOutcome,
    state: State,
    record: ExitRecord | None,
    now: float,
) -> tuple[str, str]:
    match state:
        case Failed(message=message):
            return "failed", f"failed: {message}"
        case Pending() if outcome.cause is Cause.RUNG:
            return "promoted", f"{outcome.message}, and trains on"
        case Pending(not_before=None) if (
            outcome.cause is Cause.INTERRUPTED and attempt.end_reason is None
        ):
            return "retrying", f"handed back ({outcome.message}); resumes in another pilot"
        case Pending(not_before=None):
            return "paused", f"stopped ({outcome.message}); resumes with the next run"
        case Pending() if outcome.cause is Cause.NODE_LOST:
            return "retrying", f"{outcome.message}; resumes in {_wait_s(state, now):.0f} s"
        case Pending():
            retry = retry_text(state, attempt.job.max_retries, now)
            return "retrying", f"{outcome.message}; {retry}"
        case Paused(at_rung=is_at_rung):
            return "paused", outcome.message if is_at_rung else "paused; `resume` queues it again"
        case Cancelled():
            return "cancelled", "cancelled"
        case _:
            return "succeeded", f"succeeded{_results(record)}"


def _text_of_kill(kill: Kill, progress: Progress | None) -> str:
    reached = 0 if progress is None else progress.env_steps
    lost = max(0, reached - kill.resumes_from)
    return (
        f"killed after {kill.after_s:.0f} s; "
        f"resumes from env_steps {kill.resumes_from}, {lost} are lost"
    )


def _results(record: ExitRecord | None) -> str:
    """The returns and divergences of a training that has succeeded, to be appended."""
    if record is None:
        return ""
    text = returns(record.ep_rew_mean_first, record.ep_rew_mean, record.eval_mean)
    if text and record.eval_finding:
        text += f" ({record.eval_finding})"
    if text and record.divergences:
        text += f", {count(record.divergences, 'divergence')}"
    return text


def returns(first: float | None, last: float | None, evaluated: float | None) -> str:
    """How the return of a training has changed, to be appended; empty where it had no episodes."""
    if first is None or last is None:
        return ""
    text = f": return {first:.1f} → {last:.1f}"
    if evaluated is not None:
        text += f", evaluated {evaluated:.1f}"
    return text
