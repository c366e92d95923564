"""Runs an experiment: starts a supervisor, adds the jobs, and follows the events to the end."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.client import session
from orchestrator.client.additions import addition_of, is_underway, resumed
from orchestrator.client.follow import LOOK_EVERY_S, Display, Follower, end_of
from orchestrator.client.options import RunOptions
from orchestrator.client.session import SupervisorDied
from orchestrator.client.start import SupervisorProcess, error_named
from orchestrator.core.errors import RunDirError
from orchestrator.core.job import Cause
from orchestrator.core.paths import RunPaths
from orchestrator.core.processes.environment_variables import THREAD_VARIABLES
from orchestrator.experiment import run_directory
from orchestrator.experiment.run_directory import LockHolder
from orchestrator.experiment.run_end import RunEnd
from orchestrator.jobfile import Experiment
from orchestrator.jobfile.toml_models import FEATURE_TABLES
from orchestrator.jobfile.validation import as_plain
from orchestrator.ledger import SummaryRow
from orchestrator.server.differences import is_declared_as
from orchestrator.server.entering import Addition
from orchestrator.server.ledger import INTERNAL, EventRow
from orchestrator.server.settings import RunSettings

JOIN_PATIENCE_S = 10.0
"""How long a supervisor that has just begun may take until its jobs can be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The end of a run."""

    paths: RunPaths
    rows: Sequence[SummaryRow]
    """Of the jobs that are declared."""
    exit_code: int
    is_stopped: bool
    """Whether it was stopped before all jobs had ended."""
    is_signalled: bool
    """Whether a signal to this process has stopped it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Underway:
    """A run that goes on without its client."""

    paths: RunPaths
    pid: int
    running: int
    pending: int
    jobs: int


class Detached(KeyboardInterrupt):
    """Ctrl-C while the run of another client was followed: it goes on."""


def run(
    experiment: Experiment,
    options: RunOptions,
    display: Display,
    process: SupervisorProcess,
    *,
    as_it_is: bool = False,
    detach: bool = False,
) -> RunResult | Underway:
    """Run an experiment to its end. If its supervisor runs already, follow that.

    :param process: not begun yet; it is closed here.
    :param as_it_is: whether the jobs of the run directory go on without a comparison.
    :param detach: whether to return as soon as the first jobs run.
    :raises UsageError: nothing was launched.
    :raises DiskFullError, SupervisorError, ClusterLostError: everything has stopped, resumable.
    :raises KeyboardInterrupt: it was stopped before anything was launched.
    :raises Detached: the run that was followed is not this one's, and goes on.
    """
    run_ = _Run(
        experiment=experiment,
        options=options,
        display=display,
        as_it_is=as_it_is,
        detach=detach,
    )
    try:
        holder = run_directory.holder(run_.paths)
        if holder is None or options.fresh:
            try:
                return run_.start(process)
            except SupervisorDied:
                process.close()
                process = SupervisorProcess(options.run_dir)
                return run_.start(process)
            except RunDirError:
                holder = run_directory.holder(run_.paths)
                if holder is None or options.fresh:
                    raise
        process.close()  # another one has just begun
        return run_.join(holder)
    finally:
        process.close()


