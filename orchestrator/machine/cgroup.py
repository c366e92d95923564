"""What the kernel's control groups allow this process: CPU quota, memory, throttling, out-of-memory kills.

A limit may sit on any ancestor, in version 1 or 2 of the interface, or in both at once (hybrid):
each figure here takes our own group and every ancestor this process can see into account. In a
container the ancestors above the container's own group are invisible; nobody inside can read them.

Sources: kernel ``Documentation/admin-guide/cgroup-v2.rst`` and ``cgroup-v1/memory.rst``,
``scheduler/sched-bwc.rst``, and ``proc(5)`` for ``mountinfo`` and ``cgroup``. Only the standard
library is imported; every function takes the root of the file system so that tests can build one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, TypeAlias

from orchestrator.core.procfs import text_of

Controller: TypeAlias = Literal["cpu", "memory"]

ROOT = Path("/")

UNLIMITED = 1 << 60
"""Version 1 writes "no limit" as a number close to 2**63."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A control group as it is mounted here."""

    directory: Path
    version: Literal[1, 2]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mount:
    """A line of ``mountinfo`` that shows a cgroup hierarchy."""

    root: str
    """The group shown at ``point``, as a path within the hierarchy; not ``/`` in most containers."""
    point: str
    options: frozenset[str]
    """Of the super block; in version 1 they name the controllers."""
    version: Literal[1, 2]


def _number(path: Path) -> int | None:
    """The one number a file holds; None for version 1's and 2's ways to say "no limit", and where there is no file."""
    text = (text_of(path) or "").strip()
    return int(text) if text.isdecimal() and int(text) < UNLIMITED else None


def _keyed(path: Path) -> dict[str, int]:
    """A flat-keyed file (``oom_kill 3`` on a line of its own) as numbers; empty where it cannot be had."""
    lines = (line.split() for line in (text_of(path) or "").splitlines())
    return {parts[0]: int(parts[1]) for parts in lines if len(parts) == 2 and parts[1].isdecimal()}


def _mounts(root: Path) -> Iterator[_Mount]:
    for line in (text_of(root / "proc/self/mountinfo") or "").splitlines():
        before, separator, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if not separator or kind[0] not in ("cgroup", "cgroup2") or len(fields) < 5 or len(kind) < 3:
            continue
        yield _Mount(
            root=_unescape(fields[3]),
            point=_unescape(fields[4]),
            options=frozenset(kind[2].split(",")),
            version=2 if kind[0] == "cgroup2" else 1,
        )


def _unescape(field: str) -> str:
    """``mountinfo`` writes blanks and backslashes as octal escapes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _memberships(root: Path, controller: Controller) -> Iterator[tuple[Literal[1, 2], str]]:
    """The hierarchies that may govern ``controller``, and our path in each."""
    for line in (text_of(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            yield 1, path
        elif number == "0" and not controllers:
            yield 2, path


def _chain(root: Path, mount: _Mount, path: str) -> list[Path]:
    """Our group's directory and its ancestors' up to the mount point, innermost first.

    Where the mount does not show our group (cgroup namespaces, groups removed meanwhile) the
    innermost directory that it does show stands for it.
    """
    top = root / mount.point.lstrip("/")
    within = mount.root.rstrip("/")
    visible = path == within or path.startswith(within + "/")
    below = Path(path[len(within) :].lstrip("/")) if visible else Path()
    if ".." in below.parts:
        below = Path()
    leaf = top / below
    directories = [leaf, *(parent for parent in leaf.parents if parent.is_relative_to(top))]
    return [directory for directory in directories if directory.is_dir()]


def groups(root: Path, controller: Controller) -> tuple[Group, ...]:
    """Our control group and its ancestors, innermost first, in every hierarchy that may govern ``controller``."""
    mounts = list(_mounts(root))
    found: list[Group] = []
    for version, path in _memberships(root, controller):
        chains = (
            _chain(root, mount, path)
            for mount in mounts
            if mount.version == version and (version == 2 or controller in mount.options)
        )
        # A hierarchy may be mounted more than once; the mount that shows most of it is the one to read.
        longest = max(chains, key=len, default=[])
        found += (Group(directory=directory, version=version) for directory in longest)
    return tuple(found)


def cpu_quota(root: Path = ROOT) -> float | None:
    """CPUs' worth of time per second we may use, the least over all ancestors; None without a limit."""
    quotas = [_quota(group) for group in groups(root, "cpu")]
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota(group: Group) -> float | None:
    if group.version == 1:
        quota = _number(group.directory / "cpu.cfs_quota_us")
        period = _number(group.directory / "cpu.cfs_period_us")
    else:
        words = (text_of(group.directory / "cpu.max") or "").split() or ["max"]
        quota, period = ((int(word) if word.isdecimal() else None) for word in [*words, "100000"][:2])
    return quota / period if quota and period else None


