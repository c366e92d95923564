"""One run of a supervisor, from the lock of the run directory to the record of its end."""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from orchestrator.core.errors import OrchestratorError, UsageError
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.job import TERMINAL
from orchestrator.core.paths import RunPaths
from orchestrator.core.processes.process_setup import CHECKPOINT_SIGNAL
from orchestrator.examination.examining_process import Child
from orchestrator.executors.executor import ExecutorSettings
from orchestrator.experiment import run_directory, run_index
from orchestrator.experiment.begun_source import begun_source
from orchestrator.experiment.run_end import RunEnd, exit_code_of
from orchestrator.keys.names import safe_name
from orchestrator.machine import provenance, topology
from orchestrator.machine.process_identity import boot_id
from orchestrator.server import start
from orchestrator.server.companions import Companions, RunFacts
from orchestrator.server.companions import exit_code as companion_exit_code
from orchestrator.server.entering import Addition
from orchestrator.server.examiner import Examiner
from orchestrator.server.ledger import ServerLedger
from orchestrator.server.leftovers import kill_leftovers, settle_left_attempts
from orchestrator.server.settings import RunSettings
from orchestrator.server.start_policy_fetcher import StartPolicyFetcher
from orchestrator.server.supervisor import Supervisor


class Lifeline(Protocol):
    """Tells whether the client that started the supervisor is gone."""

    def is_broken(self) -> bool: ...


def run(
    run_dir: Path,
    settings: RunSettings,
    warm: Child,
    begun: Callable[[RunPaths, str], None],
    lifeline: Lifeline,
) -> int:
    """Supervise the run directory to its end. Return the exit code of the run.

    :param begun: called with the key of the supervisor when the run directory is locked.
    :raises UsageError: the run directory cannot be used, or nothing was added to a new one, which
        is removed.
    :raises KeyboardInterrupt: it was stopped before anything was added to a new one.
    :raises OrchestratorError: it has ended the run, and the disk is full, so that it is not recorded.
    """
    # A signal that comes before the loop runs ends the batch jobs that were taken over, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.ExitStack() as stack:
        aside = None
        executor = None
        if settings.fresh:  # that of the run before stays, too
            executor = _choose_executor(RunPaths(run_dir), settings)
            put_aside = run_directory.put_aside(run_dir, kill_leftovers)
            aside = stack.enter_context(put_aside)
        paths = stack.enter_context(run_directory.claim(run_dir))
        executor = executor or _choose_executor(paths, settings)
        this = run_directory.holder(paths)
        assert this is not None
        ledger = _open_ledger(paths)
        stack.callback(ledger.abandon)
        begun(paths, this.key)
        paths.run_end.unlink(missing_ok=True)
        if settings.is_listed:
            run_index.note(run_dir, settings.name)
        stack.enter_context(_staging(paths))
        supervisor = _make_supervisor(
            paths, settings, executor, warm, this.key, ledger, aside, stack
        )
        supervisor.reason_to_stop = _reasons_to_stop(supervisor, settings, lifeline)
        companions = _with_companions(supervisor, settings)
        stack.callback(companions.close)
        message = ""
        failure = None
        try:
            with _signals(supervisor):
                exit_code = supervisor.go()
            companions.close()
            message = supervisor.refusal if exit_code == 2 else ""
            if not supervisor.refusal:
                exit_code = _exit_code(supervisor, companions, exit_code)
        except OrchestratorError as error:
            failure = error
            exit_code = exit_code_of(error)
            message = str(error)
        is_empty = not (supervisor.jobs.entries or paths.jobs.exists())
        if is_empty and (supervisor.awaits_jobs or supervisor.refusal):
            # Raised, so that the new run directory is removed.
            raise KeyboardInterrupt if supervisor.stop_stage else UsageError("nothing was added")
        end = RunEnd(
            holder=this.key,
            exit_code=exit_code,
            message=message,
            error="" if failure is None else type(failure).__name__,
            ended_at=time.time(),
            signal=supervisor.stop_signal,
            boot=boot_id(),
        )
        is_recorded = _record_end(paths, ledger, end)
        stops = supervisor.stop_requests
    companions.finish(lambda: supervisor.stop_requests > stops)
    if failure is not None and not is_recorded:
        raise failure
    return exit_code


def _record_end(paths: RunPaths, ledger: ServerLedger, end: RunEnd) -> bool:
    """Record how the run has ended. Return whether that was possible: the disk may be full."""
    facts = {"exit_code": end.exit_code, "run_dir": str(paths.root)}
    try:
        write_whole(paths.run_end, end.to_line(), durable=False)
        ledger.record_event("ended", end.message, facts)
        ledger.close()
    except (OSError, OrchestratorError):
        return False
    return True


def _with_companions(supervisor: Supervisor, settings: RunSettings) -> Companions:
    """Let features have their companions beside the run of ``supervisor``."""
    companions = Companions(
        paths=supervisor.paths,
        report=supervisor.report,
        jobs_at_once=lambda: supervisor.executor.jobs_at_once,
        now=supervisor.now,
    )

    def begin(addition: Addition, robots: Mapping[str, str]) -> None:
        experiment = None
        if addition.declaration is not None:
            from orchestrator.jobfile import from_declaration  # with all that reads job files

            experiment = from_declaration(addition.declaration)
        facts = RunFacts(
            paths=supervisor.paths,
            ledger=supervisor.ledger,
            report=supervisor.report,
            name=settings.name,
            base=Path(settings.base or supervisor.paths.root),
            tables=_read_tables(settings),
            experiment=experiment,
            is_declared=addition.whole or experiment is not None,
            robots=robots,
            is_listed=settings.is_listed,
        )
        companions.begin(facts)

    def is_held_open() -> bool:
        return settings.holds_open and not supervisor.is_released

    def is_client_waiting() -> bool:
        is_after_training = companions.holds_run and not len(supervisor.attempts)
        return companions.are_adding or is_held_open() or is_after_training

    supervisor.companions = companions
    supervisor.entering.declared = begin
    supervisor.is_held_open = is_held_open
    supervisor.is_client_waiting = is_client_waiting
    return companions


