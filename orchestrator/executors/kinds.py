"""What ``--executor`` can name: the local executor, and those of features.

Nothing is imported here for an executor before it is opened.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from orchestrator.core import front_end
from orchestrator.core.errors import UsageError
from orchestrator.core.feature import added
from orchestrator.core.text import listed

if TYPE_CHECKING:
    from orchestrator.executors.executor import ExecutorSettings, OpenedExecutor

SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorOption:
    """An option of ``run`` for one executor. A run directory keeps its value."""

    name: str
    """As an argument of :func:`orchestrator.run`: ``ray_address``; ``--ray-address`` of the
    command."""
    metavar: str
    """Its form, for ``--help``: ``local|auto|HOST:PORT``."""
    help: str
    default: str
    """Where neither the command nor the run directory has a value."""

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftBatchJobs:
    """Batch jobs that may still train a run directory although no supervisor holds it: it was
    killed.
    """

    executor: str
    """What has submitted them, as ``--executor`` names it."""
    cluster: str
    """What runs them, for people: ``Slurm``."""
    name: str
    """Of the batch jobs, as the cluster shows it."""
    tasks: tuple[str, ...] = ()
    """Those that run or wait (``100_0``). Where the cluster does not answer: those that have begun
    and not said good-bye."""
    user: str = ""
    """To whom they belong."""
    problem: str = ""
    """Why the cluster could not be asked; empty where it has answered."""

    def __str__(self) -> str:
        """A clause: which batch jobs may still train."""
        which = f"batch jobs named {self.name}"
        if self.tasks:
            which = f"batch {'job' if len(self.tasks) == 1 else 'jobs'} {listed(self.tasks, SHOWN)}"
        unknown = f" ({self.cluster} cannot be asked: {self.problem})" if self.problem else ""
        return f"{which} may still train{unknown}"


class BatchJobs(Protocol):
    """Batch jobs of an executor whose jobs outlive their supervisor, seen from a run directory.

    All folders are run directories that no supervisor holds.
    """

    def were_used(self, run_dir: Path) -> bool:
        """Whether a supervisor has ever submitted any, as far as this user can see. Takes no longer
        than to look for a file.
        """

    def left(self, run_dirs: Collection[Path]) -> Mapping[Path, LeftBatchJobs]:
        """What is left, only of those run directories of which something is. The cluster is asked
        once, for some seconds at most.
        """

    def left_by_files(self, run_dir: Path) -> LeftBatchJobs | None:
        """The same without a question to the cluster: what may be left."""

    def end(self, run_dir: Path) -> str | None:
        """End what is left. Returns what was done, as a clause; None where there is nothing.

        :raises UsageError: the cluster does not obey, and the batch jobs cannot be told by a file
            either.
        """

    def wait(self, run_dir: Path) -> None:
        """Return when none runs or waits any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorKind:
    """What ``--executor`` can name."""

    name: str
    open: Callable[[ExecutorSettings], OpenedExecutor]
    """:raises UsageError: it cannot be used here."""
    options: tuple[ExecutorOption, ...] = ()
    batch_jobs: BatchJobs | None = None
    """None where no job outlives its supervisor."""


def _open_local(settings: ExecutorSettings) -> OpenedExecutor:
    from orchestrator.executors.local import LocalExecutor

    return LocalExecutor(settings)


@functools.cache
def executor_kinds() -> Mapping[str, ExecutorKind]:
    """Every kind by its name, the local one first."""
    return {"local": ExecutorKind(name="local", open=_open_local), **added("executors")}


def executor_options() -> Mapping[str, ExecutorOption]:
    """The options of all kinds, by their names."""
    kinds = executor_kinds().values()
    return {option.name: option for kind in kinds for option in kind.options}


def kind_named(name: str) -> ExecutorKind:
    """:raises UsageError: there is none; the message names the valid ones."""
    kinds = executor_kinds()
    if name not in kinds:
        raise UsageError(
            f"{front_end.option('executor', name)}: unknown; valid: {', '.join(kinds)}"
        )
    return kinds[name]
