"""How a run ended: recorded in the run directory for whoever was not there, such as `attach`."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core.decoding import Message
from orchestrator.core.errors import UsageError
from orchestrator.core.files.record_file import read_record
from orchestrator.core.messages import JsonLine
from orchestrator.core.paths import RunPaths
from orchestrator.machine.process_identity import boot_id

SHUTDOWN_SIGNALS = ("SIGTERM", "SIGHUP")
"""What processes get when the machine goes down; those of a login may get the second one first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd(JsonLine):
    """The content of ``ended.json``."""

    holder: str
    """The supervisor that ended, as :attr:`LockHolder.key`: an earlier one may have ended
    otherwise."""
    exit_code: int
    message: Message
    """The error that ended it; empty where the run came to its end or was stopped."""
    error: str = ""
    """The class of that error, of :mod:`orchestrator.core.errors`."""
    ended_at: float
    signal: str = ""
    """The name of the signal that stopped it; empty where none did."""
    boot: str = ""
    """Of the machine at that time, as :func:`~orchestrator.machine.process_identity.boot_id`."""

    @property
    def is_by_shutdown(self) -> bool:
        """Whether it may have been stopped because the machine went down: by a signal that
        processes get then, and since then the machine was started anew.
        """
        return self.signal in SHUTDOWN_SIGNALS and "" != self.boot != boot_id()


def exit_code_of(error: BaseException) -> int:
    """The exit code of a command that ``error`` ends."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    return 2 if isinstance(error, UsageError) else 1


def read(paths: RunPaths) -> RunEnd | None:
    """How the last run ended; None while one runs, and where that is not known: it was killed, for
    example.
    """
    return read_record(RunEnd, paths.run_end)