def _memory_limit(group: Group) -> int | None:
    """Bytes. Above ``memory.high`` the kernel stalls the group in reclaim: a limit as well, for our purposes."""
    names = ("memory.limit_in_bytes",) if group.version == 1 else ("memory.max", "memory.high")
    limits = [_number(group.directory / name) for name in names]
    return min((limit for limit in limits if limit is not None), default=None)


def memory_limit(root: Path = ROOT) -> int | None:
    """Bytes of memory we may hold, the least over all ancestors; None without a limit."""
    limits = [_memory_limit(group) for group in groups(root, "memory")]
    return min((limit for limit in limits if limit is not None), default=None)


def memory_headroom(root: Path = ROOT) -> int | None:
    """Bytes that may still be allocated before the nearest limit of any ancestor; None without a limit.

    Inactive page cache counts as free, as it is given back before anything is killed.
    """
    rooms = []
    for group in groups(root, "memory"):
        limit = _memory_limit(group)
        if limit is None:
            continue
        usage, cache = (
            ("memory.usage_in_bytes", "total_inactive_file")
            if group.version == 1
            else ("memory.current", "inactive_file")
        )
        used = (_number(group.directory / usage) or 0) - _keyed(group.directory / "memory.stat").get(cache, 0)
        rooms.append(max(0, limit - max(0, used)))
    return min(rooms, default=None)


def oom_kills(root: Path = ROOT) -> int | None:
    """Processes of our control group the kernel has killed for want of memory, ever.

    Those of the whole machine where groups do not count them; None where nobody does.
    """
    for group in groups(root, "memory"):
        counts = _keyed(group.directory / ("memory.oom_control" if group.version == 1 else "memory.events"))
        if "oom_kill" in counts:
            return counts["oom_kill"]
    return _keyed(root / "proc/vmstat").get("oom_kill")


class ThrottleMeter:
    """Cumulative seconds our control group and its ancestors were kept off the CPU by a quota.

    Finds and opens the files once; a reading then costs a few microseconds. The kernel counts a
    quota's effect only in the group that carries it, hence the sum over ancestors, and adds up the CPUs
    it stopped, so that the figure may grow faster than wall time.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self._sources: list[tuple[int, bytes, float]] = []
        for group in groups(root, "cpu"):
            key, unit_s = ("throttled_time", 1e-9) if group.version == 1 else ("throttled_usec", 1e-6)
            path = group.directory / "cpu.stat"
            if key in _keyed(path):
                self._sources.append((os.open(path, os.O_RDONLY | os.O_CLOEXEC), key.encode(), unit_s))

    def read(self) -> float | None:
        """Seconds so far; None where the kernel does not say."""
        if not self._sources:
            return None
        try:
            return sum(_value(os.pread(file, 4096, 0), key) * unit_s for file, key, unit_s in self._sources)
        except (OSError, ValueError):
            return None  # the group was removed under us

    def close(self) -> None:
        while self._sources:
            os.close(self._sources.pop()[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _value(content: bytes, key: bytes) -> int:
    words = content.split()
    return int(words[words.index(key) + 1])


def throttled_s(root: Path = ROOT) -> float | None:
    """One reading of :class:`ThrottleMeter`."""
    with ThrottleMeter(root) as meter:
        return meter.read()
