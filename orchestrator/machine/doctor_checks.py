"""The checks of ``doctor``: each looks at one property of the machine and yields findings.

A warning is something that costs speed or makes jobs fail, and can be corrected; a note is worth
knowing.
"""

from __future__ import annotations

import ctypes.util
import itertools
import math
import os
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from orchestrator.core.job import GPU_PARTS
from orchestrator.core.processes.environment_variables import BINDING_VARIABLES, THREAD_VARIABLES
from orchestrator.core.processes.procfs import text_of
from orchestrator.core.text import count, cpu_text, plain
from orchestrator.machine import cpu_holders, provenance
from orchestrator.machine.cpu_holders import CpuHolders, holders_folder
from orchestrator.machine.cpu_load import LoadSampler
from orchestrator.machine.gpu import Gpu
from orchestrator.machine.neighbours import program_name
from orchestrator.machine.slots import SlotPool
from orchestrator.machine.thread_census import CensusError, CensusTimeoutError, Stage, census
from orchestrator.machine.topology import MIB, Machine, largest_job

Level: TypeAlias = Literal["ok", "note", "warning"]

DEFAULT_JOB_MEMORY_MIB = 2048
LITTLE_DISK_MIB = 2048
MUCH_SWAP_MIB = 256
MOST_RUNS = 8
"""Other runs that are named in a finding."""
MOST_PROGRAMS = 5
"""Other programs that are named in a finding."""


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    title: str
    detail: str
    cure: str = ""


def use(machine: Machine) -> Iterator[Finding]:
    pool = SlotPool(machine)
    slots = [slot for _ in range(pool.jobs_at_once) if (slot := pool.acquire(1))]
    cpus = sorted({cpu for slot in slots for cpu in slot.cpus})
    largest = largest_job(machine)
    text = f"{count(len(slots), 'one-core job')} at once: {cpu_text(cpus)}. Largest job: ranks × cores = {largest}."
    yield Finding("ok", "Will be used", text)


def cores(machine: Machine) -> Iterator[Finding]:
    nodes = len({cpu.numa_node for cpu in machine.cpus})
    siblings = len(machine.cpus) - machine.physical_cores
    smt = "SMT on" if siblings else "no SMT"
    logical = f"{count(len(machine.cpus), 'logical CPU')} ({smt})"
    text = (
        f"{count(machine.physical_cores, 'physical core')}, {logical}, {count(nodes, 'NUMA node')}."
    )
    yield Finding("ok", "Cores", text)
    if siblings:
        text = f"{siblings} of {len(machine.cpus)} CPUs are second threads of cores; by default they stay idle."
        cure = f"measure whether the experiment finishes sooner with --max-parallel {len(machine.cpus)}"
        yield Finding("note", "SMT", text, cure)


def affinity(machine: Machine, online: Sequence[int]) -> Iterator[Finding]:
    usable = sorted(cpu.index for cpu in machine.cpus)
    if len(usable) >= len(online):
        yield Finding("ok", "Affinity", "this process may use every CPU that is online.")
        return
    text = f"an affinity mask lets this process use only {cpu_text(usable)} of the {len(online)} online."
    cure = "to use more, change what set the mask: taskset, numactl, docker --cpuset-cpus, or the batch system"
    yield Finding("note", "Affinity", text, cure)


def niceness(value: int) -> Iterator[Finding]:
    """:param value: the niceness of this process."""
    if value <= 0:
        yield Finding(
            "ok", "Niceness", f"{value}: jobs get as much CPU time as other programs, or more."
        )
        return
    text = f"this process has niceness {value}; a job started from here inherits it and gives way to other programs."
    yield Finding(
        "note", "Niceness", text, "for jobs that do not give way, start the command without nice"
    )


def quota(machine: Machine, throttled: float | None) -> Iterator[Finding]:
    if machine.quota is None:
        yield Finding("ok", "CPU quota", "none: no cgroup limits CPU time.")
    elif machine.quota >= machine.physical_cores:
        yield Finding("ok", "CPU quota", f"{machine.quota:g} CPUs, enough for every physical core.")
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


