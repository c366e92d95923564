"""``reload``: takes the jobs that were added to a job file into the experiment that runs.

The command examines the new robots, puts them into the directories of their jobs, and enters the
jobs into the ledger together with a request, in one transaction; the supervisor then takes them
from the ledger. Whatever is done before that, the next ``run`` does again. Where something makes
the jobs as the run goes on, it goes on as the job file declares it now.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from orchestrator.core.atomic_files import write_whole
from orchestrator.core.errors import (
    ChangedError,
    RunDirError,
    SpecError,
    UsageError,
    disk_full_explained,
)
from orchestrator.core.job import Cancelled, Job
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count, listed
from orchestrator.core.worker_spec import NOT_IN_FINGERPRINT
from orchestrator.experiment import additions, control, preflight, run_directory
from orchestrator.experiment.begun_source import begun_source
from orchestrator.experiment.preflight import JobVerdict
from orchestrator.experiment.reconcile import by_difference, changed_keys
from orchestrator.experiment.run_directory import LockHolder
from orchestrator.experiment.run_plan import SKIP_ADVICE
from orchestrator.jobfile import Experiment, load
from orchestrator.ledger import JobRow, Request
from orchestrator.machine import provenance, topology

SHOWN = 10
UNDECLARED = Cancelled(is_undeclared=True)
CPU_SHARE = 4
"""One in so many CPUs examines robots: the jobs that run have the others."""


def reload(
    run_dir: Path, job_file: Path | None, *, watch: preflight.Watch = lambda *_: None
) -> str:
    """Add the jobs of the job file that are new to the running experiment. Where something makes
    its jobs, let that go on as the job file declares it.

    Returns a message saying what was done.

    :param job_file: None for the one that the run was started with.
    :raises ChangedError: jobs that exist are declared differently now; nothing was done.
    :raises UsageError: for anything else the user can fix; nothing was done.
    """
    paths = run_directory.existing(run_dir)
    holder = control.ready_holder(paths)
    if holder is None:
        return f"{run_dir}: no supervisor is running; `run` takes the new jobs of a job file without `reload`"
    if holder.is_elsewhere:
        where = f"its supervisor ({holder}) runs on another host than this"
        raise RunDirError(
            f"{run_dir}: {where}, and `reload` enters jobs into its ledger; call it on that host"
        )
    control.refuse_if_finishing(paths, holder)
    if not _takes_jobs(paths, holder):
        raise RunDirError(
            f"{run_dir}: its supervisor ({holder}) still examines the robots; call `reload` again later"
        )
    experiment = _declared(paths, job_file)
    with _alone(paths, holder), disk_full_explained(paths.root, "call `reload` again"):
        assert experiment.text is not None, "it was read from a file"
        with run_directory.reading_ledger(paths) as ledger:
            source = begun_source(paths, ledger)
            rows = {} if source is not None else {row.job_id: row for row in ledger.jobs()}
        if source is not None:
            if not (differences := source.take_over(experiment)):
                return f"{run_dir}: {experiment.source} declares the same {source.noun}"
            write_whole(paths.experiment, experiment.text)
            return f"{run_dir}: the {source.noun} goes on with {'; '.join(differences)} (now, or with the next `run`)"
        _refuse_changes(paths, experiment, rows)
        new = [job for job in experiment.jobs if job.job_id not in rows]
        declared = {job.job_id for job in experiment.jobs}
        gone = [job_id for job_id in rows if job_id not in declared]
        left = f"; no longer declared, and left as they are: {listed(gone, SHOWN)}" if gone else ""
        back = [
            job_id for job_id, row in rows.items() if job_id in declared and row.state == UNDECLARED
        ]
        left += (
            f"; declared again, and queued by the next `run`: {listed(back, SHOWN)}" if back else ""
        )
        if not new:
            return f"{run_dir}: {experiment.source} declares no new jobs{left}"
        verdicts = _examine(experiment, new, paths, watch)
        if run_directory.holder(paths) != holder:
            raise RunDirError(
                f"{run_dir}: its supervisor has ended; {_again(experiment, paths)} takes the new jobs"
            )
        control.refuse_if_finishing(paths, holder)  # all jobs have ended meanwhile
        additions.put_robots(paths, new, verdicts)
        with run_directory.opened_ledger(paths) as ledger:
            additions.enter(ledger, new, verdicts)
            ledger.add_requests([Request(verb="reload", job_id=holder.key)])  # both, or none
        write_whole(paths.experiment, experiment.text)
    invalid = [job.job_id for job in new if verdicts[job.job_id].problem is not None]
    failed = (
        f"; invalid and not trained: {listed(invalid, SHOWN)} (`status` tells why)"
        if invalid
        else ""
    )
    names = listed([job.job_id for job in new if job.job_id not in invalid], SHOWN) or "none"
    what = count(len(new) - len(invalid), "new job")
    asked = f"asked its supervisor ({holder}) to train {what} ({names})"
    if run_directory.holder(paths) != holder:
        asked = f"added {what} ({names}), but its supervisor has ended; {_again(experiment, paths)} trains them"
    return f"{run_dir}: {asked}{failed}{left}"


def _takes_jobs(paths: RunPaths, holder: LockHolder) -> bool:
    """Whether the supervisor has brought the ledger into agreement with its job file. Before, it
    would forget jobs that this file does not declare.
    """
    with contextlib.suppress(FileNotFoundError):
        return paths.takes_jobs.read_text(encoding="utf-8") == holder.key
    return False


def _again(experiment: Experiment, paths: RunPaths) -> str:
    """The command that runs the job file in this run directory, whose executor it takes."""
    return f"`run {shlex.quote(experiment.source)} --run-dir {shlex.quote(str(paths.root))}`"


def _declared(paths: RunPaths, job_file: Path | None) -> Experiment:
    recorded = provenance.declaration(paths)
    if job_file is None:
        if "job_file" not in recorded:
            advice = f"name it: `reload {paths.root} JOBS.toml`"
            raise UsageError(
                f"{paths.root}: does not record the job file that it was started with; {advice}"
            )
        job_file = Path(recorded["job_file"])
    return load(
        job_file,
        overrides=recorded.get("overrides", {}),
        skip_invalid=recorded.get("skip_invalid", False),
    )


@contextlib.contextmanager
def _alone(paths: RunPaths, holder: LockHolder) -> Iterator[None]:
    """No other `reload` changes the run directory within the block. The lock is in a folder of the
    supervisor's.
    """
    try:
        lock = paths.reload_lock.open("wb")
    except FileNotFoundError as error:
        raise RunDirError(
            f"{paths.root}: its supervisor ({holder}) is ending; `run` takes new jobs"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunDirError(
                f"{paths.root}: another `reload` is under way; call it again when that is done"
            ) from None
        try:
            yield
        finally:
            shutil.rmtree(paths.reloading, ignore_errors=True)


def _refuse_changes(paths: RunPaths, experiment: Experiment, rows: Mapping[str, JobRow]) -> None:
    changed = {}
    for job in experiment.jobs:
        if job.job_id in rows and (differences := _differences(rows[job.job_id].job, job)):
            changed[job.job_id] = differences
    if changed:
        jobs_are = count(len(changed), "job that exists is", "jobs that exist are")
        advice = "`reload` takes new jobs only: undo these changes, or stop the run and use `run --on-change`"
        where = f"{paths.root}: {experiment.source}: {jobs_are} declared differently now:"
        raise ChangedError("\n".join([where, *by_difference(changed), advice]))


def _differences(before: Job, declared: Job) -> list[str]:
    """What `run` would change in a job that exists."""
    spec = dataclasses.replace(
        declared.spec, xml=before.spec.xml, extended_from=before.spec.extended_from
    )
    spec = dataclasses.replace(
        spec, init_sha256=before.spec.init_sha256, pause_at=before.spec.pause_at
    )
    paths = (
        None not in (before.spec.init, spec.init) and before.spec.init_job is spec.init_job is None
    )
    if paths and not os.path.exists(str(before.spec.init)):  # noqa: PTH110
        spec = dataclasses.replace(spec, init=before.spec.init)  # the folder has been moved
    if spec.task == "auto":
        spec = dataclasses.replace(spec, task=before.spec.task)
    lines = []
    if spec.fingerprint() != before.spec.fingerprint():
        lines += changed_keys(before, dataclasses.replace(declared, spec=spec))
    source = before.xml_source
    if source is not None and source != declared.xml_source and os.path.exists(source):  # noqa: PTH110 - without errors
        lines.append(f"xml: {source} → {declared.xml_source}")  # else the folder has been moved
    names = [name for name in NOT_IN_FINGERPRINT if name not in ("search_path", "cores")]
    pairs = [(name, getattr(before.spec, name), getattr(spec, name)) for name in names]
    for field in dataclasses.fields(before.resources):
        of = getattr(before.resources, field.name), getattr(declared.resources, field.name)
        pairs.append((f"resources.{field.name}", *of))
    pairs.append(("retry.max_retries", before.max_retries, declared.max_retries))
    return lines + [f"{name}: {old} → {now}" for name, old, now in pairs if old != now]


def _examine(
    experiment: Experiment, new: Sequence[Job], paths: RunPaths, watch: preflight.Watch
) -> Mapping[str, JobVerdict]:
    shutil.rmtree(paths.reloading, ignore_errors=True)
    paths.reloading.mkdir()
    at_once = max(1, topology.detect().capacity // CPU_SHARE)
    every = experiment.jobs
    verdicts = preflight.examine(
        new, staging=paths.reloading, at_once=at_once, watch=watch, sources=every
    )
    problems = list(
        dict.fromkeys(
            verdict.problem for verdict in verdicts.values() if verdict.problem is not None
        )
    )
    if problems and not experiment.skip_invalid:
        raise SpecError(experiment.source, problems, SKIP_ADVICE)
    return verdicts
