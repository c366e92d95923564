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
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.errors import (
    ChangedError,
    RunDirError,
    SpecError,
    UsageError,
    disk_full_explained,
)
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.job import Cancelled, Job
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count, listed
from orchestrator.core.worker_spec import NOT_IN_FINGERPRINT
from orchestrator.experiment.begun_source import BegunSource, begun_source
from orchestrator.experiment.directory import run_directory
from orchestrator.experiment.directory.run_directory import LockHolder
from orchestrator.experiment.examination import preflight, side_by_side
from orchestrator.experiment.examination.preflight import JobVerdict
from orchestrator.experiment.from_outside import additions, control
from orchestrator.experiment.planning.run_plan import skip_advice
from orchestrator.experiment.resuming.declared_changes import (
    by_difference,
    changed_keys,
    unexamined_spec,
)
from orchestrator.jobfile import Experiment, load
from orchestrator.ledger import JobRow, Request
from orchestrator.machine import provenance, topology

UNDECLARED = Cancelled(is_undeclared=True)
CPU_SHARE = 4
"""One in so many CPUs examines robots: the jobs that run have the others."""


def reload(
    run_dir: Path, job_file: Path | None, *, watch: side_by_side.Watch = lambda *_: None
) -> str:
    """Add the jobs of the job file that are new to the running experiment. Where something makes
    its jobs, let that go on as the job file declares it.

    Returns a message saying what was done.

    :param job_file: None for the one that the run was started with.
    :raises ChangedError: jobs that exist are declared differently now; nothing was done.
    :raises UsageError: for anything else the user can fix; nothing was done.
    """
    paths = run_directory.existing_run(run_dir)
    holder = control.ready_holder(paths)
    if holder is None:
        return f"{run_dir}: no supervisor is running; `run` takes the new jobs of a job file without `reload`"
    _refuse_unless_it_takes_jobs(paths, holder)
    experiment = _declared_experiment(paths, job_file)
    with _alone(paths, holder), disk_full_explained(paths.root, "call `reload` again"):
        begun = _read_begun(paths)
        if begun.source is not None:
            return _take_over(begun.source, experiment, paths)
        _refuse_changes(paths, experiment, begun.rows)
        difference = _compare(experiment.jobs, begun.rows)
        if not difference.new:
            return f"{run_dir}: {experiment.source} declares no new jobs{_others(difference)}"
        verdicts = _examine(experiment, difference.new, paths, watch)
        _refuse_if_ended(paths, holder, experiment)
        _enter(difference.new, verdicts, experiment, paths, holder)
    added = _added_jobs_text(difference.new, verdicts, experiment, paths, holder)
    return f"{run_dir}: {added}{_others(difference)}"


