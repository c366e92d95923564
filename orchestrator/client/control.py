"""What users ask of a run directory: to stop it, to move jobs, to add those of a job file."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from orchestrator.client.requests import ask, ask_supervisor
from orchestrator.core.errors import ChangedError, Problem, SpecError, UsageError
from orchestrator.core.job import Cause
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count, listed
from orchestrator.experiment.begun_source import begun_source
from orchestrator.experiment.directory import left_batch_jobs, resume_advice, run_directory
from orchestrator.experiment.from_outside import run_snapshot
from orchestrator.experiment.from_outside.run_snapshot import Snapshot
from orchestrator.ledger import SummaryRow
from orchestrator.machine import provenance
from orchestrator.server.requests import Request

if TYPE_CHECKING:
    from orchestrator.jobfile import Experiment

LOOK_EVERY_S = 0.3
EXAMINATION_PATIENCE_S = 86_400.0
"""How long the answer to `reload` is waited for: thousands of robots may be examined before."""

JobVerb: TypeAlias = Literal["cancel", "retry", "pause", "resume"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _JobCommand:
    from_states: Sequence[str]
    past: str
    nothing: str = ""
    """What is said if no job is named, and none is in a state in which the verb has an effect."""


COMMANDS: Mapping[JobVerb, _JobCommand] = {
    "cancel": _JobCommand(from_states=("PENDING", "RUNNING", "PAUSED"), past="cancelled"),
    "retry": _JobCommand(
        from_states=("FAILED", "CANCELLED"),
        past="retried",
        nothing="no job has failed or been cancelled",
    ),
    "pause": _JobCommand(from_states=("PENDING", "RUNNING"), past="paused"),
    "resume": _JobCommand(from_states=("PAUSED",), past="resumed", nothing="no job is paused"),
}


def stop(run_dir: Path, *, now: bool = False) -> str:
    """Request a stop. Return a message that says what was done.

    :param now: kill the workers at once, as a second request does.
    """
    paths = run_directory.existing_run(run_dir)
    run_snapshot.refuse_benchmark(paths)
    holder = run_directory.holder(paths)
    answer = None
    if holder is not None:
        request = Request(verb="stop", args={"now": now}, supervisor=holder.key)
        answer = ask_supervisor(paths, holder, request)
    if answer is None or answer.error:
        left = left_batch_jobs.end(paths)
        return f"{run_dir}: no supervisor is running; {left or 'nothing to stop'}"
    return f"{run_dir}: its supervisor ({holder}) {answer.message}"


def wait_for_end(run_dir: Path) -> str:
    """Return when the supervisor that runs now and its batch jobs, if it has any, have ended, with
    a message.
    """
    paths = RunPaths(run_dir)  # perhaps it is removed by now: nothing was launched
    holder = now = run_directory.holder(paths)
    while now is not None and now == holder:
        time.sleep(LOOK_EVERY_S)
        now = run_directory.holder(paths)
    had_batch_jobs = left_batch_jobs.wait_for_end(paths)
    batch_jobs = ", and so have its batch jobs" if had_batch_jobs else ""
    return f"{run_dir}: its supervisor has ended{batch_jobs}"


def set_max_parallel(run_dir: Path, max_parallel: int) -> str:
    """Change how many jobs run at once, until the run ends. Return a message that says what was
    done.

    :raises UsageError: no supervisor is running.
    """
    paths = run_directory.existing_run(run_dir)
    run_snapshot.refuse_benchmark(paths)
    if run_directory.holder(paths) is None:
        raise UsageError(
            f"{run_dir}: no supervisor is running, whose settings could be changed; `run --max-parallel` and"
            " max_parallel in the job file are for the next run"
        )
    return f"{run_dir}: {ask(run_dir, 'set', args={'max_parallel': max_parallel}).message}"


def move_jobs(run_dir: Path, names: Sequence[str], verb: JobVerb) -> str:
    """Cancel or pause jobs, or queue them, or all, again. Return a message that says what was done.

    :raises UsageError: there is no such job, or one is in a state in which that cannot be done.
    """
    snapshot = run_snapshot.status(run_dir)
    chosen = _choose_jobs(snapshot, names, verb)
    if not chosen:
        return f"{run_dir}: {COMMANDS[verb].nothing}; nothing to {verb}"
    ask(run_dir, verb, chosen)
    these = f"{count(len(chosen), 'job')} ({listed(chosen)})"
    if snapshot.holder is not None:
        return f"{run_dir}: asked its supervisor to {verb} {these}"
    if verb == "cancel":
        return f"{run_dir}: cancelled {these}"
    if verb == "pause":
        return f"{run_dir}: paused {these}; `resume` queues them again"
    return f"{run_dir}: queued {these} again. {resume_advice.how_to_resume(snapshot.paths)}"


def _choose_jobs(snapshot: Snapshot, names: Sequence[str], verb: JobVerb) -> list[str]:
    """Return the ids of the jobs that are named, or of all of which it can be done.

    :raises UsageError: there is no such job, or one of which it cannot be done.
    """
    run_dir = snapshot.paths.root
    rows = {row["job_id"]: row for row in snapshot.rows}

    def is_invalid(row: SummaryRow) -> bool:
        return verb == "retry" and row["cause"] == Cause.INVALID

    def waits_at_rung(row: SummaryRow) -> bool:
        return verb == "resume" and row["cause"] == Cause.RUNG

    def fits(row: SummaryRow) -> bool:
        return row["state"] in COMMANDS[verb].from_states and not (
            is_invalid(row) or waits_at_rung(row)
        )

    if not names:
        fitting = [job_id for job_id, row in rows.items() if fits(row)]
        if fitting or not any(map(is_invalid, rows.values())):
            return fitting
    named = run_snapshot.resolve(snapshot, names, fits=fits) if names else list(rows)
    invalid = [job_id for job_id in named if is_invalid(rows[job_id])]
    if invalid:
        raise UsageError(
            f"{run_dir}: invalid, and never launched: {listed(invalid)}; correct what `status` says and run the"
            " job file; jobs that were made as the run went on are not examined again"
        )
    if wrong := [job_id for job_id in named if not fits(rows[job_id])]:
        described = ", ".join(
            f"{job_id} is {_shown_state(rows[job_id], waits_at_rung(rows[job_id]))}"
            for job_id in wrong
        )
        only = " or ".join(COMMANDS[verb].from_states)
        raise UsageError(
            f"{run_dir}: {described}; only jobs that are {only} can be {COMMANDS[verb].past}"
        )
    return named


def _shown_state(row: SummaryRow, waits_at_rung: bool) -> str:
    if waits_at_rung:
        return "PAUSED at a rung, where it waits to be compared with other jobs"
    return row["state"]


def reload(run_dir: Path, job_file: Path | None) -> str:
    """Add the jobs of a job file that are new to the running experiment. If something makes its
    jobs, let that go on as the job file declares it. Return a message that says what was done.

    :param job_file: None for the one that the run was started with.
    :raises ChangedError: jobs that have begun are declared differently now; nothing was done.
    :raises UsageError: anything else that the user can correct; nothing was done.
    """
    from orchestrator.server.declaration import job_values
    from orchestrator.server.entering import Addition, addition_args

    paths = run_directory.existing_run(run_dir)
    run_snapshot.refuse_benchmark(paths)
    holder = run_directory.holder(paths)
    if holder is None:
        return f"{run_dir}: no supervisor is running; `run` takes the new jobs of a job file without `reload`"
    experiment = _declared_experiment(paths, job_file)
    assert experiment.text is not None
    if not holder.is_elsewhere and paths.ledger.exists():
        with run_directory.opened_ledger(paths, read_only=True) as ledger:
            source = begun_source(paths, ledger)
        if source is not None:
            differences = source.take_over(experiment)
            what = f"{experiment.source} declares the same {source.noun}"
            if differences:
                what = f"the {source.noun} goes on with {'; '.join(differences)} (now, or with the next `run`)"
            return f"{run_dir}: {what}"
    known = {row["job_id"] for row in run_snapshot.status(run_dir).rows}
    declared = [job.job_id for job in experiment.jobs]
    addition = Addition(
        jobs=[job_values(job) for job in experiment.jobs],
        skip_invalid=experiment.skip_invalid,
        order=experiment.order,
        source=experiment.source,
        text=experiment.text.decode("utf-8-sig"),
    )
    request = Request(verb="add", args=addition_args(addition), supervisor=holder.key)
    answer = ask_supervisor(paths, holder, request, EXAMINATION_PATIENCE_S)
    if answer is None:
        raise UsageError(f"{run_dir}: its supervisor has ended; `run` takes the new jobs")
    if problems := answer.facts.get("problems"):
        found = [Problem(where=one["where"], message=one["message"]) for one in problems]
        raise SpecError(experiment.source, found, str(answer.facts.get("advice", "")))
    if answer.error:
        kind = ChangedError if answer.facts.get("changed") else UsageError
        raise kind(answer.error)
    return f"{run_dir}: {_added_text(paths, experiment, known, declared)}"


def _declared_experiment(paths: RunPaths, job_file: Path | None) -> Experiment:
    from orchestrator.jobfile import load

    recorded = provenance.declaration(paths)
    if job_file is None:
        if "job_file" not in recorded:
            raise UsageError(
                f"{paths.root}: does not record the job file that it was started with; name it:"
                f" `reload {paths.root} JOBS.toml`"
            )
        job_file = Path(recorded["job_file"])
    return load(
        job_file,
        overrides=recorded.get("overrides", {}),
        skip_invalid=recorded.get("skip_invalid", False),
    )


def _added_text(
    paths: RunPaths, experiment: Experiment, known: set[str], declared: Sequence[str]
) -> str:
    """Say what `reload` has done."""
    rows = {row["job_id"]: row for row in run_snapshot.status(paths.root).rows}
    new = [job_id for job_id in declared if job_id not in known]
    invalid = [job_id for job_id in new if rows[job_id]["state"] == "FAILED"]
    valid = [job_id for job_id in new if job_id not in invalid]
    text = f"{experiment.source} declares no new jobs"
    if new:
        text = f"added {count(len(valid), 'new job')} ({listed(valid) or 'none'})"
    if invalid:
        text += f"; invalid and not trained: {listed(invalid)} (`status` tells why)"
    if gone := sorted(known - set(declared)):
        text += f"; no longer declared, and left as they are: {listed(gone)}"
    return text
