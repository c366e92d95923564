"""A simulated cluster with the real driver: the executor of the feature ray, its nodes and slots,
over streams of tasks on machines that are gone, cut off, suspended and come back.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import SimpleNamespace
from typing import Any

from orchestrator.core.errors import ClusterLostError, SpecError, UsageError
from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.executors.base import (
    BackendSettings,
    Event,
    Exited,
    Handle,
    Launch,
    Placed,
    Progressed,
    Sampled,
)
from orchestrator.executors.cluster_slots import ClusterSlots
from orchestrator.executors.rank_group import RankGroup
from orchestrator.features.ray import ray_executor
from orchestrator.features.ray.cluster.node_settings import HEALTH
from orchestrator.features.ray.compatible_nodes import CompatibleNodes
from orchestrator.features.ray.head_liveness import FENCE_AFTER_S
from orchestrator.features.ray.node_agent import ASK_EVERY_S, NodeFacts
from orchestrator.features.ray.node_attempt import CPUS_EVERY_S, Assignment, Batch
from orchestrator.features.ray.node_registry import (
    LIST_EVERY_S,
    SUSPICION_S,
    NodeChange,
    NodeLeft,
    RayNode,
)
from orchestrator.features.ray.rank_placement import PlacedRanks, PlacementFailed
from orchestrator.features.ray.ray_backend import RayBackend
from orchestrator.features.ray.ray_executor import RayExecutor
from orchestrator.features.ray.transport import Transport
from orchestrator.machine.provenance import VersionDifferences
from orchestrator.machine.slots import RankSlot, Slot, SlotPool
from tests.simulation.executor import SAMPLE_EVERY_S, OddError, Processes, SimulatedKind
from tests.simulation.fake_ray import (
    LEAST_S,
    NodeDiedError,
    Ray,
    RayTaskError,
    SimulatedSelect,
    Stream,
    TaskCancelledError,
    WorkerCrashedError,
)
from tests.simulation.machines import Room, machine
from tests.simulation.outer import OuterExecutor
from tests.simulation.ranks import Process, RanksOfMachine, Team
from tests.simulation.scenario import SimulatedNode, Trouble
from tests.simulation.worker import Worker
from tests.simulation.world import Violation, World

DECLARED_DEAD_S = (int(HEALTH["RAY_health_check_period_ms"]) / 1000) * (
    int(HEALTH["RAY_health_check_failure_threshold"]) - 1
)
"""After which the head gives up a node that it cannot reach."""
AGENT_S = 0.2
"""Until the agent of a node answers."""
PLACEMENT_S = 0.2
"""Until room is reserved on several nodes."""
TASK_S = 0.3
"""Until the process of a task has started."""
NOTICED: Sequence[tuple[float | None, float]] = (
    *((0.2, 3.0), (None, 1.0), (4.0, 1.0), (None, 30.0), (0.5, 30.0)),
)
"""When a machine is gone: after how many seconds that reaches the driver by the task's stream, if
it does at all, and the head."""
PATIENCE_S = 20.0
"""After which a user begins anew who was told that a node is used no longer."""


@dataclass(slots=True, kw_only=True, eq=False)
class Node:
    """A machine of the cluster, which outlives supervisors."""

    cluster: Cluster
    spec: SimulatedNode
    boots: int = 0
    is_up: bool = False
    is_gone: bool = False
    """For good."""
    is_declared_dead: bool = False
    """Whether the head has given it up since it started last."""
    cut_since: float | None = None
    session: Registry | None = None
    """Whose agent it has."""
    pool: SlotPool | None = None
    tasks: list[Task] = field(default_factory=list)
    on_contact: list[Callable[[], None]] = field(default_factory=list)
    """What waits until it can be reached again."""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def node_id(self) -> str:
        return f"{self.name}-{self.boots}"

    @property
    def is_reachable(self) -> bool:
        return self.is_up and self.cut_since is None

    def join(self) -> None:
        """It starts, as another node for the cluster."""
        self.boots += 1
        self.is_up, self.is_declared_dead, self.session = True, False, None
        self.cluster.world.log(f"node {self.node_id} joins")
        self.cluster.joined(self)

    def reach(self, what: Callable[[], None]) -> None:
        """Do something there, as soon as it can be reached; never, if it is gone by then."""
        if self.is_reachable:
            what()
        elif self.is_up:
            self.on_contact.append(what)

    def serve(self, session: Registry) -> None:
        """Its agent for another driver starts, and ends what earlier ones have left."""
        if self.session is session:
            return
        for task in list(self.tasks):
            task.kill()
        self.session = session
        self.pool = SlotPool(machine(self.spec.cpus), self.spec.cpus, waits_for_others=True)

    def processes(self) -> list[Process]:
        return [one for task in self.tasks for one in task.ranks.processes if one.is_alive]

    # -- troubles

    def die(self, *, for_s: float, choice: int) -> None:
        if not self.is_reachable:
            return
        world = self.cluster.world
        by_stream_s, by_head_s = NOTICED[choice % len(NOTICED)]
        self.is_up, self.is_gone = False, not for_s
        self.on_contact.clear()
        for task in list(self.tasks):
            task.vanish(by_stream_s)
        node_id = self.node_id
        self.cluster.unnoticed.add(node_id)
        world.after(by_head_s, lambda: self.cluster.left(node_id))
        if for_s:
            world.after(for_s, self.join)

    def cut(self, *, for_s: float, is_asleep: bool) -> None:
        """It cannot be reached for a while.

        :param is_asleep: whether it also stands still.
        """
        if not self.is_reachable:
            return
        world = self.cluster.world
        self.cut_since = world.now
        for process in self.processes():
            process.is_apart = True
            process.frozen_until = world.now + for_s if is_asleep else process.frozen_until
        boots = self.boots
        if not is_asleep:
            world.after(FENCE_AFTER_S, lambda: self._fence(boots))
        world.after(DECLARED_DEAD_S, lambda: self._declared(boots))
        world.after(for_s, lambda: self._heal(boots))

    def _fence(self, boots: int) -> None:
        """Its agent ends all attempts, as it has not heard of the head for long."""
        if self.boots == boots and self.cut_since is not None:
            for task in list(self.tasks):
                task.crash()

    def _declared(self, boots: int) -> None:
        """The head gives the node up."""
        if self.boots == boots and not self.is_reachable and not self.is_declared_dead:
            self.is_declared_dead = True
            self.cluster.left(f"{self.name}-{boots}")

    def _heal(self, boots: int) -> None:
        world = self.cluster.world
        if self.boots != boots or self.cut_since is None:
            return
        self.cut_since = None
        if not self.is_declared_dead:
            world.log(f"node {self.node_id} can be reached again")
            for process in self.processes():
                process.is_apart = False
            waiting, self.on_contact = self.on_contact, []
            for what in waiting:
                what()
            self._end_orphans()
            return
        # What it still has ends when its agent has asked, and then it joins as another node.
        self.is_up = False
        self.on_contact.clear()
        world.log(f"node {self.node_id} comes back late")
        left = self.tasks
        self.tasks = []
        world.after(ASK_EVERY_S, lambda: [task.kill() for task in left] and None)
        world.after(ASK_EVERY_S + 1.0, self.join)

    def _end_orphans(self) -> None:
        """It hears of drivers that have ended meanwhile."""
        for task in list(self.tasks):
            if task.session.is_closed:
                task.kill()


@dataclass(slots=True, kw_only=True, eq=False)
class Task:
    """The process of a Ray task, with the ranks of an attempt that it has started."""

    node: Node
    session: Registry
    assignment: Assignment
    stream: Stream
    team: Team
    ranks: RanksOfMachine
    boots: int
    is_over: bool = False
    slot: Slot | None = None
    _latest: dict[type, Event] = field(default_factory=dict)

    @property
    def world(self) -> World:
        return self.node.cluster.world

    def begin(self) -> None:
        """Wait for CPUs of the node, and start."""
        if self.is_over or self.session.is_closed:  # the cluster ends what a driver leaves
            self.kill()
            return
        cores = min(self.assignment.cores, self.node.spec.cpus)
        assert self.node.pool is not None
        self.slot = self.node.pool.acquire(cores)
        if self.slot is None:
            self.world.after(CPUS_EVERY_S, self.begin)
            return
        try:
            self._start_ranks(self.slot.cpus)
        except (OSError, OddError) as error:
            self._finish()
            self._put(RayTaskError(error))

    def _start_ranks(self, cpus: tuple[int, ...]) -> None:
        launch, processes = self.assignment.launch, self.node.cluster.processes
        first = launch.first_rank
        if first == 0:
            behaviour = processes.begun(launch.job_id)
            self.team.worker = self._worker(launch, behaviour, cpus)
            self.ranks.add(self.team.worker)
        for rank in range(max(first, 1), first + launch.ranks):
            self._add_follower(rank, cpus)
        pid = self.ranks.processes[0].pid
        placed = Placed(
            handle=self.team.handle,
            node=self.assignment.node,
            cpus=tuple(islice(cpus, self.assignment.cores)),
            gpus=(),
            pid=pid,
            pid_start=self.ranks.processes[0].pid_start,
        )
        self._put(Batch((placed,)))
        if first == 0:
            assert self.team.worker is not None
            processes.add(self.team.worker)
        self.world.after(self.assignment.report_every_s, self._report)
        self.world.after(SAMPLE_EVERY_S, self._sample)

    def _worker(self, launch: Launch, behaviour: Any, cpus: tuple[int, ...]) -> Worker:
        world, processes = self.world, self.node.cluster.processes
        pid = world.new_pid()
        spec = WorkerSpec.from_json((launch.job_dir / "spec.json").read_bytes())
        is_single = self.team.ranks == 1

        def report(progress: Any) -> None:
            self._latest[Progressed] = Progressed(self.team.handle, progress)

        def ended(code: int) -> None:
            del processes.alive[pid]
            is_oom = behaviour.ending == "oom" and not worker.is_asked
            self._rank_ended(0, code, is_oom)

        worker = Worker(
            world=world,
            job=processes.jobs[launch.job_id],
            behaviour=behaviour,
            number=launch.number,
            paths=JobPaths(launch.job_dir),
            spec=spec,
            pause_at=spec.pause_at,
            pid=pid,
            pid_start=world.lives[pid],
            cpus=cpus,
            sharing=lambda: 0,
            report=report,
            ended=ended,
            node=self.node.name,
            ranks_here=launch.ranks,
            team=None if is_single else self.team,
        )
        self._place(worker)
        return worker

    def _add_follower(self, rank: int, cpus: tuple[int, ...]) -> None:
        is_first = rank == self.assignment.launch.first_rank
        follower = self.node.cluster.processes.follow(
            self.team,
            rank,
            ended=lambda code: self._rank_ended(rank, code, False),
            node=self.node.name,
            cpus=cpus if is_first else (),
            ranks_here=self.assignment.launch.ranks if is_first else 0,
        )
        self._place(follower)
        self.ranks.add(follower)

    def _place(self, process: Process) -> None:
        if self.node.cut_since is not None:
            process.is_apart = True

    def _rank_ended(self, rank: int, code: int, is_oom: bool) -> None:
        self.ranks.ended(rank - self.assignment.launch.first_rank, code, oom_killed=is_oom)

    def exited(self, exited: Exited) -> None:
        """All of its ranks are gone."""
        if self.is_over:
            return
        self._finish()
        self._put(Batch((*self._latest.values(), exited)))

    # -- how it ends before its ranks do

    def cancelled(self) -> None:
        """By the driver."""
        self.node.reach(self._cancel)

    def _cancel(self) -> None:
        if self.is_over:
            return
        error = TaskCancelledError() if self.slot is None else WorkerCrashedError()
        self.kill()
        self._put(error)

    def crash(self) -> None:
        """Its process is killed; its ranks end with it."""
        if not self.is_over:
            self.kill()
            self._put(WorkerCrashedError())

    def kill(self) -> None:
        """Nothing of it is left, and nobody is told."""
        self._finish()
        self.ranks.is_over = True
        self.ranks.kill()

    def vanish(self, by_stream_s: float | None) -> None:
        """Its machine is gone."""
        is_over = self.is_over
        self.kill()
        if by_stream_s is not None and not is_over:
            self.stream.put(NodeDiedError(), late_s=by_stream_s)

    def _finish(self) -> None:
        self.is_over = True
        if self in self.node.tasks:
            self.node.tasks.remove(self)
        if self.slot is not None and self.node.session is self.session and self.node.pool:
            self.node.pool.release(self.slot)
            self.slot = None

    # -- orders and reports

    def obey(self, order: str) -> None:
        processes = [one for one in self.ranks.processes if one.is_alive]
        match order:
            case "kill":
                for process in processes:
                    process.kill()
            case "exit":
                for process in processes:
                    process.ask()
            case "checkpoint":
                for process in processes[:1]:
                    process.save()

    def _report(self) -> None:
        if self.is_over:
            return
        if self._latest:
            self._put(Batch(tuple(self._latest.values())))
            self._latest.clear()
        self.world.after(self.assignment.report_every_s, self._report)

    def _sample(self) -> None:
        if self.is_over:
            return
        self._latest[Sampled] = Sampled(self.team.handle, self.ranks.rss_mib, (0.0,))
        self.world.after(SAMPLE_EVERY_S, self._sample)

    def _put(self, item: Any) -> None:
        """To the driver, late where the network or the machine is."""
        if self.boots == self.node.boots:
            self.node.reach(lambda: self._deliver(item))

    def _deliver(self, item: Any) -> None:
        if self.session.is_closed:
            return
        late_s = 0.0
        for trouble in self.world.of_next_event():
            match trouble.kind:
                case "late":
                    late_s += trouble.for_s
                case "lost" if _is_mere_progress(item):
                    return
                case "twice" | "stray":
                    self.session.noise(trouble.kind, self.team.handle)
        self.stream.put(item, late_s=late_s)


def _is_mere_progress(item: Any) -> bool:
    kinds = (Placed, Exited)
    return isinstance(item, Batch) and not any(isinstance(one, kinds) for one in item.events)


@dataclass(slots=True, kw_only=True, eq=False)
class Registry:
    """In the place of :class:`orchestrator.features.ray.node_registry.NodeRegistry`."""

    cluster: Cluster
    is_closed: bool = False
    awaited: set[str] = field(default_factory=set)
    """Nodes whose first answer is to come."""
    suspected: set[str] = field(default_factory=set)
    teams: dict[Handle, Team] = field(default_factory=dict)
    told_twice: set[Handle] = field(default_factory=set)
    strays: list[Event] = field(default_factory=list)
    excluded: set[str] = field(default_factory=set)
    leaving: set[str] = field(default_factory=set)
    """Nodes that the head has given up, and this does not know it."""
    _changes: list[NodeChange] = field(default_factory=list)
    _reported: set[str] = field(default_factory=set)

    driver_node = "n0-1"

    def __post_init__(self) -> None:
        for node in self.cluster.nodes:
            if node.is_up and not node.is_declared_dead:
                self.follow(node)
        self.awaited |= self.cluster.unnoticed

    @property
    def head(self) -> SimpleNamespace:
        return SimpleNamespace(missing_s=self.cluster.head_missing_s)

    def changes(self) -> list[NodeChange]:
        if self.cluster.head_missing_s:
            return []
        changes, self._changes = self._changes, []
        return changes

    @property
    def has_changes(self) -> bool:
        return bool(self._changes) and not self.cluster.head_missing_s

    def settle(self, timeout_s: float) -> bool:
        world = self.cluster.world
        world.point("wait for nodes")
        world.pass_time(timeout_s, until=lambda: not self.awaited)
        return not self.awaited

    def suspect(self, node_id: str) -> None:
        self.suspected.add(node_id)
        node = self.cluster.node(node_id)
        if node is not None:
            self.cluster.world.after(
                SUSPICION_S, lambda: node.reach(lambda: self._answered(node, node_id))
            )

    def close(self) -> None:
        """End the agents, with everything that they have on their nodes."""
        if self.is_closed or self.cluster.world.is_dead:
            return
        self.is_closed = True
        for node in self.cluster.nodes:
            for task in list(node.tasks):
                if task.session is self and node.is_reachable:
                    task.kill()
        self.cluster.world.point("nodes closed")

    def follow(self, node: Node) -> None:
        """A node is known to the head: its agent is started."""
        node_id = node.node_id
        self.awaited.add(node_id)
        self.cluster.world.after(AGENT_S, lambda: node.reach(lambda: self._answered(node, node_id)))

    def left(self, node_id: str) -> None:
        self.leaving.discard(node_id)
        self.awaited.discard(node_id)
        self.suspected.discard(node_id)
        self._reported.discard(node_id)
        if not self.is_closed:
            self._changes.append(NodeLeft(node_id))
            self.cluster.world.at(self.cluster.world.now, lambda: None)

    def serves(self, node: Node) -> bool:
        """Whether jobs can run there."""
        is_known = node.node_id in self._reported - self.suspected - self.excluded
        return is_known and node.is_reachable

    def noise(self, kind: str, handle: Handle) -> None:
        """An event comes twice, or one of an attempt that is none of the supervisor's."""
        if kind == "twice":
            self.told_twice.add(handle)
        else:
            self.strays.append(Exited(Handle(handle.job_id, handle.number + 7), 0))

    def _answered(self, node: Node, node_id: str) -> None:
        if self.is_closed or node.node_id != node_id or not node.is_up:
            return
        node.serve(self)
        self.awaited.discard(node_id)
        self.suspected.discard(node_id)
        self._reported.add(node_id)
        self._changes.append(
            RayNode(
                node_id=node_id,
                name=node.name,
                cores=node.spec.cpus,
                gpus=0,
                memory_mib=node.spec.memory_mib,
                facts=NodeFacts(
                    cores=node.spec.cpus,
                    cpu_model="simulated",
                    versions={},
                    sees_run_dir=True,
                    storage_problem=None,
                ),
                agent=SimpleNamespace(
                    node_id=node_id, send_order=SimpleNamespace(remote=self._order(node))
                ),
                differences=VersionDifferences(deciding=(), others=()),
            )
        )

    def _order(self, node: Node) -> Callable[[str, str], None]:
        def send(key: str, order: str) -> None:
            def deliver() -> None:
                for task in list(node.tasks):
                    if task.assignment.key == key and task.session is self:
                        task.obey(order)

            node.reach(deliver)

        return send


