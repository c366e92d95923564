"""What runs as one Ray task for each attempt: a streaming generator that tells the driver what happens.

The worker processes are its children, started by the local executor. When the task's process ends, in whatever way (its
node's raylet, the driver or Ray's memory monitor ends it), theirs do too: they are tied to it as to a supervisor.
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

from orchestrator.core.errors import OrchestratorError
from orchestrator.core.exit_codes import DISK_FULL_ERRNOS
from orchestrator.core.paths import JobPaths
from orchestrator.executors.base import Event, Exited, Handle, Launch, Placed, Progressed
from orchestrator.executors.local import WORKER_COMMAND, LocalExecutor
from orchestrator.executors.ray import file_sync
from orchestrator.executors.ray.file_sync import Chunk, Sender, Storage
from orchestrator.executors.ray.file_sync.chunks import payload_bytes
from orchestrator.executors.ray.node_agent import CpuGrant, Order
from orchestrator.executors.ray.scratch_directory import lock, order_file
from orchestrator.executors.ray.transport import TransferMode
from orchestrator.executors.ray.user_code import UserCode
from orchestrator.machine.process_identity import process_start

LOOK_EVERY_S = 0.25
"""For orders."""
NOTE_EVERY_S = 5.0
"""How far it is, for whoever asks the keeper."""
CPUS_PATIENCE_S = 60.0
"""For CPUs of our own: whoever had them before may still be on its way out."""
GLOO_INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"
"""Of torch's: where gloo listens. Without, that is what the host's own name resolves to."""
LAST_SCANS = 5
PIECE_PATIENCE_S = 120.0
PIECES_AHEAD = 8
"""On their way to us at a time."""
BATCH_BYTES = 1 << 20
CHUNK_BYTES = 200
"""What a piece weighs beside what it carries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """An attempt, or the ranks of it that run on one node, as it is sent there."""

    launch: Launch
    """``job_dir`` is the driver's. CPUs and GPUs are chosen here."""
    cores: int
    """Of all ranks that run here."""
    has_gpus: bool
    node: str
    """Its name, for people."""
    report_every_s: float
    way: TransferMode
    storage: Storage | None
    home_node: str
    """Where the driver is: from there files come."""
    ranks: Sequence[int] | None = None
    """Those that run here, where others run elsewhere."""
    worker_command: Sequence[str] | None = None
    """None: the worker, with this node's own Python."""
    environment: Mapping[str, str | None] = field(default_factory=dict)
    """Added to the workers' own; None: taken out of it."""
    code: UserCode | None = None
    """That the job imports."""

    @property
    def key(self) -> str:
        """Of the attempt on its node."""
        rank = f"/{self.launch.first_rank}" if self.launch.first_rank else ""
        return f"{self.launch.job_id}/{self.launch.number}{rank}"


@dataclass(frozen=True, slots=True)
class Batch:
    """What has happened since the one before. The handles of these events mean nothing to the driver."""

    events: tuple[Event, ...] = ()
    pieces: tuple[Chunk, ...] = ()
    """To be applied to the job directory, before anything is made of the events."""


def run(assignment: Assignment, keeper: Any) -> Iterator[Batch]:
    """The attempt from start to end; with the last batch everything is over and nothing of it is left here.

    :param keeper: the actor of this node.
    :raises OSError: it could not be started, or a disk is full; a ScratchFullError where it is this node's.
    """
    granted = _granted(assignment, keeper)
    folder = granted.folder
    try:
        with contextlib.ExitStack() as stack:
            with _of_its_own():
                folder.mkdir(parents=True, exist_ok=True)
                if (held := lock(folder)) is not None:
                    stack.enter_context(held)
                granted.holder.write(folder)
                assignment = replace(assignment, environment=_environment(assignment, folder.parent))
            if assignment.way == "stream":
                last = yield from _mirrored(assignment, granted, keeper, folder / assignment.launch.job_id)
            else:
                last = yield from Attended(assignment, granted, keeper).batches(lambda: ())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        keeper.give.remote(assignment.key)
    yield last


class ScratchFullError(OSError):
    """No space left for what a node holds for itself: not on the disk of the run directory."""


@contextlib.contextmanager
def _of_its_own() -> Iterator[None]:
    """:raises ScratchFullError: in the place of an OSError that says the same of any disk."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL_ERRNOS:
            raise ScratchFullError(error.errno, error.strerror, error.filename) from error
        raise


def _environment(assignment: Assignment, scratch: Path) -> dict[str, str | None]:
    """Of the workers, as on one machine: without what is there for Ray's own processes, of which we are one.

    :param scratch: of the session on this node.
    """
    code = {} if assignment.code is None else assignment.code.variables(scratch)
    rays = [name for name, value in os.environ.items() if name.startswith("RAY_") or value.startswith("ray.")]
    network = {} if assignment.ranks is None else _interface()
    return {**dict.fromkeys([*rays, "SPT_NOENV"]), **network, **assignment.environment, **code}


def _interface() -> dict[str, str]:
    """Ranks on other nodes look for ours where the cluster does, not where ``/etc/hosts`` has this node's name."""
    import psutil
    import ray

    if GLOO_INTERFACE_VARIABLE in os.environ:  # of `cluster up` or `join`: the user knows better
        return {}
    node = ray.util.get_node_ip_address()
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == node for one in addresses):  # IPv6: `address%interface`
            return {GLOO_INTERFACE_VARIABLE: name}
    return {}