def governor(machine: Machine, root: Path) -> Iterator[Finding]:
    folders = [root / f"sys/devices/system/cpu/cpu{cpu.index}/cpufreq" for cpu in machine.cpus]
    governors = {
        text.strip() for folder in folders if (text := text_of(folder / "scaling_governor"))
    }
    driver = (text_of(folders[0] / "scaling_driver") or "").strip()
    if not governors:
        yield Finding(
            "ok", "CPU frequency", "the governor is not visible (usual in a virtual machine)."
        )
    elif "powersave" in governors and "pstate" not in driver:  # that of pstate raises the clock
        text = "the powersave governor keeps the CPUs at their lowest clock."
        yield Finding(
            "warning", "CPU frequency", text, "run cpupower frequency-set -g performance as root"
        )
    else:
        text = f"governor {', '.join(sorted(governors))}{f' ({driver})' if driver else ''}."
        yield Finding("ok", "CPU frequency", text)


def load(machine: Machine) -> Iterator[Finding]:
    hogs = LoadSampler().measure().processes
    average = f"load average {os.getloadavg()[0]:.2f} over the last minute"
    if not hogs and os.getloadavg()[0] > len(machine.cpus):
        text = f"no single process keeps a CPU busy, but many share {count(len(machine.cpus), 'CPU')}: {average}."
        yield Finding(
            "note", "Other work", text, "wait for them, or expect trainings to take longer"
        )
        return
    if not hogs:
        yield Finding("ok", "Other work", f"no other process keeps a CPU busy; {average}.")
        return
    total = sum(hog.cores for hog in hogs)
    names = [f"{program_name(hog)} {hog.cores:.1f} cores" for hog in hogs[:MOST_PROGRAMS]]
    if len(hogs) > MOST_PROGRAMS:
        names.append("…")
    cpus = count(len(machine.cpus), "CPU")
    text = (
        f"{count(len(hogs), 'other process uses', 'other processes use')} {total:.1f} of {cpus} now:"
        f" {', '.join(names)}; {average}."
    )
    left = max(1, machine.capacity - round(total))
    cure = "stop them"
    if left < machine.capacity:
        cure += f", or leave room for them with --max-parallel {left}"
    yield Finding("warning", "Other work", text, cure)


def holders(folder: Path | None = None) -> Iterator[Finding]:
    """:param folder: of the files in which runs say which CPUs they hold; None: the one that is
    used.
    """
    folder = holders_folder() if folder is None else folder
    if (problem := cpu_holders.prepare(folder)) is not None:
        text = (
            f"runs on this machine cannot tell each other which CPUs they hold: {problem}."
            " They see each other's load."
        )
        cure = "remove what is named, or have its owner do so: the next run makes it"
        yield Finding("note", "Other runs", text, cure)
        return
    others = CpuHolders(folder).others()
    if not others:
        yield Finding("ok", "Other runs", "none holds CPUs of this machine.")
        return
    held = [
        f"{other.name} ({plain(other.run_dir)}) has {cpu_text(other.cpus)}"
        for other in others[:MOST_RUNS]
    ]
    if len(others) > MOST_RUNS:
        held.append(f"{len(others) - MOST_RUNS} more")
    cure = "--max-parallel idle runs as many jobs at once as there are idle cores"
    yield Finding("note", "Other runs", f"{'; '.join(held)}.", cure)


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


def swap() -> Iterator[Finding]:
    import psutil

    memory = psutil.swap_memory()
    if memory.used > MUCH_SWAP_MIB * MIB:
        text = f"{memory.used / MIB / 1024:.1f} of {memory.total / MIB / 1024:.1f} GiB in use."
        cure = "free memory before a long experiment: a worker is very slow when it is swapped out"
        yield Finding("note", "Swap", text, cure)
    else:
        yield Finding("ok", "Swap", "hardly used." if memory.total else "none.")


def disk(directory: Path) -> Iterator[Finding]:
    free_mib = shutil.disk_usage(directory).free // MIB
    text = f"{free_mib / 1024:.1f} GiB free at {directory.absolute()}."
    if free_mib < LITTLE_DISK_MIB:
        cure = "free some space, or put the run directory on another disk with --run-dir"
        yield Finding("warning", "Disk", text, cure)
    else:
        yield Finding("ok", "Disk", text)


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


