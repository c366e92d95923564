"""Attempts as Ray tasks: submitted to the node that the pool chose, followed through what they tell, ended by order."""

from __future__ import annotations

import select
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator import mirror
from orchestrator.contract import DISK_FULL_ERRNOS, ExitCode
from orchestrator.errors import ClusterLostError, DiskFullError
from orchestrator.executors.base import Event, Exited, Handle, Launch, Placed
from orchestrator.executors.ray import attempt
from orchestrator.executors.ray.attempt import Assignment, Batch
from orchestrator.executors.ray.connection import HEAD_PATIENCE_S
from orchestrator.executors.ray.fleet import Fleet
from orchestrator.mirror import MirrorError
from orchestrator.slots import Place

WAIT_S = 0.25
"""At a time for the next batch: signals are noticed at least so often."""
FORCE_AFTER_S = 10.0
"""An order to kill that has had no effect for so long is followed by the end of the task's process."""
BATCHES_AHEAD = 64
"""That an attempt may be ahead of us: more, and it waits (its training does not)."""
ENDS_PER_S = 500
"""About as many batches as we want to hear of a second, whatever the number of attempts."""
MIB = 1 << 20


@dataclass(slots=True, kw_only=True, eq=False)
class _Task:
    """A Ray task, as the driver knows it."""

    handle: Handle
    place: Place
    key: str
    stream: Any
    is_placed: bool = False
    asked: ExitCode | None = None
    """What it was asked for before it began."""
    killed_at: float | None = None
    home: mirror.Home | None = None
    """The job directory, where its files come from elsewhere."""


