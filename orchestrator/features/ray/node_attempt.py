"""The Ray task of an attempt: a streaming generator that reports to the driver.

The worker processes are its children, started by the local executor. When the task's process ends,
for whatever reason (the node's raylet, the driver or Ray's memory monitor may kill it), they end
too: it is their supervisor.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator.core.errors import OrchestratorError, is_disk_full
from orchestrator.core.pacer import Pace, Pacer
from orchestrator.core.paths import JobPaths
from orchestrator.executors.executor import AttemptId, Event, Exited, Placed, Progressed
from orchestrator.executors.launcher import Launch
from orchestrator.executors.processes import WORKER_COMMAND, Processes
from orchestrator.features.ray import internals
from orchestrator.features.ray.file_sync.chunks import Chunk, payload_bytes
from orchestrator.features.ray.file_sync.receiver import Receiver
from orchestrator.features.ray.file_sync.sender import Sender, outgoing_chunks
from orchestrator.features.ray.file_sync.storage import Storage
from orchestrator.features.ray.node_agent import CpuGrant
from orchestrator.features.ray.scratch_directory import lock, take_order
from orchestrator.features.ray.transport import TransferMode
from orchestrator.features.ray.user_code import UserCode
from orchestrator.machine.process_identity import process_start

POLL_S = 0.25
PROGRESS = Pace(every_s=5.0)
"""How often progress is reported to the node agent, for ``cluster status``."""
CPUS_EVERY_S = 0.5
CPUS_NOTICE_S = 5.0
"""A wait for CPUs is reported after this: the attempt that had them before may still be ending."""
RANK_TIMEOUT_S = 60.0
"""Longest wait for CPUs where ranks on other nodes wait for this one."""
GLOO_INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"
"""Where torch's gloo listens; by default, at the address to which the host's own name resolves."""
LAST_SCANS = 5
CHUNK_TIMEOUT_S = 120.0
CHUNKS_AHEAD = 8
BATCH_BYTES = 1 << 20
CHUNK_OVERHEAD_BYTES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What is sent to a node: an attempt, or the ranks of it that run there."""

    launch: Launch
    """``job_dir`` is the driver's. CPUs and GPUs are chosen on the node."""
    cores: int
    has_gpus: bool
    node: str
    report_every_s: float
    mode: TransferMode
    storage: Storage | None
    driver_node: str
    """Id of the driver's node, from which files are sent."""
    ranks: Sequence[int] | None = None
    """The ranks that run on this node; None: all of them."""
    worker_command: Sequence[str] | None = None
    """None: the command of the worker, with the node's own Python."""
    environment: Mapping[str, str | None] = field(default_factory=dict)
    """Changes to the environment of the workers; None removes a variable."""
    code: UserCode | None = None

    @property
    def key(self) -> str:
        """Identifies the attempt on its node."""
        rank = f"/{self.launch.first_rank}" if self.launch.first_rank else ""
        return f"{self.launch.job_id}/{self.launch.number}{rank}"


