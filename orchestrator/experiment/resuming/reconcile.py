"""Brings ledger and job directories in line with the job file: new, unchanged, changed and
undeclared jobs.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.core.files.atomic_files import clone_tree, sync_directory, sync_trees, write_whole
from orchestrator.core.files.regular_files import read_regular
from orchestrator.core.job import (
    Cancelled,
    Cause,
    Failed,
    Job,
    Paused,
    Pending,
    State,
    Succeeded,
    lacked_room,
    move,
)
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count, listed
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.experiment.directory import run_directory
from orchestrator.experiment.examination.preflight import JobVerdict
from orchestrator.experiment.resuming import extension, recovery
from orchestrator.experiment.resuming.declared_changes import (
    OnChange,
    changed_jobs,
    refuse_at_rungs,
    refuse_or_report,
    restarted_jobs,
)
from orchestrator.ledger import JobRow, Ledger, Verb
from orchestrator.ledger.rows import DeclaredJob
from orchestrator.supervisor import job_directory
from orchestrator.supervisor.events import Reporter


def reconcile(
    jobs: Sequence[Job],
    verdicts: Mapping[str, JobVerdict],
    position: Mapping[str, int],
    on_change: OnChange,
    paths: RunPaths,
    ledger: Ledger,
    reporter: Reporter,
    *,
    recorded: Mapping[str, JobRow] | None = None,
) -> list[JobRow]:
    """Bring ledger and job directories in line with ``jobs``, and settle what an earlier supervisor
    left.

    :param jobs: in order of launch; the rows are returned in the same order.
    :param position: place of each in the job file.
    :param recorded: what the ledger has, if all of it is to stay, in its places: jobs that are not
        among ``jobs`` are over, and their rows come last. None: such jobs are dropped or cancelled.
    :raises ChangedError: when jobs that have run are declared differently now, in a way that
        ``on_change`` refuses.
    """
    kept = recorded or {}
    position = {**position, **{job_id: row.position for job_id, row in kept.items()}}
    if recorded is None:
        recorded = {row.job_id: row for row in ledger.jobs(decoded=False)}
    rows = requeued_rows(recorded, jobs, verdicts, paths)
    changed = changed_jobs(rows, jobs, verdicts)
    refuse_at_rungs(ledger, recorded, rows, jobs, verdicts, on_change, paths)
    restarted: Set[str] = frozenset()
    if changed:
        restarted = restarted_jobs(rows, jobs, verdicts)
        refuse_or_report(changed, restarted, on_change, rows, jobs, verdicts, paths, reporter)
    _requeue(recorded, rows, jobs, paths, ledger, reporter)
    declaration = _Declaration(
        paths=paths,
        ledger=ledger,
        reporter=reporter,
        position=position,
        on_change=on_change,
        changed=changed.keys(),
        restarted=restarted if on_change == "restart" else frozenset(),
        noted=ledger.noted_verbs(),
    )
    for job in jobs:
        declaration.take(job, verdicts[job.job_id], rows.get(job.job_id), recorded.get(job.job_id))
    declaration.sync()
    _drop_undeclared(rows, position, paths, ledger, reporter)
    entered = _rows_of(jobs, ledger)
    declared = {job.job_id for job in jobs}
    settled = [
        *(recovery.settle(row, paths, ledger, reporter) for row in entered),
        *(row for job_id, row in kept.items() if job_id not in declared),
    ]
    ledger.commit()
    _report_earlier(settled, paths, reporter)
    return settled


def _rows_of(jobs: Sequence[Job], ledger: Ledger) -> Sequence[JobRow]:
    """Of those that the ledger has, in the same order."""
    rows = [ledger.job_row(job.job_id, decoded=False) for job in jobs]
    return [row for row in rows if row is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Declaration:
    """Enters the declared jobs into ledger and job directories."""

    paths: RunPaths
    ledger: Ledger
    reporter: Reporter
    position: Mapping[str, int]
    """Place of each job in the job file."""
    on_change: OnChange
    changed: Set[str]
    """Ids of the jobs that have begun and are declared otherwise now."""
    restarted: Set[str]
    """Those of them that start over."""
    noted: Mapping[str, Verb]
    """What the ledger has noted for jobs (:meth:`.Ledger.noted_verbs`)."""
    copied: list[Path] = field(default_factory=list, init=False)
    """Directories of the jobs that have been entered with their robots."""

    def take(
        self, job: Job, verdict: JobVerdict, row: JobRow | None, recorded: JobRow | None
    ) -> None:
        """Do with a job what its row and its declaration say.

        :param row: as of :func:`requeued_rows`.
        :param recorded: what the ledger has had.
        """
        if row is None or row.attempts == 0:
            self.enter(job, verdict, row or recorded)
        elif job.job_id in self.restarted:
            self.enter(job, verdict, self.start_over(row))
        else:
            self.take_begun(job, verdict, row)

    def take_begun(self, job: Job, verdict: JobVerdict, row: JobRow) -> None:
        """The same of a job that has begun, and does not start over."""
        if job.job_id not in self.changed:
            if not verdict.is_invalid:
                self.go_on(row, job, verdict)
        elif self.on_change == "extend":
            place = self.position[job.job_id]
            extension.extend(row, job, place, self.paths, self.ledger, self.reporter)
        if verdict.problem is not None and verdict.lacks_room:
            self.fail_too_large(job, verdict.problem.message)

    def sync(self) -> None:
        """Bring the copies to the disk."""
        if self.copied:
            sync_trees(self.copied)
            sync_directory(self.paths.jobs)

    def go_on(self, row: JobRow, job: Job, verdict: JobVerdict) -> None:
        """Let a job that has begun, and is declared as before, go on."""
        now = extension.continued_job(row.job.spec, job)
        place = self.position[job.job_id]
        if (now, place) != (row.job, row.position):
            self.ledger.update_declaration(place, now)
        job_paths = self.paths.job(job.job_id)
        if verdict.init is not None and job_paths.root.exists():
            _put_back(job_paths.init, verdict.init.read_bytes())

    def fail_too_large(self, job: Job, message: str) -> None:
        """Let a job that has begun wait for a run where there is room, unless it is over, or held
        back, or is kept as it was and has asked for something else.
        """
        row = self.ledger.job_row(job.job_id, decoded=False)
        if row is None or row.job.resources != job.resources:
            return
        state = recovery.settle(row, self.paths, self.ledger, self.reporter).state
        failed = Failed(cause=Cause.TOO_LARGE, message=message)
        if isinstance(state, Pending):
            self.ledger.set_state(job.job_id, move(job.job_id, state, failed))
        elif lacked_room(state):
            self.ledger.set_state(job.job_id, failed)  # the message is about these machines

    def start_over(self, row: JobRow) -> JobRow:
        """Set the directory of a job aside that has begun and is declared otherwise now. Returns
        its row, settled.
        """
        # Its worker may still write there.
        settled = recovery.settle(row, self.paths, self.ledger, self.reporter)
        job_id = row.job_id
        aside = run_directory.set_aside(self.paths.job(job_id).root, self.paths.replaced)
        text = f"{job_id} changed and starts over; its old directory is now {aside}"
        self.reporter.event("restarted", text, job_id=job_id)
        self.ledger.delete_job(job_id)
        return settled

    def enter(self, job: Job, verdict: JobVerdict, earlier: JobRow | None) -> None:
        """Enter a job that has not begun. :param earlier: its row of before, whose hold stays, also
        while the job is invalid, or too large for the machines.
        """
        job_id = job.job_id
        held = None if earlier is None else held_state(earlier, self.noted)
        _set_another_aside_and_report(self.paths, job, verdict, self.reporter)
        self.ledger.put_jobs(
            [DeclaredJob(position=self.position[job_id], job=job, robot_hash=verdict.robot_hash)]
        )
        if not verdict.is_invalid:
            copy_robot(self.paths, job_id, verdict)
            self.copied.append(self.paths.job(job_id).root)
        if verdict.problem is not None:
            cause = Cause.TOO_LARGE if verdict.lacks_room else Cause.INVALID
            message = verdict.problem.message + _keep_robot(self.paths, job_id, verdict)
            failed = Failed(cause=cause, message=message)
            self.ledger.set_state(job_id, move(job_id, Pending(), failed))
            if held is not None:
                self.ledger.note("pause" if isinstance(held, Paused) else "cancel", job_id)
            return
        if job_id in self.noted:
            self.ledger.withdraw_notes(job_id)
        if held is not None:
            self.ledger.set_state(job_id, held)


def requeued_rows(
    rows: Mapping[str, JobRow],
    jobs: Sequence[Job],
    verdicts: Mapping[str, JobVerdict],
    paths: RunPaths,
) -> dict[str, JobRow]:
    """``rows`` as a run begins with them: PENDING where files of a finished job are gone, where a job
    is declared again, or where there is room now for one that has begun; without jobs whose
    directories are gone, which start from the beginning, or stay paused.
    """
    now = dict(rows)
    for job in jobs:
        job_id = job.job_id
        if job_id not in rows:
            continue
        row = rows[job_id]
        is_back = isinstance(row.state, Cancelled) and row.state.is_undeclared
        has_begun = row.attempts > 0
        was_too_large = has_begun and lacked_room(row.state)
        has_room = was_too_large and not verdicts[job_id].lacks_room
        lacks_results = isinstance(row.state, Succeeded) and not _has_results(row, paths)
        if is_back or has_room or lacks_results:
            if paths.job(job_id).root.exists():
                now[job_id] = dataclasses.replace(row, state=Pending())
            elif _can_start(job, verdicts[job_id]):
                del now[job_id]
            elif is_back or has_room:
                now[job_id] = dataclasses.replace(row, state=Pending())
            continue
        goes_on = has_begun and isinstance(row.state, Pending | Paused)
        if goes_on and _can_start(job, verdicts[job_id]) and not paths.job(job_id).root.exists():
            del now[job_id]
    return now


def held_state(row: JobRow, noted: Mapping[str, Verb]) -> State | None:
    """The state in which the user holds a job back that is entered anew; None: it is not held.

    :param noted: what the ledger has noted for jobs: a job that is FAILED as it was invalid, or too
        large for the machines, is held as it was before.
    """
    if _is_held(row):
        return _without_failures(row.state)
    # LAUNCH: in ledgers from before there was TOO_LARGE.
    causes = (Cause.INVALID, Cause.TOO_LARGE, Cause.LAUNCH)
    if not (isinstance(row.state, Failed) and row.state.cause in causes):
        return None
    match noted.get(row.job_id):
        case "pause":
            return Paused()
        case "cancel":
            return Cancelled()
    return None


def _put_back(init: Path, policy: bytes) -> None:
    """Let ``init`` be ``policy`` again, should it be gone or damaged. One that is intact stays, as a
    power cut cannot take it any more.
    """
    try:
        is_intact = read_regular(init) == policy
    except (OSError, ValueError):
        is_intact = False
    if not is_intact:
        write_whole(init, policy)


def _is_held(row: JobRow) -> bool:
    """Whether the user holds a job back that is entered anew: it is paused, or was cancelled before
    its launch.
    """
    if isinstance(row.state, Cancelled):
        return not row.state.is_undeclared and not row.attempts
    return isinstance(row.state, Paused)


def _without_failures(state: State) -> State:
    """Of a job that begins anew: its earlier failures are not counted."""
    return dataclasses.replace(state, failures=0) if isinstance(state, Paused) else state


def _has_results(row: JobRow, paths: RunPaths) -> bool:
    return paths.job(row.job_id).has_results(normalize=row.normalize)


def _can_start(job: Job, verdict: JobVerdict) -> bool:
    """Whether a job has what it begins with: a run directory that is resumed as it is has no other
    robot or policy.
    """
    has_robot = verdict.bundle is not None or job.spec.xml is None
    has_policy = verdict.init is not None or job.spec.init_sha256 is None
    return verdict.problem is None and has_robot and has_policy


def _requeue(
    recorded: Mapping[str, JobRow],
    rows: Mapping[str, JobRow],
    jobs: Sequence[Job],
    paths: RunPaths,
    ledger: Ledger,
    reporter: Reporter,
) -> None:
    """Enter the result of :func:`requeued_rows` into the ledger, and say which jobs are trained
    again, and why.
    """
    again: dict[str, list[str]] = {}
    for job_id in (job.job_id for job in jobs if job.job_id in recorded):
        row = recorded[job_id]
        if job_id not in rows:
            ledger.delete_job(job_id)
            why = "the directories of jobs are gone, so these jobs are trained again from the beginning"
        elif rows[job_id] is not row:
            ledger.set_state(job_id, move(job_id, row.state, Pending()))
            why = "declared again by the job file, so these jobs are no longer CANCELLED"
            if isinstance(row.state, Succeeded):
                why = "model.zip or vecnormalize.pkl of finished jobs is gone, so these jobs make them again"
            elif isinstance(row.state, Failed):
                why = "there is room now for these jobs, which were too large, so they go on"
        elif isinstance(row.state, Succeeded) and not _has_results(row, paths):
            what = "no valid robot and initial policy to train them again with"
            why = f"the directories of finished jobs are gone, and there is {what}; `run JOBS.toml` with these does"
        else:
            continue
        again.setdefault(why, []).append(job_id)
    for why, job_ids in again.items():
        reporter.event("warning", f"{why}: {listed(job_ids)}", jobs=job_ids)


def _keep_robot(paths: RunPaths, job_id: str, verdict: JobVerdict) -> str:
    """Keep the MJCF of a refused robot that is no file of the user's; a clause saying where, empty
    for others.
    """
    if verdict.given is None:
        return ""
    target = paths.job(job_id).robot_invalid
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(verdict.given, target)
    return f"; its text is in {target}"


def _set_another_aside_and_report(
    paths: RunPaths, job: Job, verdict: JobVerdict, reporter: Reporter
) -> None:
    aside = set_another_aside(paths, job, verdict)
    if aside is not None:
        what = "its directory was that of another declaration"
        text = f"{job.job_id} starts from the beginning: {what}, and is now {aside}"
        reporter.event("restarted", text, job_id=job.job_id)


def set_another_aside(paths: RunPaths, job: Job, verdict: JobVerdict) -> Path | None:
    """Move the directory away of a job that has not begun, as far as the ledger knows, if it is that
    of another training. Returns the new path; None where nothing was done.

    The ledger knows nothing of attempts that it could not record any more, and of jobs that an
    earlier ledger had.
    """
    directory = paths.job(job.job_id)
    try:
        spec = WorkerSpec.from_json(read_regular(directory.spec))
        before = spec.fingerprint(), read_regular(directory.robot_hash).decode() or None
    except (OSError, ValueError):  # usually it has not been launched
        return None
    if verdict.is_invalid or before == (job.spec.fingerprint(), verdict.robot_hash):
        return None
    return run_directory.set_aside(directory.root, paths.replaced)


def copy_robot(paths: RunPaths, job_id: str, verdict: JobVerdict) -> None:
    """Put the robot that was examined, and the policy to start from, into the directory of their
    job.
    """
    job = paths.job(job_id)
    job.root.mkdir(parents=True, exist_ok=True)
    job.robot_invalid.unlink(missing_ok=True)
    if verdict.bundle is not None:
        shutil.rmtree(job.robot, ignore_errors=True)
        clone_tree(verdict.bundle, job.robot)
    if verdict.init is not None:
        shutil.copyfile(verdict.init, job.init)
    write_whole(job.robot_hash, verdict.robot_hash or "", durable=False)


def _drop_undeclared(
    rows: Mapping[str, JobRow],
    position: Mapping[str, int],
    paths: RunPaths,
    ledger: Ledger,
    reporter: Reporter,
) -> None:
    """Forget jobs that the file no longer declares if they never ran; otherwise keep them,
    cancelled.
    """
    for job_id, row in rows.items():
        if job_id in position:
            continue
        if row.attempts == 0:
            ledger.delete_job(job_id)
            continue
        state = recovery.settle(row, paths, ledger, reporter).state
        if isinstance(state, Pending | Paused):
            source = row.job.xml_source
            is_gone = source is not None and not os.path.exists(source)  # noqa: PTH110 - without errors
            why = f", as there is no {source} any more" if is_gone else ""
            text = f"{job_id} is no longer in the job file{why}: it is CANCELLED until the job file declares it again"
            reporter.event("warning", text, job_id=job_id)
            ledger.set_state(job_id, move(job_id, state, Cancelled(is_undeclared=True)))


def _report_earlier(rows: Sequence[JobRow], paths: RunPaths, reporter: Reporter) -> None:
    """Say what earlier runs have left: jobs that are finished, go on, are paused, or dead."""
    done = sum(row.state.name == "SUCCEEDED" for row in rows)
    begun = [row.job_id for row in rows if isinstance(row.state, Pending) and row.attempts > 0]
    if done or begun:
        _report_resumed(done, begun, paths, reporter)
    paused = [row.job_id for row in rows if isinstance(row.state, Paused) and not row.state.at_rung]
    if paused:
        text = f"paused, and not run unless `resume` queues them: {listed(paused)}"
        reporter.event("warning", text, jobs=paused)
    dead = [
        row.job_id
        for row in rows
        if row.attempts > 0
        and isinstance(row.state, Failed | Cancelled)
        and not lacked_room(row.state)
    ]
    if dead:
        text = f"failed or cancelled before, and not run again unless `retry` queues them: {listed(dead)}"
        reporter.event("warning", text, jobs=dead)


def _report_resumed(done: int, begun: Sequence[str], paths: RunPaths, reporter: Reporter) -> None:
    """:param done: number of jobs that are finished.
    :param begun: ids of those that go on.
    """
    steps = {job_id: job_directory.checkpointed_steps(paths.job(job_id)) for job_id in begun}
    parts = []
    if done:
        parts.append(f"{count(done, 'job was', 'jobs were')} finished before")
    saved = [f"{job_id} at {number:,}" for job_id, number in steps.items() if number]
    if saved:
        resume = "resume from their newest checkpoints"
        if len(saved) == 1:
            resume = "resumes from its newest checkpoint"
        parts.append(f"{len(saved):,} {resume} ({listed(saved)} env_steps)")
    unsaved = [job_id for job_id, number in steps.items() if not number]
    if unsaved:
        start = "start at 0 env_steps, as they have"
        if len(unsaved) == 1:
            start = "starts at 0 env_steps, as it has"
        parts.append(f"{len(unsaved):,} {start} no checkpoint ({listed(unsaved)})")
    reporter.event("resumed", ", ".join(parts), env_steps=steps)
