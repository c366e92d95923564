"""What features have beside a run: a process that is told of the jobs, or makes them, for example."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from orchestrator.core.feature import answers
from orchestrator.core.job import State
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.directory.run_end import RunOutcome
from orchestrator.experiment.planning.run_plan import Plan, RunOptions
from orchestrator.jobfile import Experiment
from orchestrator.ledger import Ledger
from orchestrator.machine.slots import SlotPool
from orchestrator.supervisor.events import Reporter, View
from orchestrator.supervisor.retry_policy import exit_code
from orchestrator.supervisor.stop_signals import StopRequests

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The run that a feature is asked about. Nothing of it is in the run directory yet."""

    experiment: Experiment
    run_dir: Path
    is_listed: bool
    """Whether `list` shows it: what people run, but no benchmark."""
    reporter: Reporter
    """For warnings; raises nothing."""
    announcer: Reporter
    """For what happens to jobs: features that are told of events are told of these, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProblem:
    """Why what a feature has beside a run has ended too early."""

    what: str
    """A clause."""
    advice: str
    """A sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJobs:
    """The jobs of a run when all of them have ended."""

    paths: RunPaths
    states: Mapping[str, State]
    """In order of launch; where jobs are made as the run goes on, not of those that an earlier run has
    trained."""
    shown: Sequence[str] | None
    """Ids of those that pages show by themselves; None: all of :attr:`states`."""
    ledger: Ledger
    slots: SlotPool
    """The CPUs of this machine that the run may use. They are free."""
    reporter: Reporter
    """Tells people, and what all features have beside the run."""


class BesideRun:
    """What one feature has beside one run. Each method does nothing unless it is overridden.

    They are called from the thread of the supervisor, in the order in which they are listed.
    Nothing waits in them but in :meth:`add_results`, :meth:`finish` and :meth:`after_end`. What one
    raises ends the run as any other error does: workers save a checkpoint and exit, and the run can
    be resumed. Standard output is the program's: they print nothing there.
    """

    def claimed(self, options: RunOptions) -> None:
        """The run directory is locked, and nothing of it has been read."""

    def before_plan(
        self, experiment: Experiment, options: RunOptions, ledger: Ledger | None
    ) -> tuple[Experiment, RunOptions]:
        """What is run. :param ledger: of an earlier run; None in a new run directory."""
        return experiment, options

    def after_plan(self, experiment: Experiment, made: Plan, ledger: Ledger | None) -> None:
        """Machine and robots are examined; nothing has been changed yet.

        :param experiment: what is run.
        """

    def ledger_opened(self, ledger: Ledger) -> None:
        """Of this run, whether it is new or not; the jobs are entered next."""

    def begin(self, has_free_cores: Callable[[], bool | None]) -> None:
        """Jobs are about to be launched, and the run directory is there.

        :param has_free_cores: whether the jobs of the run use fewer cores than they may; None as
            long as that cannot be said.
        """

    def before_turn(self) -> None:
        """Begins every turn of the supervisor, until a stop is requested."""

    def may_add_jobs(self) -> bool:
        """Whether it may still add jobs, or let paused ones go on: the run does not end before
        that. A question, which may be asked at any time.
        """
        return False

    def event(self, kind: str, message: str, **facts: Any) -> None:
        """What people are told. Also before :meth:`begin`."""

    def after_turn(self) -> None:
        """Ends every turn of the supervisor; then often, while others add results or finish."""

    def add_results(self, ended: EndedJobs, is_stopped: Callable[[], bool]) -> None:
        """All jobs have ended. What is to stand beside their results, such as pictures, is made now.
        Not called where the run was stopped.

        :param is_stopped: whether a stop is requested by now. To be asked often.
        """

    def finish(self, is_stopped: Callable[[], bool]) -> None:
        """All jobs have ended, and all features have added their results. Not called where the run
        was stopped.

        :param is_stopped: whether a stop is requested by now.
        """

    def end(self) -> None:
        """The ledger is closed next; also where the run has failed or was refused. Called once."""

    def exit_code(
        self, states: Mapping[str, State], *, is_interrupted: bool, is_stopping: bool
    ) -> int | None:
        """That of the run, in place of the one that the states of its jobs have; None: that one is
        right. Of several the largest counts.

        :param is_interrupted: whether the run was stopped before all jobs had ended.
        :param is_stopping: whether a stop was requested.
        """
        return None

    def problem(self) -> RunProblem | None:
        """Why it has ended too early; None where it has not."""
        return None

    def after_end(self, outcome: RunOutcome, is_stopped: Callable[[], bool]) -> None:
        """The run has ended, in whatever way.

        :param is_stopped: whether a further stop is requested by now: the user does not want to
            wait any longer.
        """


