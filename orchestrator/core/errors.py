"""The exceptions that this program raises on purpose. Each message says what is wrong, where, and
what to do.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from orchestrator.core.exit_codes import DISK_FULL_ERRNOS


class OrchestratorError(Exception):
    """Base class of all of them."""

    exit_code: ClassVar[int] = 1
    """Exit code of a child process that uses a policy, where this error ends it."""


class UsageError(OrchestratorError):
    """Something the user can correct; the command ends with exit code 2."""

    exit_code = 2


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
        self.advice = advice
        lines = [f"{source}: {problem}" for problem in problems]
        if advice:
            lines.append(advice)
        super().__init__("\n".join(lines))


class RunDirError(UsageError):
    """Not a run directory, not writable, or in use by another supervisor."""


class ChangedError(UsageError):
    """Jobs or robots differ from those that the run directory was made for; the message shows
    how.
    """


class LedgerError(UsageError):
    """The ledger is damaged or of another version. It is never overwritten."""


class LedgerDamagedError(LedgerError):
    """A row of the ledger cannot be read, or contradicts others; reading it again is no use."""


class LedgerUnavailableError(LedgerError):
    """The ledger cannot be used just now. That may pass, and does not mean that it is damaged."""


class LedgerBusyError(LedgerUnavailableError):
    """Another process has the ledger locked: it can be used when that process is done."""


class LedgerFailingError(LedgerUnavailableError):
    """The file system fails to read or write the ledger or its summary, or does not permit it."""


class DiskFullError(OrchestratorError):
    """No space left on the disk; resumable when there is."""

    what = "no space left on the disk"
    cure = "Free some space"


UNAVAILABLE = (LedgerUnavailableError, DiskFullError)
"""What a reader of the ledger is told where it cannot be read just now: SQLite cannot read it either
where a file that it needs for that does not fit on the disk."""


def may_pass(error: Exception) -> bool:
    """Whether what could not be read because of ``error`` may be readable soon, although nothing
    changes.
    """
    return isinstance(error, (OSError, *UNAVAILABLE))


class FileLimitError(DiskFullError):
    """A file has reached the limit on its size, which counts as a full disk."""

    what = "a file has reached the file size limit of this process (`ulimit -f`)"
    cure = "Raise that limit"


def is_disk_full(error: BaseException) -> bool:
    """Whether ``error`` itself is that of a full disk or an exhausted quota; what it was raised from
    does not count.
    """
    return isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS


@contextlib.contextmanager
def disk_full_explained(path: Path, advice: str = "") -> Iterator[None]:
    """Raise :class:`DiskFullError` for an OSError of a full disk, or of a file that reached the
    limit on its size.

    :param advice: what to do when the cause is corrected.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.EFBIG:
            kind: type[DiskFullError] = FileLimitError
        elif is_disk_full(error):
            kind = DiskFullError
        else:
            raise
        what_to_do = f". {kind.cure} and {advice}" if advice else ""
        raise kind(f"{path}: {kind.what}{what_to_do}") from error


@contextlib.contextmanager
def errors_name(path: Path) -> Iterator[None]:
    """An OSError raised in the block names ``path``, unless it names a file already."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


class ClusterLostError(OrchestratorError):
    """The machines that run the attempts can no longer be reached; resumable."""


class SupervisorError(OrchestratorError):
    """The supervisor met an error that it cannot continue with; every job was stopped in good
    order, resumable.
    """


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C while a Python program runs an experiment: every worker has exited, and the same call
    resumes them.
    """

    def __init__(self, run_dir: Path, message: str) -> None:
        super().__init__(run_dir, message)
        self.run_dir = run_dir

    def __str__(self) -> str:
        return str(self.args[1])


class IllegalTransition(OrchestratorError):
    """A move between states that is not allowed: a defect of this program."""


class UnfinishedPolicyWarning(UserWarning):
    """The policy that is loaded is not that of a finished training; the message says how far it was
    trained.
    """


class AlteredRobotWarning(UserWarning):
    """The robot in a job directory is not the one that the policy was trained with."""
