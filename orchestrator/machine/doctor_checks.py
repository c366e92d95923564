"""The checks behind ``doctor``: each looks at one thing and yields what it found.

A warning is something that costs speed or fails jobs and can be cured; a note is worth knowing.
"""

from __future__ import annotations

import ctypes.util
import itertools
import os
import platform
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from orchestrator.core.environment import THREAD_VARIABLES
from orchestrator.core.procfs import text_of
from orchestrator.core.text import count, joined
from orchestrator.machine import provenance
from orchestrator.machine.slots import SlotPool
from orchestrator.machine.thread_census import CensusError, Stage, census
from orchestrator.machine.topology import MIB, Machine, largest_job

Level: TypeAlias = Literal["ok", "note", "warning"]

BINDING_VARIABLES = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""They move the threads of a library to CPUs of its own choice, across the slots."""

DEFAULT_JOB_MEMORY_MIB = 2048
LITTLE_DISK_MIB = 2048
SAMPLE_S = 0.3
HOG_CORES = 0.2
"""CPU seconds per second from which another process is in the way of a benchmark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    level: Level
    title: str
    detail: str
    cure: str = ""
    """What to do about it, in words; empty where nothing needs doing."""


def use(machine: Machine, max_parallel: int | None) -> Iterator[Finding]:
    pool = SlotPool(machine, max_parallel)
    slots = [slot for _ in range(pool.lanes) if (slot := pool.acquire(1))]
    cpus = sorted({cpu for slot in slots for cpu in slot.cpus})
    yield Finding(
        level="ok",
        title="Will be used",
        detail=f"{count(len(slots), 'one-core job')} at once: {cpu_text(cpus)}. The largest single job may ask for"
        f" cores = {largest_job(machine)}, or with several ranks for ranks × cores = {largest_job(machine)}.",
    )
    for text in pool.warnings():
        yield Finding(level="warning", title="max_parallel", detail=text, cure='set max_parallel = "auto"')


def cores(machine: Machine) -> Iterator[Finding]:
    nodes = len({cpu.numa_node for cpu in machine.cpus})
    siblings = len(machine.cpus) - machine.physical_cores
    yield Finding(
        level="ok",
        title="Cores",
        detail=f"{count(machine.physical_cores, 'physical core')}, {count(len(machine.cpus), 'logical CPU')}"
        f" ({'SMT on' if siblings else 'no SMT'}), {count(nodes, 'NUMA node')}.",
    )
    if siblings:
        yield Finding(
            level="note",
            title="SMT",
            detail=f"{count(siblings, 'CPU')} of {len(machine.cpus)} are second threads of a core, left idle by"
            " default: two jobs on one core slow each other.",
            cure=f"measure whether --max-parallel {len(machine.cpus)} finishes the whole experiment sooner",
        )


def affinity(machine: Machine, online: Sequence[int]) -> Iterator[Finding]:
    usable = sorted(cpu.index for cpu in machine.cpus)
    if len(usable) >= len(online):
        yield Finding(level="ok", title="Affinity", detail="every online CPU may be used.")
        return
    yield Finding(
        level="note",
        title="Affinity",
        detail=f"only {cpu_text(usable)} of {len(online)} online may be used: an affinity mask was set from outside.",
        cure="to use more, widen what set it: taskset, numactl, docker --cpuset-cpus, or the batch system's allocation",
    )


def quota(machine: Machine, throttled: float | None) -> Iterator[Finding]:
    if machine.quota is None:
        yield Finding(level="ok", title="CPU quota", detail="none: no cgroup limits CPU time.")
    elif machine.quota >= machine.physical_cores:
        yield Finding(level="ok", title="CPU quota", detail=f"{machine.quota:g} CPUs, enough for every physical core.")
    else:
        yield Finding(
            level="warning",
            title="CPU quota",
            detail=f"a cgroup allows {machine.quota:g} CPUs' worth of time on {count(len(machine.cpus), 'CPU')}:"
            f" {count(machine.capacity, 'job')} at once, as one more would have the kernel stop all of them in turns.",
            cure="raise the quota to a whole number of CPUs: docker --cpus, Kubernetes limits.cpu, systemd CPUQuota=",
        )
    if throttled:
        yield Finding(
            level="note",
            title="Throttling",
            detail=f"the quota has kept this control group off the CPU for {throttled:.1f} CPU seconds so far.",
            cure="watch throttled_s in timings.csv: where it grows, run fewer jobs at once or raise the quota",
        )


