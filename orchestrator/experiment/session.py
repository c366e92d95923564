"""One experiment in one run directory, from start to end: plan, reconcile, supervise, make
pictures, sum up.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.atomic_files import write_whole
from orchestrator.core.errors import LedgerBusyError, RunDirError, disk_full_explained
from orchestrator.core.job import TERMINAL, Job, State
from orchestrator.core.paths import RunPaths
from orchestrator.core.process_setup import hold_standard_descriptors
from orchestrator.core.text import count
from orchestrator.executors.base import Backend
from orchestrator.experiment import (
    preflight,
    resume,
    run_directory,
    run_end,
    run_executor,
    run_index,
    search_process,
    search_robots,
    videos,
)
from orchestrator.experiment.callbacks import CallbackReporter
from orchestrator.experiment.notifications import NotifyingReporter
from orchestrator.experiment.policy_fetcher import PolicyFetcher
from orchestrator.experiment.reconcile import reconcile
from orchestrator.experiment.recovery import apply_late_requests, rebuild, recorded_jobs
from orchestrator.experiment.run_plan import Plan, RunOptions, plan
from orchestrator.experiment.search_process import SearchProcess
from orchestrator.experiment.track_process import TrackProcess
from orchestrator.jobfile import Experiment
from orchestrator.ledger import JobRow, Ledger, Request, SummaryRow, live_facts
from orchestrator.ledger.requests import RequestFiles
from orchestrator.machine import imported_code, provenance
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
    search_problem: str
    """Why its search has stopped before its end, if it has."""


def run(
    experiment: Experiment,
    options: RunOptions,
    reporter: Reporter,
    *,
    warm: preflight.Child | None = None,
    callbacks: CallbackReporter | None = None,
    is_awaiting_jobs: Callable[[], bool] = lambda: False,
) -> RunResult:
    """Run or resume ``experiment`` in ``options.run_dir`` until every job is terminal or a stop is
    requested.

    :param callbacks: the reporter, if it calls functions of the calling program; what one of them
        raises is raised here when every worker has exited.
    :param is_awaiting_jobs: whether another process may still add jobs, so that the run does not
        end without any.
    :raises UsageError: for anything the user can fix; nothing was launched.
    :raises DiskFullError, SupervisorError: everything has stopped, resumable.
    :raises KeyboardInterrupt: stopped during start-up; nothing was launched.
    """
    hold_standard_descriptors()
    stops, outcome = StopRequests(stop_at=options.stop_at), run_end.RunOutcome()
    with contextlib.ExitStack() as stack:
        stack.enter_context(stops.installed())
        notifier = NotifyingReporter(
            experiment=experiment,
            run_dir=options.run_dir,
            inner=reporter,
            outcome=outcome,
            stops=stops,
        )
        if experiment.notify.is_set:
            reporter = stack.enter_context(notifier)
        claimed = _claimed(options, stack)
        options, paths = claimed.options, claimed.paths
        stack.enter_context(disk_full_explained(paths.root, "run the same command again"))
        if options.is_listed:
            run_index.note(options.run_dir, experiment.name)
        repository = stack.enter_context(contextlib.closing(provenance.Repository(experiment.base)))
        holder = "" if (this := run_directory.holder(paths)) is None else this.key
        stack.enter_context(run_end.recorded(paths, holder, outcome))
        stack.callback(live_facts.remove, paths)
        ledger = _existing_ledger(paths, options, experiment.jobs, stack)
        if ledger is not None and apply_late_requests(ledger, holder):
            stops.request("requested by `stop`")
        request_files = RequestFiles(paths.requests)
        stops.is_asked = lambda: _is_stop_requested(request_files, ledger, holder)
        staging, watch = _emptied(paths.staging, stack), _ExaminationReport(reporter)
        experiment, options = search_process.resumed(experiment, options, ledger, paths)
        options = _known(options, ledger, experiment.jobs, paths, stops)
        run_plan = plan(
            experiment, options, staging, stops=stops, watch=watch, warm=warm, sees_neighbours=True
        )
        backend = stack.enter_context(contextlib.closing(run_plan.backend))
        search_process.refuse_another_robot(experiment, run_plan.verdicts, ledger, paths)
        ledger = ledger or _abandoned_with(stack, Ledger.create(paths.ledger))
        search_process.let_all_train_on(experiment, ledger, reporter)
        rows = reconcile(
            run_plan.jobs,
            run_plan.verdicts,
            {job.job_id: index for index, job in enumerate(experiment.jobs)},
            options.on_change,
            paths,
            ledger,
            reporter,
            recorded=options.recorded,
        )
        if experiment.text is not None:
            write_whole(paths.experiment, experiment.text)
        _report_plan(run_plan, claimed, reporter)
        searcher = SearchProcess(paths=paths, holder=holder, slots=backend.slots, reporter=reporter)
        tracker = stack.enter_context(
            TrackProcess(
                experiment=experiment,
                paths=paths,
                reporter=reporter,
                has_free_cores=lambda: supervisor.has_free_cores,
            ).running()
        )
        supervisor = Supervisor(
            paths=paths,
            rows=rows,
            ledger=ledger,
            executor=backend.executor,
            slots=backend.slots,
            reporter=reporter,
            staged_robots={
                id_: verdict.bundle for id_, verdict in run_plan.verdicts.items() if verdict.bundle
            },
            policies=stack.enter_context(PolicyFetcher(paths)),
            grace_s=options.grace_s,
            until=options.until,
            holder=holder,
            available_memory_mib=backend.available_memory_mib,
            cpu_moves=backend.cpu_moves,
            is_awaiting_jobs=lambda: searcher.may_add_jobs or is_awaiting_jobs(),
            look_after_others=_caretaker(tracker, searcher),
        )
        backend.report_to(DetachableReporter(reporter).event)
        changed = provenance.record(
            paths,
            experiment=experiment.name,
            machine=run_plan.machine,
            lanes=backend.slots.lanes,
            repository=repository,
            backend=backend.facts(),
            user_code=imported_code.digests([*run_plan.jobs, *experiment.jobs_to_examine]),
            declared=None if experiment.text is None else experiment.declared_by,
        )
        _report_changes(changed, rows, reporter)
        stops.request_checkpoints = supervisor.request_checkpoints
        stops.deliver_to(supervisor.request_stop)
        outcome.counts = lambda: supervisor.counts
        with searcher.declared(experiment, search_robots.contents(experiment, run_plan.verdicts)):
            states = _supervised(supervisor, ledger, rows, callbacks)
        is_stopped = functools.partial(_is_stopped, notifier, stops)
        _after_training(
            supervisor,
            states,
            backend,
            tracker,
            is_stopped,
            is_search=experiment.search is not None,
        )
        summaries = ledger.summary()
        outcome.exit_code = searcher.exit_code(states, supervisor)
        ledger.close()
    return RunResult(
        paths=paths,
        states=states,
        rows=[row for row in summaries if row["job_id"] in states],
        exit_code=outcome.exit_code,
        interrupted=supervisor.interrupted or (supervisor.is_stopping and outcome.exit_code == 130),
        signalled=stops.count > 0,
        search_problem=searcher.problem,
    )


def _supervised(
    supervisor: Supervisor,
    ledger: Ledger,
    rows: Sequence[JobRow],
    callbacks: CallbackReporter | None,
) -> Mapping[str, State]:
    if callbacks is None:
        return supervisor.run()
    callbacks.begin(rows, ledger, supervisor.request_stop)
    states = supervisor.run()
    callbacks.report_ended()
    if callbacks.error is not None:
        ledger.close()
        raise callbacks.error
    return states


def _caretaker(tracker: TrackProcess, searcher: SearchProcess) -> Callable[[], None]:
    def look_after() -> None:
        tracker.look_after()
        searcher.look_after()

    return look_after


def _after_training(
    supervisor: Supervisor,
    states: Mapping[str, State],
    backend: Backend,
    tracker: TrackProcess,
    is_stopped: Callable[[], bool],
    *,
    is_search: bool,
) -> None:
    slots, reporter = backend.local_slots, supervisor.reporter
    if not supervisor.interrupted:
        wanted, without_preview = supervisor.pictures
        videos.make_missing(
            supervisor.paths,
            wanted,
            states,
            slots,
            reporter,
            is_stopped,
            without_preview=without_preview,
            is_search=is_search,
        )
        tracker.finish(is_stopped)
    tracker.end()  # it reads the ledger


def _is_stopped(notifier: NotifyingReporter, stops: StopRequests) -> bool:
    notifier.turn()
    return stops.is_requested or stops.is_asked()


def _report_changes(changed: Sequence[str], rows: Sequence[JobRow], reporter: Reporter) -> None:
    if (
        changed
        and any(row.attempts for row in rows)
        and any(row.state.name not in TERMINAL for row in rows)
    ):
        text = f"changed since the run before: {'; '.join(changed)}"
        consequence = "What is trained from here on may have other bits than without these changes"
        reporter.event("warning", f"{text}. {consequence}.", changed=changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClaimedDirectory:
    paths: RunPaths
    options: RunOptions
    """With the executor of the run before, unless another one is named."""
    aside: Path | None
    """Where the earlier run directory is now, if there was one and it is not resumed."""
    executor_reason: str
    """Why the jobs run elsewhere, where the command does not say so; else empty."""


def _claimed(options: RunOptions, stack: contextlib.ExitStack) -> _ClaimedDirectory:
    """Lock the run directory until ``stack`` is closed. :raises UsageError: it cannot be used, or
    not with ``options``.

    :raises DiskFullError: when the disk has no room for the first files.
    """
    if options.fresh:
        taken = run_executor.of_unclaimed(
            options
        )  # before it is renamed: batch jobs may still write there
        aside = stack.enter_context(run_directory.put_aside(options.run_dir))
        paths = stack.enter_context(run_directory.claim(options.run_dir))
    else:
        aside, paths = None, stack.enter_context(run_directory.claim(options.run_dir))
        taken = run_executor.of_claimed(options, paths)
    reason = run_executor.explained(options, taken)
    return _ClaimedDirectory(paths=paths, options=taken, aside=aside, executor_reason=reason)


def _report_plan(run_plan: Plan, claimed: _ClaimedDirectory, reporter: Reporter) -> None:
    options, aside = claimed.options, claimed.aside
    if aside is not None:
        reporter.event(
            "fresh", f"starts over; the earlier run directory is now {aside}", aside=str(aside)
        )
    if claimed.executor_reason:
        reporter.event("chosen", claimed.executor_reason, executor=options.executor)
    if options.until is not None:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(options.until))
        text = f"everything ends by {when} (--until): the jobs are asked to stop {options.grace_s:g} s before that"
        reporter.event("until", text, until=options.until)
    if run_plan.restriction:
        reporter.event("restricted", run_plan.restriction)
    for choice in run_plan.choices:
        reporter.event("chosen", choice)
    for warning in run_plan.warnings:
        reporter.event("warning", warning)


def _is_stop_requested(files: RequestFiles, ledger: Ledger | None, holder: str) -> bool:
    """Whether another process requests that ``holder`` stops; asked before and after its supervisor
    reads requests.
    """
    with contextlib.suppress(LedgerBusyError):  # it is asked again
        if ledger is not None and ledger.is_stopping(holder):
            return True
    return Request(verb="stop", job_id=holder) in files.take()


class _ExaminationReport:
    """Reports how many robots are examined while it takes long: the first time after
    ``REPORT_EVERY_S``.
    """

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = DetachableReporter(reporter)
        self._due = time.monotonic() + REPORT_EVERY_S

    def __call__(self, done: int, robots: int) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + REPORT_EVERY_S
            text = f"examining: {done:,} of {count(robots, 'robot')}"
            self._reporter.event("examining", text, examined=done, robots=robots)


def _emptied(folder: Path, stack: contextlib.ExitStack) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _known(
    options: RunOptions,
    ledger: Ledger | None,
    jobs: Sequence[Job],
    paths: RunPaths,
    stops: StopRequests,
) -> RunOptions:
    """``options`` with verdicts of the jobs that have finished already. Many robots may be read for
    that.
    """
    if ledger is None or options.verdicts is not None:
        return options
    verdicts = resume.finished(ledger.jobs(decoded=False), jobs, paths)
    stops.check()
    return dataclasses.replace(options, verdicts=verdicts)


def _abandoned_with(stack: contextlib.ExitStack, ledger: Ledger) -> Ledger:
    stack.callback(ledger.abandon)
    return ledger


def _existing_ledger(
    paths: RunPaths, options: RunOptions, jobs: Sequence[Job], stack: contextlib.ExitStack
) -> Ledger | None:
    """The ledger of an earlier run, rebuilt if asked for; None in a new run directory."""
    if options.rebuild_ledger and paths.search_declared.exists():
        text = "a search cannot be rebuilt: only its ledger has the order of its trials"
        raise RunDirError(f"{paths.root}: {text}; `run --fresh` starts over")
    if options.rebuild_ledger and (paths.ledger.exists() or paths.jobs.exists()):
        recorded = recorded_jobs(paths, jobs)
        for name in (paths.ledger.name, f"{paths.ledger.name}-wal", f"{paths.ledger.name}-shm"):
            if (paths.root / name).exists():
                run_directory.set_aside(paths.root / name, paths.replaced)
        ledger = _abandoned_with(stack, Ledger.create(paths.ledger))
        rebuild(ledger, paths, recorded)
        return ledger
    if paths.ledger.exists():
        return _abandoned_with(stack, Ledger.open(paths.ledger))
    if paths.jobs.exists() and any(paths.jobs.iterdir()):
        advice = (
            "`run --rebuild-ledger` makes one from the job directories, `run --fresh` starts over"
        )
        raise RunDirError(f"{paths.root}: has jobs but no ledger; {advice}")
    return None