class SimulatedPlacement:
    """In the place of :class:`orchestrator.features.ray.rank_placement.RankPlacement`."""

    def __init__(self, cluster: Cluster, nodes: Callable[[str], RayNode | None]) -> None:
        self._cluster, self._nodes = cluster, nodes
        self._results: list[PlacedRanks | PlacementFailed] = []
        self._requested: set[Handle] = set()

    def request(self, handle: Handle, ranks: Sequence[RankSlot]) -> None:
        self._requested.add(handle)
        self._cluster.world.after(PLACEMENT_S, lambda: self._reserve(handle, ranks))

    def withdraw(self, handle: Handle) -> None:
        self._requested.discard(handle)

    def results(self) -> list[PlacedRanks | PlacementFailed]:
        results, self._results = self._results, []
        return results

    def release(self, _placement_group: Any) -> None:
        """Nothing is reserved but the slots."""

    def close(self) -> None:
        self._requested.clear()

    def _reserve(self, handle: Handle, ranks: Sequence[RankSlot]) -> None:
        """All at once, as soon as all can be reached."""
        if handle not in self._requested:
            return
        nodes = [self._cluster.node(rank.node) for rank in ranks]
        if any(self._nodes(rank.node) is None for rank in ranks):
            self._results.append(PlacementFailed(handle, "a node chosen for it has left"))
        elif all(node is not None and node.is_reachable for node in nodes):
            self._results.append(
                PlacedRanks(handle=handle, placement_group=object(), address="n0", port=1)
            )
        else:
            self._cluster.world.after(PLACEMENT_S, lambda: self._reserve(handle, ranks))


