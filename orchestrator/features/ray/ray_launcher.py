"""Attempts as Ray tasks: submitted to nodes with room, followed by their event streams, ended by
order.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.core.errors import ClusterLostError, DiskFullError, is_disk_full
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.front_end import repeat_call
from orchestrator.core.pacer import Pace
from orchestrator.executors.executor import AttemptId, Event, Exited
from orchestrator.executors.launcher import Launch
from orchestrator.executors.rank_group import RankGroup
from orchestrator.features.ray import node_attempt
from orchestrator.features.ray.compatible_nodes import CompatibleNodes
from orchestrator.features.ray.file_sync.chunks import Chunk, FileSyncError
from orchestrator.features.ray.file_sync.receiver import Receiver
from orchestrator.features.ray.head_liveness import DRIVER_TIMEOUT_S
from orchestrator.features.ray.node_attempt import Assignment
from orchestrator.features.ray.rank_placement import (
    PlacedRanks,
    PlacementFailed,
    RankPlacement,
    by_rank,
)
from orchestrator.features.ray.ray_task import RayTask
from orchestrator.features.ray.remote_attempt import RemoteAttempt
from orchestrator.features.ray.user_code import UserCode
from orchestrator.machine.slots import RankSlot
from orchestrator.machine.topology import MIB

WAIT_S = 0.25
"""Longest wait for a batch at a time, so that signals are noticed."""
BATCHES_AHEAD = 64
"""Unread batches of an attempt, after which its task waits (its training does not)."""
POLLING = Pace(share=0.1)
"""How often all streams are polled, which takes the driver the longer the more there are."""
BATCHES_PER_S = 500
"""Intended rate of batches of all attempts together."""


@dataclass(slots=True, kw_only=True)
class RayLauncher:
    """See :class:`orchestrator.executors.launcher.Launcher`.

    :param nodes: the nodes that ``Launch.rank_slots`` names.
    :param worker_command: what is started in place of the worker, with job directory and attempt
        number appended.
    :param environment: variables added to every worker's environment.
    :param code: gives the code of the user, from :attr:`Launch.code_folder` and
        :attr:`Launch.code_name`; an OSError of it is that of :meth:`submit`.
    """

    nodes: CompatibleNodes
    worker_command: Sequence[str] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    code: Callable[[str | None, str], UserCode | None] = lambda *_: None
    _attempts: dict[AttemptId, RemoteAttempt] = field(default_factory=dict, init=False)
    _tasks: dict[Any, tuple[RemoteAttempt, RayTask]] = field(default_factory=dict, init=False)
    """By stream: the attempt, and its task that reports by it."""
    _ended: list[Event] = field(default_factory=list, init=False)
    """Ends that do not come from a task, not returned yet."""
    _placement: RankPlacement = field(init=False)
    _run: Any = field(default=None, init=False)
    _is_disk_full: bool = field(default=False, init=False)
    _poll_at: float = field(default=0.0, init=False)
    _unsettled: dict[RemoteAttempt, None] = field(default_factory=dict, init=False)
    """Attempts with a task that has ended, or with ranks that must be ended later."""

    def __post_init__(self) -> None:
        self._placement = RankPlacement(self.nodes.get)

    never_forks = "the executor ray starts every worker by exec"

    def prepare_to_fork(self) -> bool:
        return True

    def submit(self, launch: Launch) -> AttemptId:
        id_ = AttemptId(launch.job_id, launch.number)
        why_exec = self.never_forks if launch.fork else launch.why_exec
        launch = replace(launch, job_dir=launch.job_dir.absolute(), fork=False, why_exec=why_exec)
        tasks: RankGroup[RayTask] = RankGroup(id=id_, ranks=launch.ranks, running=[])
        code = self.code(launch.code_folder, launch.code_name)
        attempt = RemoteAttempt(id=id_, launch=launch, tasks=tasks, code=code)
        if attempt.is_one_task:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            slot = launch.rank_slots[0]
            on_node = NodeAffinitySchedulingStrategy(slot.node, soft=False)
            self._start(attempt, launch, slot, on_node)
        else:
            self._placement.request(id_, by_rank(launch.rank_slots))
        self._attempts[id_] = attempt
        return id_

    def _start(
        self,
        attempt: RemoteAttempt,
        launch: Launch,
        slot: RankSlot,
        strategy: Any,
        rank_variables: Mapping[str, str] | None = None,
    ) -> None:
        """Start a task for ``launch`` on the node of ``slot``.

        :raises OSError: the node has left.
        """
        if (node := self.nodes.get(slot.node)) is None:
            raise OSError("the node chosen for it has left the cluster")
        assignment = Assignment(
            launch=launch,
            cores=slot.cores,
            has_gpus=slot.gpus > 0,
            node=node.name,
            report_every_s=max(1.0, self.nodes.slots.jobs_at_once // slot.cores / BATCHES_PER_S),
            mode=self.nodes.transfer_mode(node),
            storage=self.nodes.transport.storage,
            driver_node=self.nodes.registry.driver_node,
            ranks=None if rank_variables is None else (launch.first_rank,),
            worker_command=self.worker_command,
            environment={**self.environment, **(rank_variables or {})},
            code=attempt.code,
        )
        if self._run is None:
            import ray

            self._run = ray.remote(node_attempt.run)
        remote = self._run.options(
            num_returns="streaming",
            max_retries=0,
            num_cpus=slot.cores,
            num_gpus=slot.gpus,
            memory=slot.memory_mib * MIB or None,
            name=assignment.key,
            scheduling_strategy=strategy,
            _generator_backpressure_num_objects=BATCHES_AHEAD,
        )
        receiver = None
        if assignment.mode == "stream":
            name = f"-{launch.first_rank}" if launch.first_rank else ""
            receiver = Receiver(launch.job_dir, storage=assignment.storage, name=name)
        stream = remote.remote(assignment, node.agent)
        task = RayTask(
            id=attempt.id,
            assignment=assignment,
            node=node,
            nodes=self.nodes,
            stream=stream,
            receiver=receiver,
        )
        self._tasks[stream] = attempt, task
        attempt.tasks.running.append(task)

    def _start_ranks(self, attempt: RemoteAttempt, placed: PlacedRanks) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        launch = attempt.launch
        attempt.placement_group = placed.placement_group
        try:
            for rank, slot in enumerate(by_rank(launch.rank_slots)):
                strategy = PlacementGroupSchedulingStrategy(
                    placed.placement_group, placement_group_bundle_index=rank
                )
                rank_launch = replace(launch, ranks=1, first_rank=rank, rank_slots=())
                self._start(
                    attempt, rank_launch, slot, strategy, placed.environment(rank, launch.ranks)
                )
        except OSError as error:
            attempt.tasks.kill()
            self._end(attempt, Exited(attempt.id, None, lost=str(error)))

    def poll(self, timeout_s: float) -> Sequence[Event]:
        deadline = time.monotonic() + timeout_s
        while True:
            self._lose(self.nodes.update())
            self._start_placed()
            remaining_s = max(0.0, deadline - time.monotonic())
            events = self._read_streams(0.0 if self._ended else min(remaining_s, WAIT_S))
            events += self._ended
            self._ended = []
            if events or remaining_s == 0.0:
                return events

    def _lose(self, nodes: Collection[str]) -> None:
        """Give up the tasks on ``nodes``, which have left, after reading what they have reported
        before.
        """
        import ray

        lost = []
        if nodes:  # the tasks are many, and it is asked at every poll
            lost = [
                stream for stream, (_, task) in self._tasks.items() if task.node.node_id in nodes
            ]
        for stream in lost:
            while stream in self._tasks and ray.wait([stream], timeout=0)[0]:
                self._ended += self._read(stream)
            if stream in self._tasks:
                self._merge(stream, self._tasks[stream][1].lose())
        self._settle()

    def _start_placed(self) -> None:
        for result in self._placement.results():
            attempt = self._attempts.get(result.id)
            match result:
                case PlacedRanks():
                    if attempt is None:
                        self._placement.release(result.placement_group)
                    else:
                        self._start_ranks(attempt, result)
                case PlacementFailed(why=why) if attempt is not None:
                    self._end(attempt, Exited(attempt.id, None, lost=why))

    def _read_streams(self, timeout_s: float) -> list[Event]:
        import ray

        self._check_cluster()
        if not self._tasks:
            select.select([], [], [], timeout_s)
            return []
        streams = list(self._tasks)
        delay_s = min(timeout_s, max(0.0, self._poll_at - time.monotonic()))
        if delay_s:
            select.select([], [], [], delay_s)
        start = time.monotonic()
        ready, _ = ray.wait(streams, num_returns=len(streams), timeout=0)
        end = time.monotonic()
        self._poll_at = start + POLLING.pause_s(end - start)
        if not ready and timeout_s > delay_s:
            ready, _ = ray.wait(streams, num_returns=1, timeout=timeout_s - delay_s)
        events: list[Event] = []
        for stream in ready:
            events += self._read(stream)
        self._settle()
        for _, task in self._tasks.values():
            task.enforce()
        return events

    def _check_cluster(self) -> None:
        """:raises ClusterLostError: no node is usable any more, or the head does not answer."""
        if not self._attempts and (why := self.nodes.all_excluded) is not None:
            advice = f"Correct the cause, and {repeat_call()} to resume"
            raise ClusterLostError(f"no node of the cluster can be used any more: {why}. {advice}")
        if (missing_s := self.nodes.registry.head.missing_s) > DRIVER_TIMEOUT_S:
            raise ClusterLostError(
                f"the head of the Ray cluster has not answered for {missing_s:.0f} s, so all of its jobs end. When the"
                f" cluster is back, {repeat_call()} to resume from the last checkpoints"
            )

    def _read(self, stream: Any) -> list[Event]:
        task_events = self._tasks[stream][1].read(self._apply)
        return [event for task_event in task_events for event in self._merge(stream, task_event)]

    def _merge(self, stream: Any, task_event: Event) -> list[Event]:
        attempt, task = self._tasks[stream]
        events = attempt.merge(task, task_event)
        if isinstance(task_event, Exited):
            del self._tasks[stream]
            self._unsettled[attempt] = None
        return events

    def _settle(self) -> None:
        """End the attempts that are over, after all ends known so far have been merged."""
        for attempt in list(self._unsettled):
            del self._unsettled[attempt]
            if (exited := attempt.tasks.settle()) is not None:
                self._end(attempt, exited)
            elif attempt.tasks.waits_for_cause:
                self._unsettled[attempt] = None

    def _apply(self, receiver: Receiver, chunk: Chunk) -> None:
        """Apply ``chunk`` to the job directory.

        :raises DiskFullError: the first time that the disk is full. From then on nothing is
            applied.
        """
        if self._is_disk_full:
            return
        try:
            receiver.apply(chunk)
        except OSError as error:
            if not is_disk_full(error):
                raise FileSyncError(str(error)) from error
            self._is_disk_full = True
            raise DiskFullError(f"{error.filename}: no space left on the disk") from error

    def _end(self, attempt: RemoteAttempt, exited: Exited) -> None:
        del self._attempts[attempt.id]
        self._unsettled.pop(attempt, None)
        self._placement.withdraw(attempt.id)
        for task in attempt.tasks.running:
            self._tasks.pop(task.stream, None)
        if attempt.placement_group is not None:
            self._placement.release(attempt.placement_group)
        self._ended.append(exited)

    def cancel(self, id_: AttemptId, *, kill: bool) -> None:
        if (attempt := self._attempts.get(id_)) is None:
            return
        if not attempt.tasks.running:  # it waits for room
            self._end(attempt, Exited(id_, -9 if kill else int(ExitCode.INTERRUPTED), rank=0))
        elif kill:
            attempt.tasks.kill()
        else:
            attempt.tasks.request_exit()

    def checkpoint(self, id_: AttemptId) -> None:
        if (attempt := self._attempts.get(id_)) is not None:
            attempt.tasks.request_checkpoint()

    def close(self) -> None:
        """End every attempt that still runs; the nodes stay in use."""
        for _, task in self._tasks.values():
            task.end()
        for attempt in list(self._attempts.values()):
            self._end(attempt, Exited(attempt.id, None))
        self._tasks.clear()
        self._ended.clear()
        self._placement.close()
