"""Batch jobs of Slurm that may still train a run directory although no supervisor holds it: it was
killed.

Commands ask here before they say that nothing runs, or change what workers may still write.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING

from orchestrator.core.errors import RunDirError
from orchestrator.core.paths import RunPaths
from orchestrator.machine import provenance

if TYPE_CHECKING:
    from orchestrator.executors.slurm.left_pilots import LeftPilots


def of(paths: RunPaths) -> LeftPilots | None:
    """What is left of a run directory that no supervisor holds. Slurm is asked, for some seconds at
    most.
    """
    return of_all([paths]).get(paths)


def of_all(run_dirs: Iterable[RunPaths]) -> dict[RunPaths, LeftPilots]:
    """The same for many run directories, with one question to Slurm; only of those of which
    something is left.
    """
    slurms = {paths.slurm: paths for paths in run_dirs if _has_session(paths)}
    if not slurms:
        return {}
    from orchestrator.executors.slurm import left_pilots  # only run directories of Slurm need it

    return {slurms[folder]: left for folder, left in left_pilots.left_pilots(slurms).items()}


def by_files(paths: RunPaths) -> LeftPilots | None:
    """The same without a question to Slurm: what may be left, as long as nobody has ended it."""
    if not _has_session(paths):
        return None
    from orchestrator.executors.slurm import left_pilots

    return left_pilots.named_by_files(paths.slurm)


def end(paths: RunPaths) -> str | None:
    """End what is left. Returns what was done, as a clause; None where there is nothing.

    :raises UsageError: Slurm does not obey, and the batch jobs cannot be told by a file either.
    """
    if not _has_session(paths):
        return None
    from orchestrator.executors.slurm import left_pilots

    return left_pilots.end_left_pilots(paths.slurm)


def are_beside_supervisor(paths: RunPaths) -> bool:
    """Whether the supervisor that holds ``paths`` is none of Slurm, so that batch jobs of an
    earlier one are not its own: earlier versions of this program started one beside them.
    """
    return _has_session(paths) and provenance.executor(paths).get("executor") != "slurm"


def wait_for_end(paths: RunPaths) -> bool:
    """Return when no batch job runs or waits. Returns whether there may have been one."""
    if not _has_session(paths):
        return False
    from orchestrator.executors.slurm import left_pilots

    left_pilots.wait_for_pilots(paths.slurm)
    return True


def how_to_go_on(paths: RunPaths, left: LeftPilots) -> str:
    """Sentences saying what may still train, what takes it over, and what ends it."""
    run_dir, clause = shlex.quote(str(paths.root)), str(left)
    if paths.experiment.exists() or paths.search_declared.exists():
        takes_over = f"`run {run_dir}` takes over what runs"
    else:
        takes_over = (
            f"the same call with run_dir={str(paths.root.absolute())!r} takes over what runs"
        )
    return f"{clause[0].upper()}{clause[1:]}: {takes_over}, `stop {run_dir}` ends them."


def refuse_beside(paths: RunPaths, deed: str) -> None:
    """:param deed: what is not done while batch jobs may still train, as a clause.
    :raises RunDirError: some may, and no supervisor holds ``paths``.
    """
    if (left := of(paths)) is not None:
        raise RunDirError(
            f"{paths.root}: no supervisor is running, and {deed}. {how_to_go_on(paths, left)}"
        )


def _has_session(paths: RunPaths) -> bool:
    """Whether a supervisor has ever used pilots here, as far as this user can see."""
    try:
        return paths.slurm_session.exists()
    except OSError:
        return False