class Nodes(CompatibleNodes):
    """The real ones; a user who is told that one is used no longer begins anew in the end."""

    registry: Any

    def exclude(self, node_id: str, why: str) -> None:
        super().exclude(node_id, why)
        registry: Registry = self.registry
        registry.excluded.add(node_id)
        registry.cluster.excluded(registry)


@dataclass(slots=True, kw_only=True)
class ClusterExecutor(OuterExecutor):
    """The real executor, of which events come twice."""

    registry: Registry

    def heard(self, events: Sequence[Event]) -> Sequence[Event]:
        registry = self.registry
        twice = [one for one in events if one.handle in registry.told_twice]
        registry.told_twice.difference_update(one.handle for one in twice)
        strays, registry.strays = registry.strays, []
        return [*strays, *events, *twice]


class ClusterBackend(RayBackend):
    """The real backend on simulated nodes."""

    def __init__(self, settings: BackendSettings, cluster: Cluster) -> None:
        self._address, self._storage = "auto", "shared"
        registry: Any = Registry(cluster=cluster)
        cluster.registry = registry
        self.slots = ClusterSlots(settings.max_parallel_on_nodes)
        self.nodes = Nodes(registry, self.slots, Transport("shared"))
        self.executor: Any = ClusterExecutor(
            world=cluster.world,
            processes=cluster.processes,
            inner=RayExecutor(nodes=self.nodes),
            registry=registry,
        )
        self.local_slots = SlotPool(settings.machine)
        self._stack = contextlib.ExitStack()
        self._stack.callback(self.local_slots.close)
        self._stack.callback(self.nodes.close)


