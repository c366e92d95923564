"""Writes ``live.json``: what clients show of running attempts, and the ledger does not hold."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from orchestrator.core import job_parts
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.ledger.live_facts import LiveFacts, LiveJob
from orchestrator.server.attempts import RunningAttempt

if TYPE_CHECKING:
    from orchestrator.server.supervisor import Supervisor


def write(supervisor: Supervisor) -> None:
    """Write the file anew."""
    now = supervisor.now()
    shortage = supervisor.disk_shortage()
    facts = LiveFacts(
        holder=supervisor.holder,
        waiting=None if shortage is None else shortage.text,
        waiting_from_mib=None if shortage is None else shortage.least_mib,
        jobs={attempt.id.job_id: _live_job(attempt, now) for attempt in supervisor.attempts},
    )
    with contextlib.suppress(OSError):  # it is soon written again
        write_whole(supervisor.paths.live, facts.to_line(), durable=False)


def _live_job(attempt: RunningAttempt, now: float) -> LiveJob:
    progress = attempt.progress
    if progress is None:
        return LiveJob(
            phase="stopping" if attempt.end_reason is not None else "starting",
            cpu_share=None,
            run_delay_share=None,
            competitors=attempt.competitors,
            silent_s=now - attempt.last_progress,
            has_return=False,
        )
    return LiveJob(
        phase="stopping" if attempt.end_reason is not None else progress.phase,
        cpu_share=progress.cpu_share,
        run_delay_share=progress.run_delay_share,
        columns=job_parts.columns(progress.parts),
        competitors=attempt.competitors,
        silent_s=now - attempt.last_progress,
        has_return=progress.ep_rew_mean is not None,
    )