@dataclass(slots=True, kw_only=True)
class _Run:
    experiment: Experiment
    options: RunOptions
    display: Display
    as_it_is: bool
    detach: bool
    _underway: Mapping[str, Any] | None = field(default=None, init=False)
    """What the supervisor has said when the first jobs ran; None: it has not yet."""

    @property
    def paths(self) -> RunPaths:
        return RunPaths(self.options.run_dir)

    def start(self, process: SupervisorProcess) -> RunResult | Underway:
        """Start a supervisor, add the jobs, and follow it."""
        process.run_dir = self.options.run_dir
        if not self.as_it_is:
            fresh = self.options.fresh
            self.experiment = resumed(self.experiment, self.options.run_dir, fresh=fresh)
        with session.begin(process, self._settings()) as own:
            self.display.begin(self.paths, own.interrupts.stop)
            own.add(self._addition(), self._show)
            self.display.added()
            for event in own.events():
                self._show_or_tick(event)
                if self.detach and self._underway is not None:
                    process.let_go()
                    return Underway(
                        paths=self.paths,
                        pid=process.pid,
                        running=self._underway["running"],
                        pending=self._underway["pending"],
                        jobs=self._underway["jobs"],
                    )
            return self._result(own.end(), is_signalled=own.interrupts.count > 0)

    def _settings(self) -> RunSettings:
        options = self.options
        experiment = self.experiment
        asked = options.max_parallel
        max_parallel = experiment.max_parallel if asked is None else asked
        tables = {name: experiment.data[name] for name in FEATURE_TABLES if name in experiment.data}
        return RunSettings(
            client_pid=os.getpid(),
            name=experiment.name,
            is_detached=self.detach,
            fresh=options.fresh,
            is_listed=options.is_listed,
            max_parallel=max_parallel,
            executor=options.executor,
            executor_options=options.executor_options,
            tables=as_plain(tables),
            grace_s=options.grace_s,
            until=options.until,
            warnings=experiment.warnings,
            asked_max_parallel=asked,
            command=sys.argv,
            thread_variables={name: os.environ.get(name) for name in THREAD_VARIABLES},
            base=str(experiment.base),
            declared_by=None if experiment.text is None else experiment.declared_by,
            resumed_by=experiment.resumed_by,
        )

    def _addition(self) -> Addition:
        if self.as_it_is:
            text = (
                None if self.experiment.text is None else self.experiment.text.decode("utf-8-sig")
            )
            return Addition(as_it_is=True, text=text)
        return dataclasses.replace(
            addition_of(self.experiment, self.options.on_change),
            refuses_shared=self.options.refuses_shared,
        )

    def _show_or_tick(self, event: EventRow | None) -> None:
        if event is None:
            self.display.tick()
        else:
            self._show(event)

    def _show(self, event: EventRow) -> None:
        if event.kind == "underway":
            self._underway = event.facts
        if event.kind not in INTERNAL:
            self.display.event(event)

    def _result(self, end: RunEnd, *, is_signalled: bool) -> RunResult:
        """Return how the run has ended. :raises OrchestratorError: an error has ended it."""
        if end.message:
            raise error_named(end.error, end.message)
        with run_directory.opened_ledger(self.paths, read_only=True) as ledger:
            rows = [row for row in ledger.summary() if row["cause"] != Cause.UNDECLARED]
        is_left = any(row["state"] in ("PENDING", "RUNNING") for row in rows)
        return RunResult(
            paths=self.paths,
            rows=rows,
            exit_code=end.exit_code,
            is_stopped=end.exit_code == 130 and is_left,
            is_signalled=is_signalled,
        )

    # -- a supervisor that runs already

    def join(self, holder: LockHolder) -> RunResult | Underway:
        """Follow a supervisor that runs already.

        :raises RunDirError: it runs something else.
        """
        root = self.paths.root
        if holder.is_elsewhere or not (self.as_it_is or self._is_the_same()):
            raise RunDirError(
                f"{root}: is running already, held by another supervisor ({holder}), and not with the"
                f" same declarations. `reload {root} JOBS.toml` adds the new jobs of a job file,"
                f" `attach {root}` follows the run, `stop {root}` ends it"
            )
        try:
            with contextlib.closing(Follower(root)) as follower:
                self.display.begin(self.paths, lambda _: None)
                self.display.added()
                text = f"{root}: is running already ({holder}); following it. Ctrl-C detaches"
                joined = EventRow(
                    id=0, at=time.time(), kind="joined", job_id=None, message=text, facts={}
                )
                self.display.event(joined)
                if self.detach:
                    counts = self._counts()
                    return Underway(
                        paths=self.paths,
                        pid=holder.pid,
                        running=counts.get("RUNNING", 0),
                        pending=counts.get("PENDING", 0),
                        jobs=sum(counts.values()),
                    )
                for event in follower.to_end(holder.key):
                    self._show_or_tick(event)
        except KeyboardInterrupt:
            raise Detached(
                f"detached; the experiment continues. `attach {root}` follows it again,"
                f" `stop {root}` stops it"
            ) from None
        return self._result(end_of(self.paths, holder.key), is_signalled=False)

    def _counts(self) -> Mapping[str, int]:
        with run_directory.opened_ledger(self.paths, read_only=True) as ledger:
            return ledger.counts()

    def _is_the_same(self) -> bool:
        """Whether the jobs in the ledger are those that are declared, or come from the same source."""
        if self.experiment.makes_jobs:
            return is_underway(self.experiment, self.paths.root)
        give_up_at = time.monotonic() + JOIN_PATIENCE_S
        while True:
            rows = []
            if self.paths.ledger.exists():
                with run_directory.opened_ledger(self.paths, read_only=True) as ledger:
                    rows = ledger.jobs()
            if rows or time.monotonic() > give_up_at or run_directory.holder(self.paths) is None:
                break
            time.sleep(LOOK_EVERY_S)
        return bool(self.experiment.jobs) and is_declared_as(rows, self.experiment.jobs)
