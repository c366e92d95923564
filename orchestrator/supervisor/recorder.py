"""What happens, written down: every fact to the ledger, one commit a turn, and ``summary.*`` made from it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from orchestrator.core.job import Attempt, AttemptOutcome, State
from orchestrator.core.messages import ExitRecord
from orchestrator.core.paths import RunPaths
from orchestrator.executors.base import Handle
from orchestrator.ledger import Ledger, summary
from orchestrator.supervisor.events import Live, Reporter

RECORD_EVERY_S = 1.0
PROGRESS_SHARE = 0.05
"""Of our time at most, for the progress of running jobs: a row each, however few figures are new in it."""
SUMMARY_SHARE = 0.005
"""Of our time at most, for ``summary.*``: written whole each time, they grow with the number of jobs."""
PAGE_ROWS = 1000
"""Jobs that are added to ``summary.*`` in one turn: with a hundred thousand, events go on being heard meanwhile."""


@dataclass(slots=True, kw_only=True)
class Recorder:
    """:raises DiskFullError: from every method that writes."""

    paths: RunPaths
    ledger: Ledger
    reporter: Reporter
    _is_behind: bool = field(default=True, init=False)
    """Whether ``summary.*`` lack something that the ledger has."""
    _unrecorded: dict[str, Live] = field(default_factory=dict, init=False)
    """By job: those whose latest progress the ledger does not have."""
    _next_progress: float = field(default=0.0, init=False)
    _next_summary: float = field(default=0.0, init=False)
    _writing: Iterator[None] | None = field(default=None, init=False)
    """``summary.*`` in the making."""
    _writing_s: float = field(default=0.0, init=False)
    """How long that has taken so far."""

    def moved(self, job_id: str, state: State) -> None:
        self.ledger.set_state(job_id, state)
        self._is_behind = True

    def launched(self, attempt: Attempt, *, queue_s: float) -> None:
        self.ledger.start_attempt(attempt, queue_s=queue_s)

    def placed(self, attempt: Attempt) -> None:
        self.ledger.place_attempt(attempt)

    def progressed(self, live: Live) -> None:
        self._unrecorded[live.handle.job_id] = live

    def ended(
        self, live: Live, returncode: int | None, ending: AttemptOutcome, record: ExitRecord | None, *, wall_s: float
    ) -> None:
        if self._unrecorded.pop(live.handle.job_id, None) is not None:
            self._record_progress([live])  # also of one that ended within the second
        self.ledger.end_attempt(
            live.job.job_id,
            live.handle.number,
            ended_at=time.time(),
            wall_s=wall_s,
            returncode=returncode,
            ending=ending,
            max_rss_mib=live.max_rss_mib or None,
            record=record,
        )

    def last_word(self, handle: Handle, rank: int = 0) -> ExitRecord | None:
        """What rank ``rank`` left as ``exit.json``; None where it left none that can be read."""
        path = self.paths.job(handle.job_id).attempt(handle.number).exit_of(rank)
        try:
            return ExitRecord.from_json(path.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            text = f"{path}: not readable ({error}); going by the exit code"
            self.reporter.event("warning", text, job_id=handle.job_id)
            return None

    def turn_ends(self, now: float, *, final: bool = False) -> None:
        """Commit; progress once a second or as often as its cost allows, and so ``summary.*``; both at the end."""
        begun = time.monotonic()
        is_due = bool(self._unrecorded) and (now >= self._next_progress or final)
        if is_due:
            unrecorded, self._unrecorded = self._unrecorded, {}
            self._record_progress(unrecorded.values())
        self.ledger.commit()
        if is_due:
            self._next_progress = now + max(RECORD_EVERY_S, (time.monotonic() - begun) / PROGRESS_SHARE)
        if final:
            self._writing, self._is_behind, self._next_summary = None, True, now
        if self._writing is None and self._is_behind and now >= self._next_summary:
            self._is_behind, self._writing_s = False, 0.0
            self._writing = summary.writing(self.paths, self.ledger.summaries(page_rows=PAGE_ROWS))
        while self._writing is not None:
            self._write_on(now)
            if not final:
                return

    def _write_on(self, now: float) -> None:
        """One page more of ``summary.*``."""
        assert self._writing is not None
        begun = time.monotonic()
        try:
            is_done = next(self._writing, self) is self
        except OSError as error:
            is_done = True
            self.reporter.event("warning", f"summary.json and summary.csv could not be written: {error}")
        self._writing_s += time.monotonic() - begun
        if is_done:
            self._writing = None
            self._next_summary = now + max(RECORD_EVERY_S, self._writing_s / SUMMARY_SHARE)

    def _record_progress(self, those: Iterable[Live]) -> None:
        figures = []
        for live in those:
            said = live.progress
            if said is not None and said.phase != "starting":
                figures.append((live.job.job_id, said.env_steps, said.ep_rew_mean, said.env_steps_per_s, said.learner))
        if figures:
            self.ledger.set_progress(figures)
            self._is_behind = True
