"""What has become of the search of a run directory, or of the comparison of its jobs at rungs."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.analysis import run_reader
from orchestrator.core.errors import LedgerError
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.begun_source import BegunSource, Direction, Standing
from orchestrator.features.search import search_events
from orchestrator.features.search.declaration.written import read_declaration
from orchestrator.features.search.search_paths import SearchPaths
from orchestrator.ledger import Ledger

if TYPE_CHECKING:
    from orchestrator.jobfile import Experiment


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunSearch(BegunSource):
    paths: RunPaths
    standing: Standing

    @property
    def noun(self) -> str:
        return "search" if self.makes_jobs else "comparison at rungs"

    @property
    def is_underway(self) -> bool:
        return self.standing == "underway"

    @property
    def makes_jobs(self) -> bool:
        """Whether it is a search, and no matrix whose jobs are compared."""
        with contextlib.suppress(LedgerError):  # damaged: whoever reads more of it is told so
            return "search" in read_declaration(self.paths)["data"]
        return True

    @property
    def objectives(self) -> Mapping[str, Direction]:
        from orchestrator.features.search.trials import TrialReader

        reader = TrialReader.of(self.paths)
        search = None if reader is None else reader.search
        if search is None:
            return {}
        return dict(zip(search.objectives, search.directions, strict=True))

    def chosen_jobs(self) -> Collection[str] | None:
        """Those of its trials and of their further seeds: what is trained again, and the unchanged
        job, have fresh seeds.
        """
        from orchestrator.features.search.history import History

        if not self.makes_jobs:
            return None
        history = History()
        history.take_in(search_events.events(self.paths), SearchPaths(self.paths.root).events)
        chosen = [one for one in history.trials if one.is_of_search or one.is_further_seed]
        return {job_id for trial in chosen for job_id in trial.jobs}

    def has_succeeded(self) -> bool:
        return search_events.has_value(self.paths)

    def shown_jobs(self) -> Sequence[str] | None:
        """None before it has come to its end, also where it goes on after one."""
        if self.is_underway:
            return None
        content = run_reader.read_json(SearchPaths(self.paths.root).shown_jobs)
        if not isinstance(content, list):
            return None
        return [job_id for job_id in content if isinstance(job_id, str)]

    def declared(self) -> Experiment:
        from orchestrator.features.search import changed_search

        return changed_search.declared_experiment(self.paths)

    def take_over(self, experiment: Experiment) -> Sequence[str]:
        from orchestrator.features.search import changed_search

        return changed_search.take_over(experiment, self.paths)


def of(paths: RunPaths, _: Ledger) -> BegunSearch | None:
    """Return None if none has begun, or if the job file declares none any more."""
    standing = search_events.standing(paths)
    if standing == "none":
        return None
    return BegunSearch(paths=paths, standing=standing)
