"""Batch jobs that may still train a run directory although no supervisor holds it: it was killed.

Commands ask here before they say that nothing runs, or change what workers may still write. Each
kind of executor whose jobs outlive their supervisor is asked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from orchestrator.core.errors import OrchestratorError, RunDirError, UsageError
from orchestrator.core.feature import note_problem, owner
from orchestrator.core.front_end import option
from orchestrator.core.paths import RunPaths
from orchestrator.executors.kinds import BatchJobs, LeftBatchJobs, executor_kinds
from orchestrator.experiment.directory.resume_advice import how_to_resume
from orchestrator.machine import provenance


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
    for kind, batch_jobs in _kinds():
        used = {paths.root: paths for paths in run_dirs if _were_used(kind, batch_jobs, paths)}
        if used:
            left = _left_of_kind(kind, batch_jobs, used)
            found = {used[root]: one for root, one in left.items()} | found
    return found


def by_files(paths: RunPaths) -> LeftBatchJobs | None:
    """The same without a question to a cluster: what may be left, as long as nobody has ended
    it.
    """
    for kind, batch_jobs in _used_kinds(paths):
        try:
            left = _check_left(batch_jobs.left_by_files(paths.root))
        except (Exception, SystemExit) as error:
            left = _unknown(kind, error)
        if left is not None:
            return left
    return None


def end(paths: RunPaths) -> str | None:
    """End what is left. Returns what was done, as a clause; None where there is nothing.

    :raises UsageError: a cluster does not obey, and the batch jobs cannot be told by a file either.
    """
    return _end(paths, dict(_used_kinds(paths)))


def end_beside_supervisor(paths: RunPaths) -> str | None:
    """The same while a supervisor holds ``paths``, whose own batch jobs go on. Earlier versions of
    this program started one beside those of an earlier supervisor.
    """
    used = dict(_used_kinds(paths))
    if used:
        used.pop(provenance.executor(paths).get("executor", ""), None)
    return _end(paths, used)


def wait_for_end(paths: RunPaths) -> bool:
    """Return when no batch job runs or waits. Returns whether there may have been one.

    :raises UsageError: that cannot be told.
    """
    used = dict(_used_kinds(paths))
    for kind, batch_jobs in used.items():
        with _errors_named(paths, kind, "could not be waited for"):
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


def _end(paths: RunPaths, used: Mapping[str, BatchJobs]) -> str | None:
    done = []
    for kind, batch_jobs in used.items():
        with _errors_named(paths, kind, "could not be ended"):
            text = batch_jobs.end(paths.root)
            if text is not None:
                done.append(str(text))
    return "; ".join(done) or None


@contextlib.contextmanager
def _errors_named(paths: RunPaths, kind: str, what: str) -> Iterator[None]:
    """:raises UsageError: the feature of this executor fails in the block, or says so itself."""
    try:
        yield
    except OrchestratorError:
        raise
    except (Exception, SystemExit) as error:
        text = f"batch jobs of {option('executor', kind)} {what} ({type(error).__name__}: {error})"
        cure = "end them with the cluster's own command"
        raise UsageError(f"{paths.root}: {text}; {cure}") from error


def _kinds() -> Iterator[tuple[str, BatchJobs]]:
    """Executors whose jobs outlive their supervisor."""
    for kind in executor_kinds().values():
        if kind.batch_jobs is not None:
            yield kind.name, kind.batch_jobs


def _used_kinds(paths: RunPaths) -> Iterator[tuple[str, BatchJobs]]:
    """Those that have ever submitted batch jobs for ``paths``."""
    for kind, batch_jobs in _kinds():
        if _were_used(kind, batch_jobs, paths):
            yield kind, batch_jobs


def _were_used(kind: str, batch_jobs: BatchJobs, paths: RunPaths) -> bool:
    """Where that cannot be told, the record of the run directory says it."""
    try:
        return batch_jobs.were_used(paths.root)
    except (Exception, SystemExit) as error:
        what = f"cannot say what its executor {kind} has left"
        note_problem(owner("executors", kind), what, repr(error))
        return provenance.executor(paths).get("executor") == kind


def _left_of_kind(
    kind: str, batch_jobs: BatchJobs, run_dirs: Collection[Path]
) -> Mapping[Path, LeftBatchJobs]:
    """Where that cannot be told, something may be left."""
    try:
        left = {root: _check_left(one) for root, one in batch_jobs.left(run_dirs).items()}
    except (Exception, SystemExit) as error:
        return dict.fromkeys(run_dirs, _unknown(kind, error))
    return {root: one for root, one in left.items() if one is not None and root in run_dirs}


def _check_left(left: object) -> LeftBatchJobs | None:
    if left is not None and not isinstance(left, LeftBatchJobs):
        raise TypeError(f"expected LeftBatchJobs; this is {left!r}")
    return left


def _unknown(kind: str, error: BaseException) -> LeftBatchJobs:
    name = f"of {option('executor', kind)}"
    return LeftBatchJobs(executor=kind, cluster=kind, name=name, problem=repr(error))
