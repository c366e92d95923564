"""What the report of a run directory has of its search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.core.paths import RunPaths
from orchestrator.experiment import run_directory
from orchestrator.features.search import report_data, report_page, report_seeds
from orchestrator.features.search.report_data import SearchFacts
from orchestrator.report.document import AddedSections, ShownJobs
from orchestrator.report.thumbnails import thumbnails

WHICH_JOBS = "those of the best trials, of the elites, and of the latest others"


def of_directory(run_dir: Path, others: Sequence[Path]) -> AddedSections | None:
    """:param others: run directories of the same search with other seeds.

    :raises OrchestratorError: the search cannot be read, or one of ``others`` is another search.
    """
    facts = _facts(run_dir)
    if others:
        seeds = report_seeds.gather(run_dir, facts, others)
        facts = None if facts is None else {**facts, "seeds": seeds}
    if facts is None:
        return None
    shown = None
    if facts["objectives"]:  # otherwise these are the jobs of a matrix, compared at rungs
        shown = ShownJobs(job_ids=sorted(report_data.reported_jobs(facts)), which=WHICH_JOBS)
    return AddedSections(
        name="search",
        facts=facts,
        sections=report_page.sections(facts, _pictures(shown, RunPaths(run_dir))),
        is_first=True,
        headlines=report_page.headlines(facts),
        shown_jobs=shown,
        has_compared=bool(others),
    )


def _facts(run_dir: Path) -> SearchFacts | None:
    """None where there is no search, or nothing of it yet."""
    paths = RunPaths(run_dir)
    if not paths.declaration.exists() or not paths.ledger.exists():
        return None
    with run_directory.reading_ledger(paths) as ledger:
        return report_data.gather(paths, ledger)


def _pictures(shown: ShownJobs | None, paths: RunPaths) -> Mapping[str, str]:
    """Shown job → its picture, as a ``data:`` URL."""
    previews = {} if shown is None else {job: paths.job(job).preview for job in shown.job_ids}
    return thumbnails({job: preview for job, preview in previews.items() if preview.is_file()})
