"""One experiment in one run directory, from start to end: plan, reconcile, supervise, finish."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.core.errors import (
    UNAVAILABLE,
    LedgerFailingError,
    RunDirError,
    SupervisorError,
    disk_full_explained,
)
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.front_end import option, repeat_call
from orchestrator.core.job import TERMINAL, Job, State
from orchestrator.core.pacer import Pace, Pacer
from orchestrator.core.paths import RunPaths
from orchestrator.core.processes.process_setup import hold_standard_descriptors
from orchestrator.core.text import count, listed
from orchestrator.experiment import begun_source
from orchestrator.experiment.beside_run import BesideRun, EndedJobs, PartsBesideRun, RunProblem
from orchestrator.experiment.callbacks import CallbackReporter
from orchestrator.experiment.directory import left_batch_jobs, run_directory, run_end, run_index
from orchestrator.experiment.examination import examining_process
from orchestrator.experiment.planning import run_executor
from orchestrator.experiment.planning.run_plan import Plan, RunOptions, plan
from orchestrator.experiment.planning.start_conditions import StartConditions
from orchestrator.experiment.resuming import jobs_at_rungs, resume
from orchestrator.experiment.resuming.reconcile import reconcile
from orchestrator.experiment.resuming.recovery import (
    apply_late_requests,
    kill_leftovers,
    rebuild,
    recorded_jobs,
    states_of_summary,
)
from orchestrator.experiment.start_policy_fetcher import StartPolicyFetcher
from orchestrator.jobfile import Experiment
from orchestrator.ledger import JobRow, Ledger, Request, SummaryRow, live_facts
from orchestrator.ledger.requests import RequestFiles
from orchestrator.machine import imported_code, provenance
from orchestrator.supervisor import error_log
from orchestrator.supervisor.events import DetachableReporter, Reporter
from orchestrator.supervisor.stop_signals import StopRequests
from orchestrator.supervisor.supervisor import Supervisor

REPORT_EVERY_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The end of a run."""

    paths: RunPaths
    states: Mapping[str, State]
    rows: Sequence[SummaryRow]
    exit_code: int
    interrupted: bool
    signalled: bool
    """Whether a signal to this process interrupted it, rather than `stop` from another process."""
    problem: RunProblem | None
    """Why what makes its jobs, or another thing beside it, has stopped too early."""


def run(
    experiment: Experiment,
    options: RunOptions,
    reporter: Reporter,
    *,
    warm: examining_process.Child | None = None,
    callbacks: CallbackReporter | None = None,
    beside: Sequence[BesideRun] = (),
    ends_process: bool = False,
) -> RunResult:
    """Run or resume ``experiment`` in ``options.run_dir`` until every job is terminal or a stop is
    requested.

    :param callbacks: the reporter, if it calls functions of the calling program; what one of them
        raises is raised here when every worker has exited.
    :param beside: what the caller has beside the run, in addition to that of features.
    :param ends_process: whether the process ends after the run: signals are ignored from the end of
        a run on that a signal has stopped.
    :raises UsageError: for anything the user can fix; nothing was launched.
    :raises LedgerUnavailableError: all jobs have ended, and ``callbacks`` cannot be told of some.
    :raises DiskFullError, SupervisorError: everything has stopped, resumable.
    :raises KeyboardInterrupt: stopped during start-up; nothing was launched.
    """
    hold_standard_descriptors()
    with contextlib.ExitStack() as stack:
        stops = StopRequests(stop_at=options.stop_at, ends_process=ends_process)
        begun = _begin(experiment, options, reporter, beside, stops, stack)
        opened = _open(experiment, options, begun, stack)
        planned = _plan(opened, warm, stack)
        entered = _reconcile(opened, planned, stack)
        supervisor = _prepare(opened, planned, entered, stack)
        try:
            states = _train(opened, entered, supervisor, callbacks)
            summary = _finish(opened, planned, entered, supervisor, states)
        except LedgerFailingError as error:
            if callbacks is not None and error is callbacks.error:
                raise
            # Jobs were launched: it is no error in what was asked.
            raise SupervisorError(str(error)) from error
    exit_code = begun.outcome.exit_code
    return RunResult(
        paths=opened.paths,
        states=states,
        rows=[row for row in summary if row["job_id"] in states],
        exit_code=exit_code,
        interrupted=supervisor.is_interrupted or (supervisor.is_stopping and exit_code == 130),
        signalled=stops.count > 0,
        problem=begun.beside.problem(),
    )