@dataclass(frozen=True, slots=True)
class Batch:
    """What has happened since the previous batch."""

    events: tuple[Event, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    """To be applied to the job directory before the events are handled."""
    waits_for_cpus: bool = False
    """Whether the attempt has not begun, because others hold the CPUs of its node."""


def run(assignment: Assignment, agent: Any) -> Iterator[Batch]:
    """The attempt from start to end. After the last batch, nothing of it is left on the node.

    :param agent: the actor of the node.
    :raises OSError: it could not be started, or a disk is full; a ScratchFullError if it is the
        node's.
    """
    grant = yield from _acquire_cpus(assignment, agent)
    folder = grant.folder
    try:
        with contextlib.ExitStack() as stack:
            with _full_disk_is_the_nodes():
                folder.mkdir(parents=True, exist_ok=True)
                if (folder_lock := lock(folder)) is not None:
                    stack.enter_context(folder_lock)
                grant.holder.write(folder)
                assignment = replace(
                    assignment, environment=_environment(assignment, folder.parent)
                )
            if assignment.mode == "stream":
                last = yield from _run_in_copy(
                    assignment, grant, agent, folder / assignment.launch.job_id
                )
            else:
                last = yield from SupervisedWorkers(assignment, grant, agent).batches(lambda: ())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        agent.release_cpus.remote(assignment.key)
    yield last


class ScratchFullError(OSError):
    """No space left on the node's own disk, as opposed to that of the run directory."""


@contextlib.contextmanager
def _full_disk_is_the_nodes() -> Iterator[None]:
    """:raises ScratchFullError: in place of an OSError about a full disk."""
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise ScratchFullError(error.errno, error.strerror, error.filename) from error
        raise


def _environment(assignment: Assignment, scratch: Path) -> dict[str, str | None]:
    """Changes to the environment of the workers: as on one machine, without the variables for Ray's
    own processes.
    """
    code = {}
    if assignment.code is not None:
        code = assignment.code.variables(scratch, assignment.driver_node)
    of_ray = [
        name
        for name, value in os.environ.items()
        if name.startswith("RAY_") or value.startswith("ray.")
    ]
    network = {} if assignment.ranks is None else _interface()
    return {**dict.fromkeys([*of_ray, "SPT_NOENV"]), **network, **assignment.environment, **code}


def _interface() -> dict[str, str]:
    """Ranks on other nodes connect to the cluster's interface, not to the address of this host in
    ``/etc/hosts``.
    """
    import psutil
    import ray

    if GLOO_INTERFACE_VARIABLE in os.environ:  # set by the user for `cluster up` or `cluster join`
        return {}
    node = ray.util.get_node_ip_address()
    for name, entries in psutil.net_if_addrs().items():
        addresses = [entry.address.partition("%")[0] for entry in entries]  # without `%interface`
        if node in addresses:
            return {GLOO_INTERFACE_VARIABLE: name}
    return {}


def _acquire_cpus(assignment: Assignment, agent: Any) -> Generator[Batch, None, CpuGrant]:
    """Wait for CPUs that nobody else has: Ray does not know of other experiments on its node.

    :raises OrchestratorError: there are none, and ranks on other nodes wait.
    """
    import ray

    pid = os.getpid()
    start = time.monotonic()
    is_noticed = False

    def ask() -> CpuGrant | None:
        request = agent.acquire_cpus.remote(
            assignment.key,
            assignment.cores,
            pid=pid,
            pid_start=process_start(pid),
            job_id=assignment.launch.job_id,
            work=assignment.launch.work,
        )
        answer: CpuGrant | None = ray.get(request)
        return answer

    while (grant := internals.keeping_cpus(ask)) is None:
        waited_s = time.monotonic() - start
        if assignment.ranks is not None and waited_s > RANK_TIMEOUT_S:
            raise OrchestratorError(
                f"no {assignment.cores} CPUs became free on the node within {RANK_TIMEOUT_S:.0f} s"
            )
        if waited_s > CPUS_NOTICE_S and not is_noticed:
            yield Batch(waits_for_cpus=True)
            is_noticed = True
        time.sleep(CPUS_EVERY_S)
    return grant


def _run_in_copy(
    assignment: Assignment, grant: CpuGrant, agent: Any, job_dir: Path
) -> Generator[Batch, None, Batch]:
    """Run in a copy of the job directory, and send its changes; all of them have been sent before
    the last batch.
    """
    receiver = Receiver(job_dir, storage=assignment.storage, durable=False)
    for chunk in _chunks_from_driver(assignment):
        receiver.apply(chunk)
    JobPaths(job_dir).attempt(assignment.launch.number).root.mkdir(parents=True, exist_ok=True)
    sender = Sender.of_copy(job_dir, storage=assignment.storage, ranks=assignment.ranks)
    in_copy = replace(assignment, launch=replace(assignment.launch, job_dir=job_dir))
    last = yield from SupervisedWorkers(in_copy, grant, agent).batches(sender.scan)
    for _ in range(LAST_SCANS):
        yield from _batches_of(sender.scan())
        if not sender.is_incomplete:
            return last
    raise OrchestratorError("its files still change after its end")


def _chunks_from_driver(assignment: Assignment) -> Iterator[Chunk]:
    """The files that the worker needs, fetched from the driver's machine a little ahead of their
    use.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    remote: Any = ray.remote(outgoing_chunks)
    task = remote.options(
        num_returns="streaming",
        num_cpus=0,
        max_retries=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(assignment.driver_node, soft=False),
        _generator_backpressure_num_objects=CHUNKS_AHEAD,
    )
    stream = task.remote(
        assignment.launch.job_dir, storage=assignment.storage, ranks=assignment.ranks
    )

    def fetch() -> Chunk | None:
        reference = next(stream, None)
        return None if reference is None else ray.get(reference, timeout=CHUNK_TIMEOUT_S)

    try:
        while (chunk := internals.keeping_cpus(fetch)) is not None:
            yield chunk
    except ray.exceptions.GetTimeoutError as error:
        raise OrchestratorError("timed out fetching its files from the driver's machine") from error


def _batches_of(chunks: Iterable[Chunk]) -> Iterator[Batch]:
    batch: list[Chunk] = []
    size = 0
    for chunk in chunks:
        batch.append(chunk)
        size += payload_bytes(chunk) + CHUNK_OVERHEAD_BYTES
        if size >= BATCH_BYTES:
            yield Batch(chunks=tuple(batch))
            batch = []
            size = 0
    if batch:
        yield Batch(chunks=tuple(batch))


class SupervisedWorkers:
    """The workers of an attempt on its node, in the CPUs that ``grant`` gives."""

    def __init__(self, assignment: Assignment, grant: CpuGrant, agent: Any) -> None:
        self._assignment = assignment
        self._grant = grant
        self._agent = agent
        command = WORKER_COMMAND if assignment.worker_command is None else assignment.worker_command
        self._executor = Processes(
            worker_command=command, environment=assignment.environment, reaper_apart=True
        )
        self._latest: dict[type, Event] = {}
        """The latest event of each kind: the driver has no use for older ones."""
        self._progress = Pacer(PROGRESS)

    def batches(self, changes: Callable[[], Iterable[Chunk]]) -> Generator[Batch, None, Batch]:
        """Start the workers and report about them, and ``changes`` since its last call; the last
        batch is returned.
        """
        gpus: tuple[str, ...] = ()
        if self._assignment.has_gpus:
            gpus = tuple(os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))
        launch = replace(
            self._assignment.launch, cpus=self._grant.holder.cpus, gpus=gpus, rank_slots=()
        )
        with contextlib.closing(self._executor):
            id_ = self._executor.submit(launch)
            reports = Pacer(Pace(every_s=self._assignment.report_every_s))
            while not self._poll(id_, POLL_S):
                if not reports.is_due():
                    continue
                for batch in _batches_of(changes()):
                    yield batch
                    self._poll(id_, 0.0)
                if self._latest and Exited not in self._latest:
                    yield Batch(tuple(self._latest.values()))
                    self._latest.clear()
                reports.wait()
        return Batch(tuple(self._latest.values()))

    def _poll(self, id_: AttemptId, timeout_s: float) -> bool:
        """Pass on orders and collect events. Returns whether the workers have ended."""
        if (order := take_order(self._grant.folder)) == "checkpoint":
            self._executor.checkpoint(id_)
        elif order is not None:
            self._executor.cancel(id_, kill=order == "kill")
        if Exited not in self._latest:
            for event in self._executor.poll(timeout_s):
                self._latest[type(event)] = (
                    replace(event, node=self._assignment.node)
                    if isinstance(event, Placed)
                    else event
                )
        progressed = self._latest.get(Progressed)
        if isinstance(progressed, Progressed) and self._progress.is_due():
            self._progress.wait()
            self._agent.record_progress.remote(self._assignment.key, progressed.progress)
        return Exited in self._latest
