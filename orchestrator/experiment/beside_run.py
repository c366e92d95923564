"""What features have beside a run: a process that is told of the jobs, or makes them, for example."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from orchestrator.core.errors import OrchestratorError, UsageError
from orchestrator.core.feature import answers, is_traced, note_problem, owner, untold_problems
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
    Nothing waits in them but in :meth:`add_results`, :meth:`finish` and :meth:`after_end`. Where one
    raises, :meth:`end` is called, and no other method from then on; a warning says so, and the run goes on. There are
    two exceptions: before :meth:`begin`, an ``OrchestratorError`` refuses the run; and what
    :attr:`is_needed` ends the run by whatever it raises up to :meth:`finish`. Standard output is the
    program's: they print nothing there.
    """

    is_needed: bool = False
    """Whether the jobs of the run depend on it: then none is trained without it. Always so where the
    experiment has a job source of its feature (:mod:`orchestrator.jobfile.job_source`)."""

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
        """That of the run; None: the one that the states of its jobs have is right. The largest of
        all counts, which is never less than that of the jobs, unless :attr:`is_needed`: then this one
        stands in its place.

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
    _parts: dict[str, BesideRun] = field(default_factory=dict, init=False)
    """By the name of the feature."""
    _failure: Exception | SystemExit | None = field(default=None, init=False)
    """What a part has raised first that the run depends on: the run ends by it at the next moment."""
    _have_ended: bool = field(default=False, init=False)

    def ask(self, experiment: Experiment, run_dir: Path, *, is_listed: bool) -> None:
        """Ask every feature what it has beside this run.

        :raises UsageError: what decides which jobs there are has nothing.
        """
        facts = RunFacts(
            experiment=experiment,
            run_dir=run_dir,
            is_listed=is_listed,
            reporter=self.inner,
            announcer=self,
        )
        for feature, part in answers("beside_run", facts):
            if isinstance(part, BesideRun):
                self._parts[feature.name] = part
            else:
                what = f"does nothing beside a run: expected a BesideRun; this is {part!r}"
                note_problem(feature.name, what)
        for problem in untold_problems():
            self.inner.event("warning", problem)
        if experiment.job_source is not None:
            self._refuse_without_source(experiment, experiment.job_source.noun)

    def _refuse_without_source(self, experiment: Experiment, noun: str) -> None:
        """:raises UsageError: what decides which jobs there are does nothing beside the run."""
        table = experiment.source_table
        feature = owner("job_file", table)
        part = self._parts.get(feature)
        if part is None or not part.is_needed:
            what = f"its {noun} needs the feature {feature}, which does nothing beside the run"
            cure = f"correct or update the feature, or leave [{table}] out"
            raise UsageError(f"{experiment.source}: {what}; {cure}")

    def add(self, parts: Mapping[str, BesideRun]) -> None:
        """Add those of whoever calls the run."""
        self._parts |= parts

    def __enter__(self) -> PartsBesideRun:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        stops = self.stops.count
        self.end()
        self._each(
            lambda part: part.after_end(self.outcome, lambda: self.stops.count > stops),
            is_ending=True,
        )

    def claimed(self, options: RunOptions) -> None:
        self._each(lambda part: part.claimed(options), may_refuse=True)

    def before_plan(
        self, experiment: Experiment, options: RunOptions, ledger: Ledger | None
    ) -> tuple[Experiment, RunOptions]:
        planned = experiment, options

        def ask(part: BesideRun) -> None:
            nonlocal planned
            given = part.before_plan(*planned, ledger)
            match given:
                case Experiment(), RunOptions():
                    planned = given
                case _:
                    raise TypeError(f"before_plan: expected what is run; this is {given!r}")

        self._each(ask, may_refuse=True)
        return planned

    def after_plan(self, experiment: Experiment, made: Plan, ledger: Ledger | None) -> None:
        self._each(lambda part: part.after_plan(experiment, made, ledger), may_refuse=True)

    def ledger_opened(self, ledger: Ledger) -> None:
        self._each(lambda part: part.ledger_opened(ledger), may_refuse=True)

    def begin(self, has_free_cores: Callable[[], bool | None]) -> None:
        self._each(lambda part: part.begin(has_free_cores))

    def before_turn(self) -> None:
        self._each(lambda part: part.before_turn())

    def may_add_jobs(self) -> bool:
        return True in self._answers(lambda part: part.may_add_jobs())

    def event(self, kind: str, message: str, **facts: Any) -> None:
        self.inner.event(kind, message, **facts)
        self._each(lambda part: part.event(kind, message, **facts), is_told=True)

    def tick(self, view: Callable[[], View]) -> None:
        self.inner.tick(view)
        self.after_turn()

    def after_turn(self) -> None:
        self._each(lambda part: part.after_turn(), is_told=True)

    def add_results(self, ended: EndedJobs, is_stopped: Callable[[], bool]) -> None:
        self._each(lambda part: part.add_results(ended, is_stopped))

    def finish(self, is_stopped: Callable[[], bool]) -> None:
        self._each(lambda part: part.finish(is_stopped))

    def end(self) -> None:
        """To be called before the ledger is closed; later calls do nothing."""
        if not self._have_ended:
            self._have_ended = True
            self._each(lambda part: part.end(), is_ending=True)

    def exit_code(
        self, states: Mapping[str, State], *, is_interrupted: bool, is_stopping: bool
    ) -> int:
        """That of the run."""
        codes: list[int] = []
        does_a_part_decide = False

        def ask(part: BesideRun) -> None:
            nonlocal does_a_part_decide
            code = part.exit_code(states, is_interrupted=is_interrupted, is_stopping=is_stopping)
            _check_answer("exit_code", code, int)
            if code is not None:
                codes.append(code)
                does_a_part_decide = does_a_part_decide or part.is_needed

        self._each(ask)
        if not does_a_part_decide:
            codes.append(exit_code(states, interrupted=is_interrupted))
        return max(codes)

    def problem(self) -> RunProblem | None:
        """Why something has ended too early; None where nothing has."""

        def ask(part: BesideRun) -> RunProblem | None:
            problem = part.problem()
            _check_answer("problem", problem, RunProblem)
            return problem

        return next((problem for problem in self._answers(ask) if problem is not None), None)

    @property
    def has_failed(self) -> bool:
        """Whether the run ends by what a part has raised that it depends on."""
        return self._failure is not None

    def _answers(self, question: Callable[[BesideRun], T]) -> list[T]:
        answered: list[T] = []
        self._each(lambda part: answered.append(question(part)))
        return answered

    def _each(
        self,
        call: Callable[[BesideRun], None],
        *,
        may_refuse: bool = False,
        is_told: bool = False,
        is_ending: bool = False,
    ) -> None:
        """Call every feature. What cannot go on is left out from now on, unless the run depends on
        it: then the run ends by what it has raised.

        :param may_refuse: whether an :class:`OrchestratorError` is passed on.
        :param is_told: whether the features are told of something. Whoever tells goes on after any
            error of a reporter, so the next call of another kind ends the run.
        :param is_ending: whether the run ends anyway, also where it depends on a feature.
        """
        if self._failure is not None and not (is_told or is_ending):
            raise self._failure
        for name, part in list(self._parts.items()):
            if name not in self._parts:  # it was left out by what another one has called
                continue
            try:
                call(part)
            except (Exception, SystemExit) as error:
                is_refusal = may_refuse and isinstance(error, OrchestratorError)
                if part.is_needed and not is_ending:
                    self._failure = self._failure or error
                    if is_told:
                        continue
                    raise
                if is_refusal:
                    raise
                self._leave_out(name, part, error)

    def _leave_out(self, name: str, part: BesideRun, error: BaseException) -> None:
        del self._parts[name]
        if not self._have_ended:
            with contextlib.suppress(Exception, SystemExit):  # it has raised already
                part.end()
        is_explained = isinstance(error, OrchestratorError)
        why = str(error) if is_explained else f"{type(error).__name__}: {error}"
        self.inner.event("warning", f"the feature {name} does nothing more for this run: {why}")
        if is_traced() or not is_explained:
            traceback.print_exception(error, file=sys.stderr)


def _check_answer(what: str, given: object, expected: type) -> None:
    """:raises TypeError: a feature has answered something else, other than None."""
    if given is not None and not isinstance(given, expected):
        raise TypeError(f"{what}: expected {expected.__name__} or None; this is {given!r}")
