"""What features say of a run directory where they make the jobs, or decide which of them go on: by
its ledger, whether or not a supervisor runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from orchestrator.core.errors import OrchestratorError
from orchestrator.core.feature import ask, features, problems_of
from orchestrator.core.paths import RunPaths
from orchestrator.ledger import Ledger

if TYPE_CHECKING:  # which reads job files, and `status` does not
    from orchestrator.jobfile import Experiment

Standing: TypeAlias = Literal["none", "underway", "over"]
"""Whether something makes the jobs of a run directory, or decides which of them go on: nothing does;
it may still make jobs, or let paused ones go on; or it has come to its end, and leaves those paused
that wait at rungs."""


class BegunSource:
    """What the job source of one feature has begun in one run directory.

    An ``OrchestratorError`` of it is shown in place of what was asked for.
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

    def has_succeeded(self) -> bool:
        """Of one that makes jobs and has come to its end."""
        raise NotImplementedError

    def shown_jobs(self) -> Sequence[str] | None:
        """Ids of the jobs that pages show by themselves: when all jobs have ended, their previews are
        drawn, and `clean` removes what those of others would be drawn from. None: that is not known
        yet, so that none is drawn, and nothing removed.
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
    refusal: OrchestratorError | None = None
    for feature in features():
        with problems_of(feature.name, f"says nothing of {paths.root}"):
            try:
                found = ask(feature, "begun_source", paths, ledger)
            except OrchestratorError as error:
                refusal = error
            else:
                if found is not None:
                    return _checked(found)
        if refusal is not None:
            raise refusal
    return None


def _checked(found: object) -> BegunSource:
    if not isinstance(found, BegunSource):
        raise TypeError(f"expected a BegunSource; this is {found!r}")
    return found


def standing(paths: RunPaths, ledger: Ledger) -> Standing:
    """:raises OrchestratorError: it cannot be read."""
    source = begun_source(paths, ledger)
    if source is None:
        return "none"
    return "underway" if source.is_underway else "over"


def shown_jobs(paths: RunPaths, ledger: Ledger) -> Sequence[str] | None:
    """As :meth:`BegunSource.shown_jobs`; None also where nothing has begun.

    :raises OrchestratorError: it cannot be read.
    """
    source = begun_source(paths, ledger)
    return None if source is None else source.shown_jobs()
