"""What features have beside a run: a process that is told of the jobs, for example."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from orchestrator.core.feature import answers, untold_problems
from orchestrator.core.job import State
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.run_end import RunOutcome
from orchestrator.jobfile import Experiment
from orchestrator.ledger import Ledger
from orchestrator.machine.slots import SlotPool
from orchestrator.supervisor.events import DetachableReporter, Reporter, View
from orchestrator.supervisor.stop_signals import StopRequests


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The run that a feature is asked about. Nothing of it is in the run directory yet."""

    experiment: Experiment
    run_dir: Path
    is_listed: bool
    """Whether `list` shows it: what people run, but no benchmark."""
    reporter: Reporter
    """For warnings; raises nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJobs:
    """The jobs of a run when all of them have ended."""

    paths: RunPaths
    states: Mapping[str, State]
    """In order of launch; of a search not of those that an earlier run has trained."""
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
    raises, :meth:`end` is called, and no other method from then on; a warning says so, and the run
    goes on. Standard output is the program's: they print nothing there.
    """

    def begin(self, has_free_cores: Callable[[], bool | None]) -> None:
        """Jobs are about to be launched, and the run directory is there.

        :param has_free_cores: whether the jobs of the run use fewer cores than they may; None as
            long as that cannot be said.
        """

    def look_after(self) -> None:
        """Begins every turn of the supervisor, until a stop is requested."""

    def event(self, kind: str, message: str, **facts: Any) -> None:
        """What people are told. Also before :meth:`begin`."""

    def tick(self) -> None:
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
        """The ledger is closed next; also where the run has failed or was refused. May be called
        again.
        """

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

    def __post_init__(self) -> None:
        self.inner = DetachableReporter(self.inner)

    def ask(self, experiment: Experiment, run_dir: Path, *, is_listed: bool) -> None:
        """Ask every feature what it has beside this run."""
        facts = RunFacts(
            experiment=experiment, run_dir=run_dir, is_listed=is_listed, reporter=self.inner
        )
        self._parts = {feature.name: part for feature, part in answers("beside_run", facts)}
        for problem in untold_problems():
            self.inner.event("warning", problem)

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
        self._each(lambda part: part.after_end(self.outcome, lambda: self.stops.count > stops))

    def begin(self, has_free_cores: Callable[[], bool | None]) -> None:
        self._each(lambda part: part.begin(has_free_cores))

    def look_after(self) -> None:
        self._each(lambda part: part.look_after())

    def event(self, kind: str, message: str, **facts: Any) -> None:
        self.inner.event(kind, message, **facts)
        self._each(lambda part: part.event(kind, message, **facts))

    def tick(self, view: Callable[[], View]) -> None:
        self.inner.tick(view)
        self.tick_parts()

    def tick_parts(self) -> None:
        self._each(lambda part: part.tick())

    def add_results(self, ended: EndedJobs, is_stopped: Callable[[], bool]) -> None:
        self._each(lambda part: part.add_results(ended, is_stopped))

    def finish(self, is_stopped: Callable[[], bool]) -> None:
        self._each(lambda part: part.finish(is_stopped))

    def end(self) -> None:
        self._each(lambda part: part.end())

    def _each(self, call: Callable[[BesideRun], None]) -> None:
        for name, part in list(self._parts.items()):
            if name in self._parts:  # it may have been left out by what another one has called
                self._call(name, part, call)

    def _call(self, name: str, part: BesideRun, call: Callable[[BesideRun], None]) -> None:
        try:
            call(part)
        except (Exception, SystemExit) as error:
            del self._parts[name]
            with contextlib.suppress(Exception, SystemExit):  # it has raised already
                part.end()
            text = f"the feature {name} does nothing more for this run: {type(error).__name__}: {error}"
            self.inner.event("warning", text)
            traceback.print_exception(error, file=sys.stderr)
