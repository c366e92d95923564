"""What users ask of a run directory: to stop it, to move jobs, to add those of a job file."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from orchestrator.client import run_snapshot
from orchestrator.client.requests import ask, ask_supervisor, raise_refusal
from orchestrator.core.errors import UsageError
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count, listed
from orchestrator.experiment import left_batch_jobs, resume_advice, run_directory
from orchestrator.experiment.begun_source import begun_source
from orchestrator.machine import provenance
from orchestrator.server.requests import Request

if TYPE_CHECKING:
    from orchestrator.jobfile import Experiment

LOOK_EVERY_S = 0.3
EXAMINATION_PATIENCE_S = 86_400.0
"""How long the answer to `reload` is waited for: thousands of robots may be examined before."""

JobVerb: TypeAlias = Literal["cancel", "retry", "pause", "resume"]


NOTHING: Mapping[JobVerb, str] = {
    "retry": "no job has failed or been cancelled",
    "resume": "no job is paused",
}
"""What is said if no job is named, and the verb has an effect on none."""


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

    :param names: ids of jobs, their beginnings, or patterns.
    :raises UsageError: there is no such job, or one is in a state in which that cannot be done.
    """
    snapshot = run_snapshot.status(run_dir)
    run_snapshot.refuse_examining(snapshot, names)
    chosen = ask(run_dir, verb, args={"names": list(names)}).facts["jobs"]
    if not chosen:
        return f"{run_dir}: {NOTHING[verb]}; nothing to {verb}"
    these = f"{count(len(chosen), 'job')} ({listed(chosen)})"
    if snapshot.holder is not None:
        return f"{run_dir}: asked its supervisor to {verb} {these}"
    if verb == "cancel":
        return f"{run_dir}: cancelled {these}"
    if verb == "pause":
        return f"{run_dir}: paused {these}; `resume` queues them again"
    return f"{run_dir}: queued {these} again. {resume_advice.how_to_resume(snapshot.paths)}"


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
    if paths.ledger.exists():
        with run_directory.reading_ledger(paths) as ledger:
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
    if answer.error:
        raise_refusal(answer, experiment.source)
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
