"""Reports of many nodes at once, through everything that the driver does with them except Ray.

Batches are unpickled, their chunks become files of the run directory, their events go through
supervisor, recorder and ledger.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.part_profiler import Parts, timed
from benchmarks.simulated_cluster import DAY_S, entered, make_jobs
from benchmarks.simulated_experiment import booked
from orchestrator.core.job import Resources
from orchestrator.core.messages import Progress
from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.executors.base import Event, Handle, Launch, Progressed
from orchestrator.executors.cluster_slots import ClusterSlots
from orchestrator.features.ray.file_sync.receiver import Receiver
from orchestrator.features.ray.file_sync.sender import Sender
from orchestrator.features.ray.node_attempt import Batch
from orchestrator.supervisor.events import SilentReporter, View
from orchestrator.supervisor.supervisor import Supervisor

TICK_S = 0.25
ITERATION_EVERY_S = 2.0
CHECKPOINT_EVERY_S = 60.0
CHECKPOINT_BYTES = 200_000
"""Size of a checkpoint of two 64 × 64 networks with their optimiser; random bytes, as compressed
files are."""
ONE_CORE = Resources(
    cores=1, threads=1, memory_mib=2048, gpus=0, timeout_s=DAY_S, stall_timeout_s=DAY_S
)
ROW = "1234.5678,99.25,0.00123,512,17.5,0.0042,0.18,-0.011,0.92,4096,1000.0,12.5,0.75,0.125,3.5,0.25,1,0,0.0,412.5\n"


@dataclass(slots=True)
class Training:
    """The growing files of one remote training, and its progress."""

    root: Path
    report_every_s: float
    _at_s: float = 0.0
    _sender: Sender = field(init=False)

    def __post_init__(self) -> None:
        JobPaths(self.root).checkpoints.mkdir(parents=True)
        self._sender = Sender.of_copy(self.root)

    def batches(self) -> Iterator[bytes]:
        """One for each report: the chunks of what has changed and the latest progress, pickled as
        they are sent."""
        while True:
            before = self._at_s
            self._at_s = self._at_s + self.report_every_s
            paths = JobPaths(self.root)
            rows = ROW * (_times(self._at_s, ITERATION_EVERY_S) - _times(before, ITERATION_EVERY_S))
            for table in (paths.progress_csv, paths.timings_csv):
                with table.open("a", encoding="utf-8") as file:
                    file.write(rows)
            if _times(before, CHECKPOINT_EVERY_S) < _times(self._at_s, CHECKPOINT_EVERY_S):
                (paths.checkpoints / "latest.pt").write_bytes(os.urandom(CHECKPOINT_BYTES))
            steps = int(1000 * self._at_s)
            progress = Progress(
                phase="training", env_steps=steps, iteration=steps // 2048, env_steps_per_s=1000.0
            )
            event = Progressed(Handle("away", 0), progress)
            yield pickle.dumps(Batch(events=(event,), chunks=tuple(self._sender.scan())))


def _times(at_s: float, every_s: float) -> int:
    return int(at_s // every_s)


@dataclass(slots=True, kw_only=True)
class Streams:
    """An :class:`orchestrator.executors.base.Executor` of endless trainings with equal reports.

    :param parts: what unpickling and files are booked on.
    """

    batches: Sequence[bytes]
    report_every_s: float
    parts: Parts
    time_s: float = 0.0
    heard: int = 0
    """Number of batches."""
    _attempts: list[tuple[Handle, Receiver, Iterator[bytes]]] = field(default_factory=list)

    def now(self) -> float:
        return self.time_s

    never_forks = "its trainings are simulated"

    def prepare_to_fork(self) -> bool:
        return True

    def submit(self, launch: Launch) -> Handle:
        handle = Handle(launch.job_id, launch.number)
        self._attempts.append((handle, Receiver(launch.job_dir), iter(self.batches)))
        return handle

    def poll(self, timeout_s: float) -> Sequence[Event]:
        """The attempts that report in the next tick; every tick has the same number."""
        turns = round(self.report_every_s / TICK_S)
        turn = round(self.time_s / TICK_S) % turns
        self.time_s += TICK_S
        return [event for one in self._attempts[turn::turns] for event in self._read(*one)]

    def _read(self, handle: Handle, home: Receiver, batches: Iterator[bytes]) -> list[Event]:
        batch: Batch = self.parts.timed("unpickling", pickle.loads)(next(batches))
        self.heard += 1
        self.parts.timed("files", _apply)(home.apply, batch)
        return [replace(event, handle=handle) for event in batch.events]

    def cancel(self, handle: Handle, *, kill: bool) -> None:
        """Does nothing: the trainings end with the measurement."""

    def checkpoint(self, handle: Handle) -> None:
        """Does nothing: nobody asks for one."""

    def close(self) -> None:
        for _, home, _ in self._attempts:
            home.close()


def _apply(apply: Callable[..., None], batch: Batch) -> None:
    for chunk in batch.chunks:
        apply(chunk)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load of the driver by the streams of some nodes."""

    nodes: int
    jobs: int
    report_every_s: float
    batches_a_s: float
    """Batches per second of the cluster."""
    cpu_s: Mapping[str, float]
    """CPU seconds per second of the cluster, by part."""
    wall_s: float
    """Wall seconds per second of the cluster, disk included."""
    microseconds: float
    """CPU time per batch."""