def _granted(assignment: Assignment, keeper: Any) -> CpuGrant:
    """CPUs of our own. :raises OrchestratorError: there are none, though Ray has let us in."""
    import ray

    pid = os.getpid()
    start = process_start(pid)
    deadline = time.monotonic() + CPUS_PATIENCE_S
    while True:
        granted: CpuGrant | None = ray.get(keeper.take.remote(assignment.key, assignment.cores, pid, start))
        if granted is not None:
            return granted
        if time.monotonic() > deadline:
            raise OrchestratorError(f"no {assignment.cores} CPUs became free on it within {CPUS_PATIENCE_S:.0f} s")
        time.sleep(LOOK_EVERY_S)


def _mirrored(assignment: Assignment, granted: CpuGrant, keeper: Any, job_dir: Path) -> Generator[Batch, None, Batch]:
    """In a copy of the job directory, whose changes are told of as they arise; with the last event all are."""
    home = file_sync.Receiver(job_dir, storage=assignment.storage, durable=False)
    for piece in _outgoing(assignment):
        home.apply(piece)
    paths = JobPaths(job_dir)
    paths.attempt(assignment.launch.number).root.mkdir(parents=True, exist_ok=True)
    source = Sender.of_copy(job_dir, storage=assignment.storage, ranks=assignment.ranks)
    here = replace(assignment, launch=replace(assignment.launch, job_dir=job_dir))
    last = yield from Attended(here, granted, keeper).batches(source.scan)
    for _ in range(LAST_SCANS):
        yield from _packed(source.scan())
        if not source.is_incomplete:
            return last
    raise OrchestratorError("its files do not come to rest after its end")


def _outgoing(assignment: Assignment) -> Iterator[Chunk]:
    """What the worker needs of the job directory, fetched from the driver's machine, a little ahead of its use."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task: Any = ray.remote(file_sync.outgoing_chunks)
    sender = task.options(
        num_returns="streaming",
        num_cpus=0,
        max_retries=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(assignment.home_node, soft=False),
        _generator_backpressure_num_objects=PIECES_AHEAD,
    )
    for piece in sender.remote(assignment.launch.job_dir, storage=assignment.storage, ranks=assignment.ranks):
        try:
            yield ray.get(piece, timeout=PIECE_PATIENCE_S)
        except ray.exceptions.GetTimeoutError as error:
            raise OrchestratorError("its files did not come from the driver's machine") from error


def _packed(pieces: Iterable[Chunk]) -> Iterator[Batch]:
    """Many small ones, or few large ones, at a time."""
    packed: list[Chunk] = []
    weight = 0
    for piece in pieces:
        packed.append(piece)
        weight += payload_bytes(piece) + CHUNK_BYTES
        if weight >= BATCH_BYTES:
            yield Batch(pieces=tuple(packed))
            packed, weight = [], 0
    if packed:
        yield Batch(pieces=tuple(packed))


class Attended:
    """The workers of an attempt while they run: what they say goes to the driver, what it orders to them."""

    def __init__(self, assignment: Assignment, granted: CpuGrant, keeper: Any) -> None:
        self._assignment, self._granted, self._keeper = assignment, granted, keeper
        command = WORKER_COMMAND if assignment.worker_command is None else assignment.worker_command
        self._executor = LocalExecutor(worker_command=command, environment=assignment.environment, reaper_apart=True)
        self._orders = Orders(order_file(granted.folder))
        self._latest: dict[type, Event] = {}
        """Of each kind: what is older is of no use to anybody."""
        self._note_at = 0.0

    def batches(self, changes: Callable[[], Iterable[Chunk]]) -> Generator[Batch, None, Batch]:
        """Start them and tell of them. Returns the last batch, once they have ended.

        :param changes: what has changed in the job directory since it was called last.
        """
        gpus = tuple(os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")) if self._assignment.has_gpus else ()
        launch = replace(self._assignment.launch, cpus=self._granted.holder.cpus, gpus=gpus, rank_slots=())
        with contextlib.closing(self._executor):
            handle = self._executor.submit(launch)
            yield Batch((self._placed(handle, gpus),))
            report_at = 0.0
            while not self._tend(handle, LOOK_EVERY_S):
                if time.monotonic() < report_at:
                    continue
                for batch in _packed(changes()):
                    yield batch
                    self._tend(handle, 0.0)
                if self._latest and Exited not in self._latest:
                    yield Batch(tuple(self._latest.values()))
                    self._latest.clear()
                report_at = time.monotonic() + self._assignment.report_every_s
        return Batch(tuple(self._latest.values()))

    def _tend(self, handle: Handle, timeout_s: float) -> bool:
        """Pass orders on, hear what the workers say. Returns whether they have ended."""
        if (order := self._orders.given()) is not None:
            self._executor.cancel(handle, kill=order == "kill")
        if Exited not in self._latest:
            for event in self._executor.poll(timeout_s):
                self._latest[type(event)] = event
        said = self._latest.get(Progressed)
        if isinstance(said, Progressed) and time.monotonic() >= self._note_at:
            self._note_at = time.monotonic() + NOTE_EVERY_S
            self._keeper.heard.remote(self._assignment.key, said.progress)
        return Exited in self._latest

    def _placed(self, handle: Handle, gpus: tuple[str, ...]) -> Placed:
        return Placed(
            handle=handle,
            node=self._assignment.node,
            cpus=self._granted.holder.cpus,
            gpus=gpus,
            pid=handle.pid,
            pid_start=handle.pid_start,
        )


class Orders:
    """What the driver wants of an attempt, as the keeper leaves it in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def given(self) -> Order | None:
        """A new one; of several the last, but nothing takes a ``kill`` back."""
        taken = self._path.with_suffix(".taken")
        try:
            self._path.rename(taken)  # what is written from now on is another
            text = taken.read_text()
        except FileNotFoundError:
            return None
        return "kill" if text == "kill" else "leave"
