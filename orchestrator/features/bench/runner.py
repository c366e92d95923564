"""One measurement: start its processes, wait until all have trained side by side long enough, end
them, sum up.

No process of a measurement survives it: the processes run in sessions of their own, which are
killed, and all carry a token by which the orphan reaper
(:mod:`orchestrator.executors.orphan_reaper`) finds the rest, even after SIGKILL of this process.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orchestrator.analysis import run_reader
from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.core.processes.procfs import is_running
from orchestrator.executors.processes import OrphanReaper
from orchestrator.features.bench import baselines, measurement_window
from orchestrator.features.bench.baselines import ALL_BASELINES
from orchestrator.features.bench.measured_processes import MeasuredProcesses, start, start_facts
from orchestrator.features.bench.measurement import Measurement
from orchestrator.features.bench.measurement_window import TimeSeries, Window
from orchestrator.features.bench.samples import MeasurementRecord, Throughput
from orchestrator.features.bench.supervised_jobs import BENCHMARK, write_request
from orchestrator.features.bench.workload import Work
from orchestrator.machine.cpu_locks import CpuLocks, locks_folder
from orchestrator.machine.slots import SlotPool
from orchestrator.machine.topology import Machine

EXIT_LIMIT_S = 5.0
"""Longest wait until killed processes are gone."""
POLL_INTERVAL_S = 0.25
"""Polling interval before all processes are warm, and when the window should be full. Nothing is
read in between: the benchmark itself must not disturb the measurement."""
LONGEST_SLEEP_S = 2.0
"""Longest time until a dead process is noticed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Where measurements run, and where they are reported."""

    scratch: Path
    machine: Machine
    orphan_reaper: OrphanReaper
    token: str
    tell: Callable[[str], None]
    locks: CpuLocks
    """Tells runs on this machine of measurements."""

    @property
    def cpus(self) -> list[int]:
        return [cpu.index for cpu in self.machine.cpus]


@contextlib.contextmanager
def set_up(scratch: Path, machine: Machine, tell: Callable[[str], None]) -> Iterator[Setup]:
    """:param scratch: emptied before and after."""
    token = secrets.token_hex(16)
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    orphan_reaper = OrphanReaper(token)
    locks = CpuLocks(locks_folder(), experiment=BENCHMARK)
    try:
        yield Setup(
            scratch=scratch,
            machine=machine,
            orphan_reaper=orphan_reaper,
            token=token,
            tell=tell,
            locks=locks,
        )
    finally:
        orphan_reaper.close()
        shutil.rmtree(scratch, ignore_errors=True)


def measure(
    measurement: Measurement,
    work: Work,
    setup: Setup,
    *,
    seconds: float,
    limit_s: float,
) -> MeasurementRecord:
    """Run a measurement. Returns a record with the status "ok", "cut" or "failed".

    :param seconds: how long all processes train side by side after their warm-up.
    :param limit_s: time after which the measurement is cut off.
    """
    started_at = time.time()
    folder = setup.scratch / f"{measurement.baseline}-{measurement.level}-{measurement.repeat}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with _locked_cpus(measurement, work, setup):
        training = _train(measurement, work, setup, folder, seconds=seconds, limit_s=limit_s)
    result = _sum_up(training, seconds=seconds, limit_s=limit_s)
    shutil.rmtree(folder, ignore_errors=True)
    return {
        **measurement.key(),
        "started_at": round(started_at, 3),
        "message": result.message,
        "status": result.status,
        **result.throughput,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Training:
    """What the processes of a measurement have done until they were ended."""

    watched: _Watched
    cut_at: float
    """When they were ended, in monotonic seconds."""
    series: Sequence[TimeSeries]


def _train(
    measurement: Measurement,
    work: Work,
    setup: Setup,
    folder: Path,
    *,
    seconds: float,
    limit_s: float,
) -> _Training:
    """Start the processes of a measurement, wait, and end them."""
    token = f"{setup.token}/{secrets.token_hex(4)}"
    processes = _launch(measurement, work, setup, folder, token)
    try:
        deadline = processes.launched_at + limit_s
        watched = _wait_for_window(processes, work, seconds, deadline)
        cut_at = time.monotonic()
        affinities = processes.affinities()
        pids = processes.pids()
        processes.stop()
    finally:
        processes.kill()
        setup.orphan_reaper.sweep(token)
    await_end(pids)
    series = _time_series(processes, work, affinities, until=cut_at)
    return _Training(watched=watched, cut_at=cut_at, series=series)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    status: Literal["ok", "cut", "failed"]
    message: str
    throughput: Throughput


def _sum_up(training: _Training, *, seconds: float, limit_s: float) -> _Result:
    watched = training.watched
    window = watched.window
    if window is not None:
        message = ""
        if window.length_s < seconds:
            message = f"measured for {window.length_s:.1f} s only, until the time limit of {limit_s:.0f} s"
        return _Result(
            status="ok",
            message=message,
            throughput=measurement_window.throughput_in(training.series, window),
        )
    if watched.failure:
        return _Result(
            status="failed",
            message=watched.failure,
            throughput={"throughput": None, "window_s": None, "processes": []},
        )
    series = training.series
    warm = sum(len(one.rows) >= measurement_window.WARM_UP for one in series)
    when = f"when {warm} of {len(series)} processes had finished their warm-up"
    return _Result(
        status="cut",
        message=f"cut off after {limit_s:.0f} s, {when}; the throughput is an upper bound",
        throughput=measurement_window.throughput_bound(series, training.cut_at),
    )


@contextlib.contextmanager
def _locked_cpus(measurement: Measurement, work: Work, setup: Setup) -> Iterator[None]:
    """Lock each CPU as often as it has processes of the measurement; none where a supervisor is
    measured, which locks them itself.
    """
    if ALL_BASELINES[measurement.baseline].how == "supervised":
        yield
        return
    cores = measurement.level * work.job.resources.all_cores
    with contextlib.ExitStack() as held:
        for cpu in setup.cpus * math.ceil(cores / len(setup.cpus)):
            taken = setup.locks.take(cpu, setup.locks.others())
            if taken is not None:  # else another run takes it at this moment
                held.callback(setup.locks.give_back, taken)
        yield


def _launch(
    measurement: Measurement, work: Work, setup: Setup, folder: Path, token: str
) -> MeasuredProcesses:
    baseline = ALL_BASELINES[measurement.baseline]
    jobs = work.copies(measurement.level)
    threads = work.job.resources.threads
    log = folder / "log"
    run_dir = folder / "run" if baseline.how == "supervised" else None
    cpus = _cpus_of_ranks(work, setup.machine) if baseline.how == "subproc" else None
    if run_dir is not None:
        commands = [
            write_request(folder / "request", jobs, run_dir=run_dir, max_parallel=measurement.level)
        ]
        paths = {job.job_id: RunPaths(run_dir).job(job.job_id) for job in jobs}
    else:
        paths = {job.job_id: JobPaths(folder / job.job_id) for job in jobs}
        for job in jobs:
            work.make_job_directory(job, paths[job.job_id])
        commands = baselines.command(baseline, threads, [one.root for one in paths.values()])
    popens: list[subprocess.Popen[bytes]] = []
    processes = MeasuredProcesses(
        popens=popens, jobs=paths, run_dir=run_dir, log=log, launched_at=time.monotonic()
    )
    try:
        environment = baselines.environment(baseline, threads, token=token)
        for command in commands:
            popens.append(start(command, log, environment, cpus))
    except BaseException:
        processes.kill()
        raise
    return processes


def _cpus_of_ranks(work: Work, machine: Machine) -> Sequence[int]:
    """The CPUs that all ranks of the job together would have if nothing else ran."""
    slot = SlotPool(machine, 1).acquire(work.job.resources.all_cores)
    assert slot is not None, "the caller has checked that the machine has room for the job"
    return slot.cpus


@dataclass(frozen=True, slots=True, kw_only=True)
class _Watched:
    window: Window | None
    """In which all processes trained side by side; None where there is none, or one has failed."""
    failure: str
    """In words; empty for none."""


def _wait_for_window(
    processes: MeasuredProcesses,
    work: Work,
    seconds: float,
    deadline: float,
) -> _Watched:
    """Wait for a window of ``seconds``, the deadline, or a failure."""
    warm_at: float | None = None
    while True:
        now = time.monotonic()
        window = None
        if warm_at is None or now >= min(warm_at + seconds, deadline):
            all_series = _time_series(processes, work, {})
            window = measurement_window.window(all_series)
            if warm_at is None:
                warm_at = measurement_window.warm_up_end(all_series)
        is_full = window is not None and window.length_s >= seconds
        failure = "" if is_full else processes.why_ended()
        if is_full or failure or now >= deadline:
            return _Watched(window=None if failure else window, failure=failure)
        pause_s = POLL_INTERVAL_S
        if warm_at is not None:
            pause_s = max(warm_at + seconds - now, POLL_INTERVAL_S)
        time.sleep(max(0.0, min(pause_s, LONGEST_SLEEP_S, deadline - now)))


def _time_series(
    processes: MeasuredProcesses,
    work: Work,
    affinities: Mapping[str, Sequence[int]],
    until: float = math.inf,
) -> list[TimeSeries]:
    """What the processes have written; without what came after ``until``, as supervised workers end
    an iteration.
    """
    all_series = []
    for job_id, paths in processes.jobs.items():
        facts = start_facts(paths)
        begun_at = facts.get("clock_s", math.inf)
        series = TimeSeries(
            job=job_id,
            steps_an_iteration=work.job.spec.steps_an_iteration,
            updates_an_iteration=work.updates_an_iteration,
            rows=[
                row
                for row in run_reader.iterations(paths.timings_csv)
                if row.clock_s is not None and row.clock_s <= until
            ],
            begun_at=begun_at if begun_at <= until else processes.launched_at,
            facts={**facts, "cpus": affinities.get(job_id)},
        )
        all_series.append(series)
    return all_series


def await_end(pids: Iterable[int]) -> None:
    """Wait until killed processes are gone, for :data:`EXIT_LIMIT_S` at most: they release their
    memory.
    """
    deadline = time.monotonic() + EXIT_LIMIT_S
    remaining = [pid for pid in pids if is_running(pid)]
    while remaining and time.monotonic() < deadline:
        time.sleep(0.01)
        remaining = [pid for pid in remaining if is_running(pid)]
