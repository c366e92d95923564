"""Enters jobs: the only way in which an experiment gets any. They are compared with the ledger and
with job directories, their robots are examined, and they are written in one transaction.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from orchestrator.core.decoding import from_values
from orchestrator.core.errors import (
    ChangedError,
    LedgerError,
    OrchestratorError,
    Problem,
    SpecError,
)
from orchestrator.core.files.atomic_files import (
    clone_tree,
    sync_directory,
    sync_trees,
    write_whole,
)
from orchestrator.core.files.regular_files import read_regular
from orchestrator.core.job import (
    Cancelled,
    Cause,
    Failed,
    Job,
    Paused,
    Pending,
    Running,
    State,
    Succeeded,
    lacked_room,
)
from orchestrator.core.paths import RunPaths
from orchestrator.core.robot_sources import converter_of
from orchestrator.core.text import count, listed
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.executors.executor import Executor
from orchestrator.experiment.directory import run_directory
from orchestrator.experiment.examination import training_time
from orchestrator.experiment.examination.preflight import JobVerdict
from orchestrator.experiment.planning.run_plan import (
    examined_job,
    shared_problems,
    verdict_for_user,
)
from orchestrator.experiment.resuming import declared_changes, extension, resume
from orchestrator.experiment.resuming.declared_changes import OnChange
from orchestrator.jobfile.robot_arguments import RobotArgument
from orchestrator.ledger import JobRow
from orchestrator.ledger.rows import DeclaredJob
from orchestrator.server import recovery
from orchestrator.server.declaration import job_from_values
from orchestrator.server.examiner import AbortedExamination, Examination, Examined, Examiner
from orchestrator.server.jobs import JobTable, Report, wanted_state
from orchestrator.server.ledger import LedgerReporter, ServerLedger, Wanted
from orchestrator.server.requests import Answer, Request
from orchestrator.supervisor import error_log, job_directory
from orchestrator.supervisor.launch_order import launch_order


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """The arguments of a request to add jobs."""

    jobs: Sequence[Mapping[str, Any]] = ()
    """See :func:`.declaration.job_values`."""
    whole: bool = False
    """Whether these are all jobs of the experiment: others are no longer declared."""
    as_it_is: bool = False
    """Whether the jobs of the ledger go on, without a job file and without an examination."""
    on_change: OnChange = "refuse"
    one_by_one: bool = False
    """Whether jobs that are declared differently now, or whose settings do not fit, are left out:
    the answer says why."""
    skip_invalid: bool = False
    """Whether jobs of invalid robots are entered as FAILED; otherwise nothing is entered."""
    order: Literal["longest-first", "as-listed"] = "longest-first"
    source: str = ""
    """The job file as the user named it, for messages."""
    text: str | None = None
    """The content of the job file, which is kept in the run directory."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """What the user calls robots that are temporary files, by their path."""
    declaration: Mapping[str, Any] | None = None
    """An experiment whose jobs are made, or compared, by a feature (``Experiment.declaration``)."""
    examples: Sequence[Mapping[str, Any]] = ()
    """Examples of the jobs that are made later: the first one has to be valid."""
    verdicts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Verdicts of jobs whose robots need no examination, by ``job_id`` (:func:`verdict_values`)."""
    known_robots: Sequence[str] = ()
    """Hashes of the files of robots: MJCF files with other contents are refused. Empty: none is."""
    trains_to_end: bool = False
    """Whether nothing compares jobs at rungs any more: those that wait at one train to their end."""
    refuses_shared: bool = False
    """Whether a problem that no robot causes is raised if no job can be trained, also with
    ``skip_invalid``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenAddition:
    """A request whose robots are examined."""

    request: Request
    addition: Addition
    jobs: Sequence[Job]
    examples: Sequence[Job]
    known: Mapping[str, JobVerdict]
    """Verdicts that are known without an examination."""


@dataclass(slots=True, kw_only=True)
class Entering:
    """Takes requests to add jobs, one after the other."""

    paths: RunPaths
    ledger: ServerLedger
    jobs: JobTable
    executor: Executor
    examiner: Examiner
    report: Report
    answer: Any
    """``answer(id, request, answer)`` records the answer to a request."""
    declared: Callable[[Addition, Mapping[str, str]], object] = lambda *_: None
    """Called when an experiment has been declared, or goes on as it is, with the hashes of the
    robots of its examples by ``job_id``."""
    _open: dict[str, _OpenAddition] = field(default_factory=dict, init=False)
    staged: dict[str, Path] = field(default_factory=dict, init=False)
    """By ``job_id``: folder with the robot as it was examined, of the jobs of the job file."""
    _adoptable: recovery.StatesOfSummary = field(default_factory=dict, init=False)
    """States of jobs whose ledger is gone."""

    def __post_init__(self) -> None:
        if not self.ledger.wanted():  # it is new
            self._adoptable = recovery.states_of_summary(self.paths)

    @property
    def is_busy(self) -> bool:
        return bool(self._open)

    def abort(self) -> None:
        """Refuse all requests whose jobs are examined: the run stops."""
        self.examiner.abort()

    def begin(self, id_: str, request: Request) -> None:
        """Begin to add jobs. The answer follows when their robots are examined."""
        try:
            addition = from_values(Addition, request.args)
            jobs = [job_from_values(values) for values in addition.jobs]
            examples = [job_from_values(values) for values in addition.examples]
        except ValueError as error:
            self.answer(id_, request, Answer(error=f"add: {error}"))
            return
        if addition.as_it_is and not examples:
            self.answer(id_, request, self._go_on(addition, {}))
            return
        starts = [job.spec.init_job for job in jobs if job.spec.init_job is not None]
        rows = list(self._rows(addition, [*(job.job_id for job in jobs), *starts]).values())
        known = resume.verdicts_of_finished(rows, jobs, self.paths)
        for job_id, values in addition.verdicts.items():
            known.setdefault(job_id, _verdict_from(values))
        self._open[id_] = _OpenAddition(
            request=request, addition=addition, jobs=jobs, examples=examples, known=known
        )
        self.examiner.begin(
            Examination(
                request_id=id_,
                jobs=[*(job for job in jobs if job.job_id not in known), *examples],
                sources=[*jobs, *(row.job for row in rows)],
                staging=self.paths.staging / id_,
            )
        )

    def take_examined(self) -> None:
        """Enter the jobs whose robots have been examined."""
        for examined in self.examiner.take():
            id_ = examined.examination.request_id
            opened = self._open.pop(id_)
            addition = opened.addition
            verdicts: Mapping[str, JobVerdict] = {}
            try:
                found = self._verdicts(examined, addition, [*opened.jobs, *opened.examples])
                robots = _robots_of_examples(opened, found)
                with self.ledger.all_or_nothing():
                    if addition.as_it_is:
                        answer = self._go_on(addition, robots)
                    else:
                        verdicts = {**opened.known, **found}
                        answer = self._enter(addition, opened.jobs, verdicts)
                        if addition.whole:
                            self.declared(addition, robots)
            except LedgerError:
                raise
            except SpecError as error:
                problems = [dataclasses.asdict(problem) for problem in error.problems]
                facts = {"problems": problems, "advice": error.advice}
                answer = Answer(error=str(error), facts=facts)
            except ChangedError as error:
                answer = Answer(error=str(error), facts={"changed": True})
            except AbortedExamination:
                answer = Answer(error="the run stops; nothing was added", facts={"stopped": True})
            except OrchestratorError as error:
                answer = Answer(error=str(error))
            except Exception as error:
                where = error_log.record(self.paths, error)
                answer = Answer(error=f"the jobs cannot be entered ({error!r}); {where}")
            if addition.whole and not answer.error:
                self._keep_staged(verdicts)
            else:
                shutil.rmtree(examined.examination.staging, ignore_errors=True)
            self.answer(id_, opened.request, answer)

    def _keep_staged(self, verdicts: Mapping[str, JobVerdict]) -> None:
        """Keep the robots of a job file, to put them back should they be altered."""
        for job_id, verdict in verdicts.items():
            if verdict.bundle is not None:
                self.staged[job_id] = verdict.bundle

    # -- verdicts

    def _verdicts(
        self, examined: Examined, addition: Addition, jobs: Sequence[Job]
    ) -> dict[str, JobVerdict]:
        """Return the verdicts of an examination, in the words of the user."""
        if examined.error is not None:
            raise examined.error
        verdicts = dict(examined.verdicts)
        for job in jobs:
            verdict = verdicts.get(job.job_id)
            if verdict is None:
                continue
            label = addition.labels.get(str(job.xml_source))
            if label is not None and job.xml_source is not None:
                robot = RobotArgument(name=job.spec.name, file=job.xml_source, index=0, label=label)
                verdict = verdict_for_user(verdict, robot)
            lacking = () if verdict.problem else self.executor.problems(job)
            if lacking:
                verdict = dataclasses.replace(
                    verdict,
                    problem=lacking[0],
                    settings_problem=lacking[0].message,
                    lacks_room=True,
                )
            verdicts[job.job_id] = verdict
        return verdicts

    def _enter(
        self, addition: Addition, jobs: Sequence[Job], verdicts: Mapping[str, JobVerdict]
    ) -> Answer:
        """Enter jobs, or refuse all of them.

        :raises SpecError: robots are invalid, and are not to be skipped.
        :raises ChangedError: jobs that have begun are declared differently now.
        """
        left_out: dict[str, Any] = {}
        if addition.one_by_one:
            left_out = self._left_out(jobs, verdicts)
            jobs = [job for job in jobs if job.job_id not in left_out]
        problems = dict.fromkeys(
            problem for job in jobs for problem in self._problems(job, verdicts[job.job_id])
        )
        if problems and not addition.skip_invalid:
            is_all = all(verdicts[job.job_id].problem for job in jobs)
            advice = '--skip-invalid, or on_invalid = "skip" in the job file, trains the other jobs'
            raise SpecError(addition.source, list(problems), "" if is_all else advice)
        if addition.refuses_shared and (shared := shared_problems(jobs, verdicts)):
            raise SpecError(addition.source, [Problem(where="", message=text) for text in shared])
        _refuse_other_robots(addition, jobs, verdicts)
        declared = [examined_job(job, verdicts[job.job_id]) for job in jobs]
        labelled = [
            dataclasses.replace(job, xml_source=Path(label))
            if (label := addition.labels.get(str(job.xml_source))) is not None
            else job
            for job in declared
        ]
        in_order = launch_order(
            labelled,
            addition.order,
            lambda job: training_time.of_job(job, verdicts[job.job_id].physics_s),
        )
        rows = self._rows(addition, [job.job_id for job in jobs])
        positions = self._positions(addition, labelled, rows)
        changed = self._take_changes(addition, in_order, verdicts, rows)
        self._report_remarks(in_order, verdicts)
        copied: list[Path] = []
        for job in in_order:
            row = rows.get(job.job_id)
            verdict = verdicts[job.job_id]
            if row is not None and row.attempts and has_lost_directory(row, verdict, self.paths):
                text = f"{job.job_id} is trained again from the beginning, as its directory is gone"
                self.report("warning", text, job_id=job.job_id)
                self.ledger.delete_job(job.job_id)
                row = None
            if row is not None and row.attempts and job.job_id not in changed:
                self._continue(job, row, positions[job.job_id], addition, verdict)
            else:
                held = self.ledger.wanted_of(job.job_id)
                if held == "cancel" and row is not None and row.attempts:
                    held = "run"  # it was cancelled in the training that is given up
                self._enter_job(job, row, positions[job.job_id], verdict, held, copied)
        if copied:
            sync_trees(copied)
            sync_directory(self.paths.jobs)
        dropped = self._drop_undeclared(rows, positions) if addition.whole else ()
        if addition.text is not None:
            write_whole(self.paths.experiment, addition.text)
        for job_id in dropped:  # nothing but the ledger can fail from here on
            self.jobs.forget(job_id)
        new_rows = self._rows(addition, [job.job_id for job in jobs])
        self._load([new_rows[job.job_id] for job in in_order if job.job_id in new_rows])
        self._report_earlier([new_rows[job.job_id] for job in in_order])
        return Answer(
            message=f"{count(len(jobs), 'job')} added",
            facts={"jobs": [job.job_id for job in jobs], "left_out": left_out},
        )

    def _problems(self, job: Job, verdict: JobVerdict) -> Sequence[Problem]:
        """Return everything that is wrong with a job."""
        if verdict.problem is None:
            return ()
        of_executor = self.executor.problems(job)
        return of_executor if verdict.lacks_room else [*of_executor, verdict.problem]

    def _left_out(
        self, jobs: Sequence[Job], verdicts: Mapping[str, JobVerdict]
    ) -> dict[str, dict[str, Any]]:
        """Return which jobs cannot be entered, and why."""
        found: dict[str, dict[str, Any]] = {}
        for job in jobs:
            verdict = verdicts[job.job_id]
            row = self.ledger.job_row(job.job_id)
            if verdict.settings_problem:
                found[job.job_id] = {"settings": verdict.settings_problem}
            elif row is not None and row.refusal is None:
                begun = dataclasses.replace(row, attempts=1)
                changes = declared_changes.changed_jobs(
                    {job.job_id: begun},
                    [examined_job(job, verdict)],
                    {job.job_id: verdict},
                )
                if job.job_id in changes:
                    found[job.job_id] = {"changed": list(changes[job.job_id])}
        return found

    def drop_unclaimed(self) -> None:
        """Forget or cancel the jobs of an earlier run that nobody has added in this one."""
        rows = {row.job_id: row for row in self.ledger.jobs()}
        self._drop_undeclared(rows, {entry.job.job_id: entry.position for entry in self.jobs})

    def _rows(self, addition: Addition, job_ids: Sequence[str]) -> dict[str, JobRow]:
        """Return what the ledger has of these jobs; of all, if they are the whole experiment."""
        if addition.whole:
            return {row.job_id: row for row in self.ledger.jobs()}
        found = {job_id: self.ledger.job_row(job_id) for job_id in job_ids}
        return {job_id: row for job_id, row in found.items() if row is not None}

    def _positions(
        self, addition: Addition, jobs: Sequence[Job], rows: Mapping[str, JobRow]
    ) -> dict[str, int]:
        """Return the places of jobs in the job file; jobs of a part follow those that there are."""
        if addition.whole:
            return {job.job_id: position for position, job in enumerate(jobs)}
        following = self.ledger.last_position() + 1
        new = [job.job_id for job in jobs if job.job_id not in rows]
        places = {job_id: following + number for number, job_id in enumerate(new)}
        return {
            job.job_id: rows[job.job_id].position if job.job_id in rows else places[job.job_id]
            for job in jobs
        }

    # -- changes of what has begun

    def _take_changes(
        self,
        addition: Addition,
        jobs: Sequence[Job],
        verdicts: Mapping[str, JobVerdict],
        rows: Mapping[str, JobRow],
    ) -> set[str]:
        """Return the ids of jobs that have begun, are declared differently now, and start over.

        :raises ChangedError: ``on_change`` does not allow that.
        """
        changed = declared_changes.changed_jobs(rows, jobs, verdicts)
        if not changed:
            return set()
        running = [job_id for job_id in changed if isinstance(rows[job_id].state, Running)]
        if running:
            lines = declared_changes.by_difference({job_id: changed[job_id] for job_id in running})
            jobs_are = count(len(running), "job that runs is", "jobs that run are")
            raise ChangedError(
                "\n".join(
                    [
                        f"{self.paths.root}: {jobs_are} declared differently now:",
                        *lines,
                        f"Undo these changes, or `stop {self.paths.root}` and use `run --on-change`",
                    ]
                )
            )
        declared_changes.refuse_at_rungs(self.ledger, rows, jobs, verdicts, self.paths)
        restarted = declared_changes.restarted_jobs(rows, jobs, verdicts)
        declared_changes.refuse_or_report(
            changed,
            restarted,
            addition.on_change,
            rows,
            jobs,
            verdicts,
            self.paths,
            LedgerReporter(self.ledger),
        )
        if addition.on_change == "extend":
            for job in jobs:
                if job.job_id in changed:
                    self._extend(job, rows[job.job_id])
            return set()
        for job_id in restarted:
            aside = run_directory.set_aside(self.paths.job(job_id).root, self.paths.replaced)
            text = f"{job_id} changed and starts over; its old directory is now {aside}"
            self.report("restarted", text, job_id=job_id)
            self.ledger.delete_job(job_id)
        return set(restarted)

    def _extend(self, job: Job, row: JobRow) -> None:
        reporter = LedgerReporter(self.ledger)
        extension.extend(row, job, row.position, self.paths, self.ledger, reporter)

    # -- jobs one by one

    def _continue(
        self, job: Job, row: JobRow, position: int, addition: Addition, verdict: JobVerdict
    ) -> None:
        """Let a job that has begun, and is declared as before, go on."""
        job_id = job.job_id
        row = self.ledger.job_row(job_id) or row  # it may have been extended
        if not verdict.is_invalid:
            now = extension.continued_job(row.job.spec, job)
            if addition.trains_to_end and job.spec.pause_at is None:
                now = now.with_spec(pause_at=None)
            if (now, position) != (row.job, row.position):
                self.ledger.update_declaration(position, now)
        state, why = state_at_start(row, verdict, self.paths, trains_to_end=addition.trains_to_end)
        if why:
            self.report("warning", f"{job_id} {why}", job_id=job_id)
        if state != row.state:
            self.ledger.set_state(job_id, state)

    def _enter_job(
        self,
        job: Job,
        row: JobRow | None,
        position: int,
        verdict: JobVerdict,
        held: Wanted,
        copied: list[Path],
    ) -> None:
        """Enter a job that has not begun, or starts over, or adopt its directory.

        :param held: what its user wants; a job that is invalid now is held again when it is valid.
        """
        job_id = job.job_id
        declared = DeclaredJob(position=position, job=job, robot_hash=verdict.robot_hash)
        self.ledger.put_jobs([declared])
        self.ledger.set_wanted(job_id, held)
        if verdict.problem is not None and not verdict.lacks_room:
            message = verdict.problem.message
            if verdict.given is not None:
                kept = self.paths.job(job_id).robot_invalid
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(verdict.given, kept)
                message += f"; its text is in {kept}"
            self.ledger.set_state(job_id, Failed(cause=Cause.INVALID, message=message))
            return
        state = None if row is not None else self._adopt(job, verdict)
        if state is None:
            aside = _set_another_aside(self.paths, job, verdict)
            if aside is not None:
                what = "its directory was that of another declaration"
                text = f"{job_id} starts from the beginning: {what}, and is now {aside}"
                self.report("restarted", text, job_id=job_id)
            _copy_robot(self.paths, job_id, verdict)
            copied.append(self.paths.job(job_id).root)
            state = wanted_state(Pending(), held)
        if verdict.problem is not None and isinstance(state, Pending):
            state = Failed(cause=Cause.TOO_LARGE, message=verdict.problem.message)
        self.ledger.set_state(job_id, state)

    def _adopt(self, job: Job, verdict: JobVerdict) -> State | None:
        """Take over the directory of a job that is not in the ledger, if it is that of the same
        training. Return the state of the job, or None if there is no such directory.
        """
        directory = self.paths.job(job.job_id)
        try:
            spec = WorkerSpec.from_json(read_regular(directory.spec))
            robot_hash = read_regular(directory.robot_hash).decode() or None
        except (OSError, ValueError):
            return None
        if (spec.fingerprint(), robot_hash) != (job.spec.fingerprint(), verdict.robot_hash):
            return None
        known = self._adoptable.get(job.job_id)
        state = recovery.adopt(self.ledger, dataclasses.replace(job, spec=spec), self.paths, known)
        text = f"{job.job_id} was found in its directory: {state.name}"
        self.report("adopted", text, job_id=job.job_id, state=state.name)
        return state

    def _drop_undeclared(
        self, rows: Mapping[str, JobRow], positions: Mapping[str, int]
    ) -> list[str]:
        """Remove jobs that are no longer declared if they never ran; otherwise cancel them. Return
        their ids.
        """
        dropped = []
        for job_id, row in rows.items():
            if job_id in positions:
                continue
            if not row.attempts:
                self.ledger.delete_job(job_id)
                dropped.append(job_id)
            elif isinstance(row.state, Pending | Paused):
                text = f"{job_id} is no longer declared: it is CANCELLED until it is declared again"
                self.report("warning", text, job_id=job_id)
                cancelled = Cancelled(is_undeclared=True)
                self.ledger.set_state(job_id, cancelled)
                dropped.append(job_id)
        return dropped

    def _go_on(self, addition: Addition, robots: Mapping[str, str]) -> Answer:
        """Let the jobs of the ledger go on as they are."""
        self.declared(addition, robots)
        if addition.text is not None:
            write_whole(self.paths.experiment, addition.text)
        rows = self.ledger.jobs()
        for row in rows:
            directory = self.paths.job(row.job_id)
            is_done = isinstance(row.state, Succeeded)
            lacks_results = is_done and not directory.has_results(normalize=row.job.spec.normalize)
            if (lacks_results and directory.robot_hash.exists()) or (
                lacked_room(row.state) and not self.executor.problems(row.job)
            ):
                self.ledger.set_state(row.job_id, Pending())
        rows = self.ledger.jobs()
        self._load(rows)
        self._report_earlier(rows)
        return Answer(message=f"{count(len(rows), 'job')} go on")

    def _load(self, rows: Sequence[JobRow]) -> None:
        """Take jobs into the table, and do what users want of them."""
        self.jobs.load(row for row in rows if not isinstance(row.state, Running))
        for row in rows:
            if not isinstance(row.state, Running):
                self.jobs.settle(self.jobs[row.job_id])

    # -- what people are told

    def _report_remarks(self, jobs: Sequence[Job], verdicts: Mapping[str, JobVerdict]) -> None:
        """Report choices and warnings, each once for the jobs that it concerns."""
        remarks: dict[tuple[str, str], dict[str, None]] = {}
        for job in jobs:
            verdict = verdicts[job.job_id]
            found = [("warning", warning) for warning in verdict.warnings]
            if verdict.task_reason:
                found.append(("chosen", f"task {job.spec.task} ({verdict.task_reason})"))
            if verdict.init_reason:
                found.append(("chosen", f"starts from {verdict.init_reason}"))
            if verdict.problem is not None:
                found.append(("warning", f"is not trained: {verdict.problem.message}"))
            for remark in found:
                remarks.setdefault(remark, {})[job.spec.name] = None
        for (kind, text), names in remarks.items():
            self.report(kind, f"{listed(list(names), 1)}: {text}")

    def _report_earlier(self, rows: Sequence[JobRow]) -> None:
        """Say what earlier runs have left."""
        done = sum(isinstance(row.state, Succeeded) for row in rows)
        begun = [row for row in rows if isinstance(row.state, Pending) and row.attempts]
        if done or begun:
            parts = [f"{count(done, 'job was', 'jobs were')} finished before"] if done else []
            steps = {
                row.job_id: job_directory.checkpointed_steps(self.paths.job(row.job_id))
                for row in begun
            }
            if begun:
                resume = count(len(begun), "job resumes", "jobs resume")
                saved = listed([f"{job_id} at {number:,}" for job_id, number in steps.items()])
                parts.append(f"{resume} ({saved} env_steps)")
            self.report("resumed", ", ".join(parts), env_steps=steps)
        paused = [
            row.job_id for row in rows if isinstance(row.state, Paused) and not row.state.at_rung
        ]
        if paused:
            text = f"paused, and not run unless `resume` queues them: {listed(paused)}"
            self.report("warning", text, jobs=paused)
        dead = [
            row.job_id
            for row in rows
            if row.attempts
            and isinstance(row.state, Failed | Cancelled)
            and not lacked_room(row.state)
        ]
        if dead:
            text = f"failed or cancelled before, and not run again unless `retry` queues them: {listed(dead)}"
            self.report("warning", text, jobs=dead)


def verdict_values(verdict: JobVerdict) -> dict[str, Any]:
    """Return what a verdict says of a valid robot, in JSON types."""
    return {
        "bundle": None if verdict.bundle is None else str(verdict.bundle.absolute()),
        "xml": verdict.xml,
        "robot_hash": verdict.robot_hash,
        "init": None if verdict.init is None else str(verdict.init.absolute()),
        "init_sha256": verdict.init_sha256,
        "init_env_steps": verdict.init_env_steps,
    }


def _verdict_from(values: Mapping[str, Any]) -> JobVerdict:
    paths = {key: values.get(key) for key in ("bundle", "init")}
    others = {key: value for key, value in values.items() if key not in paths}
    return JobVerdict(
        **others, **{key: None if path is None else Path(path) for key, path in paths.items()}
    )


def _robots_of_examples(
    opened: _OpenAddition, verdicts: Mapping[str, JobVerdict]
) -> dict[str, str]:
    """Return the hashes of the robots of the examples, as far as they could be read.

    :raises SpecError: the first example is invalid.
    """
    if opened.examples:
        problem = verdicts[opened.examples[0].job_id].problem
        if problem is not None:
            raise SpecError(opened.addition.source, [problem])
    hashes = {job.job_id: verdicts[job.job_id].source_hash for job in opened.examples}
    return {job_id: content for job_id, content in hashes.items() if content is not None}


def _refuse_other_robots(
    addition: Addition, jobs: Sequence[Job], verdicts: Mapping[str, JobVerdict]
) -> None:
    """:raises ChangedError: an MJCF file of these jobs is none of ``addition.known_robots``."""
    if not addition.known_robots:
        return
    for job in jobs:
        content = verdicts[job.job_id].source_hash
        source = job.xml_source
        is_mjcf = source is not None and converter_of(source.name, job.robot_settings) is None
        if is_mjcf and content is not None and content not in addition.known_robots:
            raise ChangedError(f"robot: the contents of {source} changed")


def _set_another_aside(paths: RunPaths, job: Job, verdict: JobVerdict) -> Path | None:
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


def _copy_robot(paths: RunPaths, job_id: str, verdict: JobVerdict) -> None:
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


def state_at_start(
    row: JobRow, verdict: JobVerdict, paths: RunPaths, *, trains_to_end: bool
) -> tuple[State, str]:
    """Return the state in which a job that has begun goes on, and why, if people are to know that."""
    state = row.state
    if isinstance(state, Running):
        return state, ""
    why = ""
    if isinstance(state, Cancelled) and state.is_undeclared:
        why = "is declared again"
    elif isinstance(state, Succeeded) and not paths.job(row.job_id).has_results(
        normalize=row.job.spec.normalize
    ):
        why = "is trained again, as its model.zip or vecnormalize.pkl is gone"
    elif lacked_room(state) and not verdict.lacks_room:
        why = "goes on, as there is room for it now"
    elif trains_to_end and isinstance(state, Paused) and state.at_rung:
        why = "trains to its end, as nothing compares it with others any more"
    if why:
        state = Pending()
    if verdict.lacks_room and (isinstance(state, Pending) or lacked_room(state)):
        assert verdict.problem is not None
        return Failed(cause=Cause.TOO_LARGE, message=verdict.problem.message), ""
    return state, why


def has_lost_directory(row: JobRow, verdict: JobVerdict, paths: RunPaths) -> bool:
    """Return whether the directory of a job is gone that is not over, and can begin anew."""
    can_begin = verdict.problem is None and not isinstance(row.state, Running)
    is_over = isinstance(row.state, Failed | Cancelled)
    return can_begin and not is_over and not paths.job(row.job_id).root.exists()


def addition_args(addition: Addition) -> dict[str, Any]:
    """Return the arguments of a request in JSON types."""
    values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(addition)))
    return values
