"""One Ray task as the driver knows it: what it tells, what it is ordered, what its end means."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.core.errors import OrchestratorError
from orchestrator.core.exit_codes import DISK_FULL_ERRNOS, ExitCode
from orchestrator.core.text import last_line
from orchestrator.executors.base import Event, Exited, Handle, Placed
from orchestrator.executors.ray import file_sync
from orchestrator.executors.ray.compatible_nodes import CompatibleNodes
from orchestrator.executors.ray.file_sync import Chunk, FileSyncError
from orchestrator.executors.ray.node_agent import Order
from orchestrator.executors.ray.node_attempt import Assignment, Batch, ScratchFullError

FORCE_AFTER_S = 10.0
"""An order to kill that has had no effect for so long is followed by the end of the task's process."""


@dataclass(slots=True, kw_only=True, eq=False)
class RayTask:
    """An attempt, or one rank of it. ``home`` is its job directory, where files come from elsewhere."""

    handle: Handle
    assignment: Assignment
    node: str
    fleet: CompatibleNodes
    stream: Any
    home: file_sync.Receiver | None
    keeper: Any
    """Of its node."""
    is_placed: bool = False
    asked: ExitCode | None = None
    """What it was asked for before it began."""
    killed_at: float | None = None

    @property
    def rank(self) -> int:
        """The first of its ranks."""
        return self.assignment.launch.first_rank

    # -- what it tells

    def read(self, bring: Callable[[file_sync.Receiver, Chunk], None]) -> list[Event]:
        """What it has told, when there is something to read; the last is an :class:`Exited`, and then it is over.

        :param bring: applies a piece to the job directory. :raises FileSyncError: it does not fit.
        """
        import ray

        try:
            batch: Batch = ray.get(next(self.stream))
            if self.home is not None:
                for piece in batch.pieces:
                    bring(self.home, piece)
        except StopIteration:
            return [self._over(Exited(self.handle, None, lost="its task ended without a word"))]
        except (
            ray.exceptions.RayError
        ) as error:  # also what went wrong there with files: that is a FileSyncError as well
            return [self._over(self._died(error))]
        except FileSyncError as error:
            self.end()
            return [self._over(Exited(self.handle, None, lost=f"its files could not be brought home: {error}"))]
        return [self._ours(event) for event in batch.events]

    def lose(self) -> Exited:
        """Its node has left the cluster. Of a machine that has fallen silent Ray says so at once, but of its tasks only
        when their connections are given up, minutes later.
        """
        return self._over(Exited(self.handle, None, lost=self._lost_node))

    @property
    def _lost_node(self) -> str:
        return f"its node {self.fleet.name(self.node)} was lost"

    def _ours(self, event: Event) -> Event:
        if isinstance(event, Placed):
            self.is_placed = True
            self.fleet.could_run(self.node)
        if not isinstance(event, Exited):
            return replace(event, handle=self.handle)
        if event.returncode == ExitCode.DISK_FULL and self.home is not None:
            return self._over(self._without_space())
        return self._over(replace(event, handle=self.handle))

    def _over(self, end: Exited) -> Exited:
        if self.home is not None:
            self.home.close()
        return end

    def _died(self, error: Exception) -> Exited:
        """What the end of a task that could not tell of its own end means."""
        import ray

        name = self.fleet.name(self.node)
        match error:
            case ray.exceptions.RayTaskError(cause=ScratchFullError()):
                return self._without_space()
            case ray.exceptions.RayTaskError(cause=OSError(errno=number)) if number in DISK_FULL_ERRNOS:
                if self.home is None:
                    return Exited(self.handle, int(ExitCode.DISK_FULL))
                return self._without_space()
            case ray.exceptions.RayTaskError(cause=ray.exceptions.RayActorError()):
                why = f"the keeper of {name} had died"
                self.fleet.doubt(self.node)
            case ray.exceptions.RayTaskError(cause=cause):
                why = f"it could not be run on {name}: {last_line(str(error), type(error).__name__)}"
                if not self.is_placed and not isinstance(cause, OrchestratorError):  # those are not the node's fault
                    self.fleet.could_not_run(self.node, why)
            case ray.exceptions.OutOfMemoryError():
                return Exited(self.handle, -9, oom_killed=True)
            case ray.exceptions.TaskCancelledError():
                return Exited(self.handle, -9 if self.asked is None else int(self.asked))
            case ray.exceptions.WorkerCrashedError() if self.killed_at is not None:
                return Exited(self.handle, -9)
            case ray.exceptions.WorkerCrashedError():
                why = f"the process that ran it on {name} was killed"
                self.fleet.doubt(self.node)
            case _:
                why = self._lost_node
                self.fleet.doubt(self.node)
        return Exited(self.handle, None, lost=why)

    def _without_space(self) -> Exited:
        """A full disk that is not the run directory's is the end of its node, not of all."""
        name = self.fleet.name(self.node)
        self.fleet.give_up(self.node, "its disk is full")
        return Exited(self.handle, None, lost=f"no space left on the disk of {name}")

    # -- what it is ordered

    def ask_to_leave(self) -> None:
        if self.is_placed:
            self._order("leave")
        else:  # nothing of it has been trained: there is nothing to save
            self.asked = ExitCode.INTERRUPTED
            self.end()

    def kill(self) -> None:
        """Also again: in time a task that does not obey is ended."""
        if not self.is_placed:
            self.asked = None
            self.end()
        elif self.killed_at is None:
            self.killed_at = time.monotonic()
            self._order("kill")

    def enforce(self) -> None:
        """End one that was to be killed and goes on."""
        if self.killed_at is not None and time.monotonic() - self.killed_at > FORCE_AFTER_S:
            self.killed_at = time.monotonic()
            self.end()

    def end(self) -> None:
        """End its process, and with it all that runs below."""
        import ray

        ray.cancel(self.stream, force=True)

    def _order(self, order: Order) -> None:
        """Also on a node that gets no more attempts. One that is gone does not hear it: its end is on the way."""
        node = self.fleet.node(self.node)
        keeper = self.keeper if node is None else node.keeper  # perhaps a new one
        keeper.order.remote(self.assignment.key, order)
