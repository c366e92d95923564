"""Sends requests to the supervisor of a run directory, or does without one what they ask for."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from orchestrator.core.errors import LedgerBusyError, OrchestratorError, RunDirError, UsageError
from orchestrator.core.job import Cancelled, Cause, Paused, Running
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count, listed
from orchestrator.experiment.directory import left_batch_jobs, resume_advice, run_directory
from orchestrator.experiment.directory.run_directory import LockHolder
from orchestrator.experiment.from_outside import run_snapshot
from orchestrator.experiment.from_outside.run_snapshot import Snapshot
from orchestrator.experiment.resuming import recovery
from orchestrator.ledger import Ledger, Request, SummaryRow, summary
from orchestrator.ledger.requests import RequestFiles
from orchestrator.supervisor.events import SilentReporter

FOLLOW_EVERY_S = 0.3
LOOK_EVERY_S = 0.05
UNKNOWN_S = 5.0
"""How long a supervisor that has just started may take to write its name into the lock."""

JobVerb: TypeAlias = Literal["cancel", "retry", "pause", "resume"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCommand:
    """A command that moves single jobs to another state."""

    from_states: Sequence[str]
    to_state: str
    past: str
    nothing: str = ""
    """For those that need no job named: what is said when none is in one of ``from_states``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedJobs:
    """What a command has done while no supervisor runs."""

    job_ids: Sequence[str]
    problem: str
    """Why ``summary.json`` and ``summary.csv`` are as they were before; empty where they are not."""


COMMANDS: Mapping[JobVerb, JobCommand] = {
    "cancel": JobCommand(
        from_states=("PENDING", "RUNNING", "PAUSED"), to_state="CANCELLED", past="cancelled"
    ),
    "retry": JobCommand(
        from_states=("FAILED", "CANCELLED"),
        to_state="PENDING",
        past="retried",
        nothing="no job has failed or been cancelled",
    ),
    "pause": JobCommand(from_states=("PENDING", "RUNNING"), to_state="PAUSED", past="paused"),
    "resume": JobCommand(
        from_states=("PAUSED",), to_state="PENDING", past="resumed", nothing="no job is paused"
    ),
}


def stop(run_dir: Path, jobs: Sequence[str], *, now: bool = False) -> str:
    """Request a stop, or cancel ``jobs``. Returns a message saying what was done.

    :param now: kill the workers at once, as a second request does.
    """
    if jobs:
        return ask(run_dir, jobs, "cancel")
    paths = run_directory.existing_run(run_dir)
    if (holder := ready_holder(paths)) is None:
        return f"{run_dir}: no supervisor is running; {left_batch_jobs.end(paths) or 'nothing to stop'}"
    return _ask_to_stop(paths, holder, now=now)


def _ask_to_stop(paths: RunPaths, holder: LockHolder, *, now: bool) -> str:
    run_dir = paths.root
    request = Request(verb="stop", job_id=holder.key)
    if holder.is_elsewhere or not paths.ledger.exists():
        files = RequestFiles(paths.requests)
        if not now and request in files.take():
            return f"{run_dir}: its supervisor ({holder}) was asked to stop before, and has not read that yet"
        try:
            files.add([request] * (2 if now else 1))
        except FileNotFoundError:  # it has ended just now, and has removed what it had made
            return f"{run_dir}: no supervisor is running; nothing to stop"
        if not holder.is_elsewhere:
            return f"{run_dir}: asked its supervisor ({holder}), which examines the robots, to stop"
        how = (
            "kill its workers now"
            if now
            else "stop or, if it is stopping already, to kill its workers"
        )
        return f"{run_dir}: asked its supervisor ({holder}) on another host to {how}"
    file = paths.ledger.stat()
    with run_directory.opened_ledger(paths, read_only=True) as ledger:
        is_stopping = (
            ledger.is_stopping(holder.key) or request in RequestFiles(paths.requests).take()
        )
    _leave(paths, [request] * (2 if now else 1))
    if not (paths.ledger.exists() and os.path.samestat(file, paths.ledger.stat())):
        # `--fresh` or `--rebuild-ledger` has replaced it just now.
        return stop(run_dir, [], now=now)
    if not (now or is_stopping):
        return f"{run_dir}: asked its supervisor ({holder}) to stop; workers save a checkpoint and exit"
    already = "was stopping already and " if is_stopping else ""
    kill = "was asked to kill its workers now; their jobs resume from their last checkpoints"
    return f"{run_dir}: its supervisor ({holder}) {already}{kill}"


def ready_holder(paths: RunPaths) -> LockHolder | None:
    """The supervisor that holds the run directory, once it is known and reads requests; None when
    none does.

    :raises UsageError: it is a benchmark, which reads none.
    """
    run_snapshot.refuse_benchmark(paths)
    patience = time.monotonic() + UNKNOWN_S
    while (holder := run_directory.holder(paths)) is not None:
        is_examining = paths.staging.exists()
        listens = holder.is_elsewhere or paths.ledger.exists() or is_examining
        if listens and (holder.is_current or time.monotonic() > patience):
            return holder
        time.sleep(LOOK_EVERY_S)  # it has just taken the lock
    return None


