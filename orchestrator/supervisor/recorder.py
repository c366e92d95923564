"""Writes every fact to the ledger, with one commit per turn of the loop, and ``summary.*`` from the
ledger.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from orchestrator.core import job_parts
from orchestrator.core.errors import (
    LedgerBusyError,
    LedgerError,
    LedgerFailingError,
    LedgerUnavailableError,
)
from orchestrator.core.exit_record import ExitRecord, read_exit_record
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.job import AttemptOutcome, Job, State
from orchestrator.core.pacer import Pace, Pacer
from orchestrator.core.paths import RunPaths
from orchestrator.executors.base import Handle
from orchestrator.ledger import JobRow, Ledger, Request
from orchestrator.ledger.live_facts import LiveFacts, LiveJob
from orchestrator.ledger.rows import LatestFigures
from orchestrator.ledger.summary import SummaryFiles
from orchestrator.supervisor.active_attempts import ActiveAttempt
from orchestrator.supervisor.error_log import ErrorLog
from orchestrator.supervisor.events import Reporter, View

RECORD_EVERY_S = 1.0
PROGRESS = Pace(every_s=RECORD_EVERY_S, share=0.05)
"""How often progress is recorded: one row per running job."""
SUMMARY = Pace(every_s=RECORD_EVERY_S, share=0.002)
"""How often ``summary.*`` are written, which grow with the number of jobs."""
LIVE = Pace(every_s=RECORD_EVERY_S, share=0.005)
"""How often ``live.json`` is written, which names every running job."""
PAGE_ROWS = 100
"""Jobs added to ``summary.*`` at once, and made anew when one of them runs. The next ones follow as
their share of time allows; at the end, at once."""


@dataclass(slots=True, kw_only=True)
class Recorder:
    """While another process has the ledger locked, what is to be written waits; nothing else does.

    :raises DiskFullError: by :meth:`end_turn`, when the disk is full.
    :raises LedgerError: by :meth:`end_turn` and :meth:`take_requests`, when the ledger is damaged.
    :raises LedgerFailingError: by these and by :meth:`new_jobs`, when its file system fails.
    """

    paths: RunPaths
    ledger: Ledger
    reporter: Reporter
    holder: str = ""
    """Names the supervisor in ``live.json``; without a name that is not written."""
    _is_locked: bool = field(default=False, init=False)
    """Whether another process has the ledger locked, and this was reported."""
    _was_refused: bool = field(default=False, init=False)
    """Whether it was found locked since the last turn."""
    _is_behind: bool = field(default=True, init=False)
    """Whether ``summary.*`` are older than the ledger."""
    _unrecorded: dict[str, ActiveAttempt] = field(default_factory=dict, init=False)
    """Attempts whose latest progress is not in the ledger yet, by job."""
    _progress: Pacer = field(default_factory=lambda: Pacer(PROGRESS), init=False)
    _summary: Pacer = field(default_factory=lambda: Pacer(SUMMARY), init=False)
    _live: Pacer = field(default_factory=lambda: Pacer(LIVE), init=False)
    _files: SummaryFiles = field(init=False)
    _errors: ErrorLog = field(init=False)
    _writing: Iterator[None] | None = field(default=None, init=False)
    """The steps that write ``summary.*`` as they are now, a page each; None between two times."""

    def __post_init__(self) -> None:
        self._files = SummaryFiles(paths=self.paths)
        self._errors = ErrorLog(paths=self.paths)

    def record_state(self, job_id: str, state: State) -> None:
        self.ledger.set_state(job_id, state)
        self._files.moved.add(job_id)
        self._is_behind = True

    def record_declaration(self, job: Job) -> None:
        """Values of the job of that id that are no part of its fingerprint."""
        self.ledger.update_spec(job)
        self._files.moved.add(job.job_id)
        self._is_behind = True

    def note_progress(self, attempt: ActiveAttempt) -> None:
        self._unrecorded[attempt.handle.job_id] = attempt

    def record_end(
        self,
        attempt: ActiveAttempt,
        returncode: int | None,
        outcome: AttemptOutcome,
        record: ExitRecord | None,
        *,
        wall_s: float,
    ) -> None:
        if self._unrecorded.pop(attempt.handle.job_id, None) is not None:
            self._record_progress([attempt])
        self.ledger.end_attempt(
            attempt.job.job_id,
            attempt.handle.number,
            ended_at=time.time(),
            wall_s=wall_s,
            returncode=returncode,
            outcome=outcome,
            max_rss_mib=attempt.max_rss_mib or None,
            record=record,
        )

    def exit_record(self, handle: Handle, rank: int = 0) -> ExitRecord | None:
        """The exit record of ``rank``; None if the file is missing or, with a warning, if it cannot
        be read.
        """
        path = self.paths.job(handle.job_id).attempt(handle.number).exit_of(rank)

        def warn(error: Exception) -> None:
            text = f"{path}: cannot be read ({error}); the exit code of the process is used instead"
            self.reporter.event("warning", text, job_id=handle.job_id)

        return read_exit_record(path, warn)

    def take_requests(self) -> list[Request]:
        """Requests of other processes; none while the ledger is locked."""
        try:
            return self.ledger.take_requests()
        except LedgerBusyError as error:
            self._report_lock(error)
            return []

    def new_jobs(self, known: Collection[str]) -> list[JobRow] | None:
        """Jobs that another process has entered into the ledger, in the order of the job file. None
        while the ledger is locked.
        """
        try:
            found = [self.ledger.job_row(job_id) for job_id in self.ledger.new_job_ids(known)]
        except LedgerBusyError as error:
            self._report_lock(error)
            return None
        except LedgerFailingError:
            raise
        except LedgerError as error:  # what another process has written ends no job
            self.reporter.event("warning", f"new jobs were not taken: {error}")
            return []
        return sorted((row for row in found if row is not None), key=lambda row: row.position)

    def end_turn(
        self, now: float, view: Callable[[], View] | None = None, *, final: bool = False
    ) -> bool:
        """Commit; record progress and write ``summary.*`` once a second, or as their cost allows;
        if ``final``, now.

        :param view: as in :meth:`Reporter.tick`; from it ``live.json`` is made, as often.

        Returns False while another process has the ledger locked: what happened waits for the next
        call.
        """
        if view is not None and self.holder and self._live.is_due(now):
            with self._live.time_block(now):
                self._write_live(now, view)
        try:
            self._write(now, final=final)
        except LedgerBusyError as error:
            self._report_lock(error)
            return False
        if self._is_locked and (final or not self._was_refused):
            self._is_locked = False
            self.reporter.event(
                "warning", f"{self.paths.ledger}: no longer locked; everything has been recorded"
            )
        self._was_refused = False
        return True

    def _write_live(self, now: float, view: Callable[[], View]) -> None:
        seen = view()
        jobs = {attempt.job.job_id: _live(attempt, now) for attempt in seen.active}
        shortage = seen.waiting
        facts = LiveFacts(
            holder=self.holder,
            waiting=None if shortage is None else shortage.text,
            waiting_from_mib=None if shortage is None else shortage.least_mib,
            jobs=jobs,
        )
        with contextlib.suppress(OSError):  # it is for who looks on, and is soon written again
            write_whole(self.paths.live, facts.to_line(), durable=False)

    def _report_lock(self, error: LedgerBusyError) -> None:
        self._was_refused = True
        if not self._is_locked:
            self._is_locked = True
            text = f"{error}. The jobs continue, and what happens is recorded when it is free"
            self.reporter.event("warning", text)

    def _write(self, now: float, *, final: bool) -> None:
        is_progress_due = final or (self._progress.is_due(now) and not self._is_locked)
        if self._unrecorded and is_progress_due:
            with self._progress.time_block(now):
                unrecorded = self._unrecorded
                self._unrecorded = {}
                self._record_progress(unrecorded.values())
                self.ledger.commit()
        else:
            self.ledger.commit()
        if final:
            self._start_summary_anew(0.0, now)
        if self._writing is None and self._is_behind and self._summary.is_due(now):
            self._is_behind = False
            self._writing = self._files.writing(self.ledger, PAGE_ROWS)
        while self._writing is not None and self._summary.is_due(now):
            self._write_page(now, final=final)

    def _start_summary_anew(self, wait_s: float, now: float) -> None:
        """Give up the files that are being written, and begin again after ``wait_s``."""
        self._writing = None
        self._is_behind = True
        self._summary.wait(wait_s, now)

    def _write_page(self, now: float, *, final: bool) -> None:
        """Write the next page of ``summary.*``; with the last one the files appear."""
        assert self._writing is not None
        begun = time.monotonic()
        try:
            next(self._writing)
            is_done = False
        except StopIteration:
            is_done = True
        except LedgerUnavailableError:
            self._start_summary_anew(SUMMARY.every_s, now)
            raise
        except (OSError, LedgerError) as error:  # also a damaged row of a job that is over
            is_done = True
            self.reporter.event(
                "warning", f"summary.json and summary.csv could not be written: {error}"
            )
        if is_done:
            self._writing = None
        if not final:
            pace = SUMMARY if is_done else replace(SUMMARY, every_s=0.0)
            self._summary.wait(pace.pause_s(time.monotonic() - begun), now)

    def _record_progress(self, attempts: Iterable[ActiveAttempt]) -> None:
        rows = [
            LatestFigures(
                job_id=attempt.job.job_id,
                env_steps=last.env_steps,
                ep_rew_mean=last.ep_rew_mean,
                env_steps_per_s=last.env_steps_per_s,
                learner=last.learner,
            )
            for attempt in attempts
            if (last := attempt.progress) is not None and last.phase != "starting"
        ]
        if rows:
            self.ledger.set_progress(rows)
            self._is_behind = True

    def log_error(self, error: BaseException) -> str:
        """Record the traceback of an unexpected error, unless one like it is recorded. Returns a
        clause that says where it is.
        """
        return self._errors.record(error)

    def record_error_counts(self) -> None:
        """Record how often each unexpected error came. To be called at the end."""
        self._errors.record_counts()


def _live(attempt: ActiveAttempt, now: float) -> LiveJob:
    progress = attempt.progress
    return LiveJob(
        competitors=attempt.competitors,
        phase=attempt.phase,
        cpu_share=None if progress is None else progress.cpu_share,
        run_delay_share=None if progress is None else progress.run_delay_share,
        columns={} if progress is None else job_parts.columns(progress.parts),
        silent_s=now - attempt.last_progress,
        has_return=progress is not None and progress.ep_rew_mean is not None,
    )
