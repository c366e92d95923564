"""The jobs of a pool: from a robot that is submitted to the result of its future.

All of it happens in one thread of the program, a client of the supervisor: it requests that jobs
are added, and reads in the ledger what becomes of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from orchestrator.core.errors import ChangedError, SupervisorError, UsageError
from orchestrator.core.job import TERMINAL, Job
from orchestrator.core.paths import RunPaths
from orchestrator.core.task_names import AUTO
from orchestrator.core.text import listed
from orchestrator.features.pool import submitted_files
from orchestrator.features.pool.points import Scalar
from orchestrator.features.pool.submitted_files import is_policy_unchanged
from orchestrator.jobfile import Experiment
from orchestrator.jobfile.robot_arguments import RobotArgument
from orchestrator.ledger import JobRow, job_figures
from orchestrator.results import Result, result_of
from orchestrator.server.declaration import job_values
from orchestrator.server.differences import by_difference
from orchestrator.server.entering import Addition, addition_args
from orchestrator.server.ledger import ServerLedger
from orchestrator.server.requests import Answer, Request, RequestFolder, Verb
from orchestrator.server.verdicts import verdicts_of_finished

LOGGER = logging.getLogger("concurrent.futures")
"""Where the standard library reports what a callback raises."""
LOOK_EVERY_S = 0.01
AGAIN: Mapping[str, Verb] = {"PAUSED": "resume", "CANCELLED": "retry"}
"""Requests that queue a job again which was not finished, by the name of its state."""

DoneCallback: TypeAlias = Callable[[Future[Result]], object]
OnExit: TypeAlias = Callable[[DoneCallback, BaseException], bool]
"""Called with a function of the program's that has raised what is no Exception; returns whether
that was all."""


class PoolStopped(Exception):
    """The pool stops, or its supervisor has ended: requests are not answered any more."""


class TrainingFuture(Future[Result]):
    """The result of one training, to come. It works with :mod:`concurrent.futures`:
    ``as_completed``, ``wait``.

    In contrast to the futures there, one that runs can be cancelled.
    """

    def __init__(self, on_cancel: Callable[[], None], on_exit: OnExit) -> None:
        super().__init__()
        self._on_cancel = on_cancel
        self._on_exit = on_exit
        self._lock = threading.Lock()
        self._is_cancelling = False
        self.is_training = False
        """Whether a worker trains it now; :meth:`running` is that, too."""

    def running(self) -> bool:
        return self.is_training and not self.done()

    def cancel(self) -> bool:
        """Cancel the job, or end its worker. Returns False if it has ended already."""
        with self._lock:
            is_first = not self._is_cancelling
            self._is_cancelling = True
        try:
            return super().cancel()
        finally:  # also where a function of the program's has raised
            if is_first and self.cancelled():
                self.set_running_or_notify_cancel()  # those that wait for it learn of it
                self._on_cancel()

    def add_done_callback(self, fn: DoneCallback) -> None:
        """As in the standard library. A SystemExit in ``fn`` ends the pool, where its thread has
        called ``fn``.
        """
        super().add_done_callback(functools.partial(self._call, fn))

    def _call(self, function: DoneCallback, _: Future[Result]) -> None:
        try:
            function(self)
        except Exception:  # concurrent.futures logs it
            raise
        except BaseException as error:
            if not self._on_exit(function, error):
                raise
            LOGGER.critical("exception calling callback for %r", self, exc_info=error)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Submission:
    """A robot that the program has submitted."""

    job: Job
    experiment: Experiment
    """The job alone."""
    robot: RobotArgument
    digests: Mapping[str, str]
    """Of the files that it names, as they were when it was submitted."""
    future: TrainingFuture
    meta: Mapping[str, Scalar]
    """What the program says of it."""
    folder: Path | None
    """Holds the robot, if it is no file of the user's."""

    def shown_job(self) -> Job:
        """The job with what the program calls its robot in the place of a temporary file."""
        return dataclasses.replace(self.job, xml_source=self.experiment.shown_xml(self.job))

    def changed_files(self) -> list[str]:
        """Those that are no longer what was submitted."""
        files = submitted_files.contents(self.robot)
        now = submitted_files.digests(files, self.job.spec.init)
        return submitted_files.changed_files(self.digests, now)

    def finish(self, result: Result | BaseException) -> None:
        """Give the future its result, unless it has been cancelled."""
        self.discard()
        with contextlib.suppress(InvalidStateError):  # it has been
            if isinstance(result, Result):
                self.future.set_result(result)
            else:
                self.future.set_exception(result)

    def discard(self) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(slots=True, kw_only=True)
