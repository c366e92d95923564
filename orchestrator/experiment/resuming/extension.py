"""``--on-change=extend``: a job whose ``total_timesteps`` alone have grown is trained further from
its last checkpoint.

With constant hyperparameters it ends with the weights of a training that had the larger number from
the start.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from orchestrator.core import job_parts
from orchestrator.core.job import Job, Pending, Succeeded, lacked_room, move
from orchestrator.core.numbers.changing_numbers import changing_numbers
from orchestrator.core.paths import REPLAY, JobPaths, RunPaths
from orchestrator.core.text import listed
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.experiment.examination.preflight import JobVerdict
from orchestrator.experiment.resuming import recovery
from orchestrator.ledger import JobRow, Ledger
from orchestrator.supervisor import job_directory
from orchestrator.supervisor.events import Reporter


def obstacles(
    rows: Mapping[str, JobRow],
    jobs: Sequence[Job],
    verdicts: Mapping[str, JobVerdict],
    changed: Mapping[str, Sequence[str]],
    paths: RunPaths,
) -> dict[str, Sequence[str]]:
    """By ``job_id``: why a job that has changed cannot be trained further; without those that can
    be.

    :param changed: every difference between a job and what was trained, in words.
    """
    found: dict[str, Sequence[str]] = {}
    for job in jobs:
        job_id = job.job_id
        if job_id not in changed:
            continue
        why = _obstacles(rows[job_id], job, verdicts[job_id], changed[job_id], paths.job(job_id))
        if why:
            found[job_id] = why
    return found


def _obstacles(
    row: JobRow, job: Job, verdict: JobVerdict, differences: Sequence[str], directory: JobPaths
) -> Sequence[str]:
    """Why a job that has changed cannot be trained further; nothing where it can be."""
    before = row.job.spec
    total = job.spec.total_timesteps
    is_other = (
        verdict.is_invalid
        or row.robot_hash != verdict.robot_hash
        or job.spec.fingerprint(before.total_timesteps) != row.fingerprint
    )
    if is_other or any(line.startswith("init: ") for line in differences):
        return differences
    if total < before.total_timesteps:
        return [
            f"{difference} (expected more than {before.total_timesteps})"
            for difference in differences
        ]
    if job_directory.has_replay_buffer(directory, before):
        return []
    gone = f"checkpoints/{REPLAY}: the replay buffer is gone, and {before.algo} learns from it"
    return [f"{gone}; it stays after a training only with keep_replay_buffer = true"]


def continued_job(before: WorkerSpec, job: Job) -> Job:
    """``job`` with what the ledger knows of its training so far: extensions, the policy of a job,
    where it pauses.
    """
    return _with_totals(job, before, before.extended_from)


def extend(
    row: JobRow, job: Job, position: int, paths: RunPaths, ledger: Ledger, reporter: Reporter
) -> None:
    """Enter ``job``, with its larger ``total_timesteps``, and queue it again if it has
    succeeded.
    """
    # Its attempt was for the earlier number of env_steps.
    row = recovery.settle(row, paths, ledger, reporter)
    before = row.job.spec
    totals = (*before.extended_from, before.total_timesteps)
    ledger.update_declaration(position, _with_totals(job, before, totals))
    if isinstance(row.state, Succeeded):
        ledger.set_state(row.job_id, move(row.job_id, row.state, Pending()))


def _with_totals(job: Job, before: WorkerSpec, totals: tuple[int, ...]) -> Job:
    start = job.spec if job.spec.init_job is None else before
    spec = dataclasses.replace(
        job.spec,
        extended_from=totals,
        init_sha256=start.init_sha256,
        init_env_steps=start.init_env_steps,
        pause_at=before.pause_at,
    )
    return dataclasses.replace(job, spec=spec)


def report(rows: Mapping[str, JobRow], jobs: Sequence[Job], reporter: Reporter) -> None:
    """Say which ``jobs`` are trained further, and which of them will not have the weights of one
    longer training.

    :param rows: as they were before.
    """
    extended: dict[str, list[str]] = {}
    warnings: dict[str, list[str]] = {}
    for job in jobs:
        row = rows[job.job_id]
        total = f"{job.spec.total_timesteps:,} env_steps"
        if row.state.name in ("FAILED", "CANCELLED") and not lacked_room(row.state):
            text = f"{row.state.name}, so trained to {total} only after `retry` has queued it"
            warnings.setdefault(text, []).append(job.job_id)
        else:
            span = f"trained further, from {row.job.spec.total_timesteps:,} to {total}"
            extended.setdefault(span, []).append(job.job_id)
        for why in _why_other_weights(row.job.spec, job.spec):
            text = f"{why}, so the weights will differ from those of one training with {total}"
            warnings.setdefault(text, []).append(job.job_id)
    for text, job_ids in extended.items():
        reporter.event("extended", f"{text}: {listed(job_ids)}", jobs=job_ids)
    for text, job_ids in warnings.items():
        reporter.event("warning", f"{listed(job_ids)}: {text}", jobs=job_ids, extended=True)


def _why_other_weights(before: WorkerSpec, now: WorkerSpec) -> list[str]:
    reasons = [
        f'{now.algo}.{name} = "{text}" goes on over the new total'
        for name, text in now.schedules.items()
    ]
    reasons += [
        f'{key} = "{text}" goes on over the new total' for key, text in _changing_values(now)
    ]
    for name in now.parts:
        if why := job_parts.job_parts()[name].why_extended_differs:
            reasons.append(why)
    merges_statistics = now.ranks > 1 and now.algo != "ppo" and now.normalize
    if merges_statistics and before.total_timesteps % now.steps_an_iteration:
        reasons.append("its ranks merged their statistics at the former end, within an iteration")
    return reasons


def _changing_values(spec: WorkerSpec) -> list[tuple[str, str]]:
    """What follows the share of the training that is over, with its key."""
    drawn = [(f'randomize."{key}"', str(text)) for key, text in spec.randomize.items()]
    options = [(f"task_options.{key}", text) for key, text in changing_numbers(spec.task_options)]
    return [(key, text) for key, text in (*drawn, *options) if "linear" in text]