def refuse_if_finishing(paths: RunPaths, holder: LockHolder) -> None:
    """:raises RunDirError: all jobs have ended, and ``holder`` reads no requests but to stop."""
    if paths.finishing.exists():
        what = f"all jobs have ended, and its supervisor ({holder}) only finishes what is beside it now"
        advice = f"call this command again when it has ended, or end it with `stop {paths.root}`"
        raise RunDirError(f"{paths.root}: {what}; {advice}")


def wait_for_end(run_dir: Path) -> str:
    """Return when the supervisor that runs now and its batch jobs, if it has any, have ended, with
    a message.
    """
    paths = RunPaths(run_dir)  # perhaps it is removed by now: nothing was launched
    holder = now = run_directory.holder(paths)
    while now is not None and now == holder:
        time.sleep(FOLLOW_EVERY_S)
        now = run_directory.holder(paths)
    had_batch_jobs = left_batch_jobs.wait_for_end(paths)
    batch_jobs = ", and so have its batch jobs" if had_batch_jobs else ""
    return f"{run_dir}: its supervisor has ended{batch_jobs}"


def set_max_parallel(run_dir: Path, max_parallel: int) -> str:
    """Change how many jobs run at once, until the run ends. Returns a message saying what was done.

    :raises UsageError: no supervisor is running.
    """
    paths = run_directory.existing_run(run_dir)
    if (holder := ready_holder(paths)) is None:
        advice = "`run --max-parallel` and max_parallel in the job file are for the next run"
        raise UsageError(
            f"{run_dir}: no supervisor is running, whose settings could be changed; {advice}"
        )
    if not (holder.is_elsewhere or paths.ledger.exists()):
        raise UsageError(
            f"{run_dir}: its supervisor ({holder}) still examines the robots; call `set` again later"
        )
    _request(paths, holder, [Request(verb="set", job_id=f"max_parallel={max_parallel}")])
    limits = "as far as its slots allow, and until it ends"
    return f"{run_dir}: asked its supervisor ({holder}) to run up to {count(max_parallel, 'job')} at once, {limits}"


def ask(run_dir: Path, jobs: Sequence[str], verb: JobVerb) -> str:
    """Cancel or pause ``jobs``, or queue them, or all, again: those that have failed, or are
    cancelled or paused.

    Returns a message saying what was done.

    :raises UsageError: there is no such job, or one is in a state in which that cannot be done.
    """
    snapshot = run_snapshot.status(run_dir)
    command = COMMANDS[verb]
    chosen = _choose_jobs(snapshot, jobs, verb)
    if not chosen:
        return f"{run_dir}: {command.nothing}; nothing to {verb}"
    if snapshot.holder is not None:
        requests = [Request(verb=verb, job_id=job_id) for job_id in chosen]
        _request(snapshot.paths, snapshot.holder, requests)
        return f"{run_dir}: asked its supervisor to {verb} {_these(chosen)}"
    how = resume_advice.how_to_resume(snapshot.paths)
    moved = _move_locked(run_dir, chosen, verb)
    if ended := [job_id for job_id in chosen if job_id not in moved.job_ids]:
        raise UsageError(
            f"{run_dir}: had ended already, and cannot be {command.past}: {_these(ended)}"
        )
    problem = f"\n{moved.problem}" if moved.problem else ""
    if verb == "cancel":
        return f"{run_dir}: cancelled {_these(chosen)}{problem}"
    if verb == "pause":
        return f"{run_dir}: paused {_these(chosen)}; `resume` queues them again{problem}"
    return f"{run_dir}: queued {_these(chosen)} again. {how}{problem}"


def _choose_jobs(snapshot: Snapshot, jobs: Sequence[str], verb: JobVerb) -> list[str]:
    """The jobs that a command is about, by their ids: those that are named, or all of which it can
    be done.

    :raises UsageError: there is no such job, or one of which it cannot be done.
    """
    run_dir = snapshot.paths.root
    command = COMMANDS[verb]
    rows = {row["job_id"]: row for row in snapshot.rows}

    def state(row: SummaryRow) -> str:
        return _state_for_verb(row, verb, is_supervised=snapshot.holder is not None)

    def is_invalid(row: SummaryRow) -> bool:
        return verb == "retry" and row["cause"] == Cause.INVALID

    def fits(row: SummaryRow) -> bool:
        return state(row) in command.from_states and not is_invalid(row)

    named = run_snapshot.resolve(snapshot, jobs, fits=fits) if jobs else list(rows)
    chosen = [job_id for job_id in named if fits(rows[job_id])]
    invalid = [job_id for job_id in named if is_invalid(rows[job_id])]
    if invalid and (jobs or not chosen):
        again = "jobs that were made as the run went on are not examined again"
        advice = f"correct what `status` says and run the job file; {again}"
        raise UsageError(f"{run_dir}: invalid, and never launched: {listed(invalid)}; {advice}")
    if jobs and len(chosen) < len(named):
        others = [job_id for job_id in named if job_id not in chosen]
        wrong = ", ".join(f"{job_id} is {state(rows[job_id])}" for job_id in others)
        only = " or ".join(command.from_states)
        raise UsageError(f"{run_dir}: {wrong}; only jobs that are {only} can be {command.past}")
    return chosen