class OpenJob:
    """A job in the ledger that has not ended, and those who wait for it: several may submit the
    same robot.
    """

    submissions: list[Submission]
    state: str = "PENDING"
    is_cancelled: bool = False
    """Whether its supervisor has been asked to cancel it."""

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits for it."""
        return not all(submission.future.done() for submission in self.submissions)

    def trains(self, submission: Submission) -> bool:
        """Whether it is the training that ``submission`` asks for."""
        first = self.submissions[0]
        spec = first.job.spec
        other = submission.job.spec
        return (
            first.digests == submission.digests
            and spec.fingerprint() == other.fingerprint()
            and spec.init == other.init
        )


@dataclass(slots=True, kw_only=True)
class PoolJobs:
    """The jobs that are not finished. Belongs to one thread."""

    paths: RunPaths
    holder: str
    """The supervisor that requests are meant for."""
    jobs_at_once: int
    """Jobs that run at once: so many are kept waiting for their slot."""
    is_stopping: Callable[[], bool]
    _ledger: ServerLedger = field(init=False)
    _arrived: deque[Submission] = field(default_factory=deque, init=False)
    """Those that may have been trained already."""
    _waiting: deque[Submission] = field(default_factory=deque, init=False)
    """Those that are not in the ledger yet."""
    _open: dict[str, OpenJob] = field(default_factory=dict, init=False)
    """By ``job_id``."""
    _seen: int | None = field(default=None, init=False)
    """Version of the ledger when it was last read."""

    @contextlib.contextmanager
    def open_ledger(self) -> Iterator[None]:
        """With the ledger, for the block. :raises LedgerError: it cannot be read."""
        ledger = ServerLedger.open(self.paths.ledger, read_only=True, is_sound=True)
        self._ledger = ledger
        self._seen = None
        try:
            yield
        finally:
            self._ledger.abandon()

    @property
    def is_work_left(self) -> bool:
        return bool(self._arrived or self._waiting or self._open)

    def turn(self, new: Iterable[Submission]) -> bool:
        """Act on what is new. Returns whether something was done, so that there may be more to do
        at once.

        :raises PoolStopped: the pool stops.
        """
        self._arrived.extend(new)
        done = bool(self._arrived)
        while self._arrived:
            self._arrive(self._arrived[0])
            self._arrived.popleft()
        self._cancel()
        self.look()
        batch = self._next()
        if batch:
            self._enter(batch)
        return done or bool(batch)

    def look(self) -> None:
        """Give their results to the futures of jobs that have ended."""
        if not self._open or (version := job_figures.version(self._ledger)) == self._seen:
            return
        for job_id, figures in job_figures.figures(self._ledger, self._open).items():
            job = self._open[job_id]
            job.state = figures.state
            for submission in job.submissions:
                submission.future.is_training = job.state == "RUNNING"
            if job.state in TERMINAL:
                self._end(job_id, job)
        self._seen = version

    def give_up(self, error: BaseException | None, new: Iterable[Submission]) -> None:
        """Cancel what is left, and what is new, or let it fail with ``error``."""
        left = [*new, *self._arrived, *self._waiting]
        for job in self._open.values():
            left += job.submissions
        self._arrived.clear()
        self._waiting.clear()
        self._open.clear()
        for submission in left:
            if error is None:
                submission.discard()
                submission.future.cancel()
            else:
                submission.finish(error)

    # -- submissions

    def _arrive(self, submission: Submission) -> None:
        """What has been trained already has its result at once; everything else waits for its
        turn.
        """
        job_id = submission.job.job_id
        row = None if job_id in self._open else self._ledger.job_row(job_id)
        if row is not None and self._is_finished(row, submission.job):
            submission.finish(self._result(job_id, submission))
        else:
            self._waiting.append(submission)

    def _is_finished(self, row: JobRow, job: Job) -> bool:
        """Whether ``job`` has been trained as ``row``, as far as can be told without an
        examination.
        """
        before = row.job.spec
        if job.spec.task == AUTO:  # which depends on the robot alone
            job = job.with_spec(task=before.task)
        if job.spec.init is not None:
            paths = self.paths.job(row.job_id)
            if job.spec.init != before.init or not is_policy_unchanged(job.spec.init, paths):
                return False
            job = job.with_spec(
                init_sha256=before.init_sha256, init_env_steps=before.init_env_steps
            )
        return bool(verdicts_of_finished([row], [job], self.paths))

    def _next(self) -> list[Submission]:
        """The submissions that there is room for, in their order."""
        room = self.jobs_at_once - sum(job.state == "PENDING" for job in self._open.values())
        batch: dict[str, Submission] = {}
        while self._waiting and len(batch) < room:
            submission = self._waiting[0]
            job_id = submission.job.job_id
            is_wanted = not submission.future.done()
            if job_id in batch and is_wanted:
                break
            self._waiting.popleft()
            if not is_wanted:
                submission.discard()
            elif job_id not in self._open:
                batch[job_id] = submission
            elif self._open[job_id].trains(submission):
                self._open[job_id].submissions.append(submission)
                submission.future.is_training = self._open[job_id].state == "RUNNING"
            else:
                what = "another robot, or other settings, than those of the job that is trained now"
                submission.finish(self._changed_error(job_id, [what]))
        return list(batch.values())

    def _enter(self, batch: Sequence[Submission]) -> None:
        """Let jobs be added, and those be queued again that were not finished."""
        unchanged = [one for one in batch if not self._finish_if_rewritten(one)]
        addition = Addition(
            jobs=[job_values(one.job) for one in unchanged],
            skip_invalid=True,
            one_by_one=True,
            order="as-listed",
            source="orchestrator.TrainingPool",
            labels={
                str(path): robot.label
                for one in unchanged
                for path, robot in one.experiment.unnamed.items()
            },
        )
        try:
            answer = self._ask(Request(verb="add", args=addition_args(addition)))
        except BaseException:
            self._waiting.extendleft(reversed(unchanged))
            raise
        if answer.error:
            raise SupervisorError(answer.error)
        left_out: Mapping[str, Any] = answer.facts["left_out"]
        for submission in unchanged:
            job_id = submission.job.job_id
            if job_id in left_out:
                why = left_out[job_id]
                if "changed" in why:
                    submission.finish(self._changed_error(job_id, why["changed"]))
                else:
                    submission.finish(UsageError(f"TrainingPool.submit: {why['settings']}"))
            elif self._finish_if_rewritten(submission):
                self._ask(Request(verb="cancel", jobs=[job_id]))
            else:
                self._open[job_id] = OpenJob(submissions=[submission])
                submission.discard()
        entered = job_figures.figures(self._ledger, [one.job.job_id for one in unchanged])
        for job_id, figures in entered.items():
            verb = AGAIN.get(figures.state)
            if verb is not None and job_id in self._open:
                self._ask(Request(verb=verb, jobs=[job_id]))
        self._seen = None

    def _finish_if_rewritten(self, submission: Submission) -> bool:
        """Finish a submission whose files have been written to since."""
        files = submission.changed_files()
        if files:
            submission.finish(UsageError(f"TrainingPool.submit: {_rewritten_text(files)}"))
        return bool(files)

    def _ask(self, request: Request) -> Answer:
        """Send a request and return the answer. Meanwhile jobs that have ended have their results.

        :raises PoolStopped: the pool stops.
        """
        own = Request(
            verb=request.verb, jobs=request.jobs, args=request.args, supervisor=self.holder
        )
        id_ = RequestFolder(self.paths.requests).leave(own)
        while (answer := self._ledger.answer(id_)) is None:
            if self.is_stopping():
                raise PoolStopped
            if request.verb == "add":
                self.look()
            time.sleep(LOOK_EVERY_S)
        return answer

    def _changed_error(self, job_id: str, differences: Sequence[str]) -> ChangedError:
        what = f"{self.paths.root}: a job that has run here is declared differently now:"
        lines = by_difference({job_id: differences})
        advice = "submit it with another name, or to a pool with another run_dir"
        return ChangedError("\n".join([what, *lines, advice]))

    # -- ends

    def _end(self, job_id: str, job: OpenJob) -> None:
        """Finish those that wait for a job that has ended."""
        is_wanted_again = job.state == "CANCELLED" and job.is_cancelled and job.is_wanted
        if is_wanted_again:  # it has been submitted again since
            job.state = "PENDING"
            job.is_cancelled = False
            self._ask(Request(verb="retry", jobs=[job_id]))
            return
        results = [self._result(job_id, submission) for submission in job.submissions]
        del self._open[job_id]
        for submission, result in zip(job.submissions, results, strict=True):
            submission.finish(result)

    def _result(self, job_id: str, submission: Submission) -> Result:
        row = self._ledger.summary_of(job_id)
        result = result_of(self.paths, {**row, "xml": submission.robot.xml})
        return dataclasses.replace(result, meta=submission.meta)

    def _cancel(self) -> None:
        """Cancel the jobs that nobody waits for any more."""
        unwanted = {
            id_: job for id_, job in self._open.items() if not (job.is_wanted or job.is_cancelled)
        }
        for job_id, job in unwanted.items():
            job.is_cancelled = True
            self._ask(Request(verb="cancel", jobs=[job_id]))  # refused if it has just ended


def _rewritten_text(files: Sequence[str]) -> str:
    was = "was" if len(files) == 1 else "were"
    each = "its own file for each robot or policy, or MJCF text, trains what is submitted"
    return f"{listed(files)} {was} written to after the submission and before the training: {each}"
