"""What the feature has beside a run: the searcher, a child process that makes the jobs of a search,
and how a run that has one is prepared.

The supervisor knows no more of it than whether it works; everything else goes through the ledger
(:mod:`orchestrator.features.search.searcher.searcher`).
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from orchestrator.core.errors import LedgerUnavailableError, RunDirError
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.front_end import repeat_call
from orchestrator.core.job import State
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import rough_duration
from orchestrator.experiment.beside_run import BesideRun, RunProblem
from orchestrator.experiment.directory import run_directory
from orchestrator.experiment.planning.run_plan import Plan, RunOptions
from orchestrator.experiment.processes.liveness import Liveness
from orchestrator.experiment.processes.side_process import SideProcess
from orchestrator.features.search import changed_search, search_events, search_robots
from orchestrator.features.search.declaration import written
from orchestrator.features.search.declaration.declared_search import declaration_of
from orchestrator.features.search.search_paths import SearchPaths
from orchestrator.jobfile import Experiment
from orchestrator.ledger import Ledger
from orchestrator.machine.slots import Slots
from orchestrator.supervisor.events import Reporter
from orchestrator.supervisor.retry_policy import backoff_s

MOST_STARTS = 8
"""The last of them comes after more than a minute: by then a cause that passes has passed, such as a
lack of memory."""
STEADY_S = 600.0
"""A searcher that has worked for so long is started again, however often that was done before."""
CALL_S = 300.0
"""Longest time that a sampler may take for one call: the searcher itself sees to that, while a
thread of it can run."""
SILENT_S = CALL_S + 30.0
"""A searcher without a sign of life for so long hangs: it has not even ended a call that took too
long."""
STOPPED_S = 30.0
"""So long somebody may have stopped it with SIGSTOP before it counts as hanging."""
ENDED = 10
"""Exit code of a searcher: the search is over."""
WAITS_FOR_USER = 3
"""Exit code of a searcher: what is left is jobs that the user has paused."""
CANNOT_GO_ON = 2
"""Exit code of a searcher: something has to be corrected first."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The search has come to its end."""


@dataclass(frozen=True, slots=True)
class WaitsForUser:
    """What is left is jobs that the user has paused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The search has stopped before its end."""

    problem: str


SearchEnd: TypeAlias = Finished | WaitsForUser | Stopped
"""Why the searcher is not started again."""


