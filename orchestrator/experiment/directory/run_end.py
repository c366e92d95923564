"""How a run ended: recorded in the run directory for whoever was not there, such as `attach`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from orchestrator.core.decoding import Message
from orchestrator.core.errors import UsageError
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.files.record_file import read_record
from orchestrator.core.messages import JsonLine
from orchestrator.core.paths import RunPaths
from orchestrator.machine.process_identity import boot_id
from orchestrator.supervisor.stop_signals import StopRequests

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


@dataclass(slots=True, kw_only=True)
class RunOutcome:
    """How the run of this process ends."""

    exit_code: int = field(default=1, init=False)
    message: str = field(default="", init=False)
    """See :attr:`RunEnd.message`."""
    counts: Callable[[], Mapping[str, int]] | None = field(default=None, init=False)
    """Jobs by state; None until the supervisor runs."""

    def begin(self, counts: Callable[[], Mapping[str, int]]) -> None:
        """The supervisor runs from now on. :param counts: jobs by state, at any time."""
        self.counts = counts

    def end(self, exit_code: int) -> None:
        """All has come to its end, or was stopped in order."""
        self.exit_code = exit_code

    def fail(self, error: BaseException) -> None:
        """``error`` ends the run."""
        self.exit_code = exit_code_of(error)
        self.message = "" if self.exit_code == 130 else str(error) or repr(error)


@contextlib.contextmanager
def record_end(
    paths: RunPaths, holder: str, outcome: RunOutcome, stops: StopRequests
) -> Iterator[None]:
    """Record ``outcome``, or the exception that ends the block, in the run directory that
    ``holder`` holds.

    The end of the run before is forgotten at once.
    """
    paths.run_end.unlink(missing_ok=True)
    try:
        yield
    except BaseException as error:
        outcome.fail(error)
        raise
    finally:
        end = RunEnd(
            holder=holder,
            exit_code=outcome.exit_code,
            message=outcome.message,
            ended_at=time.time(),
            signal=stops.signal_name,
            boot=boot_id(),
        )
        # On a full disk, whoever asks learns that the supervisor ended without a result.
        with contextlib.suppress(OSError):
            write_whole(paths.run_end, end.to_line(), durable=False)


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