def _left_running(paths: RunPaths, chosen: Sequence[str]) -> list[str]:
    """Those of ``chosen`` that a supervisor has left RUNNING."""
    with run_directory.opened_ledger(paths, read_only=True) as ledger:
        rows = ledger.jobs(decoded=False)
    return [row.job_id for row in rows if row.job_id in chosen and isinstance(row.state, Running)]


def _state_for_verb(row: SummaryRow, verb: JobVerb, *, is_supervised: bool) -> str:
    """The state of a job. The user resumes none that is compared with others at a rung; a supervisor
    does not have those that the job file no longer declares.
    """
    if verb == "resume" and row["cause"] == Cause.RUNG:
        return "PAUSED at a rung, where it waits to be compared with other jobs"
    if verb == "retry" and row["cause"] == Cause.UNDECLARED and is_supervised:
        return "CANCELLED, as the job file did not declare it when the present run began"
    return row["state"]


def _these(jobs: Sequence[str]) -> str:
    return f"{count(len(jobs), 'job')} ({listed(jobs)})"


def _move_locked(run_dir: Path, chosen: Sequence[str], verb: JobVerb) -> MovedJobs:
    """As :func:`move_jobs`, with the run directory locked."""
    with run_directory.claim(run_dir) as paths:
        _refuse_what_trains(paths, chosen, verb)
        return move_jobs(paths, chosen, verb)


def _refuse_what_trains(paths: RunPaths, chosen: Sequence[str], verb: JobVerb) -> None:
    """:raises RunDirError: batch jobs may still train one of ``chosen`` that is not to be
    trained.
    """
    if verb in ("cancel", "pause") and (running := _left_running(paths, chosen)):
        deed = f"{_these(running)} cannot be {COMMANDS[verb].past}: nobody would end what trains"
        left_batch_jobs.refuse_beside(paths, deed)


def move_jobs(paths: RunPaths, chosen: Sequence[str] | None, verb: JobVerb) -> MovedJobs:
    """Move jobs in the ledger while no supervisor runs: all that are in a state from which they may
    move, or after an error none.

    :param chosen: None for all.
    """
    problem = ""
    with run_directory.opened_ledger(paths) as ledger:
        moved = _move_in(ledger, paths, chosen, verb)
        ledger.commit()
        try:
            summary.write(paths, ledger)
        except (OrchestratorError, OSError) as error:  # they have moved all the same
            problem = f"summary.json and summary.csv are as before, until the next run: {error}"
        finally:
            ledger.close()
    return MovedJobs(job_ids=moved, problem=problem)


def _move_in(
    ledger: Ledger, paths: RunPaths, chosen: Sequence[str] | None, verb: JobVerb
) -> list[str]:
    """As :func:`move_jobs`, without a commit. What was asked of the last supervisor, and was not read
    by it, comes before: otherwise the next run would do it on top of this.
    """
    command = COMMANDS[verb]
    before = {row.job_id: row.state.name for row in ledger.jobs(decoded=False)}
    recovery.apply_late_requests(ledger, holder="")
    moved = []
    for row in ledger.jobs():
        job_id = row.job_id
        if chosen is not None and job_id not in chosen:
            continue
        if row.state.name not in command.from_states:
            # The same was asked for before, and has only been done now.
            if before[job_id] in command.from_states and row.state.name == command.to_state:
                moved.append(job_id)
            continue
        if isinstance(row.state, Running):  # as its supervisor has left it when it died
            ledger.note(verb, job_id)
            settled = recovery.settle(row, paths, ledger, SilentReporter())
            if isinstance(settled.state, Paused | Cancelled):
                moved.append(job_id)
            continue
        if recovery.move_as_requested(row, verb, ledger) is not None:
            moved.append(job_id)
    return moved


def _request(paths: RunPaths, holder: LockHolder, requests: Sequence[Request]) -> None:
    refuse_if_finishing(paths, holder)
    if holder.is_elsewhere:
        RequestFiles(paths.requests).add(requests)
    else:
        _leave(paths, requests)


def _leave(paths: RunPaths, requests: Sequence[Request]) -> None:
    """Leave requests for the supervisor, which runs on this host: in the ledger or, while that is
    locked, as a file. A supervisor that enters its jobs, and copies their robots, has it locked.
    What is in the ledger is acted on before what is in files.
    """
    files = RequestFiles(paths.requests)
    if not files.take():
        with contextlib.suppress(LedgerBusyError):
            with run_directory.opened_ledger(paths) as ledger:
                ledger.add_requests(requests)
            return
    files.add(requests)