def governor(machine: Machine, root: Path) -> Iterator[Finding]:
    folders = [root / f"sys/devices/system/cpu/cpu{cpu.index}/cpufreq" for cpu in machine.cpus]
    governors = {text.strip() for folder in folders if (text := text_of(folder / "scaling_governor"))}
    driver = (text_of(folders[0] / "scaling_driver") or "").strip()
    if not governors:
        yield Finding(level="ok", title="CPU frequency", detail="not ours to see (usual in a virtual machine).")
    elif "powersave" in governors and "pstate" not in driver:  # the pstate drivers' powersave does raise the clock
        yield Finding(
            level="warning",
            title="CPU frequency",
            detail="the powersave governor keeps CPUs at their lowest clock.",
            cure="cpupower frequency-set -g performance (as root)",
        )
    else:
        detail = f"governor {', '.join(sorted(governors))}{f' ({driver})' if driver else ''}."
        yield Finding(level="ok", title="CPU frequency", detail=detail)


def load(machine: Machine) -> Iterator[Finding]:
    busy = cpu_hogs()
    load = f"load average {os.getloadavg()[0]:.2f} over the last minute"
    if not busy:
        yield Finding(level="ok", title="Other work", detail=f"no other process keeps a CPU busy; {load}.")
        return
    total = sum(cores for _, _, cores in busy)
    names = ", ".join(f"{name} (pid {pid}) {cores:.1f} cores" for pid, name, cores in busy[:5])
    yield Finding(
        level="warning",
        title="Other work",
        detail=f"{count(len(busy), 'other process', 'other processes')} now take {total:.1f} CPUs of"
        f" {len(machine.cpus)}: {names}{', …' if len(busy) > 5 else ''}; {load}.",
        cure=f"stop them, or leave them room with --max-parallel {max(1, machine.capacity - round(total))}",
    )


def cpu_hogs(sample_s: float = SAMPLE_S) -> list[tuple[int, str, float]]:
    """Other processes that are busy now, the busiest first: pid, name, cores used. Takes ``sample_s``."""
    import psutil

    def used() -> dict[tuple[int, float], tuple[str, float]]:
        return {
            (process.pid, process.info["create_time"]): (process.info["name"], sum(process.info["cpu_times"][:2]))
            for process in psutil.process_iter(["name", "create_time", "cpu_times"])
            if process.info["cpu_times"] and process.pid != os.getpid()
        }

    begin, before = time.monotonic(), used()
    time.sleep(sample_s)
    after, elapsed_s = used(), time.monotonic() - begin
    hogs = [
        (key[0], name, (cpu_s - before[key][1]) / elapsed_s) for key, (name, cpu_s) in after.items() if key in before
    ]
    return sorted((hog for hog in hogs if hog[2] >= HOG_CORES), key=lambda hog: -hog[2])


def memory(machine: Machine, max_parallel: int | None, available_mib: int, kills: int | None) -> Iterator[Finding]:
    lanes = SlotPool(machine, max_parallel).lanes
    fitting = available_mib // DEFAULT_JOB_MEMORY_MIB
    detail = f"{available_mib / 1024:.1f} GiB available of {machine.memory_total_mib / 1024:.1f} GiB"
    if fitting >= lanes:
        yield Finding(level="ok", title="Memory", detail=f"{detail} (cgroup limits included).")
    else:
        yield Finding(
            level="warning",
            title="Memory",
            detail=f"{detail}: room for {fitting} of the {count(lanes, 'job')} at once at the default 2 GiB each; the"
            " others wait until memory is free.",
            cure='declare what jobs need, for example resources.memory = "600 MiB" (a stock worker holds 350 MiB)',
        )
    if kills:
        yield Finding(
            level="note",
            title="Out of memory",
            detail=f"the kernel has killed {count(kills, 'process', 'processes')} here for want of memory so far.",
            cure="lower max_parallel or n_envs, or raise the memory limit",
        )


def swap() -> Iterator[Finding]:
    import psutil

    swap = psutil.swap_memory()
    if swap.used > 256 * MIB:
        yield Finding(
            level="note",
            title="Swap",
            detail=f"{swap.used / MIB / 1024:.1f} of {swap.total / MIB / 1024:.1f} GiB in use.",
            cure="free memory before a long experiment: a worker that is swapped out crawls",
        )
    else:
        yield Finding(level="ok", title="Swap", detail="none." if not swap.total else "hardly used.")


def disk(directory: Path) -> Iterator[Finding]:
    free_mib = shutil.disk_usage(directory).free // MIB
    little = free_mib < LITTLE_DISK_MIB
    yield Finding(
        level="warning" if little else "ok",
        title="Disk",
        detail=f"{free_mib / 1024:.1f} GiB free at {directory.absolute()}.",
        cure="free some, or put the run directory elsewhere with --run-dir" if little else "",
    )


