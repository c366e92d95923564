"""A real executor of several machines, with the points of the supervisor's work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.executors.base import Event, Executor, Handle, Launch
from tests.simulation.executor import OddError, Processes
from tests.simulation.worker import Worker
from tests.simulation.world import World


@dataclass(slots=True, kw_only=True)
class OuterExecutor:
    """See :class:`orchestrator.executors.base.Executor`. Its calls raise where a trouble says so."""

    world: World
    processes: Processes
    inner: Executor

    @property
    def never_forks(self) -> str:
        return self.inner.never_forks

    def prepare_to_fork(self) -> bool:
        return self.inner.prepare_to_fork()

    def submit(self, launch: Launch) -> Handle:
        self.world.point(f"submit {launch.job_id}/{launch.number}")
        self._raise_if_due()
        self.processes.submitted(launch.job_id, launch.number)
        handle = self.inner.submit(launch)
        self.world.point("submitted")
        return handle

    def poll(self, timeout_s: float) -> Sequence[Event]:
        self.world.polled()
        self._raise_if_due()
        events = self.heard(self.inner.poll(timeout_s))
        self.world.point("polled")
        return events

    def heard(self, events: Sequence[Event]) -> Sequence[Event]:
        """What reaches the supervisor of ``events``."""
        return events

    def cancel(self, handle: Handle, *, kill: bool) -> None:
        self.world.point(f"{'kill' if kill else 'ask'} {handle.job_id}/{handle.number}")
        worker = self._worker(handle)
        if worker is not None and kill:
            self.processes.kills(worker)
            worker.was_killed = True
        elif worker is not None and worker.told_at is None:
            worker.told_at = self.world.now
        self.inner.cancel(handle, kill=kill)
        self.world.point("cancelled")

    def checkpoint(self, handle: Handle) -> None:
        self.world.point(f"checkpoint {handle.job_id}/{handle.number}")
        self.inner.checkpoint(handle)

    def close(self) -> None:
        self.world.point("close the executor")
        self.inner.close()

    def _worker(self, handle: Handle) -> Worker | None:
        key = handle.job_id, handle.number
        alive: Any = self.processes.alive.values()
        return next((one for one in alive if (one.job.job_id, one.number) == key), None)

    def _raise_if_due(self) -> None:
        if self.world.errors_due:
            self.world.errors_due -= 1
            raise OddError("the executor has an error")
