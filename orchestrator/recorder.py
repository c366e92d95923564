"""What happens, written down: every fact to the ledger, one commit a turn, and ``summary.*`` made from it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from orchestrator import summary
from orchestrator.contract import ExitRecord, RunPaths
from orchestrator.executors.base import Handle
from orchestrator.job import Attempt, State
from orchestrator.ledger import Ledger
from orchestrator.policy import Ending
from orchestrator.reporting import Live, Reporter

RECORD_EVERY_S = 1.0
SUMMARY_SHARE = 0.005
"""Of our time at most, for ``summary.*``: written whole each time, they grow with the number of jobs."""


@dataclass(slots=True, kw_only=True)
class Recorder:
    """:raises DiskFullError: from every method that writes."""

    paths: RunPaths
    ledger: Ledger
    reporter: Reporter
    _is_behind: bool = field(default=True, init=False)
    """Whether ``summary.*`` lack something that the ledger has."""
    _next_progress: float = field(default=0.0, init=False)
    _next_summary: float = field(default=0.0, init=False)

    def moved(self, job_id: str, state: State) -> None:
        self.ledger.set_state(job_id, state)
        self._is_behind = True

    def launched(self, attempt: Attempt, *, queue_s: float) -> None:
        self.ledger.start_attempt(attempt, queue_s=queue_s)

    def ended(
        self, live: Live, returncode: int | None, ending: Ending, record: ExitRecord | None, *, wall_s: float
    ) -> None:
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

    def turn_ends(self, now: float, running: Iterable[Live], *, final: bool = False) -> None:
        """Commit; progress once a second, ``summary.*`` as often as their size allows, both in any case at the end."""
        if now >= self._next_progress or final:
            self._next_progress = now + RECORD_EVERY_S
            self._record_progress(running)
        self.ledger.commit()
        if self._is_behind and (now >= self._next_summary or final):
            self._is_behind = False
            begun = time.monotonic()
            try:
                summary.write(self.paths, self.ledger.summaries())
            except OSError as error:
                self.reporter.event("warning", f"summary.json and summary.csv could not be written: {error}")
            self._next_summary = now + max(RECORD_EVERY_S, (time.monotonic() - begun) / SUMMARY_SHARE)

    def _record_progress(self, running: Iterable[Live]) -> None:
        figures = []
        for live in running:
            said = live.progress
            if said is None or live.recorded is said:
                continue
            live.recorded = said
            if said.phase != "starting":
                figures.append((live.job.job_id, said.env_steps, said.ep_rew_mean, said.env_steps_per_s, said.learner))
        if figures:
            self.ledger.set_progress(figures)
            self._is_behind = True
