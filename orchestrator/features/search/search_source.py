"""What ``[search]`` and ``[scheduler]`` mean for a run: the job source of a job file that has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.core.paths import RunPaths
from orchestrator.examination.preflight import JobVerdict
from orchestrator.features.search import (
    changed_search,
    constraint_check,
    sampler_check,
    search_robots,
    search_time,
    start_check,
)
from orchestrator.features.search.declaration.declared_search import SearchDeclaration
from orchestrator.jobfile import Experiment
from orchestrator.jobfile.job_source import Forecast, SourceVerdict
from orchestrator.keys.problems import Problems
from orchestrator.ledger import Ledger


class SearchSource(SearchDeclaration):
    """A search, or the comparison of declared jobs, with what is asked of it before a run."""

    def examine(
        self, experiment: Experiment, *, time_limit_s: float, turn: Callable[[], object]
    ) -> SourceVerdict:
        problem = sampler_check.examine(
            experiment, time_limit_s=time_limit_s, turn=turn
        ) or start_check.problem(experiment, turn)
        if problem is not None:
            return SourceVerdict(problem=problem)
        return constraint_check.examine(experiment, turn)

    def starts_over(self, experiment: Experiment, run_dir: Path) -> bool:
        return changed_search.starts_over(experiment, run_dir)

    def resumed(self, experiment: Experiment, ledger: Ledger | None, paths: RunPaths) -> Experiment:
        return changed_search.resumed_experiment(experiment, ledger, paths)

    def refuse_another(
        self,
        experiment: Experiment,
        run_dir: Path,
        verdicts: Mapping[str, JobVerdict],
        ledger: Ledger,
    ) -> None:
        paths = RunPaths(run_dir)
        changed_search.resumed_experiment(experiment, ledger, paths)
        robots = search_robots.contents(experiment, verdicts)
        changed_search.refuse_another_robot(experiment, robots, ledger, paths)

    def measured_lines(self, experiment: Experiment) -> Sequence[str]:
        counted = constraint_check.count_satisfied(experiment)
        return () if counted is None else (counted.sentence,)

    def forecast(
        self,
        experiment: Experiment,
        verdicts: Mapping[str, JobVerdict],
        jobs_at_once: int,
        ledger: Ledger | None,
    ) -> Forecast:
        begun = None
        if ledger is not None:
            begun = search_time.done_so_far(RunPaths(ledger.path.parent), ledger)
        return search_time.forecast(experiment, self, verdicts, jobs_at_once, begun)


def of_tables(top: Mapping[str, Any], entries: int, problems: Problems) -> SearchSource | None:
    """As :meth:`SearchDeclaration.of_tables`. :param entries: number of ``[[jobs]]`` tables."""
    source = SearchSource.of_tables(top, problems)
    if source is not None and source.makes_jobs and entries != 1:
        text = f"varies the keys of one job, and there are {entries} [[jobs]] tables; keep one"
        problems.add("search", text)
    return source