@dataclass(slots=True, kw_only=True)
class Cluster:
    world: World
    processes: Processes
    nodes: list[Node] = field(default_factory=list)
    registry: Registry | None = None
    """Of the supervisor that lives, or that was the last one."""
    unnoticed: set[str] = field(default_factory=set)
    """Nodes that are gone, and the head does not know it."""
    _head_gone_since: float | None = None

    def __post_init__(self) -> None:
        for spec in self.world.scenario.nodes:
            node = Node(cluster=self, spec=spec)
            self.nodes.append(node)
            if spec.joins_s:
                self.world.at(spec.joins_s, node.join)
            else:
                node.join()

    def node(self, node_id: str) -> Node | None:
        return next((node for node in self.nodes if node.node_id == node_id), None)

    @property
    def head_missing_s(self) -> float:
        since = self._head_gone_since
        return 0.0 if since is None else max(LEAST_S, self.world.now - since)

    def start(self, assignment: Assignment, agent: Any) -> Stream:
        """A task starts on the node of ``agent``. If its machine has started anew since, which the
        driver may not know, nothing starts: it is another node now, also under the same name.
        """
        registry, launch = self.registry, assignment.launch
        assert registry is not None
        node = next(one for one in self.nodes if one.name == assignment.node)
        handle = Handle(launch.job_id, launch.number)
        ranks = self.processes.jobs[launch.job_id].ranks
        team = registry.teams.setdefault(handle, Team(world=self.world, handle=handle, ranks=ranks))
        stream = Stream(world=self.world)
        group: RankGroup[Any] = RankGroup(handle=handle, ranks=launch.ranks, running=[])
        task = Task(
            node=node,
            session=registry,
            assignment=assignment,
            stream=stream,
            team=team,
            ranks=RanksOfMachine(world=self.world, group=group, send=lambda exited: None),
            boots=node.boots,
        )
        task.ranks.send = task.exited
        stream.kill = task.cancelled
        if node.is_up and node.session is registry and node.node_id == agent.node_id:
            node.tasks.append(task)
            self._look_at_room(node)
            self.world.after(TASK_S, lambda: node.reach(task.begin))
        return stream

    def _look_at_room(self, node: Node) -> None:
        """Only what there is room for is submitted."""
        tasks = [task for task in node.tasks if task.boots == node.boots]
        launches = [task.assignment.launch for task in tasks]
        cores = sum(task.assignment.cores for task in tasks)
        memory_mib = sum(
            launch.ranks * self.processes.jobs[launch.job_id].memory_mib for launch in launches
        )
        if cores > node.spec.cpus or memory_mib > node.spec.memory_mib:
            raise Violation(f"{node.name} has to run {cores} cores and {memory_mib} MiB")

    # -- what happens to nodes

    def joined(self, node: Node) -> None:
        registry = self.registry
        if registry is not None and not registry.is_closed:
            boots = node.boots

            def follow() -> None:
                if not registry.is_closed and node.boots == boots and node.is_up:
                    registry.follow(node)

            self.world.after(LIST_EVERY_S, follow)

    def left(self, node_id: str) -> None:
        """The head gives a node up."""
        self.unnoticed.discard(node_id)
        registry = self.registry
        if registry is not None and not registry.is_closed:
            registry.leaving.add(node_id)
            self.world.after(LIST_EVERY_S, lambda: registry.left(node_id))

    def excluded(self, registry: Registry) -> None:
        def begin_anew() -> None:
            if not registry.is_closed and self.world.is_supervised:
                self.world.happens(Trouble(kind="signal"))

        self.world.after(PATIENCE_S, begin_anew)

    def happens(self, trouble: Trouble) -> None:
        node = self.nodes[trouble.node]
        match trouble.kind:
            case "node-dies":
                node.die(for_s=trouble.for_s, choice=trouble.choice)
            case "node-cut" | "node-sleeps":
                node.cut(for_s=trouble.for_s, is_asleep=trouble.kind == "node-sleeps")
            case "task-dies":
                if node.is_reachable and node.tasks:
                    node.tasks[trouble.choice % len(node.tasks)].crash()
            case "head-cut":
                self._cut_head(trouble.for_s)

    def _cut_head(self, for_s: float) -> None:
        if self._head_gone_since is not None:
            return
        self._head_gone_since = self.world.now
        if for_s > FENCE_AFTER_S:
            self.world.after(FENCE_AFTER_S, self._fence_all)
        self.world.after(for_s, self._head_is_back)

    def _fence_all(self) -> None:
        for node in self.nodes:
            for task in list(node.tasks):
                task.crash()

    def _head_is_back(self) -> None:
        self._head_gone_since = None