@dataclass(slots=True, kw_only=True)
class SearchBesideRun(BesideRun):
    """Starts the searcher, and starts it again if it is killed, or hangs.

    Where the job file declares neither a search nor a scheduler any more, there is no searcher.
    """

    paths: RunPaths
    reporter: Reporter
    is_needed: bool
    """Whether the run has a search, or compares its jobs at rungs."""
    _ended: SearchEnd | None = field(default=None, init=False)
    """None: it is not started yet, runs, or is started again."""
    _experiment: Experiment | None = field(default=None, init=False)
    """As it is run; None until it is planned."""
    _robots: Mapping[str, str] = field(default_factory=dict, init=False)
    """Their contents; see :mod:`orchestrator.features.search.search_robots`."""
    _slots: Slots | None = field(default=None, init=False)
    _ledger: Ledger | None = field(default=None, init=False)
    _process: SideProcess | None = field(default=None, init=False)
    """None until jobs are about to be launched."""
    _starts: int = field(default=0, init=False)
    """Since it was declared, or had worked for :data:`STEADY_S`."""
    _starts_again_at: float | None = field(default=None, init=False)
    """When it is started again, after it has ended; by :func:`time.monotonic`."""
    _why_killed: str = field(default="", init=False)
    """How the searcher that runs has hung, so that it was killed; it may take a while to end."""
    _told_jobs_at_once: int = field(default=0, init=False)
    """The number of jobs at once that the searcher knows."""
    _declared_at: int = field(default=0, init=False)
    """When the declaration was written that it has read."""

    # -- before the run

    def claimed(self, options: RunOptions) -> None:
        if not options.rebuild_ledger or not SearchPaths(self.paths.root).declaration.exists():
            return
        is_search = "search" in written.read_declaration(self.paths)["data"]
        # Jobs that were compared at rungs are in the job file, and are rebuilt like any others once
        # they are compared no more. Trials are not.
        if is_search or self.is_needed:
            noun = "search" if is_search else "comparison at rungs"
            text = f"a {noun} cannot be rebuilt: only its ledger has the order of its events"
            raise RunDirError(f"{self.paths.root}: {text}; `run --fresh` starts over")

    def before_plan(
        self, experiment: Experiment, options: RunOptions, ledger: Ledger | None
    ) -> tuple[Experiment, RunOptions]:
        return changed_search.resumed_experiment(experiment, options, ledger, self.paths)

    def after_plan(self, experiment: Experiment, made: Plan, ledger: Ledger | None) -> None:
        changed_search.refuse_another_robot(experiment, made.verdicts, ledger, self.paths)
        self._experiment = experiment
        self._robots = search_robots.contents(experiment, made.verdicts)
        self._slots = made.backend.slots

    def ledger_opened(self, ledger: Ledger) -> None:
        assert self._experiment is not None
        self._ledger = ledger
        if self._experiment.job_source is None:
            search_events.withdraw(ledger)
        elif self.is_needed and search_events.standing(ledger) == "none":
            # Before any job is entered: a run that ends before the searcher has entered anything is
            # resumed as a search all the same. First the declaration, which such a ledger has.
            written.declare(self.paths, self._experiment, self._robots)
            search_events.begin(ledger)

    def begin(self, has_free_cores: Callable[[], bool | None]) -> None:
        assert self._experiment is not None
        own = SearchPaths(self.paths.root)
        own.stopped.unlink(missing_ok=True)
        if not self.is_needed:
            return
        search = declaration_of(self._experiment).search
        if search is not None and search.auto is not None:
            self.reporter.event("chosen", str(search.auto))
        holder = run_directory.holder(self.paths)
        written.declare(self.paths, self._experiment, self._robots)
        self._process = SideProcess(
            arguments=[
                "orchestrator.features.search.searcher.searcher",
                str(self.paths.root.absolute()),
                "" if holder is None else holder.key,
            ],
            run_dir=self.paths.root,
            log=own.log,
        )

    # -- during the run

    def may_add_jobs(self) -> bool:
        """Whether it may still add jobs, or let paused ones go on."""
        if self._process is None:
            return False
        return self._ended is None or self._is_redeclared(self._process)

    def _is_redeclared(self, process: SideProcess) -> bool:
        return process.starts > 0 and self._declared_at != written.written_at(self.paths)

    def before_turn(self) -> None:
        """Start it, and start it again if it was killed, hangs, or is declared anew, or if the user
        has resumed what it waited for.
        """
        process = self._process
        if process is None:
            return
        if isinstance(self._ended, WaitsForUser) and self._has_user_resumed():
            # It has ended just before it could see that.
            self._ended = None
            self._starts = 0
            self._starts_again_at = time.monotonic()
        if not self.may_add_jobs():
            return
        if self._is_redeclared(process):
            self._begin_anew(process)
        elif process.is_alive:
            self._watch(process)
        elif process.starts == 0:
            self._start(process)
        elif self._starts_again_at is None:
            self._act_on_end(process)
        elif time.monotonic() >= self._starts_again_at:
            self._start(process)

    def _has_user_resumed(self) -> bool:
        """Whether jobs train, or wait for a slot, though the searcher has ended since none did."""
        counts: Mapping[str, int] = {}
        if self._ledger is not None:
            with contextlib.suppress(LedgerUnavailableError):  # the next turn asks again
                counts = self._ledger.counts()
        return counts.get("PENDING", 0) + counts.get("RUNNING", 0) > 0

    def _begin_anew(self, process: SideProcess) -> None:
        """Start it with a declaration that has replaced the one that it has read."""
        process.end()
        self._ended = None
        self._starts = 0
        SearchPaths(self.paths.root).stopped.unlink(missing_ok=True)
        self.reporter.event(
            "reloaded", "the search goes on as it is declared now, taken over by `reload`"
        )
        self._start(process)

    @property
    def _jobs_at_once(self) -> int:
        """Jobs that may run at once."""
        assert self._slots is not None
        return self._slots.jobs_at_once

    def _start(self, process: SideProcess) -> None:
        self._told_jobs_at_once = self._jobs_at_once
        self._declared_at = written.written_at(self.paths)
        self._why_killed = ""
        self._starts_again_at = None
        self._starts += 1
        try:
            process.start(str(self._told_jobs_at_once))
        except OSError as error:
            self._start_later(f"it could not be started: {error}")

    def _watch(self, process: SideProcess) -> None:
        """Kill it if it hangs; otherwise tell it how many jobs run at once."""
        process.watch()
        if not self._why_killed:
            self._why_killed = _why_it_hangs(process.liveness)
            if self._why_killed:
                process.kill()
            else:
                self._tell_jobs_at_once(process)

    def _act_on_end(self, process: SideProcess) -> None:
        code = process.end()  # with whatever its sampler has started
        assert code is not None
        if code == ENDED:
            self._ended = Finished()
        elif code == WAITS_FOR_USER:
            self._ended = WaitsForUser()
        else:
            self._act_on_failure(process, code)

    def _act_on_failure(self, process: SideProcess, code: int) -> None:
        """Start it again, or stop the search. :param code: exit code of the searcher."""
        why = self._why_killed or _why_it_ended(process, code)
        if process.ran_s > STEADY_S:
            self._starts = 0
        if code in (CANNOT_GO_ON, -signal.SIGPROF):
            self._stop_with_advice(why)
        else:
            self._start_later(why)

    def _start_later(self, why: str) -> None:
        """Start it again after a while, unless that was done too often."""
        if self._starts == MOST_STARTS:
            self._stop_with_advice(why)
            return
        delay_s = backoff_s(self._starts - 1) if self._starts > 1 else 0.0
        when = f" in {delay_s:.0f} s" if delay_s else ""
        self.reporter.event(
            "warning", f"the process of the search has ended ({why}); it is started again{when}"
        )
        self._starts_again_at = time.monotonic() + delay_s

    def _stop_with_advice(self, why: str) -> None:
        again = f"Correct the cause, and {repeat_call()}: the search resumes"
        self._stop(why, f". The jobs that it has made are trained. {again}")

    def _stop(self, problem: str, advice: str = "") -> None:
        """Report the ``problem``, and keep it for whoever asks later."""
        self._ended = Stopped(problem=problem)
        with contextlib.suppress(OSError):  # a full disk: it is in the log
            write_whole(SearchPaths(self.paths.root).stopped, problem, durable=False)
        self.reporter.event("warning", f"the search has stopped: {problem}{advice}")

    def _tell_jobs_at_once(self, process: SideProcess) -> None:
        if self._jobs_at_once != self._told_jobs_at_once:
            with contextlib.suppress(OSError):  # it has just ended, or reads nothing at the moment
                process.tell(f"{self._jobs_at_once}\n".encode())
                self._told_jobs_at_once = self._jobs_at_once

    # -- at its end

    def end(self) -> None:
        if self._process is not None:
            self._process.end()

    def exit_code(
        self, states: Mapping[str, State], *, is_interrupted: bool, is_stopping: bool
    ) -> int | None:
        """Failed and paused trials are part of a search: it has succeeded when it has ended, and
        one trial has a value. A search that has stopped with a problem has failed, also where
        trials wait at rungs.
        """
        if not self.is_needed:
            return None
        if isinstance(self._ended, Finished):
            assert self._experiment is not None
            assert self._ledger is not None
            if not self._experiment.makes_jobs:
                return None
            return 0 if search_events.has_value(self._ledger) else 1
        if isinstance(self._ended, Stopped):  # resumed, it stops with the same problem
            goes_on_when_resumed = is_interrupted
        else:
            is_paused = any(state.name == "PAUSED" for state in states.values())
            goes_on_when_resumed = is_stopping or is_paused
        return 130 if goes_on_when_resumed else 1

    def problem(self) -> RunProblem | None:
        if not isinstance(self._ended, Stopped):
            return None
        return RunProblem(
            what=f"the search has stopped: {self._ended.problem}",
            advice="Correct the cause: the next trial stays the same.",
        )


def _why_it_ended(process: SideProcess, code: int) -> str:
    if code == -signal.SIGPROF:
        return "a call of its sampler has not returned, and has kept all else in its process from running"
    return process.why_it_ended().removeprefix("search: ")


def _why_it_hangs(liveness: Liveness) -> str:
    """Empty if it does not."""
    if liveness.stopped_s > STOPPED_S:
        return f"it was stopped for {rough_duration(liveness.stopped_s)}, as by SIGSTOP, and was killed"
    if liveness.silent_s > SILENT_S:
        return (
            f"it has shown no sign of life for {rough_duration(liveness.silent_s)}, and was killed"
        )
    return ""
