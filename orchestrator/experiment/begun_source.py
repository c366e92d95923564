"""What features say of a run directory where they make the jobs, or decide which of them go on: by
its ledger, whether or not a supervisor runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from orchestrator.core.feature import answers
from orchestrator.core.paths import RunPaths
from orchestrator.ledger import Ledger

if TYPE_CHECKING:  # which reads job files, and `status` does not
    from orchestrator.jobfile import Experiment

Standing: TypeAlias = Literal["none", "underway", "over"]
"""Whether something makes the jobs of a run directory, or decides which of them go on: nothing does;
it may still make jobs, or let paused ones go on; or it has come to its end, and leaves those paused
that wait at rungs."""
Outcome: TypeAlias = Literal["underway", "succeeded", "failed", "as its jobs"]
"""What has become of it: it may go on, or has come to its end; ``as its jobs``: their states say
it, since nothing makes them."""
Direction: TypeAlias = Literal["maximize", "minimize"]


class BegunSource:
    """What the job source of one feature has begun in one run directory.

    A ``LedgerUnavailableError`` or a ``DiskFullError`` means that it cannot be read just now.
    """

    @property
    def noun(self) -> str:
        """What it is called in messages, without an article."""
        raise NotImplementedError

    @property
    def is_underway(self) -> bool:
        """Whether it may still make jobs, or let paused ones go on."""
        raise NotImplementedError

    @property
    def makes_jobs(self) -> bool:
        """Whether it makes the jobs: those that fail are a part of it then, and it says itself
        whether it has succeeded.
        """
        raise NotImplementedError

    @property
    def objectives(self) -> Mapping[str, Direction]:
        """What the jobs are made for: columns, measures or expressions of them, the first one first;
        empty where nothing says so.

        :raises LedgerError: the declaration cannot be read.
        """
        return {}

    def chosen_jobs(self) -> Collection[str] | None:
        """Ids of the jobs by whose values it chooses: those of the chosen are too good for that. None:
        any job may be one.

        :raises LedgerError: that cannot be read.
        """
        return None

    def has_succeeded(self) -> bool:
        """Of one that makes jobs and has come to its end."""
        raise NotImplementedError

    def shown_jobs(self) -> Sequence[str] | None:
        """Ids of the jobs that pages show by themselves: when all jobs have ended, their previews are
        drawn. None: that is not known yet, so that none is drawn.
        """
        return None

    def declared(self) -> Experiment:
        """The experiment as it was declared when it was last run.

        :raises SpecError: what it refers to is gone, such as its robot.
        :raises LedgerError: the declaration cannot be read.
        """
        raise NotImplementedError

    def take_over(self, experiment: Experiment) -> Sequence[str]:
        """Let it go on as ``experiment`` declares it, while its supervisor runs. Returns what
        differs.

        :raises ChangedError: it would be another one.
        """
        raise NotImplementedError


def begun_source(paths: RunPaths, ledger: Ledger) -> BegunSource | None:
    """What has begun in a run directory; None where the job file declares it no more, too.

    :raises OrchestratorError: it cannot be read.
    """
    return next((source for _, source in answers("begun_source", paths, ledger)), None)


def standing_of(paths: RunPaths, ledger: Ledger) -> Standing:
    source = begun_source(paths, ledger)
    if source is None:
        return "none"
    return "underway" if source.is_underway else "over"


def outcome(paths: RunPaths, ledger: Ledger) -> Outcome:
    source = begun_source(paths, ledger)
    if source is None:
        return "as its jobs"
    if source.is_underway:
        return "underway"
    if not source.makes_jobs:
        return "as its jobs"
    return "succeeded" if source.has_succeeded() else "failed"
