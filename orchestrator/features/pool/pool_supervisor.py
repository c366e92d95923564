"""The supervisor of a pool: a child process that trains what the program enters into its ledger.

    python -m orchestrator.features.pool.pool_supervisor RUN_DIR MAX_PARALLEL

Its standard output says that it is ready, or why it has failed. Its standard input ends with the
program: then it stops as after Ctrl-C. After :data:`NO_MORE` it ends by itself as soon as no job is
left.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.core.errors import OrchestratorError, RunDirError
from orchestrator.core.files.atomic_files import opened_log
from orchestrator.core.front_end import python_program
from orchestrator.core.job import State
from orchestrator.core.messages import JsonLine
from orchestrator.core.paths import RunPaths
from orchestrator.core.processes.process_setup import block_checkpoint_signal, set_up_process
from orchestrator.core.text import plain
from orchestrator.experiment import session
from orchestrator.experiment.begun_source import begun_source
from orchestrator.experiment.beside_run import BesideRun
from orchestrator.experiment.directory import run_directory
from orchestrator.experiment.from_outside import control
from orchestrator.experiment.planning.run_plan import RunOptions
from orchestrator.experiment.resuming import resume
from orchestrator.features.pool import unclaimed_jobs
from orchestrator.jobfile import Experiment
from orchestrator.ledger import JobRow, Ledger, summary
from orchestrator.supervisor.events import View
from orchestrator.supervisor.retry_policy import exit_code
from orchestrator.terminal.run_view import LineReporter

NO_MORE = b"."
LOOK_EVERY_S = 1.0
NOTICED_S = 2.0
"""Within this time a supervisor has recorded that it stops, after its program was killed."""
WAIT_STEP_S = 0.1
RESUMED_BY = (
    "a TrainingPool with {run_dir} resumes it when the same robots are submitted to it again"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolReport(JsonLine):
    """What the supervisor of a pool says: that it is ready, or why it has ended."""

    holder: str = ""
    """Names it in requests; empty: it has ended."""
    kind: str = ""
    """The class of the error."""
    error: str = ""


def _say(report: PoolReport) -> None:
    os.write(1, report.to_line())


def _warn(text: str) -> None:
    """On standard error, which is the program's."""
    with contextlib.suppress(OSError):  # nobody reads it, or its disk is full, too
        os.write(2, f"warning: {text}\n".encode(errors="backslashreplace"))


class Program:
    """The process that has the pool."""

    def __init__(self) -> None:
        self.may_submit = True
        self._parent = os.getppid()
        threading.Thread(target=self._watch, name="program", daemon=True).start()

    def _watch(self) -> None:
        """Its end ends standard input, unless a process that it has forked lives longer."""
        while os.getppid() == self._parent:
            if not select.select([0], [], [], LOOK_EVERY_S)[0]:
                continue
            if os.read(0, 1) != NO_MORE:
                break
            self.may_submit = False
        os.kill(os.getpid(), signal.SIGTERM)


