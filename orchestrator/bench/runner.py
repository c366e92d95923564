"""One cell: start its processes, watch them until all have trained long enough side by side, end them, sum up.

Whatever happens nothing of a cell is left: its processes are in sessions of their own which are killed, and all carry
a token by which the sentinel (:mod:`orchestrator.executors.orphan_reaper`) finds the rest, even after our own sudden
death.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.bench import baselines, drift, measurement_window
from orchestrator.bench.baselines import EVERY
from orchestrator.bench.cell_process import GRACE_S, Running, await_end, facts, start
from orchestrator.bench.measurement_window import Course, Window
from orchestrator.bench.supervised_jobs import write_request
from orchestrator.bench.workload import Work
from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.executors.local import OrphanReaper
from orchestrator.machine.slots import SlotPool
from orchestrator.machine.topology import Machine

LOOK_EVERY_S = 0.25
"""Until all are warm, and when the window should be full. In between no row is read, not to be in it ourselves."""
NOTICE_S = 2.0
"""Longest time until a process that has died is noticed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    arm: str
    level: int
    repeat: int

    def __str__(self) -> str:
        return f"{self.arm} × {self.level}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Where cells are run: a scratch folder, the machine, and the sentinel that sees to it that nothing stays."""

    scratch: Path
    machine: Machine
    sentinel: OrphanReaper
    token: str

    @property
    def cpus(self) -> list[int]:
        return [cpu.index for cpu in self.machine.cpus]


@contextlib.contextmanager
def ground(scratch: Path, machine: Machine) -> Iterator[Ground]:
    """:param scratch: emptied before and after."""
    token = secrets.token_hex(16)
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    sentinel = OrphanReaper(token)
    try:
        yield Ground(scratch=scratch, machine=machine, sentinel=sentinel, token=token)
    finally:
        sentinel.close()
        shutil.rmtree(scratch, ignore_errors=True)


def measure(
    cell: Cell, work: Work, ground: Ground, *, seconds: float, limit_s: float, reference_s: float
) -> dict[str, Any]:
    """Run a cell. Returns what becomes a line of ``cells.jsonl``: "ok", "cut" or "failed".

    Its ``disturbance`` says in words what speaks against the measurement; it is empty where nothing does.

    :param seconds: that all its processes train side by side after their warm-up.
    :param limit_s: after which it is cut off.
    :param reference_s: what the arithmetic kernel took at the beginning of the benchmark.
    """
    before_s = drift.kernel_s(ground.cpus)
    started_at = time.time()
    folder = ground.scratch / f"{cell.arm}-{cell.level}-{cell.repeat}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    token = f"{ground.token}/{secrets.token_hex(4)}"
    others_cores = None
    running = _launch(cell, work, ground, folder, token)
    try:
        loads = [drift.load(ground.cpus, running.pids())]
        span, why = _watch(running, work, seconds, running.launched_at + limit_s, loads, ground.cpus)
        cut_at = time.monotonic()
        cpus_of = running.affinities()
        pids = running.pids()
        running.stop()
    finally:
        running.kill()
        ground.sentinel.sweep(token)
    await_end(pids)
    courses = _courses(running, work, cpus_of)
    after_s = drift.kernel_s(ground.cpus)
    record: dict[str, Any] = {**dataclasses.asdict(cell), "started_at": round(started_at, 3), "message": ""}
    if span is not None:
        record |= {"status": "ok", **measurement_window.measured(courses, span)}
        first, last = loads[0], loads[-1]
        others_cores = None if first is None or last is None else last.others_since(first)
        if span.length_s < seconds:
            record["message"] = f"measured for {span.length_s:.1f} s only, until its time limit of {limit_s:.0f} s"
    elif why:
        record |= {"status": "failed", "throughput": None, "window_s": None, "processes": [], "message": why}
    else:
        bounds = measurement_window.bounded(courses, cut_at)
        record |= {"status": "cut", **bounds, "message": _why_cut(courses, limit_s)}
    record["drift"] = {
        "before_s": before_s,
        "after_s": after_s,
        "reference_s": reference_s,
        "others_cores": others_cores,
    }
    record["disturbance"] = drift.disturbance(reference_s, (before_s, after_s), others_cores)
    shutil.rmtree(folder, ignore_errors=True)
    return record