@dataclass(slots=True, kw_only=True)
class PartsBesideRun:
    """What all features have beside a run. It is a reporter that passes events on to
    ``inner``.
    """

    inner: Reporter
    outcome: RunOutcome
    stops: StopRequests
    _parts: list[BesideRun] = field(default_factory=list, init=False)
    _failure: Exception | None = field(default=None, init=False)
    """What a part has raised when it was told of something: the next other call raises it."""
    _have_ended: bool = field(default=False, init=False)

    def ask(self, experiment: Experiment, run_dir: Path, *, is_listed: bool) -> None:
        """Ask every feature what it has beside this run."""
        facts = RunFacts(
            experiment=experiment,
            run_dir=run_dir,
            is_listed=is_listed,
            reporter=self.inner,
            announcer=self,
        )
        self._parts += [part for _, part in answers("beside_run", facts)]

    def add(self, parts: Sequence[BesideRun]) -> None:
        """Add those of whoever calls the run."""
        self._parts += parts

    def __enter__(self) -> PartsBesideRun:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        stops = self.stops.count
        with contextlib.ExitStack() as stack:  # each is told, whatever others raise
            for part in reversed(self._parts):
                stack.callback(part.after_end, self.outcome, lambda: self.stops.count > stops)
            stack.callback(self.end)

    def claimed(self, options: RunOptions) -> None:
        self._each(lambda part: part.claimed(options))

    def before_plan(
        self, experiment: Experiment, options: RunOptions, ledger: Ledger | None
    ) -> tuple[Experiment, RunOptions]:
        for part in self._parts:
            experiment, options = part.before_plan(experiment, options, ledger)
        return experiment, options

    def after_plan(self, experiment: Experiment, made: Plan, ledger: Ledger | None) -> None:
        self._each(lambda part: part.after_plan(experiment, made, ledger))

    def ledger_opened(self, ledger: Ledger) -> None:
        self._each(lambda part: part.ledger_opened(ledger))

    def begin(self, has_free_cores: Callable[[], bool | None]) -> None:
        self._each(lambda part: part.begin(has_free_cores))

    def before_turn(self) -> None:
        self._each(lambda part: part.before_turn())

    def may_add_jobs(self) -> bool:
        return any(self._each(lambda part: part.may_add_jobs()))

    def event(self, kind: str, message: str, **facts: Any) -> None:
        self.inner.event(kind, message, **facts)
        self._tell(lambda part: part.event(kind, message, **facts))

    def tick(self, view: Callable[[], View]) -> None:
        self.inner.tick(view)
        self.after_turn()

    def after_turn(self) -> None:
        self._tell(lambda part: part.after_turn())

    def add_results(self, ended: EndedJobs, is_stopped: Callable[[], bool]) -> None:
        self._each(lambda part: part.add_results(ended, is_stopped))

    def finish(self, is_stopped: Callable[[], bool]) -> None:
        self._each(lambda part: part.finish(is_stopped))

    def end(self) -> None:
        """To be called before the ledger is closed; later calls do nothing."""
        if not self._have_ended:
            self._have_ended = True
            with contextlib.ExitStack() as stack:  # each ends, whatever others raise
                for part in reversed(self._parts):
                    stack.callback(part.end)

    def exit_code(
        self, states: Mapping[str, State], *, is_interrupted: bool, is_stopping: bool
    ) -> int:
        """That of the run."""
        answered = self._each(
            lambda part: part.exit_code(
                states, is_interrupted=is_interrupted, is_stopping=is_stopping
            )
        )
        codes = [code for code in answered if code is not None]
        return max(codes) if codes else exit_code(states, interrupted=is_interrupted)

    def problem(self) -> RunProblem | None:
        """Why something has ended too early; None where nothing has."""
        problems = self._each(lambda part: part.problem())
        return next((problem for problem in problems if problem is not None), None)

    @property
    def has_failed(self) -> bool:
        """Whether a part has raised something when it was told of something."""
        return self._failure is not None

    def _each(self, call: Callable[[BesideRun], T]) -> list[T]:
        """Call every part. Returns the answers."""
        if self._failure is not None:
            raise self._failure
        return [call(part) for part in self._parts]

    def _tell(self, call: Callable[[BesideRun], None]) -> None:
        """Tell every part of something. Whoever tells goes on after an error of a reporter, so the
        next call of another kind raises it.
        """
        for part in self._parts:
            try:
                call(part)
            except Exception as error:
                self._failure = self._failure or error
