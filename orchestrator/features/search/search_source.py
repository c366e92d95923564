"""What ``[search]`` and ``[scheduler]`` mean for a run: the job source of a job file that has them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from orchestrator.core.errors import Problem
from orchestrator.experiment.run_plan import Plan, RunOptions
from orchestrator.features.search import changed_search, sampler_check, search_forecast
from orchestrator.features.search.declaration.declared_search import SearchDeclaration
from orchestrator.features.search.search_time import DoneSoFar
from orchestrator.jobfile import Experiment
from orchestrator.jobfile.job_source import Forecast
from orchestrator.keys.problems import Problems
from orchestrator.ledger import JobRow, Ledger


class SearchSource(SearchDeclaration):
    """A search, or the comparison of declared jobs, with what is asked of it before a run."""

    def problem(
        self, experiment: Experiment, *, time_limit_s: float, turn: Callable[[], object]
    ) -> Problem | None:
        return sampler_check.examine(experiment, time_limit_s=time_limit_s, turn=turn)

    def with_on_change(
        self, experiment: Experiment, options: RunOptions
    ) -> tuple[Experiment, RunOptions]:
        return changed_search.on_change_applied(experiment, options)

    def done_so_far(
        self,
        experiment: Experiment,
        options: RunOptions,
        plan: Plan,
        ledger: Ledger,
        rows: Collection[JobRow],
    ) -> DoneSoFar | None:
        return search_forecast.done_so_far(experiment, options, plan, ledger, rows)

    def forecast(self, experiment: Experiment, plan: Plan, done: DoneSoFar | None) -> Forecast:
        return search_forecast.of_plan(experiment, self, plan, done)


def of_tables(top: Mapping[str, Any], entries: int, problems: Problems) -> SearchSource | None:
    """As :meth:`SearchDeclaration.of_tables`. :param entries: number of ``[[jobs]]`` tables."""
    source = SearchSource.of_tables(top, problems)
    if source is not None and source.makes_jobs and entries != 1:
        text = f"varies the keys of one job, and there are {entries} [[jobs]] tables; keep one"
        problems.add("search", text)
    return source