def rendering(environment: Mapping[str, str]) -> Iterator[Finding]:
    libraries = [name for name in ("EGL", "OSMesa") if ctypes.util.find_library(name)]
    chosen = environment.get("MUJOCO_GL", "")
    if libraries:
        text = f"libraries for off-screen images: {', '.join(libraries)}{f'; MUJOCO_GL={chosen}' if chosen else ''}."
        yield Finding("ok", "Rendering", text)
    else:
        text = "neither EGL nor OSMesa is installed: there are no previews and videos; training is not affected."
        cure = "apt install libegl1, or libosmesa6 on a machine without a GPU driver"
        yield Finding("note", "Rendering", text, cure)


def thread_variables(environment: Mapping[str, str]) -> Iterator[Finding]:
    values = ", ".join(
        f"{name}={environment[name]}" for name in THREAD_VARIABLES if name in environment
    )
    text = f"{values or 'none'} set in the environment; every worker gets the threads of its job instead (default 1)."
    yield Finding("ok", "Thread variables", text)
    for name in BINDING_VARIABLES:
        if name in environment:
            text = f"{name}={environment[name]} makes OpenMP choose CPUs, possibly the same for all jobs."
            yield Finding("warning", "Thread binding", text, f"unset {name}")


def worker_threads(
    threads: int, environment: Mapping[str, str], *, is_busy: bool = False
) -> Iterator[Finding]:
    """:param is_busy: whether other programs use the CPUs."""
    try:
        yield threads_finding(threads, census(threads, environment))
    except CensusError as error:
        text = f"a process with the imports of a worker failed: {error}"
        cure = "reinstall the pinned versions with the first command of the README"
        if is_busy and isinstance(error, CensusTimeoutError):
            cure = "the machine is busy (see Other work): call doctor again when it is idle"
        yield Finding("warning", "Worker threads", text, cure)


def threads_finding(threads: int, stages: Sequence[Stage]) -> Finding:
    """Explains every thread of a worker, from the counts of a child process."""
    parts = ["main thread", "lifeline watchdog (asleep while the supervisor lives)"]
    for earlier, stage in itertools.pairwise(stages):
        if stage.n_threads > earlier.n_threads:
            parts.append(f"{stage.n_threads - earlier.n_threads} from {stage.name}")
    last = stages[-1]
    there = f"with threads = {threads} a worker has {last.n_threads + 1} threads"
    # Each library may keep a pool of its own (OpenBLAS, torch's OpenMP, torch's pthreadpool), but
    # they take turns.
    if last.n_computing > 1 + 3 * (threads - 1):
        text = f"{there}, and {last.n_computing} of them have computed: {', '.join(parts)}."
        cure = "a library ignores the number of threads: compare the package versions with the pinned ones"
        return Finding("warning", "Worker threads", text, cure)
    text = (
        f"{there}, at most {threads} of them computing at a time: {', '.join(parts)}. On the CPU, autograd computes"
        f" backward in the thread that calls it. Counted in a child process; imports and a few training steps took"
        f" {last.elapsed_s:.1f} s."
    )
    return Finding("ok", "Worker threads", text)


def versions() -> Iterator[Finding]:
    versions = {
        name: version for name, version in provenance.versions().items() if name != provenance.OURS
    }
    text = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    if missing := ", ".join(name for name, version in versions.items() if version is None):
        yield Finding(
            "warning",
            "Versions",
            f"{text}; missing: {missing}.",
            "pip install . in the project's folder",
        )
    else:
        yield Finding("ok", "Versions", f"{text}.")


def kernel(root: Path) -> Iterator[Finding]:
    name = f"{platform.system()} {platform.release()} ({platform.machine()})"
    if (root / "proc/self/schedstat").exists():
        yield Finding("ok", "Kernel", f"{name}; the time that threads wait for a CPU is measured.")
    else:
        yield Finding(
            "note",
            "Kernel",
            f"{name} has no schedstat: column run_delay_s of timings.csv stays empty.",
        )
