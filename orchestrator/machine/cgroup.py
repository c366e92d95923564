"""Limits and counters of this process's control groups: CPU quota, memory, throttling,
out-of-memory kills.

Any ancestor may have a limit, in version 1 or 2 of the interface or in both (hybrid), so that every
function here reads the group of this process and all visible ancestors. In a container those above
the container's own are invisible. See ``cgroup-v2.rst`` and ``cgroup-v1`` in the kernel's
documentation, and ``proc(5)``. Every function takes the root of the file system, for tests.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

from orchestrator.core.processes.procfs import text_of

Controller: TypeAlias = Literal["cpu", "memory"]
Number = TypeVar("Number", bound=float)

ROOT = Path("/")
UNLIMITED = 1 << 60
"""In version 1 "no limit" is a number close to 2**63."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mount:
    """A mounted hierarchy."""

    version: int
    root: str
    """Path of the group at ``point`` within the hierarchy; not ``/`` in most containers."""
    point: Path
    controllers: frozenset[str]
    """In version 1."""


@dataclass(frozen=True, slots=True)
class Cgroup:
    """A control group in a mounted hierarchy."""

    directory: Path
    version: int

    def number(self, name: str) -> int | None:
        """Return the number in a file, or None if it is missing or says "no limit"."""
        words = (text_of(self.directory / name) or "").split()
        is_number = bool(words) and words[0].isdecimal() and int(words[0]) < UNLIMITED
        return int(words[0]) if is_number else None

    def numbers(self, name: str) -> dict[str, int]:
        return _keyed_numbers(self.directory / name)


@functools.cache
def groups(root: Path, controller: Controller) -> tuple[Cgroup, ...]:
    """Return the group of this process and its ancestors, innermost first, in all hierarchies with
    ``controller``.
    """
    mounts = _mounts(root)
    found: list[Cgroup] = []
    for line in (text_of(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers:
            if controller not in controllers.split(","):
                continue
            candidates = [mount for mount in mounts if controller in mount.controllers]
        else:
            candidates = [mount for mount in mounts if mount.version == 2]
        # A hierarchy may be mounted several times: read the mount that shows most of it.
        chains = [_chain(mount, path) for mount in candidates]
        if chains:
            longest: list[Cgroup] = max(chains, key=len)
            found += longest
    return tuple(found)


def _mounts(root: Path) -> list[_Mount]:
    mounts = []
    for line in (text_of(root / "proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if kind[0] in ("cgroup", "cgroup2"):
            version = 2 if kind[0] == "cgroup2" else 1
            mount = _Mount(
                version=version,
                root=fields[3],
                point=root / fields[4].lstrip("/"),
                controllers=frozenset(kind[2].split(",") if version == 1 else ()),
            )
            mounts.append(mount)
    return mounts


def _chain(mount: _Mount, path: str) -> list[Cgroup]:
    """Return the group and its ancestors up to the mount point, innermost first.

    The innermost visible ancestor stands for a group that the mount does not show (cgroup
    namespace, removed group).
    """
    below = Path()
    within = mount.root.rstrip("/")
    if path.startswith(within + "/") and ".." not in path:
        below = Path(path.removeprefix(within).lstrip("/"))
    return [
        Cgroup(directory, mount.version)
        for part in (below, *below.parents)
        if (directory := mount.point / part).is_dir()
    ]


def _keyed_numbers(path: Path) -> dict[str, int]:
    """Read lines such as ``oom_kill 3``. Empty if the file cannot be read."""
    lines = (line.split() for line in (text_of(path) or "").splitlines())
    return {parts[0]: int(parts[1]) for parts in lines if len(parts) == 2 and parts[1].isdecimal()}


def _least(values: Iterable[Number | None]) -> Number | None:
    return min((value for value in values if value is not None), default=None)


def cpu_quota(root: Path = ROOT) -> float | None:
    """CPU seconds per second that this process may use, the least over all groups; None without a
    limit.
    """
    return _least(_quota(group) for group in groups(root, "cpu"))


def _quota(group: Cgroup) -> float | None:
    if group.version == 1:
        quota = group.number("cpu.cfs_quota_us")
        period = group.number("cpu.cfs_period_us")
    else:
        quota = group.number("cpu.max")
        _, *rest = (text_of(group.directory / "cpu.max") or "max").split()
        period = int(rest[0]) if rest else 100_000
    return quota / period if quota and period else None


def _memory_limit(group: Cgroup) -> int | None:
    """In bytes. ``memory.high`` counts as a limit, because above it the kernel stalls the group."""
    names = ("memory.limit_in_bytes",) if group.version == 1 else ("memory.max", "memory.high")
    return _least(map(group.number, names))


def memory_limit(root: Path = ROOT) -> int | None:
    """Bytes of memory that this process may use, the least over all groups; None without a
    limit.
    """
    return _least(map(_memory_limit, groups(root, "memory")))


def memory_headroom(root: Path = ROOT) -> int | None:
    """Bytes that can be allocated, inactive page cache included, before a group reaches its limit;
    None: no limit.
    """
    return _least(_headroom(group) for group in groups(root, "memory"))


def _headroom(group: Cgroup) -> int | None:
    limit = _memory_limit(group)
    if limit is None:
        return None
    names = (
        ("memory.usage_in_bytes", "total_inactive_file")
        if group.version == 1
        else ("memory.current", "inactive_file")
    )
    cache = group.numbers("memory.stat").get(names[1], 0)
    used = max(0, (group.number(names[0]) or 0) - cache)
    return max(0, limit - used)


def oom_kills(root: Path = ROOT) -> int | None:
    """Processes of this group, or else of the machine, that were killed because memory ran out;
    None: unknown.
    """
    for group in groups(root, "memory"):
        name = "memory.oom_control" if group.version == 1 else "memory.events"
        if (kills := group.numbers(name).get("oom_kill")) is not None:
            return kills
    return _keyed_numbers(root / "proc/vmstat").get("oom_kill")


def throttled_s(root: Path = ROOT) -> float | None:
    """Seconds for which quotas have kept this control group and its ancestors off the CPU so far;
    None if the kernel does not report it.

    It is a sum over all groups (the kernel counts the effect of a quota only in the group that has
    it) and over all CPUs, so that it may grow faster than wall time.
    """
    total_s: float | None = None
    for group in groups(root, "cpu"):
        key, per_s = ("throttled_time", 1e9) if group.version == 1 else ("throttled_usec", 1e6)
        if (throttled := group.numbers("cpu.stat").get(key)) is not None:
            total_s = (total_s or 0.0) + throttled / per_s
    return total_s
