"""Every error this program raises on purpose.

    OrchestratorError
    ├── UsageError               the user can mend it; the command ends with exit code 2
    │   ├── SpecError            job file, robot or hyperparameters: every problem at once
    │   ├── RunDirError          run directory is not ours, not writable, or held by another supervisor
    │   ├── ChangedError         jobs differ from what the run directory was made for
    │   └── LedgerError          the ledger is damaged or from another version
    ├── DiskFullError            no space left: resumable once there is
    ├── ClusterLostError         the head of the cluster is gone: resumable
    └── IllegalTransition        a job was moved where it may not go (a bug of ours)

The text of each is for the user: what, where, what was expected, what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class OrchestratorError(Exception):
    """Root of the tree above."""


class UsageError(OrchestratorError):
    """Something the user can mend; the message says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong, and where.

    ``where`` is the place in the job file (``jobs[3].ppo.n_step``) or a file; ``message`` says
    what is wrong, what was expected and what to do.
    """

    where: str
    message: str
    job_index: int | None = None
    """Index of the one job of the file that is wrong, where its robot file is; None for any other problem."""

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


class SpecError(UsageError):
    """All problems found in one job file, robots and hyperparameters included."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{source}: {problem}" for problem in self.problems))


class RunDirError(UsageError):
    """The run directory cannot be used."""


class ChangedError(UsageError):
    """Jobs or robots changed since the run directory was made; the message shows the difference."""


class LedgerError(UsageError):
    """The ledger cannot be read. It is never overwritten."""


class DiskFullError(OrchestratorError):
    """No space left on the run directory's disk."""


class ClusterLostError(OrchestratorError):
    """The machines that did the work can no longer be reached."""


class IllegalTransition(OrchestratorError):
    """A job was moved from one state to another that may not follow it."""
