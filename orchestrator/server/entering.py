"""Enters jobs: the only way in which an experiment gets any.

Robots are examined beside the loop. Then it is decided what becomes of each job; directories are
prepared; the ledger is written, in one transaction; and the jobs are taken into memory.
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
from orchestrator.core.errors import ChangedError, LedgerError, OrchestratorError, SpecError
from orchestrator.core.files.atomic_files import (
    clone_tree,
    sync_directory,
    sync_trees,
    write_whole,
)
from orchestrator.core.job import (
    Cancelled,
    Failed,
    Job,
    Paused,
    Pending,
    Running,
    Succeeded,
    lacked_room,
)
from orchestrator.core.paths import RunPaths
from orchestrator.core.robot_sources import converter_of
from orchestrator.core.text import count, listed
from orchestrator.examination import training_time
from orchestrator.examination.preflight import JobVerdict
from orchestrator.executors.executor import Executor
from orchestrator.experiment import run_directory
from orchestrator.experiment.begun_source import begun_source
from orchestrator.ledger import JobRow
from orchestrator.ledger.rows import DeclaredJob
from orchestrator.server import error_log, job_directory, leftovers
from orchestrator.server.decide import Decision, Fate, KnownJob, continued, decide
from orchestrator.server.declaration import job_from_values
from orchestrator.server.differences import (
    OnChange,
    continued_job,
    differences,
    why_other_weights,
)
from orchestrator.server.examiner import AbortedExamination, Examination, Examiner
from orchestrator.server.jobs import JobTable, Report
from orchestrator.server.launch_order import launch_order
from orchestrator.server.ledger import ServerLedger
from orchestrator.server.requests import Answer, Request
from orchestrator.server.verdicts import (
    examined_job,
    judged,
    recorded_verdicts,
    refuse_invalid,
    remarks,
    verdict_from_values,
    verdicts_of_finished,
)


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
    """Verdicts of jobs whose robots need no examination, by ``job_id``
    (:func:`.verdicts.verdict_values`)."""
    known_robots: Sequence[str] = ()
    """Hashes of the files of robots: MJCF files with other contents are refused. Empty: none is."""
    refuses_shared: bool = False
    """Whether a problem that no robot causes is raised if no job can be trained, also with
    ``skip_invalid``."""


def addition_args(addition: Addition) -> dict[str, Any]:
    """Return the arguments of a request in JSON types."""
    values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(addition)))
    return values


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
    """Takes requests to add jobs, one after the other. The folder of staged robots is its own."""

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
    robots of its examples by ``job_id``. Raises ChangedError if something else has begun."""
    _open: dict[str, _OpenAddition] = field(default_factory=dict, init=False)
    _of_summary: leftovers.StatesOfSummary = field(default_factory=dict, init=False)
    """States of jobs whose ledger is gone."""

    def __post_init__(self) -> None:
        if not self.ledger.wanted():  # it is new
            self._of_summary = leftovers.states_of_summary(self.paths)

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
        starts = [job.spec.init_job for job in jobs if job.spec.init_job is not None]
        rows = list(self._rows(addition, [*(job.job_id for job in jobs), *starts]).values())
        known = verdicts_of_finished(rows, jobs, self.paths)
        for job_id, values in addition.verdicts.items():
            known.setdefault(job_id, verdict_from_values(values))
        opened = _OpenAddition(
            request=request, addition=addition, jobs=jobs, examples=examples, known=known
        )
        if addition.as_it_is and not examples:
            self._answer(id_, opened, lambda: {})
            return
        self._open[id_] = opened
        unknown = [job for job in jobs if job.job_id not in known]
        self.executor.expect(unknown)
        self.examiner.begin(
            Examination(
                request_id=id_,
                jobs=[*unknown, *examples],
                sources=[*jobs, *(row.job for row in rows)],
                staging=self.paths.staging / id_,
            )
        )

    def take_examined(self) -> None:
        """Enter the jobs whose robots have been examined."""
        for examined in self.examiner.take():
            id_ = examined.examination.request_id
            self._answer(id_, self._open.pop(id_), examined.verdicts_or_raise)
            shutil.rmtree(examined.examination.staging, ignore_errors=True)

    def _answer(
        self, id_: str, opened: _OpenAddition, examined: Callable[[], Mapping[str, JobVerdict]]
    ) -> None:
        """Enter jobs, or refuse all of them, and answer the request.

        :param examined: returns the verdicts of the examination, or raises what has ended it.
        """
        try:
            verdicts = {**opened.known, **examined()}
            answer = (
                self._go_on(opened, verdicts)
                if opened.addition.as_it_is
                else self._enter(opened, verdicts)
            )
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
        self.answer(id_, opened.request, answer)

    # -- the jobs of a job file, or further ones

    def _enter(self, opened: _OpenAddition, examined: Mapping[str, JobVerdict]) -> Answer:
        """Enter jobs, or refuse all of them.

        :raises SpecError: robots are invalid, and are not to be skipped.
        :raises ChangedError: jobs that have begun are declared differently now.
        """
        addition = opened.addition
        verdicts, problems = judged(opened.jobs, examined, self.executor.problems, addition.labels)
        rows = self._rows(addition, [job.job_id for job in opened.jobs])
        jobs = opened.jobs
        left_out: dict[str, Any] = {}
        if addition.one_by_one:
            left_out = _left_out(jobs, verdicts, rows)
            jobs = [job for job in jobs if job.job_id not in left_out]
        refuse_invalid(
            addition.source,
            jobs,
            verdicts,
            problems,
            skip_invalid=addition.skip_invalid,
            refuses_shared=addition.refuses_shared,
        )
        _refuse_other_robots(addition, jobs, verdicts)
        in_order = launch_order(
            [self._examined(job, addition, verdicts) for job in jobs],
            addition.order,
            lambda job: training_time.of_job(job, verdicts[job.job_id].physics_s),
        )
        known = leftovers.known_jobs(
            self.paths,
            in_order,
            verdicts,
            rows,
            {job.job_id: self.ledger.wanted_of(job.job_id) for job in jobs},
            self._of_summary,
        )
        decision = decide(
            known,
            addition.on_change,
            self.paths.root,
            are_compared=lambda: begun_source(self.paths, self.ledger) is not None,
        )
        if decision.refusal:
            raise ChangedError(decision.refusal)
        positions = self._positions(addition, jobs, rows)
        told = self._prepare_directories(known, decision)
        if addition.text is not None:
            write_whole(self.paths.experiment, addition.text)
        with self.ledger.all_or_nothing():
            for text, job_id in told:
                self.report("restarted", text, job_id=job_id)
            for kind, text in remarks(in_order, verdicts):
                self.report(kind, text)
            self._report_extended(known, decision)
            for one in known:
                self._write(one, decision.fates[one.job.job_id], positions[one.job.job_id])
            dropped = self._drop_undeclared(rows, positions) if addition.whole else []
            new_rows = self._rows(addition, [job.job_id for job in jobs])
            in_ledger = [new_rows[job.job_id] for job in in_order]
            self._report_earlier(in_ledger)
            if addition.whole:
                self.declared(addition, {})
        for job_id in dropped:
            self.jobs.forget(job_id)
        self._load(in_ledger)
        return Answer(
            message=f"{count(len(jobs), 'job')} added",
            facts={"jobs": [job.job_id for job in jobs], "left_out": left_out},
        )

    def drop_unclaimed(self) -> None:
        """Forget or cancel the jobs of an earlier run that nobody has added in this one."""
        rows = {row.job_id: row for row in self.ledger.jobs()}
        claimed = {entry.job.job_id: entry.position for entry in self.jobs}
        for job_id in self._drop_undeclared(rows, claimed):
            self.jobs.forget(job_id)

    def _rows(self, addition: Addition, job_ids: Sequence[str]) -> dict[str, JobRow]:
        """Return what the ledger has of these jobs; of all, if they are the whole experiment."""
        if addition.whole:
            return {row.job_id: row for row in self.ledger.jobs()}
        found = {job_id: self.ledger.job_row(job_id) for job_id in job_ids}
        return {job_id: row for job_id, row in found.items() if row is not None}

    def _examined(self, job: Job, addition: Addition, verdicts: Mapping[str, JobVerdict]) -> Job:
        """Return a job as it is entered: its robot is what the user calls it."""
        examined = examined_job(job, verdicts[job.job_id])
        label = addition.labels.get(str(job.xml_source))
        return examined if label is None else dataclasses.replace(examined, xml_source=Path(label))

    def _positions(
        self, addition: Addition, jobs: Sequence[Job], rows: Mapping[str, JobRow]
    ) -> dict[str, int]:
        """Return the places of jobs in the job file; jobs of a part follow those that there are."""
        if addition.whole:
            return {job.job_id: position for position, job in enumerate(jobs)}
        following = self.ledger.last_position() + 1
        new = [job.job_id for job in jobs if job.job_id not in rows]
        places = {job_id: following + number for number, job_id in enumerate(new)}
        return places | {job_id: row.position for job_id, row in rows.items()}

    # -- directories

    def _prepare_directories(
        self, known: Sequence[KnownJob], decision: Decision
    ) -> list[tuple[str, str]]:
        """Set directories aside that are not gone on with, and put robots into those of jobs that
        begin. Return what people are told, with ``job_id``.
        """
        told: list[tuple[str, str]] = []
        copied: list[Path] = []
        for one in known:
            job_id = one.job.job_id
            fate = decision.fates[job_id]
            root = self.paths.job(job_id).root
            is_invalid = one.verdict.is_invalid
            if fate.what == "restart":
                aside = run_directory.set_aside(root, self.paths.replaced)
                text = f"{job_id} changed and starts over; its old directory is now {aside}"
                told.append((text, job_id))
            # The ledger knows nothing of attempts that it could not record any more, and of jobs
            # that an earlier ledger had.
            is_other = one.found.training not in (None, one.training)
            if fate.what == "enter" and is_other and not is_invalid:
                aside = run_directory.set_aside(root, self.paths.replaced)
                what = "its directory was that of another declaration"
                text = f"{job_id} starts from the beginning: {what}, and is now {aside}"
                told.append((text, job_id))
            if fate.what in ("restart", "enter") and is_invalid:
                self._keep_invalid_robot(one)
            elif fate.what in ("restart", "enter"):
                self._copy_robot(one)
                copied.append(root)
            elif isinstance(fate.state, Pending) and one.verdict.bundle is not None:
                self._put_back(one)
        if copied:
            sync_trees(copied)
            sync_directory(self.paths.jobs)
        return told

    def _keep_invalid_robot(self, one: KnownJob) -> None:
        """Keep the text of a robot that is no file of the user's."""
        if one.verdict.given is not None:
            kept = self.paths.job(one.job.job_id).robot_invalid
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(one.verdict.given, kept)

    def _copy_robot(self, one: KnownJob) -> None:
        """Put the robot that was examined, and the policy to start from, into the directory of their
        job.
        """
        verdict = one.verdict
        directory = self.paths.job(one.job.job_id)
        directory.root.mkdir(parents=True, exist_ok=True)
        directory.robot_invalid.unlink(missing_ok=True)
        if verdict.bundle is not None:
            shutil.rmtree(directory.robot, ignore_errors=True)
            clone_tree(verdict.bundle, directory.robot)
        if verdict.init is not None:
            shutil.copyfile(verdict.init, directory.init)
        write_whole(directory.robot_hash, verdict.robot_hash or "", durable=False)

    def _put_back(self, one: KnownJob) -> None:
        """Put the robot that was examined in place of an altered copy of it."""
        row = one.row
        if row is None or row.robot_hash != one.verdict.robot_hash or one.verdict.bundle is None:
            return
        directory = self.paths.job(row.job_id)
        what = job_directory.put_back(
            directory, row.job.spec.xml, row.robot_hash, one.verdict.bundle
        )
        if what:
            self.report("warning", f"{row.job_id}: {what}", job_id=row.job_id)

    # -- the ledger

    def _write(self, one: KnownJob, fate: Fate, position: int) -> None:
        """Record what becomes of a job."""
        job_id = one.job.job_id
        row = one.row
        if fate.what in ("continue", "extend"):
            assert row is not None
            if not one.verdict.is_invalid:
                now = continued_job(row.job.spec, one.job, is_extended=fate.what == "extend")
                if (now, position) != (row.job, row.position):
                    self.ledger.update_declaration(position, now)
        else:
            if row is not None and row.attempts:
                self.ledger.delete_job(job_id)
            declared = DeclaredJob(
                position=position, job=one.job, robot_hash=one.verdict.robot_hash
            )
            self.ledger.put_jobs([declared])
            self.ledger.set_wanted(job_id, fate.wanted)
        if fate.what == "adopt":
            leftovers.adopt_attempts(self.ledger, one.job, self.paths.job(job_id))
            text = f"{job_id} was found in its directory: {fate.state.name}"
            self.report("adopted", text, job_id=job_id, state=fate.state.name)
        if fate.why:
            self.report("warning", f"{job_id} {fate.why}", job_id=job_id)
        state = fate.state
        kept = self.paths.job(job_id).robot_invalid
        if isinstance(state, Failed) and one.verdict.is_invalid and one.verdict.given is not None:
            state = dataclasses.replace(state, message=f"{state.message}; its text is in {kept}")
        if row is None or fate.what not in ("continue", "extend") or state != row.state:
            self.ledger.set_state(job_id, state)

    def _drop_undeclared(
        self, rows: Mapping[str, JobRow], positions: Mapping[str, int]
    ) -> list[str]:
        """Remove jobs that are no longer declared if they never ran; otherwise cancel them, unless they
        are over. Return the ids of all that do not run: they are no jobs of this run.
        """
        dropped = []
        for job_id, row in rows.items():
            if job_id in positions or isinstance(row.state, Running):
                continue
            dropped.append(job_id)
            if not row.attempts:
                self.ledger.delete_job(job_id)
            elif isinstance(row.state, Pending | Paused):
                text = f"{job_id} is no longer declared: it is CANCELLED until it is declared again"
                self.report("warning", text, job_id=job_id)
                self.ledger.set_state(job_id, Cancelled(is_undeclared=True))
        return dropped

    # -- the jobs of the ledger

    def _go_on(self, opened: _OpenAddition, examined: Mapping[str, JobVerdict]) -> Answer:
        """Let the jobs of the ledger go on as they are."""
        addition = opened.addition
        examples, _ = judged(opened.examples, examined, self.executor.problems, addition.labels)
        robots = _robots_of_examples(opened, examples)
        if addition.text is not None:
            write_whole(self.paths.experiment, addition.text)
        with self.ledger.all_or_nothing():
            self.declared(addition, robots)
            rows = [row for row in self.ledger.jobs() if not _is_undeclared(row)]
            verdicts, _ = judged(
                [row.job for row in rows],
                recorded_verdicts(rows),
                self.executor.problems,
                addition.labels,
            )
            by_id = {row.job_id: row for row in rows}
            for one in leftovers.recorded_jobs(self.paths, by_id, verdicts):
                fate = continued(one)
                job_id = one.job.job_id
                if fate.why:
                    self.report("warning", f"{job_id} {fate.why}", job_id=job_id)
                if fate.state != fate.before:
                    self.ledger.set_state(job_id, fate.state)
            rows = self.ledger.jobs()
            self._report_earlier(rows)
        self._load(rows)
        return Answer(message=f"{count(len(rows), 'job')} go on")

    # -- memory

    def _load(self, rows: Sequence[JobRow]) -> None:
        """Take jobs into the table, and do what users want of them."""
        self.jobs.load(rows)
        for row in rows:
            self.jobs.settle(self.jobs[row.job_id])

    # -- what people are told

    def _report_extended(self, known: Sequence[KnownJob], decision: Decision) -> None:
        """Say which jobs are trained further."""
        texts: dict[tuple[str, str], list[str]] = {}
        for one in known:
            fate = decision.fates[one.job.job_id]
            if fate.what != "extend" or one.row is None:
                continue
            before = one.row.job.spec
            total = f"{one.job.spec.total_timesteps:,} env_steps"
            if isinstance(fate.state, Failed | Cancelled) and not fate.lacks_room:
                text = f"{fate.state.name}, so trained to {total} only after `retry` has queued it"
                texts.setdefault(("warning", text), []).append(one.job.job_id)
            else:
                text = f"trained further, from {before.total_timesteps:,} to {total}"
                texts.setdefault(("extended", text), []).append(one.job.job_id)
            for why in why_other_weights(before, one.job.spec):
                text = f"{why}, so the weights will differ from those of one training with {total}"
                texts.setdefault(("warning", text), []).append(one.job.job_id)
        for (kind, text), job_ids in texts.items():
            shown = (
                f"{listed(job_ids)}: {text}" if kind == "warning" else f"{text}: {listed(job_ids)}"
            )
            self.report(kind, shown, jobs=job_ids)

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


def _is_undeclared(row: JobRow) -> bool:
    return row.state == Cancelled(is_undeclared=True)


def _left_out(
    jobs: Sequence[Job], verdicts: Mapping[str, JobVerdict], rows: Mapping[str, JobRow]
) -> dict[str, dict[str, Any]]:
    """Return which jobs cannot be entered, and why."""
    found: dict[str, dict[str, Any]] = {}
    for job in jobs:
        verdict = verdicts[job.job_id]
        row = rows.get(job.job_id)
        if verdict.settings_problem:
            found[job.job_id] = {"settings": verdict.settings_problem}
        elif row is not None and row.refusal is None:
            changes = differences(row, examined_job(job, verdict), verdict)
            if changes:
                found[job.job_id] = {"changed": list(map(str, changes))}
    return found


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