@dataclass(slots=True, kw_only=True)
class RayExecutor:
    """See :class:`orchestrator.executors.base.Executor`.

    :param fleet: the nodes that ``Launch.places`` speaks of.
    :param worker_command: what is started in the worker's place, with job directory and attempt number appended.
    :param environment: variables added to every worker's environment.
    """

    fleet: Fleet
    worker_command: Sequence[str] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    _tasks: dict[Handle, _Task] = field(default_factory=dict, init=False)
    _of_stream: dict[Any, _Task] = field(default_factory=dict, init=False)
    _remote: Any = field(default=None, init=False)
    _home_is_full: bool = field(default=False, init=False)

    def submit(self, launch: Launch) -> Handle:
        (place,) = launch.places
        node = self.fleet.node(place.node)
        handle = Handle(launch.job_id, launch.number)
        if node is None:
            raise OSError("the node it was meant for has left the cluster")
        assignment = Assignment(
            launch=replace(launch, job_dir=launch.job_dir.absolute()),
            cores=place.cores,
            has_gpus=place.gpus > 0,
            node=node.name,
            report_every_s=max(1.0, len(self._tasks) / ENDS_PER_S),
            way=self.fleet.way_to(node),
            storage=self.fleet.transport.storage,
            home_node=self.fleet.home_node,
            worker_command=self.worker_command,
            environment=self.environment,
        )
        stream = self._task_on(place, assignment).remote(assignment, node.keeper)
        home = None
        if assignment.way == "stream":
            home = mirror.Home(assignment.launch.job_dir, storage=assignment.storage)
        task = _Task(handle=handle, place=place, key=assignment.key, stream=stream, home=home)
        self._tasks[handle] = self._of_stream[stream] = task
        return handle

    def _task_on(self, place: Place, assignment: Assignment) -> Any:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if self._remote is None:
            self._remote = ray.remote(attempt.run)
        return self._remote.options(
            num_returns="streaming",
            max_retries=0,
            num_cpus=place.cores,
            num_gpus=place.gpus,
            memory=place.memory_mib * MIB or None,
            name=assignment.key,
            scheduling_strategy=NodeAffinitySchedulingStrategy(place.node, soft=False),
            _generator_backpressure_num_objects=BATCHES_AHEAD,
        )

    def poll(self, timeout_s: float) -> Sequence[Event]:
        deadline = time.monotonic() + timeout_s
        while True:
            self.fleet.update()
            left_s = max(0.0, deadline - time.monotonic())
            events = self._heard(min(left_s, WAIT_S))
            self._enforce()
            if events or left_s == 0.0:
                return events

    def _heard(self, timeout_s: float) -> list[Event]:
        import ray

        missing_s = self.fleet.head_missing_s
        if missing_s > HEAD_PATIENCE_S:
            raise ClusterLostError(
                f"the head of the Ray cluster has not answered for {missing_s:.0f} s; its jobs end with it. Once the"
                " cluster is there again the same command goes on from the last checkpoints"
            )
        if not self._of_stream:
            select.select([], [], [], timeout_s)
            return []
        streams = list(self._of_stream)
        ready, _ = ray.wait(streams, num_returns=1, timeout=timeout_s)
        if ready and len(streams) > 1:
            ready, _ = ray.wait(streams, num_returns=len(streams), timeout=0)
        return [event for stream in ready for event in self._read(self._of_stream[stream])]

    def _read(self, task: _Task) -> list[Event]:
        """The next batch of a task that has one, or its end."""
        import ray

        try:
            batch: Batch = ray.get(next(task.stream))
        except StopIteration:
            return self._over(task, Exited(task.handle, None, lost="its task ended without a word"))
        except (ray.exceptions.RayError, OSError) as error:
            return self._over(task, self._died(task, error))
        try:
            self._apply(task, batch)
        except MirrorError as error:
            self._end(task)
            return self._over(task, Exited(task.handle, None, lost=f"its files could not be brought home: {error}"))
        events: list[Event] = []
        for event in batch.events:
            ours = replace(event, handle=task.handle)
            task.is_placed = task.is_placed or isinstance(ours, Placed)
            events += self._over(task, self._explained(task, ours)) if isinstance(ours, Exited) else [ours]
        return events

    def _apply(self, task: _Task, batch: Batch) -> None:
        """Bring what has changed away to the job directory.

        :raises DiskFullError: the first time that it finds no space. From then on nothing is brought.
        """
        if task.home is None or self._home_is_full:
            return
        try:
            for piece in batch.pieces:
                task.home.apply(piece)
        except OSError as error:
            if error.errno not in DISK_FULL_ERRNOS:
                raise MirrorError(str(error)) from error
            self._home_is_full = True
            raise DiskFullError(f"{error.filename}: no space left on the disk") from error

    def _explained(self, task: _Task, end: Exited) -> Exited:
        """A full disk that is not the run directory's is the end of its node, not of all."""
        if end.returncode != ExitCode.DISK_FULL or task.home is None:
            return end
        return self._without_space(task)

    def _without_space(self, task: _Task) -> Exited:
        name = self.fleet.name(task.place.node)
        self.fleet.give_up(task.place.node, "its disk is full")
        return Exited(task.handle, None, lost=f"no space left on the disk of {name}")

    def _over(self, task: _Task, end: Exited) -> list[Event]:
        del self._of_stream[task.stream], self._tasks[task.handle]
        if task.home is not None:
            task.home.close()
        return [end]

    def _died(self, task: _Task, error: Exception) -> Exited:
        """What the end of a task that could not tell of its own end means."""
        import ray

        name = self.fleet.name(task.place.node)
        match error:
            case ray.exceptions.OutOfMemoryError():
                return Exited(task.handle, -9, oom_killed=True)
            case ray.exceptions.TaskCancelledError():
                return Exited(task.handle, -9 if task.asked is None else int(task.asked))
            case ray.exceptions.WorkerCrashedError() if task.killed_at is not None:
                return Exited(task.handle, -9)
            case ray.exceptions.WorkerCrashedError():
                why = f"the process that ran it on {name} was killed"
            case OSError(errno=number) if number in DISK_FULL_ERRNOS and task.home is not None:
                return self._without_space(task)
            case ray.exceptions.RayTaskError():
                why = f"it could not be run on {name}: {_last_line(error)}"
            case _:
                why = f"its node {name} was lost"
        return Exited(task.handle, None, lost=why)

    def cancel(self, handle: Handle, *, kill: bool) -> None:
        task = self._tasks.get(handle)
        if task is None:
            return
        if not task.is_placed:  # nothing of it has been trained: there is nothing to save
            task.asked = None if kill else ExitCode.INTERRUPTED
            self._end(task)
        elif kill and task.killed_at is None:
            task.killed_at = time.monotonic()
            self._order(task, "kill")
        elif not kill:
            self._order(task, "leave")

    def _order(self, task: _Task, order: str) -> None:
        node = self.fleet.node(task.place.node)
        if node is not None:  # else its end is on the way
            node.keeper.order.remote(task.key, order)

    def _enforce(self) -> None:
        for task in self._tasks.values():
            if task.killed_at is not None and time.monotonic() - task.killed_at > FORCE_AFTER_S:
                task.killed_at = time.monotonic()
                self._end(task)

    def _end(self, task: _Task) -> None:
        import ray

        ray.cancel(task.stream, force=True)

    def close(self) -> None:
        """End whatever still runs; the fleet stays."""
        for task in self._tasks.values():
            self._end(task)
        self._tasks.clear()
        self._of_stream.clear()


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
