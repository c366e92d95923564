"""The exceptions that this program raises on purpose.

    OrchestratorError
    ├── UsageError               the user can correct it; the command ends with exit code 2
    │   ├── SpecError            job file, robot or hyperparameters: every problem at once
    │   ├── RunDirError          not a run directory, not writable, or in use by another supervisor
    │   ├── ChangedError         jobs differ from what the run directory was made for
    │   └── LedgerError          the ledger is damaged or from another version
    ├── DiskFullError            no space left on the disk; resumable when there is
    ├── ClusterLostError         the head of the cluster is gone; resumable
    └── IllegalTransition        a job was moved to a state that may not follow (a defect of this program)

Each message tells the user what is wrong, where, what was expected and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class OrchestratorError(Exception):
    """Base class of all of them."""


class UsageError(OrchestratorError):
    """Something the user can correct; the message says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong in what the user gave.

    ``where`` is the place in the job file (``jobs[3].ppo.n_step``), or a file; ``message`` says what is wrong, what
    was expected and what to do.
    """

    where: str
    message: str
    job_index: int | None = None
    """Index of the one job of the file that is wrong, where its robot file is; None for any other problem."""

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


class SpecError(UsageError):
    """Every problem of a job file, including those of robots and hyperparameters."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{source}: {problem}" for problem in self.problems))


class RunDirError(UsageError):
    """The run directory cannot be used."""


class ChangedError(UsageError):
    """Jobs or robots differ from those that the run directory was made for; the message shows how."""


class LedgerError(UsageError):
    """The ledger cannot be read. It is never overwritten."""


class DiskFullError(OrchestratorError):
    """No space left on the run directory's disk."""


class ClusterLostError(OrchestratorError):
    """The machines that run the attempts can no longer be reached."""


class IllegalTransition(OrchestratorError):
    """A job was to move to a state that may not follow its own."""