class ClusterKind(SimulatedKind):
    """In the place of the kind ``ray``."""

    name = "ray"
    is_elsewhere = True

    def __init__(self, *, world: World, processes: Processes) -> None:
        super().__init__(world=world, processes=processes)
        self.cluster = Cluster(world=world, processes=processes)
        world.on_nodes = self.cluster.happens

    def open(self, settings: BackendSettings) -> Any:
        if self.cluster.head_missing_s:
            raise UsageError("the head of the Ray cluster does not answer")
        return ClusterBackend(settings, self.cluster)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        world, cluster = self.world, self.cluster
        before = ray_executor.select, ray_executor.RankPlacement

        def is_awaited() -> bool:
            return cluster.registry is not None and cluster.registry.has_changes

        ray_executor.select = SimulatedSelect(world, is_awaited)  # type: ignore[assignment]
        ray_executor.RankPlacement = functools.partial(  # type: ignore[assignment,misc]
            SimulatedPlacement, cluster
        )
        try:
            with Ray(world=world, start=cluster.start).installed():
                yield
        finally:
            ray_executor.select, ray_executor.RankPlacement = before  # type: ignore[misc]

    def room(self, node: str) -> Room:
        spec = next(one for one in self.world.scenario.nodes if one.name == node)
        return Room(cpus=spec.cpus, memory_mib=spec.memory_mib)

    def is_disturbed(self) -> bool:
        cluster = self.cluster
        registry = cluster.registry
        if registry is None or cluster.head_missing_s or cluster.unnoticed:
            return True
        if registry.has_changes or registry.leaving:
            return True
        return any(not node.is_gone and not registry.serves(node) for node in cluster.nodes)

    def supervisor_died(self, *, is_power_cut: bool) -> None:
        if self.cluster.registry is not None:
            self.cluster.registry.is_closed = True
        super().supervisor_died(is_power_cut=is_power_cut)

    def explains(self, error: Exception) -> bool:
        troubles = self.world.counts
        is_away = troubles["node-dies"] + troubles["node-cut"] + troubles["node-sleeps"] > 0
        joins_late = any(node.joins_s for node in self.world.scenario.nodes)
        if isinstance(error, SpecError):
            return is_away or joins_late or troubles["head-cut"] > 0
        if isinstance(error, ClusterLostError):
            return troubles["head-cut"] > 0 or "no node of the cluster" in str(error)
        return troubles["head-cut"] > 0 and "head" in str(error)
