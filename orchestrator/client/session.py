"""A supervisor of one's own: what a client does between its start and its end."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from orchestrator.client.follow import LOOK_EVERY_S, Follower, end_of
from orchestrator.client.requests import raise_refusal
from orchestrator.client.start import SupervisorProcess
from orchestrator.core.errors import UNAVAILABLE, LedgerError, SupervisorError
from orchestrator.core.paths import RunPaths
from orchestrator.core.processes.process_setup import CHECKPOINT_SIGNAL, STOP_SIGNALS
from orchestrator.experiment.run_end import RunEnd
from orchestrator.server.entering import Addition, addition_args
from orchestrator.server.ledger import EventRow
from orchestrator.server.requests import Request, RequestFolder
from orchestrator.server.settings import RunSettings


class SupervisorDied(SupervisorError):
    """The supervisor has ended before it had an answer for its client."""


@dataclass(slots=True, kw_only=True)
class Interrupts:
    """Turns signals to this process into requests: the second one kills the workers."""

    folder: RequestFolder
    holder: str
    is_detached: bool = False
    count: int = field(default=0, init=False)

    def stop(self, reason: str, signal_name: str = "") -> None:
        """Request that the run stops, at once if it was requested before."""
        self.count += 1
        if self.count <= 2:
            args = {"now": self.count > 1, "reason": reason, "signal": signal_name}
            self.leave(Request(verb="stop", args=args, supervisor=self.holder))

    def leave(self, request: Request) -> None:
        """Leave a request whose answer nobody waits for."""
        with contextlib.suppress(OSError):  # the run directory is gone, or its disk is full
            self.folder.leave(request)

    def _handle(self, number: int, _frame: object) -> None:
        if number == CHECKPOINT_SIGNAL:
            self.leave(Request(verb="checkpoint", supervisor=self.holder))
        elif number != signal.SIGHUP or not (self.count or self.is_detached):
            name = signal.Signals(number).name
            self.stop(name, name)

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        """Handle the signals within the block, in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self._handle)
            for number in STOP_SIGNALS
            if signal.getsignal(number) not in (signal.SIG_IGN, None)
        }
        if signal.getsignal(CHECKPOINT_SIGNAL) is signal.SIG_DFL:
            before[CHECKPOINT_SIGNAL] = signal.signal(CHECKPOINT_SIGNAL, self._handle)
        mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, before.keys() & {CHECKPOINT_SIGNAL})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            for number, handler in before.items():
                signal.signal(number, handler)


@dataclass(slots=True, kw_only=True)
class Session:
    """A supervisor that this process has started, which has locked its run directory."""

    process: SupervisorProcess
    paths: RunPaths
    holder: str
    interrupts: Interrupts
    _follower: Follower

    def kill(self) -> None:
        """Request that all workers are killed and the run ends."""
        args = {"now": True}
        self.interrupts.leave(Request(verb="stop", args=args, supervisor=self.holder))

    def add(self, addition: Addition, each: Callable[[EventRow], object]) -> None:
        """Let jobs be added. Return when that is done.

        :param each: called with each event until then.
        :raises SpecError, ChangedError, UsageError: they were refused, and the supervisor has ended.
        :raises KeyboardInterrupt: the run was stopped before.
        """
        request = Request(verb="add", args=addition_args(addition), supervisor=self.holder)
        try:
            id_ = self.interrupts.folder.leave(request)
        except FileNotFoundError:  # it has ended, and has removed a new run directory
            _raise_end(self.process)
        while True:
            has_ended = self.process.has_ended
            events: Sequence[EventRow] = ()
            answer = None
            with contextlib.suppress(*UNAVAILABLE):  # the file system fails; it is read again
                events = self._follower.new()
                answer = self._follower.answer(id_)
            for event in events:
                each(event)
            if answer is not None:
                break
            if has_ended:
                _raise_end(self.process)
            time.sleep(LOOK_EVERY_S)
        if answer.error:
            self.process.wait()
            if answer.facts.get("stopped"):
                raise KeyboardInterrupt
            raise_refusal(answer, addition.source)

    def events(self, every_s: float = LOOK_EVERY_S) -> Iterator[EventRow | None]:
        """Yield the events to the end of the run, and None after each look."""
        return self._follower.to_end(self.holder, every_s)

    def end(self) -> RunEnd:
        """Wait for the end of the process. Return how the run has ended.

        :raises OrchestratorError: it has ended the run, and could not be recorded.
        """
        self.process.wait()
        self.process.raise_error()
        return end_of(self.paths, self.holder)


@contextlib.contextmanager
def begin(process: SupervisorProcess, settings: RunSettings) -> Iterator[Session]:
    """Let a supervisor lock its run directory. Within the block, signals to this process stop it.

    :raises OrchestratorError: the run directory cannot be used.
    :raises SupervisorDied: it has ended without an answer.
    """
    holder = process.begin(settings)
    if not holder:
        _raise_end(process)
    paths = RunPaths(process.run_dir)
    interrupts = Interrupts(
        folder=RequestFolder(paths.requests), holder=holder, is_detached=settings.is_detached
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(interrupts.handled())
        try:
            follower = stack.enter_context(contextlib.closing(Follower(paths.root)))
        except LedgerError:
            if paths.root.exists():
                raise
            _raise_end(process)  # it has ended, and has removed a new run directory
        yield Session(
            process=process,
            paths=paths,
            holder=holder,
            interrupts=interrupts,
            _follower=follower,
        )


def _raise_end(process: SupervisorProcess) -> NoReturn:
    """Raise why a supervisor has ended that had no answer for its client.

    :raises KeyboardInterrupt: it was stopped.
    :raises SupervisorDied: it has not told.
    """
    process.raise_error()
    if process.wait() == 130:
        raise KeyboardInterrupt
    log = RunPaths(process.run_dir).supervisor_log
    raise SupervisorDied(
        f"{process.run_dir}: the supervisor has ended without an answer; see {log}"
    )
