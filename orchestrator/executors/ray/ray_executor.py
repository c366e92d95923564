"""Attempts as Ray tasks: submitted where the pool has room, followed through what they tell, ended by order."""

from __future__ import annotations

import select
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.core.errors import ClusterLostError, DiskFullError
from orchestrator.core.exit_codes import DISK_FULL_ERRNOS, ExitCode
from orchestrator.executors.base import Event, Exited, Handle, Launch
from orchestrator.executors.rank_group import RankGroup
from orchestrator.executors.ray import file_sync, node_attempt, rank_placement
from orchestrator.executors.ray.compatible_nodes import CompatibleNodes
from orchestrator.executors.ray.file_sync import Chunk, FileSyncError
from orchestrator.executors.ray.liveness import DRIVER_PATIENCE_S
from orchestrator.executors.ray.node_attempt import Assignment
from orchestrator.executors.ray.node_registry import RayNode
from orchestrator.executors.ray.rank_placement import RankPlacement, Refused, Reserved
from orchestrator.executors.ray.ray_task import RayTask
from orchestrator.executors.ray.remote_attempt import RemoteAttempt
from orchestrator.executors.ray.user_code import UserCode
from orchestrator.machine.slots import RankSlot

WAIT_S = 0.25
"""At a time for the next batch: signals are noticed at least so often."""
BATCHES_AHEAD = 64
"""That an attempt may be ahead of us: more, and it waits (its training does not)."""
LOOK_SHARE = 0.1
"""Of our time at most, for looking at all streams: that takes the longer the more there are."""
BATCHES_PER_S = 500
"""About as many as we want to hear of, whatever the number of attempts."""
MIB = 1 << 20


