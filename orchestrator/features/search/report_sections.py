"""What the report of a run directory has of its search."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from orchestrator.core.paths import RunPaths
from orchestrator.experiment import run_directory
from orchestrator.features.search import report_data, report_page
from orchestrator.features.search.report_data import SearchFacts
from orchestrator.features.search.search_paths import SearchPaths
from orchestrator.ledger import Ledger, job_figures
from orchestrator.report.document import Section
from orchestrator.report.thumbnails import thumbnails


def of_directory(run_dir: Path) -> list[Section]:
    """Return no section if ``run_dir`` has no search.

    :raises OrchestratorError: the search cannot be read.
    """
    paths = RunPaths(run_dir)
    if not SearchPaths(paths.root).declaration.exists() or not paths.ledger.exists():
        return []
    with run_directory.reading_ledger(paths) as ledger:
        facts = report_data.gather(paths, ledger)
        returns = {} if facts is None else _returns(facts, ledger)
    if facts is None:
        return []
    first, *others = report_page.sections(facts, _pictures(facts, returns, paths))
    first = replace(first, headlines=report_page.headlines(facts), numbers={"search": facts})
    return [replace(section, is_first=True) for section in (first, *others)]


def _returns(facts: SearchFacts, ledger: Ledger) -> Mapping[str, float]:
    """Job of a trial that the page lists → its return in training; −∞ where it has none."""
    jobs = [job_id for one in report_data.listed_trials(facts) for job_id in one["jobs"]]
    found = job_figures.figures(ledger, jobs)
    returns = {job_id: figures.ep_rew_mean for job_id, figures in found.items()}
    return {job_id: -math.inf if value is None else value for job_id, value in returns.items()}


def _pictures(
    facts: SearchFacts, returns: Mapping[str, float], paths: RunPaths
) -> Mapping[str, str]:
    """For each trial that the page lists the one of its jobs with the highest return that has a
    picture → that, as a ``data:`` URL.
    """
    previews: dict[str, Path] = {}
    for one in report_data.listed_trials(facts):
        drawn = [job_id for job_id in one["jobs"] if paths.job(job_id).preview.is_file()]
        if drawn:
            best = max(drawn, key=lambda job_id: returns.get(job_id, -math.inf))
            previews[best] = paths.job(best).preview
    return thumbnails(previews)