def _refuse_unless_it_takes_jobs(paths: RunPaths, holder: LockHolder) -> None:
    """:raises RunDirError: the supervisor cannot take jobs from here and now."""
    if holder.is_elsewhere:
        where = f"its supervisor ({holder}) runs on another host than this"
        raise RunDirError(
            f"{paths.root}: {where}, and `reload` enters jobs into its ledger; call it on that host"
        )
    control.refuse_if_finishing(paths, holder)
    if not _takes_jobs(paths, holder):
        raise RunDirError(
            f"{paths.root}: its supervisor ({holder}) still examines the robots; call `reload` again later"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """What runs in the run directory."""

    source: BegunSource | None
    """What makes the jobs, or compares them."""
    rows: Mapping[str, JobRow]
    """The jobs by id; not read where there is a ``source``."""


def _read_begun(paths: RunPaths) -> _Begun:
    with run_directory.reading_ledger(paths) as ledger:
        source = begun_source(paths, ledger)
        rows = {} if source is not None else {row.job_id: row for row in ledger.jobs()}
    return _Begun(source=source, rows=rows)


def _take_over(source: BegunSource, experiment: Experiment, paths: RunPaths) -> str:
    """Let what makes the jobs go on as it is declared now. Returns a message saying what was done."""
    differences = source.take_over(experiment)
    if not differences:
        return f"{paths.root}: {experiment.source} declares the same {source.noun}"
    _write_job_file(experiment, paths)
    what = f"the {source.noun} goes on with {'; '.join(differences)}"
    return f"{paths.root}: {what} (now, or with the next `run`)"


def _write_job_file(experiment: Experiment, paths: RunPaths) -> None:
    assert experiment.text is not None, "it was read from a file"
    write_whole(paths.experiment, experiment.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    """Between the jobs that are declared and those of the run directory."""

    new: Sequence[Job]
    gone: Sequence[str]
    """Ids of those that are declared no longer."""
    back: Sequence[str]
    """Ids of those that are declared again."""


def _compare(jobs: Sequence[Job], rows: Mapping[str, JobRow]) -> _Difference:
    declared = {job.job_id for job in jobs}
    undeclared = [job_id for job_id, row in rows.items() if row.state == UNDECLARED]
    return _Difference(
        new=[job for job in jobs if job.job_id not in rows],
        gone=[job_id for job_id in rows if job_id not in declared],
        back=[job_id for job_id in undeclared if job_id in declared],
    )


def _others(difference: _Difference) -> str:
    """Clauses for the jobs that the supervisor does not take now; empty for none."""
    clauses = ""
    if difference.gone:
        gone = listed(difference.gone)
        clauses += f"; no longer declared, and left as they are: {gone}"
    if difference.back:
        back = listed(difference.back)
        clauses += f"; declared again, and queued by the next `run`: {back}"
    return clauses


def _refuse_if_ended(paths: RunPaths, holder: LockHolder, experiment: Experiment) -> None:
    """:raises RunDirError: the supervisor has ended, or all jobs have, during the examination."""
    if run_directory.holder(paths) != holder:
        raise RunDirError(
            f"{paths.root}: its supervisor has ended; {_again(experiment, paths)} takes the new jobs"
        )
    control.refuse_if_finishing(paths, holder)


def _enter(
    new: Sequence[Job],
    verdicts: Mapping[str, JobVerdict],
    experiment: Experiment,
    paths: RunPaths,
    holder: LockHolder,
) -> None:
    """Put the new jobs into run directory and ledger, and ask the supervisor to take them."""
    additions.put_robots(paths, new, verdicts)
    with run_directory.opened_ledger(paths) as ledger:
        additions.enter(ledger, new, verdicts)
        ledger.add_requests([Request(verb="reload", job_id=holder.key)])  # both, or none
    _write_job_file(experiment, paths)


def _added_jobs_text(
    new: Sequence[Job],
    verdicts: Mapping[str, JobVerdict],
    experiment: Experiment,
    paths: RunPaths,
    holder: LockHolder,
) -> str:
    """For a message: the new jobs, and who trains them."""
    invalid = [job.job_id for job in new if verdicts[job.job_id].problem is not None]
    valid = [job.job_id for job in new if verdicts[job.job_id].problem is None]
    names = listed(valid) or "none"
    what = count(len(valid), "new job")
    if run_directory.holder(paths) == holder:
        added = f"asked its supervisor ({holder}) to train {what} ({names})"
    else:
        ended = f"but its supervisor has ended; {_again(experiment, paths)} trains them"
        added = f"added {what} ({names}), {ended}"
    if invalid:
        added += f"; invalid and not trained: {listed(invalid)} (`status` tells why)"
    return added


def _takes_jobs(paths: RunPaths, holder: LockHolder) -> bool:
    """Whether the supervisor has brought the ledger into agreement with its job file. Before, it
    would forget jobs that this file does not declare.
    """
    with contextlib.suppress(FileNotFoundError):  # none has come so far yet
        return paths.takes_jobs.read_text(encoding="utf-8") == holder.key
    return False


def _again(experiment: Experiment, paths: RunPaths) -> str:
    """The command that runs the job file in this run directory, whose executor it takes."""
    return f"`run {shlex.quote(experiment.source)} --run-dir {shlex.quote(str(paths.root))}`"


def _declared_experiment(paths: RunPaths, job_file: Path | None) -> Experiment:
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
    """:raises ChangedError: jobs that exist are declared differently now."""
    changed = {}
    for job in experiment.jobs:
        if job.job_id not in rows:
            continue
        differences = _differences(rows[job.job_id].job, job)
        if differences:
            changed[job.job_id] = differences
    if changed:
        jobs_are = count(len(changed), "job that exists is", "jobs that exist are")
        advice = "`reload` takes new jobs only: undo these changes, or stop the run and use `run --on-change`"
        where = f"{paths.root}: {experiment.source}: {jobs_are} declared differently now:"
        raise ChangedError("\n".join([where, *by_difference(changed), advice]))


def _differences(before: Job, declared: Job) -> list[str]:
    """What `run` would change in a job that exists."""
    spec = unexamined_spec(before, declared)
    lines = []
    if spec.fingerprint() != before.spec.fingerprint():
        lines += changed_keys(before, dataclasses.replace(declared, spec=spec))
    source = before.xml_source
    if source is not None and source != declared.xml_source and os.path.exists(source):  # noqa: PTH110 - without errors
        lines.append(f"xml: {source} → {declared.xml_source}")  # else the folder has been moved
    for name in NOT_IN_FINGERPRINT:
        if name not in ("search_path", "cores"):
            lines += _difference(name, getattr(before.spec, name), getattr(spec, name))
    for field in dataclasses.fields(before.resources):
        lines += _difference(
            f"resources.{field.name}",
            getattr(before.resources, field.name),
            getattr(declared.resources, field.name),
        )
    lines += _difference("retry.max_retries", before.max_retries, declared.max_retries)
    return lines


def _difference(name: str, old: object, now: object) -> list[str]:
    """A line for a value that differs; none for one that does not."""
    return [f"{name}: {old} → {now}"] if old != now else []


def _examine(
    experiment: Experiment, new: Sequence[Job], paths: RunPaths, watch: side_by_side.Watch
) -> Mapping[str, JobVerdict]:
    shutil.rmtree(paths.reloading, ignore_errors=True)
    paths.reloading.mkdir()
    verdicts = preflight.examine(
        new,
        staging=paths.reloading,
        processes=max(1, topology.detect().capacity // CPU_SHARE),
        watch=watch,
        sources=experiment.jobs,
    )
    found = [verdict.problem for verdict in verdicts.values() if verdict.problem is not None]
    problems = list(dict.fromkeys(found))
    if problems and not experiment.skip_invalid:
        raise SpecError(experiment.source, problems, skip_advice())
    return verdicts
