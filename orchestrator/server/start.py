"""What is decided, said and recorded at the start of a run.

The executor of a run directory is part of its record, in ``provenance.json``: a run that names none
takes the one of the run before. A supervisor that was killed before it wrote that may have submitted
batch jobs: their files say so, and no other executor trains beside them.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.errors import RunDirError
from orchestrator.core.front_end import option
from orchestrator.core.job import TERMINAL
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import joined
from orchestrator.executors.executor import OpenedExecutor
from orchestrator.executors.kinds import ExecutorKind, LeftBatchJobs, executor_kinds, kind_named
from orchestrator.experiment import left_batch_jobs, run_directory
from orchestrator.experiment.start_conditions import StartConditions
from orchestrator.ledger import JobRow
from orchestrator.machine import imported_code, provenance, topology
from orchestrator.machine.gpu import detect_gpus
from orchestrator.machine.topology import Machine
from orchestrator.server.jobs import Report
from orchestrator.server.settings import RunSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenExecutor:
    """The executor of a run."""

    kind: ExecutorKind
    options: Mapping[str, str]
    """All of its options, by name."""
    reason: str = ""
    """Why the jobs run elsewhere if the command does not say so; otherwise empty."""


def choose_executor(
    paths: RunPaths, name: str | None, options: Mapping[str, str], *, fresh: bool
) -> ChosenExecutor:
    """Return the executor that is asked for, otherwise that of the run before, with its options.

    :param name: None: the command names none.
    :param options: those that the command gives, of all executors.
    :raises RunDirError: batch jobs are left that may still train, and another executor is asked
        for, or all jobs are to start over; or the executor of the run before is not installed.
    """
    this = os.getpid()
    holder = run_directory.holder(paths)
    left = left_batch_jobs.of(paths) if holder is None or holder.pid == this else None
    if left is not None:
        _refuse_beside(left, name, paths, fresh=fresh)
    recorded = provenance.executor(paths)
    chosen = name
    if chosen is None and left is not None:
        chosen = left.executor
    elif chosen is None and recorded:
        chosen = recorded["executor"]
        if chosen not in executor_kinds():
            gone = (
                f"the run before had the executor {chosen}, of a feature that is not installed here"
            )
            advice = f"install it; or, once nothing trains there any more, name another {option('executor')}"
            raise RunDirError(f"{paths.root}: {gone}; {advice}")
    elif chosen is None:
        chosen = left_batch_jobs.executor_of(paths)
    kind = kind_named(chosen or "local")
    before = recorded if recorded.get("executor") == kind.name else {}
    found: dict[str, str] = {}
    for one in kind.options:
        value = options.get(one.name, before.get(one.name))
        found[one.name] = value if isinstance(value, str) else one.default
    reason = ""
    if name is None and kind.name != "local":
        named = "".join(
            f" and {option(one.name, found[one.name], sign='=')}"
            for one in kind.options
            if found[one.name] != one.default
        )
        executor = option("executor", kind.name, sign="=")
        reason = f"the jobs run with {executor}{named}, as in the run before"
    return ChosenExecutor(kind=kind, options=found, reason=reason)


def _refuse_beside(left: LeftBatchJobs, name: str | None, paths: RunPaths, *, fresh: bool) -> None:
    """:raises RunDirError: batch jobs are left that would train the same jobs."""
    run_dir = shlex.quote(str(paths.root))
    nobody = f"{paths.root}: no supervisor is running, and {left}"
    if fresh:
        advice = f"`stop --wait {run_dir}` ends them; then {option('fresh', True)} starts over"
        raise RunDirError(f"{nobody} in the run directory, so it cannot be renamed. {advice}")
    if name not in (None, left.executor):
        other = option("executor", name, sign="=")
        same = option("executor", left.executor, sign="=")
        why = f"{other} would train the same jobs a second time"
        taken_over = f"Without {option('executor')}, or with {same}, the run takes them over"
        otherwise = f"`stop --wait {run_dir}` ends them; then {other} resumes the jobs"
        raise RunDirError(f"{nobody}; {why}. {taken_over}. {otherwise}")


def restriction(machine: Machine) -> str:
    """Return what this command and its jobs were restricted to, in a sentence, or an empty text."""
    found = topology.restrictions(
        machine, topology.online_cpus(), os.getpriority(os.PRIO_PROCESS, 0)
    )
    return f"This command and its jobs {joined(found)}." if found else ""


def report_start(
    report: Report,
    settings: RunSettings,
    executor: ChosenExecutor,
    machine: Machine,
    aside: Path | None,
) -> None:
    """Say how the run differs from what its user may expect.

    :param aside: where the earlier run directory is now; None if there was none, or it goes on.
    """
    if aside is not None:
        text = f"starts over; the earlier run directory is now {aside}"
        report("fresh", text, aside=str(aside))
    if executor.reason:
        report("chosen", executor.reason, executor=executor.kind.name)
    if settings.until is not None:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(settings.until))
        text = (
            f"everything ends by {when} ({option('until')}): the jobs are asked to stop"
            f" {settings.grace_s:g} s before that"
        )
        report("until", text, until=settings.until)
    if executor.kind.name == "local" and (restricted := restriction(machine)):
        report("restricted", restricted)
    for warning in settings.warnings:
        report("warning", warning)


def record_provenance(
    paths: RunPaths,
    settings: RunSettings,
    opened: OpenedExecutor,
    machine: Machine,
    repository: provenance.Repository,
    executor: ChosenExecutor,
    rows: Sequence[JobRow],
    report: Report,
) -> None:
    """Record what results come from, and warn of what has changed since the run before."""
    if any(row.job.resources.gpus for row in rows):
        machine = dataclasses.replace(machine, gpus=detect_gpus())
    started_with = StartConditions.of(
        settings.asked_max_parallel, settings.grace_s, settings.until, machine
    )
    changed = provenance.record(
        paths,
        experiment=settings.name,
        command=settings.command,
        thread_variables=settings.thread_variables,
        machine=machine,
        jobs_at_once=opened.jobs_at_once,
        repository=repository,
        started_with=started_with.facts(),
        backend={**executor.options, **opened.facts()},
        user_code=imported_code.digests([row.job for row in rows]),
        declared=settings.declared_by,
        resumed_by=settings.resumed_by,
    )
    has_trained = any(row.attempts for row in rows)
    goes_on = any(row.state.name not in TERMINAL for row in rows)
    if changed and has_trained and goes_on:
        text = (
            f"changed since the run before: {'; '.join(changed)}. What is trained from here on may"
            " have other bits than without these changes."
        )
        report("warning", text, changed=changed)
