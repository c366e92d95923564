"""Batch jobs that may still train a run directory although no supervisor holds it: it was killed.

Commands ask here before they say that nothing runs, or change what workers may still write. Each
kind of executor whose jobs outlive their supervisor is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from orchestrator.core.errors import RunDirError
from orchestrator.core.paths import RunPaths
from orchestrator.executors.kinds import BatchJobs, LeftBatchJobs, executor_kinds
from orchestrator.experiment.resume_advice import how_to_resume


def of(paths: RunPaths) -> LeftBatchJobs | None:
    """What is left of a run directory that no supervisor holds. The cluster is asked, for some
    seconds at most.
    """
    return of_all([paths]).get(paths)


def of_all(run_dirs: Iterable[RunPaths]) -> dict[RunPaths, LeftBatchJobs]:
    """The same for many run directories, with one question to each cluster; only of those of which
    something is left.
    """
    run_dirs = list(run_dirs)
    found: dict[RunPaths, LeftBatchJobs] = {}
    for _, batch_jobs in _kinds():
        used = {paths.root: paths for paths in run_dirs if batch_jobs.were_used(paths.root)}
        if used:
            found = {used[root]: one for root, one in batch_jobs.left(used).items()} | found
    return found


def by_files(paths: RunPaths) -> LeftBatchJobs | None:
    """The same without a question to a cluster: what may be left, as long as nobody has ended
    it.
    """
    for _, batch_jobs in _used_kinds(paths):
        left = batch_jobs.left_by_files(paths.root)
        if left is not None:
            return left
    return None


def end(paths: RunPaths) -> str | None:
    """End what is left. Returns what was done, as a clause; None where there is nothing.

    :raises UsageError: a cluster does not obey, and the batch jobs cannot be told by a file either.
    """
    done = [batch_jobs.end(paths.root) for _, batch_jobs in _used_kinds(paths)]
    return "; ".join(text for text in done if text is not None) or None


def wait_for_end(paths: RunPaths) -> bool:
    """Return when no batch job runs or waits. Returns whether there may have been one.

    :raises UsageError: that cannot be told.
    """
    used = dict(_used_kinds(paths))
    for batch_jobs in used.values():
        batch_jobs.wait(paths.root)
    return bool(used)


def executor_of(paths: RunPaths) -> str | None:
    """The executor that has submitted batch jobs here, as ``--executor`` names it; None where none
    has.
    """
    return next((kind for kind, _ in _used_kinds(paths)), None)


def refuse_beside(paths: RunPaths, deed: str) -> None:
    """:param deed: what is not done while batch jobs may still train, as a clause.
    :raises RunDirError: some may, and no supervisor holds ``paths``.
    """
    if (left := of(paths)) is not None:
        raise RunDirError(
            f"{paths.root}: no supervisor is running, and {deed}. {how_to_resume(paths, left)}"
        )


def _kinds() -> Iterator[tuple[str, BatchJobs]]:
    """Executors whose jobs outlive their supervisor."""
    for kind in executor_kinds().values():
        if kind.batch_jobs is not None:
            yield kind.name, kind.batch_jobs


def _used_kinds(paths: RunPaths) -> Iterator[tuple[str, BatchJobs]]:
    """Those that have ever submitted batch jobs for ``paths``."""
    for kind, batch_jobs in _kinds():
        if batch_jobs.were_used(paths.root):
            yield kind, batch_jobs