def measure(
    root: Path, nodes: int, *, jobs_a_node: int, report_every_s: float, seconds: float
) -> Load:
    """``seconds`` of a cluster whose jobs are all training, after one report of each."""
    count = nodes * jobs_a_node
    parts = Parts()
    source = Training(root / "away", report_every_s).batches()
    batches = [next(source) for _ in range(math.ceil(seconds / report_every_s) + 2)]
    paths = RunPaths(root / "run")
    paths.root.mkdir()
    jobs = make_jobs(count, random.Random(0), max_retries=0, stall_timeout_s=DAY_S)
    ledger = entered(paths, (replace(job, resources=ONE_CORE) for job in jobs))
    streams = Streams(batches=batches, report_every_s=report_every_s, parts=parts)
    pool = ClusterSlots()
    for node in range(nodes):
        pool.add(str(node), cores=jobs_a_node, gpus=0, memory_mib=1 << 20)
    supervisor = Supervisor(
        paths=paths,
        rows=ledger.jobs(),
        ledger=timed(parts, "ledger", ledger),
        executor=timed(parts, "streams", streams),
        slots=pool,
        reporter=SilentReporter(),
        now=streams.now,
        available_memory_mib=lambda: 1 << 40,
    )
    begun: list[float] = []

    def each_turn() -> None:
        if not begun and streams.time_s > report_every_s:
            begun.extend((time.perf_counter(), streams.time_s))
            parts.clear()
            streams.heard = 0
        if begun and streams.time_s >= begun[1] + seconds:
            raise _Over

    supervisor.reporter = _EachTurn(each_turn)
    with contextlib.suppress(_Over), booked(parts):
        supervisor.run()
    wall_s = time.perf_counter() - begun[0]
    cluster_s = streams.time_s - begun[1]
    ledger.abandon()
    cpu_s = {part: one / cluster_s for part, one in parts.cpu_s.items()}
    return Load(
        nodes=nodes,
        jobs=count,
        report_every_s=report_every_s,
        batches_a_s=streams.heard / cluster_s,
        cpu_s=cpu_s,
        wall_s=wall_s / cluster_s,
        microseconds=1e6 * sum(cpu_s.values()) * cluster_s / streams.heard,
    )


class _Over(Exception):
    """The measurement is."""


class _EachTurn(SilentReporter):
    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action

    def tick(self, view: Callable[[], View]) -> None:
        self._action()
