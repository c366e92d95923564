"""How the declarations of jobs that have begun differ from those of a job file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from orchestrator.core import job_parts
from orchestrator.core.decoding import field_values
from orchestrator.core.job import Cancelled, Job
from orchestrator.core.numbers.changing_numbers import changing_numbers
from orchestrator.core.paths import REPLAY
from orchestrator.core.task_names import AUTO
from orchestrator.core.text import listed
from orchestrator.core.worker_spec import NOT_IN_FINGERPRINT, WorkerSpec
from orchestrator.examination.preflight import JobVerdict
from orchestrator.ledger import JobRow

OnChange: TypeAlias = Literal["refuse", "restart", "extend"]

SHOWN = 10
"""Differences in a message."""
JOB_FILE_KEYS = {
    "threads": "resources.threads",
    "device": "resources.gpus (device)",
    "ranks": "resources.ranks",
    "backend": "distributed.backend",
    "mode": "distributed.mode",
    "model_edits": "model",
    "init_sha256": "init (SHA-256 of the policy)",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """What a job trains otherwise than before."""

    key: str
    """As in the job file."""
    text: str
    """For people, with the key."""

    def __str__(self) -> str:
        return self.text


def differences(row: JobRow, job: Job, verdict: JobVerdict) -> list[Difference]:
    """Return what a job that has begun would train otherwise now. One that is invalid now goes on as
    it was.

    :param job: as it was examined.
    """
    if verdict.is_invalid:
        return []
    found = [] if row.fingerprint == job.spec.fingerprint() else changed_values(row.job, job)
    if row.robot_hash != verdict.robot_hash and not any(map(_is_of_robot, found)):
        name = job.xml_source or job.spec.robot_maker
        found.append(Difference("robot", f"robot: the contents of {name} changed"))
    return found


def _is_of_robot(difference: Difference) -> bool:
    """Return whether it is in a table that changes the robot."""
    from orchestrator.jobfile.job_table_rules import format_tables  # with all that reads job files

    return difference.key.partition(".")[0] in ("model", "params", *format_tables())


def is_declared_as(rows: Sequence[JobRow], jobs: Sequence[Job]) -> bool:
    """Return whether the jobs of a run directory are those that are declared now, as far as that is
    known without an examination.
    """
    before = {row.job_id: row for row in rows if row.state != Cancelled(is_undeclared=True)}
    if before.keys() != {job.job_id for job in jobs}:
        return False
    return all(_is_declared_as(before[job.job_id], job) for job in jobs)


def _is_declared_as(row: JobRow, job: Job) -> bool:
    before = row.job.spec
    now = job.with_spec(
        xml=before.xml,
        init_sha256=before.init_sha256,
        task=before.task if job.spec.task == AUTO else job.spec.task,
    )
    return now.spec.fingerprint() == row.fingerprint


def changed_values(before: Job, after: Job) -> list[Difference]:
    """Return each key that decides the result and differs, with both values."""
    old = decisive_keys(before)
    new = decisive_keys(after)
    found = []
    for key in {**old, **new}:
        was, is_now = _shown_value(old, key), _shown_value(new, key)
        if was != is_now:
            found.append(Difference(key, f"{key}: {was} → {is_now}"))
    return found


def decisive_keys(job: Job) -> dict[str, object]:
    """Return everything that decides the result, under the job file's dotted keys."""
    keys: dict[str, object] = job_parts.under_keys(job.spec.parts)
    for name, value in field_values(job.spec).items():
        if name == "parts":
            continue
        key = job.spec.algo_table if name == "hyperparameters" else JOB_FILE_KEYS.get(name, name)
        if isinstance(value, Mapping) and name not in NOT_IN_FINGERPRINT:
            keys |= {f"{key}.{inner}": part for inner, part in value.items()}
        elif name not in NOT_IN_FINGERPRINT:
            keys[key] = value
    if job.spec.init_job is not None:
        keys |= {"init": job.spec.init, JOB_FILE_KEYS["init_sha256"]: None}
    return keys


def _shown_value(keys: Mapping[str, object], key: str) -> str:
    if keys.get(key) is None:
        return "not set"
    # Like the fingerprint: specs on disk have the keys of tables in order.
    return json.dumps(keys[key], ensure_ascii=False, sort_keys=True)


def by_difference(changed: Mapping[str, Sequence[object]]) -> list[str]:
    """Return lines with the first few differences, each after the jobs that have it."""
    jobs_with: dict[str, list[str]] = {}
    for job_id, lines in changed.items():
        jobs_with.setdefault("\n".join(f"    {line}" for line in lines), []).append(job_id)
    shown = [f"  {listed(jobs)}\n{lines}" for lines, jobs in list(jobs_with.items())[:SHOWN]]
    if len(jobs_with) > SHOWN:
        shown.append(f"  … and {len(jobs_with) - SHOWN} more differences")
    return shown


# -- trained further


def continued_job(before: WorkerSpec, job: Job, *, is_extended: bool = False) -> Job:
    """Return ``job`` with what the ledger knows of its training so far: extensions, the policy of a
    job, and where it pauses.

    :param is_extended: whether its ``total_timesteps`` have grown.
    """
    totals = (
        (*before.extended_from, before.total_timesteps) if is_extended else before.extended_from
    )
    start = job.spec if job.spec.init_job is None else before
    return job.with_spec(
        extended_from=totals,
        init_sha256=start.init_sha256,
        init_env_steps=start.init_env_steps,
        pause_at=None if job.spec.pause_at is None else before.pause_at,
    )


def obstacles(
    row: JobRow,
    job: Job,
    verdict: JobVerdict,
    found: Sequence[Difference],
    *,
    has_replay_buffer: bool,
) -> list[Difference]:
    """Return why a job that has changed cannot be trained further, or nothing if it can be.

    With constant hyperparameters it ends with the weights of a training that had the larger number
    of ``total_timesteps`` from the start.
    """
    before = row.job.spec
    is_other = (
        row.robot_hash != verdict.robot_hash
        or job.spec.fingerprint(before.total_timesteps) != row.fingerprint
        or any(one.key == "init" for one in found)
    )
    if is_other:
        return list(found)
    if job.spec.total_timesteps < before.total_timesteps:
        expected = f"(expected more than {before.total_timesteps})"
        return [Difference(one.key, f"{one} {expected}") for one in found]
    if has_replay_buffer:
        return []
    gone = f"checkpoints/{REPLAY}: the replay buffer is gone, and {before.algo} learns from it"
    advice = "it stays after a training only with keep_replay_buffer = true"
    return [Difference("keep_replay_buffer", f"{gone}; {advice}")]


def why_other_weights(before: WorkerSpec, now: WorkerSpec) -> list[str]:
    """Return why a job that is trained further will not have the weights of one longer training."""
    changing = [(f"{now.algo}.{name}", text) for name, text in now.schedules.items()]
    drawn = [(f'randomize."{key}"', str(text)) for key, text in now.randomize.items()]
    options = [(f"task_options.{key}", text) for key, text in changing_numbers(now.task_options)]
    changing += [(key, text) for key, text in (*drawn, *options) if "linear" in text]
    reasons = [f'{key} = "{text}" goes on over the new total' for key, text in changing]
    for name in now.parts:
        if why := job_parts.job_parts()[name].why_extended_differs:
            reasons.append(why)
    merges_statistics = now.ranks > 1 and now.algo != "ppo" and now.normalize
    if merges_statistics and before.total_timesteps % now.steps_an_iteration:
        reasons.append("its ranks merged their statistics at the former end, within an iteration")
    return reasons
