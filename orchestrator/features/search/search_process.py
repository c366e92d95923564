"""The companion of a search: the searcher, a process that makes its jobs, and how a run that has one
begins.
"""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.features.search import changed_search, search_events
from orchestrator.features.search.declaration import written
from orchestrator.features.search.declaration.declared_search import declaration_of
from orchestrator.features.search.search_paths import SearchPaths
from orchestrator.jobfile import Experiment
from orchestrator.server.companions import Companion, RunFacts


def companions(run: RunFacts) -> Iterable[Companion]:
    """Return the searcher, if the run has a search or compares its jobs at rungs.

    The declaration and the beginning are recorded first: a run that ends before the searcher has
    done anything is resumed as a search all the same.
    """
    if run.experiment is not None:
        _begin(run, run.experiment)
    elif run.is_declared:
        search_events.withdraw(run.paths)
    standing = search_events.standing(run.paths)
    if standing == "none" or (run.experiment is None and standing == "over"):
        return []
    paths = SearchPaths(run.paths.root)
    return [
        Companion(
            name="search",
            module="orchestrator.features.search.searcher.searcher",
            log=paths.log,
            kind="makes jobs",
            declaration=paths.declaration,
            stopped_file=paths.stopped,
        )
    ]


def _begin(run: RunFacts, experiment: Experiment) -> None:
    if not run.ledger.counts():  # it is new: the jobs are made again, from their directories
        search_events.forget(run.paths)
    changed_search.refuse_another_robot(experiment, run.robots, run.ledger, run.paths)
    robots = run.robots
    if SearchPaths(run.paths.root).declaration.exists() and search_events.began_at(run.paths):
        before = written.read_declaration(run.paths)
        robots = before["robots"]
        experiment = written.as_begun(experiment, before)
    written.declare(run.paths, experiment, robots)
    search_events.begin(run.paths)
    search = declaration_of(experiment).search
    if search is not None and search.auto is not None:
        run.report("chosen", str(search.auto))
