"""The exceptions that this program raises on purpose. Each message says what is wrong, where, and what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.exit_codes import DISK_FULL_ERRNOS


class OrchestratorError(Exception):
    """Base class of all of them."""


class UsageError(OrchestratorError):
    """Something the user can correct; the command ends with exit code 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong in what the user gave."""

    where: str
    """The place in the job file (``jobs[3].ppo.n_step``), or a file."""
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


class SpecError(UsageError):
    """Every problem of a job file, including those of robots and hyperparameters.

    :param advice: a last line of the message.
    """

    def __init__(self, source: str, problems: Sequence[Problem], advice: str = "") -> None:
        self.source = source
        self.problems = tuple(problems)
        super().__init__("\n".join([*(f"{source}: {problem}" for problem in problems), *([advice] if advice else [])]))


class RunDirError(UsageError):
    """Not a run directory, not writable, or in use by another supervisor."""


class ChangedError(UsageError):
    """Jobs or robots differ from those that the run directory was made for; the message shows how."""


class LedgerError(UsageError):
    """The ledger is damaged or of another version. It is never overwritten."""


class LedgerBusyError(LedgerError):
    """Another process has the ledger locked: it can be used when that process is done."""


class DiskFullError(OrchestratorError):
    """No space left on the run directory's disk; resumable when there is."""


@contextlib.contextmanager
def disk_full_explained(path: Path, advice: str = "") -> Iterator[None]:
    """Raise :class:`DiskFullError`, with ``advice`` after "Free some space and", for an OSError that means so."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL_ERRNOS:
            advice = f". Free some space and {advice}" if advice else ""
            raise DiskFullError(f"{path}: no space left on the disk{advice}") from error
        raise


class ClusterLostError(OrchestratorError):
    """The machines that run the attempts can no longer be reached; resumable."""


class SupervisorError(OrchestratorError):
    """The supervisor met an error that it cannot continue with; every job was stopped in good order, resumable."""


class IllegalTransition(OrchestratorError):
    """A move between states that is not allowed: a defect of this program."""
