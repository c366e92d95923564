"""How declarations of jobs that have run differ from the job file, and whether that is allowed."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal, TypeAlias

from orchestrator.core import job_parts
from orchestrator.core.decoding import field_values
from orchestrator.core.errors import ChangedError
from orchestrator.core.front_end import option
from orchestrator.core.job import Cancelled, Job
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count, listed
from orchestrator.core.worker_spec import NOT_IN_FINGERPRINT, WorkerSpec
from orchestrator.experiment.begun_source import begun_source
from orchestrator.experiment.examination.preflight import JobVerdict
from orchestrator.experiment.resuming import extension
from orchestrator.jobfile.job_table_rules import format_tables
from orchestrator.ledger import JobRow, Ledger
from orchestrator.supervisor.events import Reporter

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


def changed_jobs(
    rows: Mapping[str, JobRow], jobs: Sequence[Job], verdicts: Mapping[str, JobVerdict]
) -> dict[str, list[str]]:
    """Jobs that have run and would now train something else → the differences."""
    begun = {
        job.job_id: rows[job.job_id]
        for job in jobs
        if job.job_id in rows and rows[job.job_id].attempts > 0
    }
    changed: dict[str, list[str]] = {}
    sources: dict[str, str] = {}
    for job in jobs:
        job_id = job.job_id
        if job_id not in begun:
            continue
        differences = _differences(begun[job_id], job, verdicts[job_id])
        if differences:
            changed[job_id] = differences
        if job.spec.init_job is not None:
            sources[job_id] = job.spec.init_job
    _add_changed_sources(changed, sources)
    return changed


def is_declared_as(rows: Sequence[JobRow], jobs: Sequence[Job]) -> bool:
    """Return whether the jobs of a run directory are those that are declared now."""
    before = {row.job_id: row for row in rows if row.state != Cancelled(is_undeclared=True)}
    if before.keys() != {job.job_id for job in jobs}:
        return False
    return all(
        unexamined_spec(before[job.job_id].job, job).fingerprint() == before[job.job_id].fingerprint
        for job in jobs
    )


def restarted_jobs(
    rows: Mapping[str, JobRow], jobs: Sequence[Job], verdicts: Mapping[str, JobVerdict]
) -> Set[str]:
    """Of :func:`changed_jobs`, those that start over with ``on_change = "restart"``: not what is
    invalid now, which could not begin, nor what has changed only as it starts from such a job.
    """
    valid = [job for job in jobs if not verdicts[job.job_id].is_invalid]
    return changed_jobs(rows, valid, verdicts).keys()


def _add_changed_sources(changed: dict[str, list[str]], sources: Mapping[str, str]) -> None:
    """Add to ``changed`` the jobs that start from one that has changed, and those that start from
    these.

    :param sources: job → the job that it starts from.
    """
    left = dict(sources)
    while found := [job_id for job_id, source in left.items() if source in changed]:
        for job_id in found:
            source = left.pop(job_id)
            why = f"init: job {source}, which it starts from, is declared differently"
            changed[job_id] = [*changed.get(job_id, ()), why]


def refuse_at_rungs(
    ledger: Ledger,
    rows: Mapping[str, JobRow],
    jobs: Sequence[Job],
    verdicts: Mapping[str, JobVerdict],
    paths: RunPaths,
) -> None:
    """Refuse that jobs start over which are compared at rungs: what was decided there would stay.

    :raises ChangedError: such jobs have changed.
    """
    if begun_source(paths, ledger) is None:
        return
    changed = changed_jobs(rows, jobs, verdicts)
    if changed:
        raise ChangedError(_at_rungs_message(paths, changed))


def refuse_or_report(
    changed: Mapping[str, Sequence[str]],
    restarted: Set[str],
    on_change: OnChange,
    rows: Mapping[str, JobRow],
    jobs: Sequence[Job],
    verdicts: Mapping[str, JobVerdict],
    paths: RunPaths,
    reporter: Reporter,
) -> None:
    """:param restarted: as of :func:`restarted_jobs`.
    :raises ChangedError: ``on_change`` does not allow the changes.
    """
    if on_change in ("refuse", "extend"):
        obstacles = extension.obstacles(rows, jobs, verdicts, changed, paths)
        if on_change == "refuse":
            message = _changed_message(
                paths, changed, can_extend=not obstacles, can_restart=bool(restarted)
            )
            raise ChangedError(message)
        if obstacles:
            raise ChangedError(_obstacles_message(paths, obstacles))
        extension.report(rows, [job for job in jobs if job.job_id in changed], reporter)
    elif kept := [job_id for job_id in changed if job_id not in restarted]:
        why = "as they are invalid now, or start from jobs that are"
        text = f"declared differently now, but go on as they were, {why}: {listed(kept)}"
        reporter.event("warning", text, jobs=kept)


def _differences(row: JobRow, job: Job, verdict: JobVerdict) -> list[str]:
    if verdict.is_invalid:
        return _differences_of_invalid(row, job, verdict)
    changed = {} if row.fingerprint == job.spec.fingerprint() else _changed_values(row.job, job)
    lines = _as_lines(changed)
    if row.robot_hash != verdict.robot_hash and not any(map(_is_about_robot, changed)):
        lines.append(f"robot: the contents of {job.xml_source or job.spec.robot_maker} changed")
    return lines


def _differences_of_invalid(row: JobRow, job: Job, verdict: JobVerdict) -> list[str]:
    """As far as they are known without an examination, and then the problem."""
    before = row.job
    spec = unexamined_spec(before, job)
    lines: list[str] = []
    if spec.fingerprint() != row.fingerprint:
        lines += changed_keys(before, dataclasses.replace(job, spec=spec))
    if spec.init != before.spec.init and not any(line.startswith("init: ") for line in lines):
        lines.append(f"init: {before.spec.init or 'not set'} → {spec.init or 'not set'}")
    assert verdict.problem is not None
    return [*lines, f"is invalid now: {verdict.problem.message}"] if lines else []


def unexamined_spec(before: Job, declared: Job) -> WorkerSpec:
    """What ``declared`` would train, with what only an examination, or a run, would find out as in
    ``before``.
    """
    spec = dataclasses.replace(
        extension.continued_job(before.spec, declared).spec,
        xml=before.spec.xml,
        init_sha256=before.spec.init_sha256,
        init_env_steps=before.spec.init_env_steps,
    )
    starts_from_a_path = (
        before.spec.init is not None
        and spec.init is not None
        and before.spec.init_job is None
        and spec.init_job is None
    )
    if starts_from_a_path and not os.path.exists(str(before.spec.init)):  # noqa: PTH110 - without errors
        spec = dataclasses.replace(spec, init=before.spec.init)  # the folder has been moved
    if spec.task == "auto":
        spec = dataclasses.replace(spec, task=before.spec.task)
    return spec


def _is_about_robot(key: str) -> bool:
    """Whether a value of this key makes another robot of the same file."""
    return key.partition(".")[0] in ("model", "params", *format_tables())


def changed_keys(before: Job, after: Job) -> list[str]:
    """Each key that decides the result and differs, with both values."""
    return _as_lines(_changed_values(before, after))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChangedValue:
    """Of a key, before and after, for people."""

    old: str
    new: str


def _as_lines(changed: Mapping[str, _ChangedValue]) -> list[str]:
    return [f"{key}: {value.old} → {value.new}" for key, value in changed.items()]


def _changed_values(before: Job, after: Job) -> dict[str, _ChangedValue]:
    """By key, those that decide the result and differ."""
    old = decisive_keys(before)
    new = decisive_keys(after)
    values = {
        key: _ChangedValue(old=_json_or_unset(old, key), new=_json_or_unset(new, key))
        for key in {**old, **new}
    }
    return {key: value for key, value in values.items() if value.old != value.new}


def decisive_keys(job: Job) -> dict[str, object]:
    """Everything that decides the result, under the job file's dotted keys."""
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