def _launch(cell: Cell, work: Work, ground: Ground, folder: Path, token: str) -> Running:
    arm = EVERY[cell.arm]
    jobs = work.copies(cell.level)
    log = folder / "log"
    threads = work.job.resources.threads
    cpus = _as_wide(work, ground.machine) if arm.how == "subproc" else None
    run_dir: Path | None = None
    if arm.how == "supervised":
        run_dir = folder / "run"
        request = folder / "request.json"
        commands = [write_request(request, jobs, run_dir=run_dir, max_parallel=cell.level, grace_s=GRACE_S)]
        paths = {job.job_id: RunPaths(run_dir).job(job.job_id) for job in jobs}
    else:
        paths = {job.job_id: JobPaths(folder / job.job_id) for job in jobs}
        for job in jobs:
            work.lay_out(job, paths[job.job_id])
        commands = baselines.command(arm, threads, [one.root for one in paths.values()])
    popens: list[subprocess.Popen[bytes]] = []
    running = Running(popens=popens, jobs=paths, run_dir=run_dir, log=log, launched_at=time.monotonic())
    try:
        for command in commands:
            popens.append(start(command, log, baselines.environment(arm, threads, token=token), cpus))
    except BaseException:
        running.kill()
        raise
    return running


def _as_wide(work: Work, machine: Machine) -> Sequence[int]:
    """The CPUs that all ranks of the job together would have, alone on the machine."""
    slot = SlotPool(machine, 1).acquire(work.job.resources.all_cores)
    assert slot is not None, "who measures it has seen to it that the machine can hold it"
    return slot.cpus


def _watch(
    running: Running,
    work: Work,
    seconds: float,
    deadline: float,
    loads: list[drift.Load | None],
    cpus: Sequence[int],
) -> tuple[Window | None, str]:
    """Until there is a window of ``seconds``, the deadline, or a failure: the window, or why there is none.

    ``loads`` becomes what the CPUs had done when all were warm, and at the end.
    """
    since: float | None = None
    while True:
        now = time.monotonic()
        span = None
        if since is None or now >= min(since + seconds, deadline):
            courses = _courses(running, work, {})
            span = measurement_window.window(courses)
            if since is None and (since := measurement_window.warm_since(courses)) is not None:
                loads[:] = [drift.load(cpus, running.pids())]
        full = span is not None and span.length_s >= seconds
        why = "" if full else running.why_ended()
        if full or why or now >= deadline:
            loads.append(drift.load(cpus, running.pids()))
            return (None if why else span), why
        nap = LOOK_EVERY_S if since is None else max(since + seconds - now, LOOK_EVERY_S)
        time.sleep(max(0.0, min(nap, NOTICE_S, deadline - now)))


def _courses(running: Running, work: Work, cpus_of: Mapping[str, Sequence[int]]) -> list[Course]:
    courses = []
    for job_id, paths in running.jobs.items():
        told = facts(paths)
        courses.append(
            Course(
                job=job_id,
                steps_an_iteration=work.steps_an_iteration,
                updates_an_iteration=work.updates_an_iteration,
                rows=measurement_window.read_rows(paths.timings_csv),
                begun_at=told.get("clock_s", running.launched_at),
                facts={**told, "cpus": cpus_of.get(job_id)},
            )
        )
    return courses


def _why_cut(courses: Sequence[Course], limit_s: float) -> str:
    warm = sum(len(course.rows) >= measurement_window.WARM_UP for course in courses)
    return (
        f"cut off after {limit_s:.0f} s, when {warm} of {len(courses)} processes were past their warm-up;"
        " the throughput is the most that it can have been"
    )
