"""What this machine offers, what an experiment will use of it, and what would slow jobs down or make
them fail.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from orchestrator.core.feature import answers
from orchestrator.core.job import GPU_PARTS
from orchestrator.core.processes.environment_variables import (
    BINDING_VARIABLES,
    worker_thread_settings,
)
from orchestrator.core.text import count, cpu_text, last_line, listed, plain
from orchestrator.machine import provenance
from orchestrator.machine.cgroup import oom_kills, throttled_s
from orchestrator.machine.cpu_locks import CpuLocks, locks_folder
from orchestrator.machine.gpu import Gpu
from orchestrator.machine.process_tree import with_descendants
from orchestrator.machine.slots import SlotPool
from orchestrator.machine.topology import (
    MIB,
    Machine,
    available_memory_mib,
    detect,
    largest_job,
    online_cpus,
    restrictions,
)

Level: TypeAlias = Literal["ok", "note", "warning"]

DEFAULT_JOB_MEMORY_MIB = 2048
LITTLE_DISK_MIB = 2048
MOST_NAMES = 6
"""Of other runs or programs, in a finding."""
LOOK_S = 0.3
"""For so long other programs are watched."""
BUSY_CORES = 0.2
"""A program that uses less is not named."""
IMPORTS_LIMIT_S = 120.0

COUNT_THREADS = """
import os, sys
def has_computed(thread):
    try:
        with open(f"/proc/self/task/{thread}/schedstat") as file:
            return int(file.read().split()[0]) > 1_000_000
    except OSError:
        return True
import numpy, torch, stable_baselines3, gymnasium, mujoco
torch.set_num_threads(1)
torch.set_num_interop_threads(1)
matrix = numpy.ones((512, 512), numpy.float32)
for _ in range(60):
    matrix @ matrix
layer = torch.nn.Linear(256, 256)
for _ in range(20):
    layer(torch.ones(2048, 256)).tanh().sum().backward()