class AwaitsProgram(BesideRun):
    """Lets the run wait for jobs of the program, as long as that may submit any. At a normal end, jobs
    of an earlier pool are cancelled that the program has not submitted again.
    """

    def __init__(self, program: Program, paths: RunPaths) -> None:
        self._program = program
        self._paths = paths
        self._unclaimed: Collection[str] = ()
        self._ledger: Ledger

    def ledger_opened(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def may_add_jobs(self) -> bool:
        return self._program.may_submit

    def finish(self, is_stopped: Callable[[], bool]) -> None:
        if not (self._program.may_submit or is_stopped()):
            self._unclaimed = unclaimed_jobs.cancel(self._ledger)
            summary.write(self._paths, self._ledger)

    def exit_code(
        self, states: Mapping[str, State], *, is_interrupted: bool, is_stopping: bool
    ) -> int:
        claimed = {
            job_id: state for job_id, state in states.items() if job_id not in self._unclaimed
        }
        return exit_code(claimed, interrupted=is_interrupted)


class PoolReporter:
    """Says once that jobs can be entered; events are lines of ``supervisor.log``, as with ``run
    --detach``.
    """

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._is_ready = False

    @functools.cached_property
    def _log(self) -> LineReporter:
        log = opened_log(self._paths.supervisor_log, _warn)
        return LineReporter(os.fdopen(log, "a", encoding="utf-8", errors="replace"))

    def event(self, kind: str, message: str, **facts: Any) -> None:
        self._log.event(kind, message, **facts)

    def tick(self, view: Callable[[], View]) -> None:
        if not self._is_ready and (this := run_directory.holder(self._paths)) is not None:
            self._is_ready = True
            _say(PoolReport(holder=this.key))
        self._log.tick(view)


def _origin(paths: RunPaths) -> str:
    """What else makes the jobs of this run directory; empty where nothing does."""
    if paths.experiment.exists():
        return "`run` of a job file"
    if not paths.ledger.exists():
        return ""
    with run_directory.reading_ledger(paths) as ledger:
        source = begun_source(paths, ledger)
    return "" if source is None else f"a {source.noun}"


def _wait_for_earlier(paths: RunPaths) -> None:
    """Wait for the supervisor of an earlier pool here while it stops, as one does whose program was
    killed.
    """
    if run_directory.holder(paths) is None or _origin(paths):
        return
    noticed = time.monotonic() + NOTICED_S
    is_told = False
    while (earlier := run_directory.holder(paths)) is not None:
        if _is_stopping(paths, earlier):
            if not is_told:
                advice = f"`stop --now {paths.root}` kills its trainings"
                _warn(f"{paths.root}: waiting for the earlier pool ({earlier}) to end; {advice}")
            is_told = True
        elif time.monotonic() > noticed:
            return
        time.sleep(WAIT_STEP_S)


def _is_stopping(paths: RunPaths, earlier: run_directory.LockHolder) -> bool:
    if not paths.ledger.exists():
        return False
    with run_directory.reading_ledger(paths) as ledger:
        return ledger.is_stopping(earlier.key)


def _earlier(paths: RunPaths) -> list[JobRow]:
    """The jobs that have begun in an earlier pool here. Those that are not finished wait until they
    are submitted.
    """
    if origin := _origin(paths):
        what = f"was made by {origin}, and a pool enters jobs of its own"
        raise RunDirError(f"{paths.root}: {what}. {run_directory.choose_another().capitalize()}")
    if not paths.ledger.exists():
        return []
    with run_directory.claim(paths.root):
        with run_directory.opened_ledger(paths) as ledger:
            unclaimed_jobs.take_back(ledger)
        control.move_jobs(paths, None, "pause")  # the run that begins writes the summary
        with run_directory.opened_ledger(paths, read_only=True) as ledger:
            rows = ledger.jobs()
    return [row for row in rows if row.attempts]


def main(run_dir: str, max_parallel: str) -> int:
    block_checkpoint_signal()
    set_up_process()
    program = Program()
    paths = RunPaths(Path(run_dir))
    with python_program():
        return _run(paths, max_parallel, program)


def _run(paths: RunPaths, max_parallel: str, program: Program) -> int:
    try:
        _wait_for_earlier(paths)
        rows = _earlier(paths)
        experiment = Experiment(
            name=plain(paths.root.name),
            max_parallel=None,
            order="as-listed",
            skip_invalid=True,
            jobs=tuple(row.job for row in rows),
            source="orchestrator.TrainingPool",
            base=paths.root,
            resumed_by=RESUMED_BY,
        )
        options = RunOptions(
            run_dir=paths.root,
            max_parallel="idle" if max_parallel == "idle" else int(max_parallel) or None,
            is_listed=True,
            executor="local",
            verdicts=resume.verdicts(rows),
        )
        session.run(
            experiment, options, PoolReporter(paths), beside=[AwaitsProgram(program, paths)]
        )
    except KeyboardInterrupt:
        return 130
    except OrchestratorError as error:
        _say(PoolReport(kind=type(error).__name__, error=str(error)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