def _exit_code(supervisor: Supervisor, companions: Companions, of_jobs: int) -> int:
    """Return the exit code of the run. :param of_jobs: what follows from the states of the jobs."""
    states = supervisor.jobs.states
    is_left = any(state.name not in TERMINAL for state in states.values())
    return companion_exit_code(
        of_jobs,
        source=begun_source(supervisor.paths, supervisor.ledger),
        states=states,
        has_problem=bool(companions.problem),
        is_interrupted=supervisor.stop_stage > 0 and is_left,
        is_stopping=supervisor.stop_stage > 0,
    )


@contextlib.contextmanager
def _staging(paths: RunPaths) -> Iterator[None]:
    """Make the folder for robots that are examined, and remove it at the end. The lock has removed
    that of an earlier run.
    """
    paths.staging.mkdir()
    try:
        yield
    finally:
        shutil.rmtree(paths.staging, ignore_errors=True)


def _choose_executor(paths: RunPaths, settings: RunSettings) -> start.ChosenExecutor:
    return start.choose_executor(
        paths, settings.executor, settings.executor_options, fresh=settings.fresh
    )


def _read_tables(settings: RunSettings) -> Mapping[str, Any]:
    """Return what the tables of features mean that the client has sent."""
    if not settings.tables:
        return {}
    from orchestrator.jobfile.toml_models import FEATURE_TABLES  # with all that reads job files
    from orchestrator.keys.feature_tables import read_kept_tables
    from orchestrator.keys.problems import Problems

    return read_kept_tables(FEATURE_TABLES, settings.tables, Problems())


def _open_ledger(paths: RunPaths) -> ServerLedger:
    """Open the ledger, or create one: a directory without it has its jobs adopted."""
    ledger = (
        ServerLedger.open(paths.ledger)
        if paths.ledger.exists()
        else ServerLedger.create(paths.ledger)
    )
    ledger.wait_for_lock(30.0)
    ledger.prints = True
    return ledger


def _make_supervisor(
    paths: RunPaths,
    settings: RunSettings,
    executor: start.ChosenExecutor,
    warm: Child,
    holder: str,
    ledger: ServerLedger,
    aside: Path | None,
    stack: contextlib.ExitStack,
) -> Supervisor:
    """:param aside: where the run directory is now that ``--fresh`` has replaced."""
    repository = stack.enter_context(contextlib.closing(provenance.Repository(Path(settings.base))))
    kind = executor.kind
    machine = topology.detect()
    max_parallel = None if settings.max_parallel == "auto" else settings.max_parallel
    opened = kind.open(
        ExecutorSettings(
            machine=machine,
            max_parallel=max_parallel,
            sees_neighbours=True,
            run_dir=paths.root,
            options=executor.options,
            tables=_read_tables(settings),
            name=safe_name(settings.name),
        )
    )
    stack.callback(opened.close)
    examiner = Examiner(processes=machine.capacity, warm=warm)
    stack.callback(examiner.close)
    supervisor = Supervisor(
        paths=paths,
        ledger=ledger,
        executor=opened,
        examiner=examiner,
        policies=stack.enter_context(StartPolicyFetcher(paths)),
        holder=holder,
        grace_s=settings.grace_s,
        until=settings.until,
        awaits_jobs=settings.awaits_jobs,
    )
    start.report_start(supervisor.report, settings, executor, machine, aside)
    opened.ready(supervisor.report)
    settle_left_attempts(paths, ledger, supervisor.report)

    def record_provenance() -> None:
        start.record_provenance(
            paths,
            settings,
            opened,
            machine,
            repository,
            executor,
            ledger.jobs(),
            supervisor.report,
        )

    supervisor.before_first_launch = record_provenance
    return supervisor


def _reasons_to_stop(
    supervisor: Supervisor, settings: RunSettings, lifeline: Lifeline
) -> Callable[[], str]:
    def reason() -> str:
        # Without its client, one that is detached would wait for its jobs for ever.
        waits_for_client = supervisor.awaits_jobs and not supervisor.entering.is_busy
        if (waits_for_client or not settings.is_detached) and lifeline.is_broken():
            supervisor.stop_signal = "SIGHUP"  # as if the terminal had told this process
            return "the program that started the run has ended"
        return ""

    return reason


@contextlib.contextmanager
def _signals(supervisor: Supervisor) -> Iterator[None]:
    """Stop at SIGINT and SIGTERM, save checkpoints at SIGUSR1, and ignore SIGHUP."""

    def stop(number: int, _frame: object) -> None:
        supervisor.stop_signal = signal.Signals(number).name
        supervisor.request_stop(supervisor.stop_signal)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(CHECKPOINT_SIGNAL, lambda *_: supervisor.ask_for_checkpoints())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {CHECKPOINT_SIGNAL})  # inherited from the command
    yield