def gpus(machine: Machine) -> Iterator[Finding]:
    listed = "; ".join(
        f"{gpu.index}: {gpu.name}" + (f", {gpu.memory_mib} MiB" if gpu.memory_mib else "") for gpu in machine.gpus
    )
    yield Finding(level="ok", title="GPUs", detail=f"{listed}." if listed else "none; every job trains on the CPU.")
    if machine.gpus and (provenance.version("torch") or "").endswith("+cpu"):
        yield Finding(
            level="warning",
            title="GPUs",
            detail=f"torch {provenance.version('torch')} is the CPU build: jobs with gpus > 0 would fail.",
            cure="install a CUDA build of torch, or leave resources.gpus at 0",
        )


def rendering(environment: Mapping[str, str]) -> Iterator[Finding]:
    found = [name for name in ("EGL", "OSMesa") if ctypes.util.find_library(name)]
    chosen = environment.get("MUJOCO_GL", "")
    if found:
        detail = f"libraries for off-screen images: {', '.join(found)}{f'; MUJOCO_GL={chosen}' if chosen else ''}."
        yield Finding(level="ok", title="Rendering", detail=detail)
    else:
        yield Finding(
            level="note",
            title="Rendering",
            detail="neither EGL nor OSMesa is installed: no previews and videos; training is not affected.",
            cure="apt install libegl1, or libosmesa6 on a machine without a GPU driver",
        )


def thread_variables(environment: Mapping[str, str]) -> Iterator[Finding]:
    listed = ", ".join(f"{name}={environment[name]}" for name in THREAD_VARIABLES if name in environment)
    yield Finding(
        level="ok",
        title="Thread variables",
        detail=f"{listed or 'none'} set outside; every worker gets the job's own thread budget instead (default 1).",
    )
    for name in BINDING_VARIABLES:
        if name in environment:
            yield Finding(
                level="warning",
                title="Thread binding",
                detail=f"{name}={environment[name]} lets OpenMP choose CPUs, perhaps the same one for all.",
                cure=f"unset {name}",
            )


def worker_threads(threads: int, environment: Mapping[str, str]) -> Iterator[Finding]:
    try:
        yield threads_finding(threads, census(threads, environment))
    except CensusError as error:
        yield Finding(
            level="warning",
            title="Worker threads",
            detail=f"a process with a worker's imports failed: {error}",
            cure="reinstall with the pinned versions, as the README's first command does",
        )


def threads_finding(threads: int, stages: Sequence[Stage]) -> Finding:
    """Explain every thread of a worker from what a child process counted."""
    parts = ["main thread", "lifeline watchdog (asleep until the supervisor goes away)"]
    for earlier, stage in itertools.pairwise(stages):
        if stage.n_threads > earlier.n_threads:
            parts.append(f"{stage.n_threads - earlier.n_threads} from {stage.name}")
    total = stages[-1].n_threads + 1
    budget = f"with threads = {threads} a worker has {total} threads, at most {threads} of them computing"
    # Each library may keep a pool of its own (OpenBLAS, torch's OpenMP, torch's pthreadpool), but they take turns.
    too_many = stages[-1].n_threads > 1 + 3 * (threads - 1)
    return Finding(
        level="warning" if too_many else "ok",
        title="Worker threads",
        detail=f"{budget}: {', '.join(parts)}. On the CPU, autograd runs backward in the thread that calls it."
        f" Counted in a child process; imports and one training step took {stages[-1].elapsed_s:.1f} s.",
        cure="a library ignores its thread budget: compare the package versions with the pinned ones"
        if too_many
        else "",
    )


def versions() -> Iterator[Finding]:
    found = {name: version for name, version in provenance.versions().items() if name != provenance.OURS}
    present = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    missing = ", ".join(name for name, version in found.items() if version is None)
    yield Finding(
        level="warning" if missing else "ok",
        title="Versions",
        detail=f"{present}{f'; missing: {missing}' if missing else ''}.",
        cure="pip install . in the project's folder" if missing else "",
    )


def kernel(root: Path) -> Iterator[Finding]:
    name = f"{platform.system()} {platform.release()} ({platform.machine()})"
    if (root / "proc/self/schedstat").exists():
        yield Finding(level="ok", title="Kernel", detail=f"{name}; time spent waiting for a CPU is measured.")
    else:
        yield Finding(
            level="note",
            title="Kernel",
            detail=f"{name} has no schedstat: the run_delay_s column of timings.csv stays empty.",
        )


def cpu_text(cpus: Iterable[int]) -> str:
    """``[0, 1]`` → ``CPUs 0 and 1``, ``[0, 1, 2, 3, 8]`` → ``CPUs 0-3 and 8``."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][-1] + 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    parts = [text for run in runs for text in ([f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run))]
    return f"CPU{'' if len(parts) == 1 and parts[0].isdecimal() else 's'} {joined(parts)}"