@dataclass(slots=True, kw_only=True)
class _StopQuestion:
    """Whether this run is to stop, before and after the loop of the supervisor, which reads
    requests of other processes itself.
    """

    stops: StopRequests
    files: RequestFiles
    holder: str
    ledger: Ledger | None
    """None as long as there is none."""
    _is_taken: bool = field(default=False, init=False)
    """Whether a file had the request: each is read once."""

    def is_stopped(self) -> bool:
        return self.stops.is_requested or self.is_asked()

    def is_asked(self) -> bool:
        """Whether another process requests it."""
        with contextlib.suppress(*UNAVAILABLE):  # it is asked again
            if self.ledger is not None and self.ledger.is_stopping(self.holder):
                return True
        stop = Request(verb="stop", job_id=self.holder)
        self._is_taken = self._is_taken or stop in self.files.take()
        return self._is_taken

    def check(self) -> None:
        """:raises KeyboardInterrupt: it is to stop."""
        if self.is_stopped():
            raise KeyboardInterrupt


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """Signals are handled, and features have been asked what they have beside the run."""

    stops: StopRequests
    outcome: run_end.RunOutcome
    beside: PartsBesideRun
    """What features have beside the run; and the reporter of all that follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """The run directory that this process holds, with what earlier runs have left in it."""

    begun: _Begun
    experiment: Experiment
    claimed: _ClaimedDirectory
    holder: str
    """Names this supervisor in requests of other processes."""
    ledger: Ledger | None
    """That of an earlier run; None in a new run directory."""
    repository: provenance.Repository

    @property
    def paths(self) -> RunPaths:
        return self.claimed.paths

    @property
    def beside(self) -> PartsBesideRun:
        return self.begun.beside

    def stop_question(self, ledger: Ledger | None) -> _StopQuestion:
        """:param ledger: the one that there is now."""
        return _StopQuestion(
            stops=self.begun.stops,
            files=RequestFiles(self.paths.requests),
            holder=self.holder,
            ledger=ledger,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """What the run will do, on which machines."""

    experiment: Experiment
    """Where its jobs are made as it goes on, it has those that are left of an earlier run."""
    options: RunOptions
    """With the verdicts of jobs that have finished already."""
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entered:
    """The ledger agrees with the plan."""

    ledger: Ledger
    rows: Sequence[JobRow]
    """In order of launch."""


def _begin(
    experiment: Experiment,
    options: RunOptions,
    reporter: Reporter,
    of_caller: Sequence[BesideRun],
    stops: StopRequests,
    stack: contextlib.ExitStack,
) -> _Begun:
    """Handle signals, and ask features what they have beside the run."""
    outcome = run_end.RunOutcome()
    stack.enter_context(stops.handle_signals())
    inner = DetachableReporter(reporter, run_directory.error_record(options.run_dir))
    beside = PartsBesideRun(inner=inner, outcome=outcome, stops=stops)
    stack.enter_context(beside)
    beside.ask(experiment, options.run_dir, is_listed=options.is_listed)
    beside.add(of_caller)
    return _Begun(stops=stops, outcome=outcome, beside=beside)


def _open(
    experiment: Experiment, options: RunOptions, begun: _Begun, stack: contextlib.ExitStack
) -> _Opened:
    """Take the run directory, with the ledger of an earlier run."""
    beside = begun.beside
    stops = begun.stops
    claimed = _claim_directory(options, stack)
    beside.claimed(claimed.options)
    paths = claimed.paths
    stack.enter_context(_left_batch_jobs_stopped(paths, stops, beside))
    stack.enter_context(disk_full_explained(paths.root, repeat_call()))
    if options.is_listed:
        run_index.note(options.run_dir, experiment.name)
    repository = stack.enter_context(contextlib.closing(provenance.Repository(experiment.base)))
    this = run_directory.holder(paths)
    holder = "" if this is None else this.key
    stack.enter_context(run_end.record_end(paths, holder, begun.outcome, stops))
    stack.callback(live_facts.remove, paths)
    ledger = _existing_ledger(paths, claimed.options, experiment.jobs, beside, stack)
    if ledger is not None and apply_late_requests(ledger, holder):
        stops.request("requested by `stop`")
    return _Opened(
        begun=begun,
        experiment=experiment,
        claimed=claimed,
        holder=holder,
        ledger=ledger,
        repository=repository,
    )


@contextlib.contextmanager
def _left_batch_jobs_stopped(
    paths: RunPaths, stops: StopRequests, reporter: Reporter
) -> Iterator[None]:
    """Where a stop is requested within the block, what an earlier supervisor has left and this one
    has not taken over yet is ended, too: whoever stops a run wants none of its jobs to go on. That
    takes some seconds, which further signals do not cut short.
    """
    try:
        yield
    except KeyboardInterrupt:
        stops.deliver_to(lambda _: None)
        if (done := left_batch_jobs.end(paths)) is not None:
            reporter.event("warning", done)
        raise


def _plan(
    opened: _Opened, warm: examining_process.Child | None, stack: contextlib.ExitStack
) -> _Planned:
    """Examine the machines, and the robots of jobs that have not finished."""
    paths = opened.paths
    ledger = opened.ledger
    check_stop = opened.stop_question(ledger).check
    staging = _make_empty(paths.staging, stack)
    experiment, options = opened.beside.before_plan(
        opened.experiment, opened.claimed.options, ledger
    )
    options = _options_with_verdicts(options, ledger, experiment.jobs, paths, check_stop)
    made = plan(
        experiment,
        options,
        staging,
        check_stop=check_stop,
        watch=_ExaminationReport(_detachable(opened.beside, paths)),
        warm=warm,
        sees_neighbours=True,
    )
    stack.enter_context(contextlib.closing(made.backend))
    opened.beside.after_plan(experiment, made, ledger)
    return _Planned(experiment=experiment, options=options, plan=made)


def _reconcile(opened: _Opened, planned: _Planned, stack: contextlib.ExitStack) -> _Entered:
    """Bring the ledger into agreement with the plan."""
    experiment = planned.experiment
    made = planned.plan
    ledger = opened.ledger or _abandoned_with(
        stack, Ledger.create(opened.paths.ledger), opened.beside
    )
    opened.beside.ledger_opened(ledger)
    if experiment.job_source is None:
        jobs_at_rungs.let_train_to_end(experiment, ledger, opened.beside)
    rows = reconcile(
        made.jobs,
        made.verdicts,
        {job.job_id: index for index, job in enumerate(experiment.jobs)},
        planned.options.on_change,
        opened.paths,
        ledger,
        opened.beside,
        recorded=planned.options.recorded,
    )
    if experiment.text is not None:
        write_whole(opened.paths.experiment, experiment.text)
    write_whole(opened.paths.takes_jobs, opened.holder, durable=False)
    _report_plan(opened, planned)
    return _Entered(ledger=ledger, rows=rows)


def _prepare(
    opened: _Opened, planned: _Planned, entered: _Entered, stack: contextlib.ExitStack
) -> Supervisor:
    """Make the supervisor, and record what the run is made with."""
    paths = opened.paths
    beside = opened.beside
    options = planned.options
    backend = planned.plan.backend
    stack.callback(beside.end)  # before the backend is closed
    supervisor = Supervisor(
        paths=paths,
        rows=entered.rows,
        ledger=entered.ledger,
        executor=backend.executor,
        slots=backend.slots,
        reporter=beside,
        staged_robots={
            job_id: verdict.bundle
            for job_id, verdict in planned.plan.verdicts.items()
            if verdict.bundle
        },
        policies=stack.enter_context(StartPolicyFetcher(paths)),
        grace_s=options.grace_s,
        until=options.until,
        holder=opened.holder,
        available_memory_mib=backend.available_memory_mib,
        cpu_moves=backend.cpu_moves,
        may_add_jobs=beside.may_add_jobs,
        before_turn=beside.before_turn,
    )
    backend.report_to(_detachable(beside, paths).event)
    _record_provenance(opened, planned, entered.rows)
    opened.begun.stops.deliver_to(supervisor.request_stop, supervisor.request_checkpoints)
    opened.begun.outcome.begin(lambda: supervisor.counts)
    return supervisor


def _record_provenance(opened: _Opened, planned: _Planned, rows: Sequence[JobRow]) -> None:
    experiment = planned.experiment
    made = planned.plan
    changed = provenance.record(
        opened.paths,
        experiment=experiment.name,
        machine=made.machine,
        jobs_at_once=made.backend.slots.jobs_at_once,
        repository=opened.repository,
        started_with=StartConditions.of(planned.options, made.machine).facts(),
        backend={**made.executor_options, **made.backend.facts()},
        user_code=imported_code.digests([*made.jobs, *experiment.jobs_to_examine]),
        declared=None if experiment.text is None else experiment.declared_by,
        resumed_by=experiment.resumed_by,
    )
    _report_changes(changed, rows, opened.beside)


def _train(
    opened: _Opened,
    entered: _Entered,
    supervisor: Supervisor,
    callbacks: CallbackReporter | None,
) -> Mapping[str, State]:
    """Launch jobs until all have ended or a stop is requested. Returns their states."""
    opened.beside.begin(lambda: supervisor.has_free_cores)
    if callbacks is None:
        return supervisor.run()
    callbacks.begin(entered.rows, entered.ledger, supervisor.request_stop)
    states = supervisor.run()
    callbacks.report_last()
    if callbacks.error is not None:
        opened.beside.end()
        entered.ledger.close()
        raise callbacks.error
    return states


def _finish(
    opened: _Opened,
    planned: _Planned,
    entered: _Entered,
    supervisor: Supervisor,
    states: Mapping[str, State],
) -> Sequence[SummaryRow]:
    """Let features add results, wait for what is beside the run, and sum up. Returns the summary."""
    beside = opened.beside
    ledger = entered.ledger
    stop_question = opened.stop_question(ledger)

    def is_stopped() -> bool:
        beside.after_turn()
        return beside.has_failed or stop_question.is_stopped()

    if not supervisor.is_interrupted:
        with contextlib.suppress(OSError):  # it only makes other commands answer better
            opened.paths.finishing.touch()
        ended = EndedJobs(
            paths=opened.paths,
            states=states,
            shown=_shown_jobs(opened, planned, ledger),
            ledger=ledger,
            slots=planned.plan.backend.local_slots,
            reporter=supervisor.reporter,
        )
        beside.add_results(ended, is_stopped)
        beside.finish(is_stopped)
    beside.end()
    rows = ledger.summary()
    exit_code = beside.exit_code(
        states,
        is_interrupted=supervisor.is_interrupted,
        is_stopping=supervisor.is_stopping,
    )
    opened.begun.outcome.end(exit_code)
    ledger.close()
    return rows


def _shown_jobs(opened: _Opened, planned: _Planned, ledger: Ledger) -> Sequence[str] | None:
    """See :attr:`EndedJobs.shown`."""
    if not planned.experiment.makes_jobs:
        return None
    return begun_source.shown_jobs(opened.paths, ledger) or []


def _report_changes(changed: Sequence[str], rows: Sequence[JobRow], reporter: Reporter) -> None:
    """:param changed: what the run is made with, and is not as in the run before."""
    has_trained = any(row.attempts for row in rows)
    goes_on = any(row.state.name not in TERMINAL for row in rows)
    if changed and has_trained and goes_on:
        text = f"changed since the run before: {'; '.join(changed)}"
        consequence = "What is trained from here on may have other bits than without these changes"
        reporter.event("warning", f"{text}. {consequence}.", changed=changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClaimedDirectory:
    """A run directory that this process has locked."""

    paths: RunPaths
    options: RunOptions
    """With the executor of the run before, unless another one is named."""
    aside: Path | None
    """Where the earlier run directory is now, if there was one and it is not resumed."""
    executor_reason: str
    """Why the jobs run elsewhere, where the command does not say so; else empty."""


def _claim_directory(options: RunOptions, stack: contextlib.ExitStack) -> _ClaimedDirectory:
    """Lock the run directory until ``stack`` is closed.

    :raises UsageError: it cannot be used, or not with ``options``.
    :raises DiskFullError: the disk has no room for the first files.
    """
    aside = None
    if options.fresh:
        # Before it is renamed: batch jobs may still write there.
        taken = run_executor.of_unclaimed(options)
        aside = stack.enter_context(run_directory.put_aside(options.run_dir, kill_leftovers))
        paths = stack.enter_context(run_directory.claim(options.run_dir))
    else:
        paths = stack.enter_context(run_directory.claim(options.run_dir))
        taken = run_executor.of_claimed(options, paths)
    reason = run_executor.explanation(options, taken)
    return _ClaimedDirectory(paths=paths, options=taken, aside=aside, executor_reason=reason)


def _report_plan(opened: _Opened, planned: _Planned) -> None:
    options = planned.options
    reporter = opened.beside
    if opened.claimed.aside is not None:
        text = f"starts over; the earlier run directory is now {opened.claimed.aside}"
        reporter.event("fresh", text, aside=str(opened.claimed.aside))
    if opened.claimed.executor_reason:
        reporter.event("chosen", opened.claimed.executor_reason, executor=options.executor)
    if options.until is not None:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(options.until))
        by = f"{when} ({option('until')})"
        text = (
            f"everything ends by {by}: the jobs are asked to stop {options.grace_s:g} s before that"
        )
        reporter.event("until", text, until=options.until)
    if planned.plan.restriction:
        reporter.event("restricted", planned.plan.restriction)
    for choice in planned.plan.choices:
        reporter.event("chosen", choice)
    for warning in planned.plan.warnings:
        reporter.event("warning", warning)


class _ExaminationReport:
    """Reports how many robots are examined while it takes long: the first time after
    ``REPORT_EVERY_S``.
    """

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._reports = Pacer(Pace(every_s=REPORT_EVERY_S))
        self._reports.wait()

    def __call__(self, done: int, robots: int) -> None:
        if self._reports.is_due():
            self._reports.wait()
            text = f"examining: {done:,} of {count(robots, 'robot')}"
            self._reporter.event("examining", text, examined=done, robots=robots)


def _detachable(reporter: Reporter, paths: RunPaths) -> DetachableReporter:
    return DetachableReporter(reporter, functools.partial(error_log.record, paths))


def _make_empty(folder: Path, stack: contextlib.ExitStack) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _options_with_verdicts(
    options: RunOptions,
    ledger: Ledger | None,
    jobs: Sequence[Job],
    paths: RunPaths,
    check_stop: Callable[[], object],
) -> RunOptions:
    """``options`` with verdicts of the jobs that have finished already. Many robots may be read for
    that.
    """
    if ledger is None or options.verdicts is not None:
        return options
    verdicts = resume.verdicts_of_finished(ledger.jobs(decoded=False), jobs, paths)
    check_stop()
    return dataclasses.replace(options, verdicts=verdicts)


def _abandoned_with(stack: contextlib.ExitStack, ledger: Ledger, beside: PartsBesideRun) -> Ledger:
    """``ledger``, which ``stack`` abandons when what is ``beside`` the run has ended."""
    stack.callback(ledger.abandon)
    stack.callback(beside.end)
    return ledger


def _existing_ledger(
    paths: RunPaths,
    options: RunOptions,
    jobs: Sequence[Job],
    beside: PartsBesideRun,
    stack: contextlib.ExitStack,
) -> Ledger | None:
    """The ledger of an earlier run, rebuilt if asked for; None in a new run directory."""
    if options.rebuild_ledger and (paths.ledger.exists() or paths.jobs.exists()):
        kill_leftovers(paths)
        known = states_of_summary(paths)
        recorded = recorded_jobs(paths, jobs, known)
        for name in (paths.ledger.name, f"{paths.ledger.name}-wal", f"{paths.ledger.name}-shm"):
            if (paths.root / name).exists():
                run_directory.set_aside(paths.root / name, paths.replaced)
        ledger = _abandoned_with(stack, Ledger.create(paths.ledger), beside)
        if queued := rebuild(ledger, paths, recorded, known):
            why = "neither their directories nor summary.json say that they are over or held back"
            text = f"the new ledger has these jobs queued, as {why}: {listed(queued)}"
            beside.event("warning", text, jobs=queued)
        return ledger
    if paths.ledger.exists():
        return _abandoned_with(stack, Ledger.open(paths.ledger), beside)
    if paths.jobs.exists() and any(paths.jobs.iterdir()):
        advice = (
            "`run --rebuild-ledger` makes one from the job directories, `run --fresh` starts over"
        )
        raise RunDirError(f"{paths.root}: has jobs but no ledger; {advice}")
    return None
