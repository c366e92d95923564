"""An experiment on a simulated cluster: supervisor, queue, slots, recorder, ledger and files are
the real ones.

The clock is simulated too; the reported costs are real time.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import resource
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from benchmarks.part_profiler import Parts, timed
from benchmarks.simulated_cluster import STEPS_PER_S, Nodes, Rates, Work, entered, make_jobs
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.job import TERMINAL
from orchestrator.core.paths import RunPaths
from orchestrator.executors.base import Event, Exited, Handle
from orchestrator.executors.fake import FakeExecutor
from orchestrator.ledger.summary import SummaryFiles
from orchestrator.supervisor import launch_order
from orchestrator.supervisor.events import Reporter
from orchestrator.supervisor.job_table import JobTable
from orchestrator.supervisor.launcher import Launcher
from orchestrator.supervisor.recorder import Recorder
from orchestrator.supervisor.supervisor import Supervisor

CORES = 10
"""Cores of each node."""
GATHER_S = 0.25
"""Time for which executors gather events."""
MAX_RETRIES = 20
STALL_TIMEOUT_S = 900.0
MOST_RECORDS = 2e6
"""Largest number of progress records in one simulation."""
MIB = 2**20
EXIT_RECORD = ExitRecord(
    code=0,
    message="",
    env_steps=10**6,
    ep_rew_mean=1.0,
    ep_rew_mean_first=0.0,
    eval_mean=1.0,
    cpu_s=1.0,
).to_json()


class FilesOfEnds(FakeExecutor):
    """A fake executor whose succeeding attempts leave an ``exit.json``, as workers do."""

    def __init__(self, paths: RunPaths) -> None:
        super().__init__(launches=deque(maxlen=0), gather_s=GATHER_S)
        self.heard: Counter[str] = Counter()
        """Number of events by kind."""
        self._paths = paths

    def poll(self, timeout_s: float) -> Sequence[Event]:
        events = FakeExecutor.poll(self, timeout_s)
        for event in events:
            self.heard[type(event).__name__] += 1
            if isinstance(event, Exited) and event.returncode == ExitCode.SUCCEEDED:
                self._write_exit_record(event.handle)
        return events

    def _write_exit_record(self, handle: Handle) -> None:
        self._paths.job(handle.job_id).attempt(handle.number).exit.write_text(EXIT_RECORD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of an experiment on a simulated cluster."""

    nodes: int
    jobs: int
    states: Mapping[str, int]
    lost: int
    """Jobs that ended in no terminal state, or FAILED without a fault of their own."""
    attempts: int
    node_losses: int
    redone_share: float
    """Share of the work that was repeated because an attempt was lost after its last checkpoint."""
    simulated_s: float
    ideal_s: float
    """Lower bound of any schedule without failures: all cores busy, or the longest job."""
    events: Mapping[str, int]
    wall_s: float
    cpu_s: Mapping[str, float]
    """CPU time by part."""
    peak_mib: float
    pending_mib: float
    """Memory of the driver with all jobs pending."""

    @property
    def driver_s(self) -> float:
        """CPU time of the driver, without simulated nodes and workers."""
        return sum(self.cpu_s.values()) - self.cpu_s["simulation"]

    def of_driver(self, part: str) -> float:
        return self.cpu_s.get(part, 0.0) / self.driver_s


def simulate(
    root: Path,
    nodes: int,
    count: int,
    *,
    rates: Rates,
    reporter: Reporter,
    seed: int = 0,
    progress_every_s: float | None = None,
) -> Outcome:
    """Run ``count`` jobs on ``nodes`` simulated nodes in the run directory ``root``, which exists.

    :param progress_every_s: of each worker; None for as often as they speak, or as two million
        records allow.
    """
    chance = random.Random(seed)
    parts = Parts()
    jobs = list(make_jobs(count, chance, max_retries=MAX_RETRIES, stall_timeout_s=STALL_TIMEOUT_S))
    work_s = [job.spec.total_timesteps / STEPS_PER_S for job in jobs]
    ideal_s = max(
        sum(work * job.resources.cores for work, job in zip(work_s, jobs, strict=True))
        / (nodes * CORES),
        *work_s,
    )
    paths = RunPaths(root)
    ledger = entered(
        paths,
        launch_order.launch_order(jobs, "longest-first", lambda job: job.spec.total_timesteps),
    )
    executor = FilesOfEnds(paths)
    pool = Nodes(nodes, CORES, rates, executor.now, chance)
    every_s = progress_every_s or max(2.0, sum(work_s) / MOST_RECORDS)
    work = Work(jobs, rates, pool, executor.now, progress_every_s=every_s)
    executor.behave = work.behave
    del jobs
    gc.collect()
    supervisor = Supervisor(
        paths=paths,
        rows=ledger.jobs(),
        ledger=timed(parts, "ledger", ledger),
        executor=timed(parts, "simulation", executor),
        slots=timed(parts, "slots", pool),
        reporter=timed(parts, "view", reporter),
        now=executor.now,
        available_memory_mib=lambda: 1 << 40,
    )
    pending_mib = resident_mib()
    begun = time.perf_counter()
    with booked(parts):
        states = supervisor.run()
    wall_s = time.perf_counter() - begun
    attempts = sum(1 for _ in ledger.attempts())
    ledger.close()
    return Outcome(
        nodes=nodes,
        jobs=count,
        states=dict(Counter(state.name for state in states.values())),
        lost=sum(
            state.name not in TERMINAL or (state.name == "FAILED") != work.is_faulty(job_id)
            for job_id, state in states.items()
        ),
        attempts=attempts,
        node_losses=pool.losses,
        redone_share=work.redone_s / sum(work_s),
        simulated_s=executor.time_s,
        ideal_s=ideal_s,
        events=dict(executor.heard),
        wall_s=wall_s,
        cpu_s=dict(parts.cpu_s),
        peak_mib=peak_mib(),
        pending_mib=pending_mib,
    )


@contextlib.contextmanager
def booked(parts: Parts) -> Iterator[None]:
    """Book the supervisor's own time, and that of the files it writes, on ``parts``."""
    writing = SummaryFiles.writing
    with contextlib.ExitStack() as patches:
        for kind, method, part in (
            (JobTable, "load", "supervisor"),
            (Supervisor, "_turn", "supervisor"),
            (Launcher, "_submit", "job directories"),
            (Recorder, "exit_record", "job directories"),
        ):
            patches.enter_context(
                mock.patch.object(kind, method, parts.timed(part, getattr(kind, method)))
            )
        stepped = mock.patch.object(
            SummaryFiles, "writing", lambda *given: parts.stepped("summary files", writing(*given))
        )
        patches.enter_context(stepped)
        yield


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