model = mujoco.MjModel.from_xml_string("<mujoco/>")
mujoco.mj_step(model, mujoco.MjData(model))
print(sum(map(has_computed, os.listdir("/proc/self/task"))))
"""
"""Imports and computes what a worker does, and prints how many of its threads have computed for
over a millisecond: others only sleep."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A warning is something that costs speed or makes jobs fail, and can be corrected; a note is
    worth knowing.
    """

    level: Level
    title: str
    detail: str
    cure: str = ""


def examine() -> tuple[Finding, ...]:
    """Run every check; takes about two seconds."""
    machine = detect(with_gpus=True)
    of_features = [finding for _, findings in answers("doctor", machine) for finding in findings]
    return (
        *cores(machine),
        limits(restrictions(machine, online_cpus(), os.getpriority(os.PRIO_PROCESS, 0))),
        *quota(machine, throttled_s()),
        programs(machine),
        other_runs(CpuLocks(locks_folder())),
        *memory(machine, available_memory_mib(), oom_kills()),
        disk(Path()),
        *gpus(machine),
        *of_features,
        rendering(),
        *thread_binding(os.environ),
        *worker_threads(),
        versions(),
    )


def to_json(findings: Sequence[Finding]) -> str:
    """A JSON array of ``{"level", "title", "detail", "cure"}``."""
    return json.dumps([asdict(one) for one in findings], indent=2, ensure_ascii=False) + "\n"


def cores(machine: Machine) -> Iterator[Finding]:
    pool = SlotPool(machine)
    slots = [slot for _ in range(pool.jobs_at_once) if (slot := pool.acquire(1))]
    cpus = sorted({cpu for slot in slots for cpu in slot.cpus})
    jobs = count(len(slots), "one-core job")
    text = f"{jobs} at once: {cpu_text(cpus)}. Largest job: ranks × cores = {largest_job(machine)}."
    yield Finding("ok", "Will be used", text)
    parts = (
        count(machine.physical_cores, "physical core"),
        count(len(machine.cpus), "logical CPU"),
        count(len({cpu.numa_node for cpu in machine.cpus}), "NUMA node"),
    )
    yield Finding("ok", "Cores", f"{', '.join(parts)}.")
    if machine.physical_cores < len(machine.cpus):
        text = "by default the second threads of cores stay idle."
        cure = f"measure whether the experiment finishes sooner with --max-parallel {len(machine.cpus)}"
        yield Finding("note", "SMT", text, cure)


def limits(found: Sequence[str]) -> Finding:
    """:param found: as from :func:`.topology.restrictions`."""
    if not found:
        return Finding("ok", "Limits", "jobs may use every CPU, at normal priority.")
    text = f"jobs started from here {' and '.join(found)}."
    cure = "to use more, change what limits them: nice, taskset, docker --cpuset-cpus, or the batch system"
    return Finding("note", "Limits", text, cure)


def quota(machine: Machine, throttled: float | None) -> Iterator[Finding]:
    if machine.quota is None or machine.quota >= machine.physical_cores:
        yield Finding("ok", "CPU quota", "no cgroup limits CPU time below that of the cores.")
    else:
        text = (
            f"a cgroup allows {machine.quota:g} CPUs' worth of time on {count(len(machine.cpus), 'CPU')}:"
            f" {count(machine.capacity, 'job')} at once, because with more the kernel would stop all of them in turn."
        )
        cure = "raise the quota to a whole number of CPUs: docker --cpus, Kubernetes limits.cpu, systemd CPUQuota="
        yield Finding("warning", "CPU quota", text, cure)
    if throttled:
        text = f"so far the quota has kept this control group off the CPU for {throttled:.1f} CPU seconds."
        cure = "if throttled_s in timings.csv grows, run fewer jobs at once or raise the quota"
        yield Finding("note", "Throttling", text, cure)


def programs(machine: Machine) -> Finding:
    """Name the programs that keep CPUs busy."""
    import psutil

    own = set(with_descendants(os.getpid()))
    others = [process for process in psutil.process_iter(["username"]) if process.pid not in own]
    busy = {}
    for pause_s in (0.0, LOOK_S):
        time.sleep(pause_s)
        for process in others:
            with contextlib.suppress(psutil.Error):  # it has ended
                cores = process.cpu_percent() / 100  # since the call before
                if cores >= BUSY_CORES:
                    who = f"{process.name()} (pid {process.pid}) of {process.info['username']}"
                    busy[f"{who} {cores:.1f} cores"] = cores
    average = f"load average {os.getloadavg()[0]:.2f} over the last minute"
    if not busy:
        return Finding("ok", "Other work", f"no other program keeps a CPU busy; {average}.")
    total = sum(busy.values())
    names = listed(sorted(busy, key=lambda name: -busy[name]), MOST_NAMES)
    cpus = count(len(machine.cpus), "CPU")
    left = max(1, machine.capacity - round(total))
    return Finding(
        "warning",
        "Other work",
        f"other programs use {total:.1f} of {cpus} now: {names}; {average}.",
        f"stop them, or leave them room with --max-parallel {left}",
    )


def other_runs(locks: CpuLocks) -> Finding:
    if (problem := locks.problem()) is not None:
        text = (
            f"runs on this machine cannot see which CPUs others hold, only their load: {problem}."
        )
        cure = "remove this folder, or have its owner do so: the next run makes it"
        return Finding("note", "Other runs", text, cure)
    cpus: dict[str, list[int]] = {}
    for holder in locks.others():
        cpus.setdefault(f"{holder.name} ({plain(holder.run_dir)})", []).append(holder.cpu)
    if not cpus:
        return Finding("ok", "Other runs", "none holds CPUs of this machine.")
    held = [f"{name} has {cpu_text(set(found))}" for name, found in cpus.items()]
    cure = "--max-parallel idle runs as many jobs at once as there are idle cores"
    return Finding("note", "Other runs", f"{listed(held, MOST_NAMES)}.", cure)


def memory(machine: Machine, available_mib: int, kills: int | None) -> Iterator[Finding]:
    jobs_at_once = SlotPool(machine).jobs_at_once
    fitting = available_mib // DEFAULT_JOB_MEMORY_MIB
    text = f"{available_mib / 1024:.1f} GiB available of {machine.memory_total_mib / 1024:.1f} GiB"
    if fitting >= jobs_at_once:
        yield Finding("ok", "Memory", f"{text} (cgroup limits included).")
    else:
        text += f": room for {fitting} of the {count(jobs_at_once, 'job')} at once with 2 GiB each; the others wait."
        cure = 'declare what jobs need, for example resources.memory = "600 MiB" (a stock worker holds 350 MiB)'
        yield Finding("warning", "Memory", text, cure)
    if kills:
        text = f"so far the kernel has killed {count(kills, 'process', 'processes')} here because memory ran out."
        yield Finding(
            "note", "Out of memory", text, "lower max_parallel or n_envs, or raise the memory limit"
        )


def disk(directory: Path) -> Finding:
    free_mib = shutil.disk_usage(directory).free // MIB
    text = f"{free_mib / 1024:.1f} GiB free at {directory.absolute()}."
    if free_mib >= LITTLE_DISK_MIB:
        return Finding("ok", "Disk", text)
    cure = "free some space, or put the run directory on another disk with --run-dir"
    return Finding("warning", "Disk", text, cure)


def gpus(machine: Machine) -> Iterator[Finding]:
    names = "; ".join(map(_gpu_text, machine.gpus))
    yield Finding("ok", "GPUs", f"{names}." if names else "none; every job trains on the CPU.")
    torch = provenance.version("torch") or ""
    if machine.gpus and torch.endswith("+cpu"):
        text = f"torch {torch} is the CPU build, so that jobs with resources.gpus above 0 fail."
        yield Finding(
            "warning", "GPUs", text, "install a CUDA build of torch, or leave resources.gpus at 0"
        )


def _gpu_text(gpu: Gpu) -> str:
    """Its name and memory, and how many jobs fit on it by memory."""
    if not gpu.memory_mib or gpu.free_mib is None:
        return f"{gpu.index}: {gpu.name}"
    parts = math.ceil(DEFAULT_JOB_MEMORY_MIB / gpu.memory_mib * GPU_PARTS)
    fitting = min(GPU_PARTS // parts, gpu.free_mib // DEFAULT_JOB_MEMORY_MIB)
    memory = f"{gpu.memory_mib} MiB ({gpu.free_mib} MiB free)"
    text = f"{gpu.index}: {gpu.name}, {memory}, room for {count(fitting, 'job')} of 2 GiB"
    if fitting > 1:
        text += f" (resources.gpus = {parts / GPU_PARTS:g})"
    return text


def rendering() -> Finding:
    libraries = [name for name in ("EGL", "OSMesa") if ctypes.util.find_library(name)]
    if libraries:
        return Finding(
            "ok", "Rendering", f"libraries for off-screen images: {', '.join(libraries)}."
        )
    text = "neither EGL nor OSMesa is installed: there are no previews and videos; training is not affected."
    cure = "apt install libegl1, or libosmesa6 on a machine without a GPU driver"
    return Finding("note", "Rendering", text, cure)


def thread_binding(environment: Mapping[str, str]) -> Iterator[Finding]:
    for name in BINDING_VARIABLES:
        if name in environment:
            text = f"{name}={environment[name]} makes OpenMP choose CPUs, possibly the same for all jobs."
            yield Finding("warning", "Thread binding", text, f"unset {name}")


def worker_threads(timeout_s: float = IMPORTS_LIMIT_S) -> Iterator[Finding]:
    """Count the threads of a process that imports and computes as a worker does."""
    settings = {**os.environ, **worker_thread_settings(1), "CUDA_VISIBLE_DEVICES": ""}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", COUNT_THREADS],  # -P: no imports from this folder
            env=settings,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        text = f"the imports of a worker took longer than {timeout_s:g} s."
        yield Finding(
            "warning", "Worker threads", text, "call doctor again when the machine is less busy"
        )
        return
    if done.returncode != 0:
        reason = last_line(done.stderr, f"exit code {done.returncode}")
        text = f"a process with the imports of a worker failed: {reason}"
        cure = "reinstall the pinned versions with the first command of the README"
        yield Finding("warning", "Worker threads", text, cure)
        return
    computing = int(done.stdout.split()[-1])
    if computing > 1:
        text = f"with threads = 1, {computing} threads of a worker have computed."
        cure = "a library ignores the number of threads: compare the package versions with the pinned ones"
        yield Finding("warning", "Worker threads", text, cure)
    else:
        yield Finding("ok", "Worker threads", "with threads = 1, one thread of a worker computes.")


def versions() -> Finding:
    found = {
        name: version for name, version in provenance.versions().items() if name != provenance.OURS
    }
    text = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    missing = ", ".join(name for name, version in found.items() if version is None)
    if not missing:
        return Finding("ok", "Versions", f"{text}.")
    cure = "pip install . in the project's folder"
    return Finding("warning", "Versions", f"{text}; missing: {missing}.", cure)
