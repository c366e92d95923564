"""One Ray task as the driver sees it: its events, the orders to it, and the meaning of its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from orchestrator.core.errors import OrchestratorError, is_disk_full
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.text import count, last_line
from orchestrator.executors.executor import AttemptId, Event, Exited, Placed
from orchestrator.features.ray.compatible_nodes import CompatibleNodes
from orchestrator.features.ray.file_sync.chunks import Chunk, FileSyncError
from orchestrator.features.ray.file_sync.receiver import Receiver
from orchestrator.features.ray.node_attempt import Assignment, Batch, ScratchFullError
from orchestrator.features.ray.node_registry import RayNode
from orchestrator.features.ray.scratch_directory import Order

FORCE_AFTER_S = 10.0
"""If an order to kill has had no effect for so long, the task's process is killed."""


@dataclass(slots=True, kw_only=True, eq=False)
class RayTask:
    """The task of an attempt, or of one rank of it."""

    id: AttemptId
    assignment: Assignment
    node: RayNode
    nodes: CompatibleNodes
    stream: Any
    receiver: Receiver | None
    is_placed: bool = False
    asked_before_start: ExitCode | None = None
    killed_at: float | None = None

    def read(self, apply: Callable[[Receiver, Chunk], None]) -> list[Event]:
        """Its next events, when there are some to read; after an :class:`Exited` there are none.

        :param apply: applies a chunk to the job directory. :raises FileSyncError: it does not fit.
        """
        import ray

        try:
            batch: Batch = ray.get(next(self.stream))
            if batch.waits_for_cpus:
                self.nodes.report("waiting", self._waiting_message())
            if self.receiver is not None:
                for chunk in batch.chunks:
                    apply(self.receiver, chunk)
        except StopIteration:
            return [self._lost("its Ray task ended without a result")]
        # Before FileSyncError: one that was raised on the node is both.
        except ray.exceptions.RayError as error:
            return [self._end(self._exit_of(error))]
        except FileSyncError as error:
            self.end()
            return [self._lost(f"its files could not be synchronised: {error}")]
        return [self._own_event(event) for event in batch.events]

    def _waiting_message(self) -> str:
        return (
            f"{self.id.job_id} waits on {self.node.name} for {count(self.assignment.cores, 'free CPU')}: other"
            " experiments use the CPUs there"
        )

    def lose(self) -> Exited:
        """Its end, when its node has left. (Ray reports that minutes later, when connections time
        out.)
        """
        return self._lost(f"its node {self.node.name} was lost")

    def _lost(self, why: str) -> Exited:
        return self._end(Exited(self.id, None, lost=why))

    def _own_event(self, event: Event) -> Event:
        if isinstance(event, Placed):
            self.is_placed = True
            self.nodes.record_start(self.node.node_id)
        if not isinstance(event, Exited):
            return event
        if event.returncode == ExitCode.DISK_FULL and self.receiver is not None:
            return self._end(self._node_disk_full())
        return self._end(event)

    def _end(self, exited: Exited) -> Exited:
        if self.receiver is not None:
            self.receiver.close()
        return exited

    def _exit_of(self, error: Exception) -> Exited:
        """The meaning of the end of a task that could not report it itself."""
        import ray

        node_id = self.node.node_id
        name = self.node.name
        match error:
            case ray.exceptions.RayTaskError(cause=OSError() as cause) if is_disk_full(cause):
                if self.receiver is None and not isinstance(cause, ScratchFullError):
                    return Exited(self.id, int(ExitCode.DISK_FULL))
                return self._node_disk_full()
            case ray.exceptions.RayTaskError(cause=ray.exceptions.RayActorError()):
                why = f"the node agent of {name} had died"
                self.nodes.suspect(node_id)
            case ray.exceptions.RayTaskError(cause=cause):
                reason = last_line(str(error), type(error).__name__)
                why = f"it could not be run on {name}: {reason}"
                # Errors of this program are not the node's fault.
                if not self.is_placed and not isinstance(cause, OrchestratorError):
                    self.nodes.record_failed_start(node_id, why)
            case ray.exceptions.OutOfMemoryError():
                return Exited(self.id, -9, oom_killed=True)
            case ray.exceptions.TaskCancelledError():
                asked = self.asked_before_start
                return Exited(self.id, -9 if asked is None else int(asked))
            case ray.exceptions.WorkerCrashedError() if self.killed_at is not None:
                return Exited(self.id, -9)
            case ray.exceptions.WorkerCrashedError():
                why = f"its Ray process on {name} was killed"
                self.nodes.suspect(node_id)
            case _:
                why = f"its node {name} was lost"
                self.nodes.suspect(node_id)
        return Exited(self.id, None, lost=why)

    def _node_disk_full(self) -> Exited:
        """A full disk other than the run directory's excludes the node; the run continues."""
        self.nodes.exclude(self.node.node_id, "its disk is full")
        return Exited(self.id, None, lost=f"no space left on the disk of {self.node.name}")

    def request_exit(self) -> None:
        if self.is_placed:
            self._send("exit")
        else:  # there is nothing to save yet
            self.asked_before_start = ExitCode.INTERRUPTED
            self.end()

    def request_checkpoint(self) -> None:
        if self.is_placed and self.killed_at is None:
            self._send("checkpoint")

    def kill(self) -> None:
        """May be called again; :meth:`enforce` ends a task that does not obey."""
        if not self.is_placed:
            self.asked_before_start = None
            self.end()
        elif self.killed_at is None:
            self.killed_at = time.monotonic()
            self._send("kill")

    def enforce(self) -> None:
        if self.killed_at is not None and time.monotonic() - self.killed_at > FORCE_AFTER_S:
            self.killed_at = time.monotonic()
            self.end()

    def end(self) -> None:
        """End its process, and thereby all of its descendants."""
        import ray

        ray.cancel(self.stream, force=True)

    def _send(self, order: Order) -> None:
        """Send an order, also to a node that is no longer used; if it has left, the task's end is
        reported soon.
        """
        node = self.nodes.get(self.node.node_id) or self.node  # it may have a new agent
        node.agent.send_order.remote(self.assignment.key, order)