@dataclass(slots=True, kw_only=True)
class RayExecutor:
    """See :class:`orchestrator.executors.base.Executor`.

    :param fleet: the nodes that ``Launch.rank_slots`` speaks of.
    :param worker_command: what is started in the worker's place, with job directory and attempt number appended.
    :param environment: variables added to every worker's environment.
    """

    fleet: CompatibleNodes
    expected: int = 1
    """Attempts there will be at once at most, as far as the number of jobs tells."""
    worker_command: Sequence[str] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    code: Mapping[str, UserCode] = field(default_factory=dict)
    """What jobs import of the user's own, by ``job_id``."""
    _attempts: dict[Handle, RemoteAttempt] = field(default_factory=dict, init=False)
    _tasks: dict[Any, tuple[RemoteAttempt, RayTask]] = field(default_factory=dict, init=False)
    """By stream."""
    _ended: list[Event] = field(default_factory=list, init=False)
    """Without a task's doing, not told yet."""
    _groups: RankPlacement = field(init=False)
    _run: Any = field(default=None, init=False)
    _home_is_full: bool = field(default=False, init=False)
    _look_at: float = field(default=0.0, init=False)
    """When it is time for the next look at all streams."""
    _unsettled: dict[RemoteAttempt, None] = field(default_factory=dict, init=False)
    """Attempts of which a task has ended, or ranks that shall end though no further one does."""

    def __post_init__(self) -> None:
        self._groups = RankPlacement(self._keeper)

    def _keeper(self, node_id: str) -> Any:
        node = self.fleet.node(node_id)
        return None if node is None else node.keeper

    # -- submit

    def submit(self, launch: Launch) -> Handle:
        handle = Handle(launch.job_id, launch.number)
        whole = replace(launch, job_dir=launch.job_dir.absolute())
        one = RemoteAttempt(handle=handle, launch=whole, gang=RankGroup(handle=handle, ranks=launch.ranks, running=[]))
        if one.is_one_task:
            self._start(one, whole, whole.rank_slots[0], _pinned_to(whole.rank_slots[0].node))
        else:
            self._groups.ask(handle, rank_placement.by_rank(launch.rank_slots))
        self._attempts[handle] = one
        return handle

    def _start(
        self,
        one: RemoteAttempt,
        launch: Launch,
        place: RankSlot,
        strategy: Any,
        added: Mapping[str, str] | None = None,
    ) -> None:
        """A task for ``launch`` at ``place``. :raises OSError: its node is gone."""
        node = self.fleet.node(place.node)
        if node is None:
            raise OSError("the node it was meant for has left the cluster")
        assignment = self._assignment(launch, place, node, added)
        if self._run is None:
            import ray

            self._run = ray.remote(node_attempt.run)
        task = self._run.options(
            num_returns="streaming",
            max_retries=0,
            num_cpus=place.cores,
            num_gpus=place.gpus,
            memory=place.memory_mib * MIB or None,
            name=assignment.key,
            scheduling_strategy=strategy,
            _generator_backpressure_num_objects=BATCHES_AHEAD,
        )
        home = None
        if assignment.way == "stream":
            name = f"-{launch.first_rank}" if launch.first_rank else ""
            home = file_sync.Receiver(launch.job_dir, storage=assignment.storage, name=name)
        stream = task.remote(assignment, node.keeper)
        started = RayTask(
            handle=one.handle,
            assignment=assignment,
            node=place.node,
            fleet=self.fleet,
            stream=stream,
            home=home,
            keeper=node.keeper,
        )
        self._tasks[stream] = one, started
        one.gang.running.append(started)

    def _assignment(
        self, launch: Launch, place: RankSlot, node: RayNode, added: Mapping[str, str] | None
    ) -> Assignment:
        return Assignment(
            launch=launch,
            cores=place.cores,
            has_gpus=place.gpus > 0,
            node=node.name,
            report_every_s=max(1.0, min(self.fleet.pool.lanes // place.cores, self.expected) / BATCHES_PER_S),
            way=self.fleet.way_to(node),
            storage=self.fleet.transport.storage,
            home_node=self.fleet.home_node,
            ranks=None if added is None else (launch.first_rank,),
            worker_command=self.worker_command,
            environment={**self.environment, **(added or {})},
            code=self.code.get(launch.job_id),
        )

    def _start_ranks(self, one: RemoteAttempt, reserved: Reserved) -> None:
        """A task for every rank, all of them or none."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        launch = one.launch
        one.group = reserved.group
        try:
            for rank, place in enumerate(rank_placement.by_rank(launch.rank_slots)):
                strategy = PlacementGroupSchedulingStrategy(reserved.group, placement_group_bundle_index=rank)
                its_own = replace(launch, ranks=1, first_rank=rank, rank_slots=())
                self._start(one, its_own, place, strategy, reserved.environment(rank, launch.ranks))
        except OSError as error:
            one.gang.kill()
            self._end(one, Exited(one.handle, None, lost=str(error)))

    # -- poll

    def poll(self, timeout_s: float) -> Sequence[Event]:
        deadline = time.monotonic() + timeout_s
        while True:
            self._lose(self.fleet.update())
            self._place()
            left_s = max(0.0, deadline - time.monotonic())
            events = self._heard(0.0 if self._ended else min(left_s, WAIT_S))
            events += self._ended
            self._ended = []
            if events or left_s == 0.0:
                return events

    def _lose(self, nodes: Collection[str]) -> None:
        """Give up what runs on ``nodes``, which have left; what they have told before counts."""
        import ray

        lost = [stream for stream, (_, task) in self._tasks.items() if task.node in nodes] if nodes else []
        for stream in lost:
            while stream in self._tasks and ray.wait([stream], timeout=0)[0]:
                self._ended += self._read(stream)
            if stream in self._tasks:
                self._hear(stream, self._tasks[stream][1].lose())
        self._settle()

    def _place(self) -> None:
        """Start the ranks that have got their room."""
        for answer in self._groups.answers():
            one = self._attempts.get(answer.handle)
            match answer:
                case Reserved() if one is None:
                    self._groups.give_back(answer.group)
                case Reserved() if one is not None:
                    self._start_ranks(one, answer)
                case Refused(why=why) if one is not None:
                    self._end(one, Exited(one.handle, None, lost=why))

    def _heard(self, timeout_s: float) -> list[Event]:
        import ray

        if not self._attempts and (why := self.fleet.all_given_up) is not None:
            raise ClusterLostError(
                f"no node of the cluster is left that can be used: {why}. What is wrong there put right, the same"
                " command goes on"
            )
        missing_s = self.fleet.head_missing_s
        if missing_s > DRIVER_PATIENCE_S:
            raise ClusterLostError(
                f"the head of the Ray cluster has not answered for {missing_s:.0f} s; its jobs end with it. Once the"
                " cluster is there again the same command goes on from the last checkpoints"
            )
        if not self._tasks:
            select.select([], [], [], timeout_s)
            return []
        streams = list(self._tasks)
        rest_s = min(timeout_s, max(0.0, self._look_at - time.monotonic()))
        if rest_s:
            select.select([], [], [], rest_s)
        began = time.monotonic()
        ready, _ = ray.wait(streams, num_returns=len(streams), timeout=0)
        ended = time.monotonic()
        self._look_at = ended + (ended - began) * (1 / LOOK_SHARE - 1)
        if not ready and timeout_s > rest_s:
            ready, _ = ray.wait(streams, num_returns=1, timeout=timeout_s - rest_s)
        events: list[Event] = []
        for stream in ready:
            events += self._read(stream)
        self._settle()
        for _, task in self._tasks.values():
            task.enforce()
        return events

    def _read(self, stream: Any) -> list[Event]:
        """What its task has to tell, as the attempt tells it."""
        told = self._tasks[stream][1].read(self._bring)
        return [event for heard in told for event in self._hear(stream, heard)]

    def _hear(self, stream: Any, event: Event) -> list[Event]:
        """What the attempt tells where a task tells ``event``; also of the task's end, and not of its own."""
        one, task = self._tasks[stream]
        events = one.hear(task, event)
        if isinstance(event, Exited):
            del self._tasks[stream]
            self._unsettled[one] = None
        return events

    def _settle(self) -> None:
        """End the attempts that are over. Ends that are known at the same time have all been heard."""
        for one in list(self._unsettled):
            del self._unsettled[one]
            end = one.settle()
            if end is not None:
                self._end(one, end)
            elif one.gang.waits:
                self._unsettled[one] = None

    def _bring(self, home: file_sync.Receiver, piece: Chunk) -> None:
        """Do to the job directory what ``piece`` says.

        :raises DiskFullError: the first time that there is no space for it. From then on nothing is brought.
        """
        if self._home_is_full:
            return
        try:
            home.apply(piece)
        except OSError as error:
            if error.errno not in DISK_FULL_ERRNOS:
                raise FileSyncError(str(error)) from error
            self._home_is_full = True
            raise DiskFullError(f"{error.filename}: no space left on the disk") from error

    def _end(self, one: RemoteAttempt, end: Exited) -> None:
        del self._attempts[one.handle]
        self._unsettled.pop(one, None)
        self._groups.forget(one.handle)
        for task in one.gang.running:
            self._tasks.pop(task.stream, None)
        if one.group is not None:
            self._groups.give_back(one.group)
        self._ended.append(end)

    # -- cancel

    def cancel(self, handle: Handle, *, kill: bool) -> None:
        one = self._attempts.get(handle)
        if one is None:
            return
        if not one.gang.running:  # it waits for room
            self._end(one, Exited(handle, -9 if kill else int(ExitCode.INTERRUPTED), rank=0))
        elif kill:
            one.gang.kill()
        else:
            one.gang.ask_to_leave()

    def close(self) -> None:
        """End whatever still runs; the fleet stays."""
        for _, task in self._tasks.values():
            task.end()
        for one in list(self._attempts.values()):
            self._end(one, Exited(one.handle, None))
        self._tasks.clear()
        self._ended.clear()
        self._groups.close()


def _pinned_to(node: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)
