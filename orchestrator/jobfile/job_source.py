"""What decides which jobs of a job file there are: a table of a feature may mean that.

Such a table has a *job source*. It makes the jobs while their run goes on, or lets those that are
declared pause and decides which of them go on. What it does beside the run is its feature's, too
(:mod:`orchestrator.server.companions`), and so is what it says of a run directory where it has
begun (:mod:`orchestrator.experiment.begun_source`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from orchestrator.core.decoding import Table

if TYPE_CHECKING:
    from orchestrator.core.errors import Problem
    from orchestrator.core.job import Job
    from orchestrator.core.paths import RunPaths
    from orchestrator.examination.preflight import JobVerdict
    from orchestrator.jobfile import Experiment
    from orchestrator.jobfile.expand import JobTemplate
    from orchestrator.jobfile.matrix import Choice
    from orchestrator.keys.problems import Problems
    from orchestrator.ledger import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What ``run --dry-run`` says of a run with a job source."""

    lines: Sequence[str] = ()
    """Below the others."""
    facts: Table = field(default_factory=dict)
    """JSON types, by the key of the table that means them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceVerdict:
    """What was found of a job source before its run."""

    problem: Problem | None = None
    """Why the run cannot begin, other than for a robot."""
    warnings: Sequence[str] = ()


class JobSource:
    """What the tables of a feature mean for the jobs of one job file.

    Each method does nothing unless it is overridden. What one raises is an error of the run, or of
    the command that asks: no job is trained without what its job file declares.
    """

    noun: ClassVar[str]
    """What it is called in messages, without an article."""

    @property
    def makes_jobs(self) -> bool:
        """Whether it makes jobs of the one entry of the job file, which by itself is none; False:
        the jobs are those that are declared.
        """
        return False

    # While the job file is read. The first three are asked only where it makes jobs.

    def check_entry(self, entry: Table, matrix: Table, where: str, problems: Problems) -> None:
        """Check the entry. :param matrix: the keys of its matrix."""

    def example(self, problems: Problems) -> Sequence[Choice]:
        """The keys that it sets in a job, with values that stand for all: with these the entry is
        checked.
        """
        return ()

    def check_settings(self, settings: Table, problems: Problems) -> None:
        """Check the settings of the job of :meth:`example`."""

    def settled(self, jobs: Sequence[Job], template: JobTemplate | None) -> JobSource:
        """The same with what follows from the job, such as what ``auto`` is; asked before
        :meth:`check_jobs`, with the same jobs.
        """
        return self

    def check_jobs(
        self, jobs: Sequence[Job], template: JobTemplate | None, problems: Problems
    ) -> Iterable[str]:
        """Check the jobs: those that are declared, or that of :meth:`example`. Returns warnings.

        :param template: what it makes jobs of; None where it makes none, and where there are
            problems.
        """
        return ()

    # Before a run. ``experiment`` is that of the job file.

    def jobs_to_examine(self, experiment: Experiment) -> tuple[Job, ...]:
        """The jobs whose robots are examined before anything is launched. Where it makes jobs,
        these are examples: the first one has to be valid, others need not be.
        """
        return experiment.jobs

    def examine(
        self, experiment: Experiment, *, time_limit_s: float, turn: Callable[[], object]
    ) -> SourceVerdict:
        """Whether the run can begin, as far as that is not for robots to say.

        :param turn: to be called repeatedly; an exception that it raises is to be passed on.
        """
        return SourceVerdict()

    def lines(self, experiment: Experiment) -> Sequence[str]:
        """What it does, in sentences."""
        return ()

    def starts_over(self, experiment: Experiment, run_dir: Path) -> bool:
        """Return whether something else has begun in a run directory, so that ``on_change =
        "restart"`` starts over.
        """
        return False

    def resumed(self, experiment: Experiment, ledger: Ledger | None, paths: RunPaths) -> Experiment:
        """Return ``experiment`` as it goes on in a run directory.

        :param ledger: of the run directory; None if there is none.
        :raises ChangedError: something else has begun there.
        """
        return experiment

    def refuse_another(
        self,
        experiment: Experiment,
        run_dir: Path,
        verdicts: Mapping[str, JobVerdict],
        ledger: Ledger,
    ) -> None:
        """Refuse a run directory in which something else has begun.

        :param verdicts: of :meth:`jobs_to_examine`.
        :param ledger: of the run directory, with which the run would go on.
        :raises ChangedError: something else has begun there, so that the run would be refused.
        """

    def measured_lines(self, experiment: Experiment) -> Sequence[str]:
        """What a dry run measures of it, in sentences. That may take a minute: no ledger is open
        meanwhile.
        """
        return ()

    def forecast(
        self,
        experiment: Experiment,
        verdicts: Mapping[str, JobVerdict],
        jobs_at_once: int,
        ledger: Ledger | None,
    ) -> Forecast:
        """What the run would do.

        :param verdicts: of :meth:`jobs_to_examine`.
        :param ledger: of the run directory, with which it would go on; None where it would begin.
        """
        return Forecast()
