"""The events about attempts, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.core import job_parts
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.job import (
    AttemptOutcome,
    Cancelled,
    Cause,
    Failed,
    Paused,
    Pending,
    State,
)
from orchestrator.core.messages import Progress
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count, listed
from orchestrator.executors.executor import Moved, Placed
from orchestrator.machine.slots import part_of_rank
from orchestrator.server import job_directory
from orchestrator.server.attempts import RunningAttempt
from orchestrator.server.jobs import Report

MOST_OTHERS = 2
"""Of those who use the CPUs of a job, in a message."""


def cpus_by_rank(cpus: Sequence[int], ranks: int) -> str:
    """Return ``"0,1"``; with several ranks ``"0,1 | 2,3"``."""
    by_rank = [part_of_rank(cpus, rank, ranks) for rank in range(ranks)]
    return " | ".join(",".join(map(str, of_rank)) for of_rank in by_rank)


def report_launch(report: Report, attempt: RunningAttempt, placed: Placed) -> None:
    """Say where an attempt runs."""
    job_id = attempt.id.job_id
    resources = attempt.entry.job.resources
    as_ranks = f"as {resources.ranks} ranks " if resources.ranks > 1 else ""
    on_node = "" if placed.node is None else f"{placed.node}, "
    text = (
        f"{job_id} launched {as_ranks}on {on_node}CPU {cpus_by_rank(placed.cpus, resources.ranks)}"
    )
    if placed.gpus:
        share = f" (share {resources.gpu_share:g})" if resources.gpu_share < 1 else ""
        text += f" with GPU {', '.join(placed.gpus)}{share}"
    if attempt.id.number:
        text += f", attempt {attempt.id.number + 1}"
    if placed.shares_with:
        names = listed(placed.shares_with, MOST_OTHERS)
        text += f", shared with {names}: expect about {placed.expected_share:.0%} of the speed"
    report(
        "launched",
        text,
        job_id=job_id,
        number=attempt.id.number,
        pid=placed.pid,
        node=placed.node,
        cpus=placed.cpus,
        ranks=resources.ranks,
        shares_with=placed.shares_with,
    )


def report_move(report: Report, attempt: RunningAttempt, moved: Moved) -> None:
    job_id = attempt.id.job_id
    ranks = attempt.entry.job.resources.ranks
    others = listed(moved.because_of, MOST_OTHERS) or "another job of this run"
    text = (
        f"{job_id} moved from CPU {cpus_by_rank(moved.before, ranks)} to CPU {cpus_by_rank(moved.after, ranks)}:"
        f" it waited {moved.wait_share:.0%} of the time because of {others}"
    )
    report(
        "moved",
        text,
        job_id=job_id,
        before=moved.before,
        cpus=moved.after,
        because_of=moved.because_of,
    )


def report_news(report: Report, attempt: RunningAttempt, progress: Progress) -> None:
    """Report a new warning of the worker, and what is new about the features in its training."""
    job_id = attempt.id.job_id
    before = attempt.progress
    if progress.warning and (before is None or before.warning != progress.warning):
        report("warning", f"{job_id}: {progress.warning}", job_id=job_id)
    parts = {} if before is None else before.parts
    for news in job_parts.news(attempt.entry.job.spec.parts, parts, progress.parts):
        report(news.kind, f"{job_id}: {news.text}", job_id=job_id, **news.values)


def report_end(
    report: Report,
    attempt: RunningAttempt,
    outcome: AttemptOutcome,
    state: State,
    record: ExitRecord | None,
    wall_s: float,
    now: float,
    paths: RunPaths,
) -> None:
    """Say how an attempt ended, and what follows."""
    facts: dict[str, Any] = {
        "job_id": attempt.id.job_id,
        "number": attempt.id.number,
        "state": state.name,
        "cause": outcome.cause,
        "wall_s": round(wall_s, 3),
    }
    if record is not None:
        facts["env_steps"] = record.env_steps
        facts["ep_rew_mean"] = record.ep_rew_mean
        facts["eval_mean"] = record.eval_mean
    was_killed = attempt.end_reason is not None and record is None
    match state:
        case Failed(message=message):
            kind, text = "failed", f"failed: {message}"
            facts["reason"] = message
        case Cancelled():
            kind, text = "cancelled", "cancelled"
        case Paused(at_rung=is_at_rung):
            kind = "paused"
            text = outcome.message if is_at_rung else "paused; `resume` queues it again"
        case Pending() if outcome.cause is Cause.RUNG:
            kind, text = "promoted", f"{outcome.message}, and trains on"
        case Pending(not_before=None) if was_killed:
            steps = job_directory.checkpointed_steps(paths.job(attempt.id.job_id))
            reached = 0 if attempt.progress is None else attempt.progress.env_steps
            kind = "paused"
            lost = max(0, reached - steps)
            text = f"killed ({outcome.message}); resumes from env_steps {steps}, {lost} are lost"
            facts["resumes_from"] = steps
        case Pending(not_before=None) if attempt.end_reason is None:
            kind, text = "retrying", f"handed back ({outcome.message}); resumes in another place"
        case Pending(not_before=None):
            kind, text = "paused", f"stopped ({outcome.message}); resumes with the next run"
        case Pending(failures=failures, not_before=not_before):
            kind = "retrying"
            assert not_before is not None
            max_retries = attempt.entry.job.max_retries
            again = f"retry {failures} of {max_retries}"
            if outcome.cause is Cause.NODE_LOST:
                again = "resumes"
            text = f"{outcome.message}; {again} in {not_before - now:.0f} s"
        case _:
            kind, text = "succeeded", f"succeeded{results_text(record)}"
    report(kind, f"{attempt.id.job_id} {text}", **facts)


def results_text(record: ExitRecord | None) -> str:
    """Return the returns of a training that has succeeded, to be appended."""
    if record is None or record.ep_rew_mean_first is None or record.ep_rew_mean is None:
        return ""
    text = f": return {record.ep_rew_mean_first:.1f} → {record.ep_rew_mean:.1f}"
    if record.eval_mean is not None:
        text += f", evaluated {record.eval_mean:.1f}"
    if record.eval_finding:
        text += f" ({record.eval_finding})"
    if record.divergences:
        text += f", {count(record.divergences, 'divergence')}"
    return text