def _json_or_unset(keys: Mapping[str, object], key: str) -> str:
    if keys.get(key) is None:
        return "not set"
    # Like the fingerprint: specs on disk have the keys of tables in order.
    return json.dumps(keys[key], ensure_ascii=False, sort_keys=True)


def by_difference(changed: Mapping[str, Sequence[str]]) -> list[str]:
    """For a message: the first few differences, each after the jobs that have it."""
    jobs_with: dict[str, list[str]] = {}
    for job_id, lines in changed.items():
        jobs_with.setdefault("\n".join(f"    {line}" for line in lines), []).append(job_id)
    first = list(jobs_with.items())[:SHOWN]
    shown = [f"  {listed(jobs)}\n{lines}" for lines, jobs in first]
    if len(jobs_with) > SHOWN:
        shown.append(f"  … and {len(jobs_with) - SHOWN} more differences")
    return shown


def on_change(value: OnChange) -> str:
    """The option with this value, as the user gives it."""
    return option("on_change", value, sign="=")


def _changed_message(
    paths: RunPaths,
    changed: Mapping[str, Sequence[str]],
    *,
    can_extend: bool,
    can_restart: bool,
) -> str:
    jobs_are = count(len(changed), "job that has run here is", "jobs that have run here are")
    them = "it" if len(changed) == 1 else "them"
    they_are = "it is" if len(changed) == 1 else "they are"
    extend = f"{on_change('extend')} trains {them} further, " if can_extend else ""
    restart = ""
    if can_restart:
        kept = "what was trained is kept under another name"
        restart = f"{on_change('restart')} trains {them} again ({kept}), "
    advice = f"{extend}{restart}another {option('run_dir')} keeps {them} as {they_are}"
    return _refusal(paths, jobs_are, changed, advice)


def _at_rungs_message(paths: RunPaths, changed: Mapping[str, Sequence[str]]) -> str:
    jobs_are = count(
        len(changed), "job that is compared at rungs is", "jobs that are compared at rungs are"
    )
    advice = (
        f"`run --fresh` trains all jobs again (what is here is kept under another name), and"
        f" another {option('run_dir')} leaves it as it is. Single jobs cannot start over: others"
        " were compared with them"
    )
    return _refusal(paths, jobs_are, changed, advice)


def _obstacles_message(paths: RunPaths, obstacles: Mapping[str, Sequence[str]]) -> str:
    jobs_are = count(len(obstacles), "job cannot be trained", "jobs cannot be trained")
    advice = (
        f"{on_change('extend')} takes a larger total_timesteps and no other change."
        f" Undo the changes of these jobs, or use {on_change('restart')}, which trains changed jobs"
        " again and keeps their old directories under another name."
    )
    return "\n".join([f"{paths.root}: {jobs_are} further:", *by_difference(obstacles), advice])


def _refusal(
    paths: RunPaths, jobs_are: str, changed: Mapping[str, Sequence[str]], advice: str
) -> str:
    first = f"{paths.root}: {jobs_are} declared differently now:"
    return "\n".join([first, *by_difference(changed), advice])
