"""Limits and counters of this process's control groups: CPU quota, memory, throttling,
out-of-memory kills.

Any ancestor may have a limit, in version 1 or 2 of the interface or in both (hybrid), so that every
function here reads the group of this process and all visible ancestors. In a container those above
the container's own are invisible.

Sources: kernel ``Documentation/admin-guide/cgroup-v2.rst``, ``cgroup-v1/memory.rst`` and
``scheduler/sched-bwc.rst``; ``proc(5)`` for ``mountinfo`` and ``cgroup``. Every function takes the
root of the file system, for tests.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

from orchestrator.core.processes.procfs import text_of

Controller: TypeAlias = Literal["cpu", "memory"]
Number = TypeVar("Number", bound=float)

ROOT = Path("/")

DEFAULT_PERIOD_US = 100_000
"""Of a quota in version 2 that gives none."""
UNLIMITED = 1 << 60
"""In version 1 "no limit" is a number close to 2**63."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cgroup:
    """A control group in a mounted hierarchy."""

    directory: Path
    version: Literal[1, 2]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mount:
    """A line of ``mountinfo`` with a cgroup hierarchy."""

    root: str
    """Path of the group at ``point`` within the hierarchy; not ``/`` in most containers."""
    point: str
    options: frozenset[str]
    """Options of the super block; in version 1 they name the controllers."""
    version: Literal[1, 2]


def _number(path: Path) -> int | None:
    """The number in a file; None when the file is missing or says "no limit"."""
    text = (text_of(path) or "").strip()
    return int(text) if text.isdecimal() and int(text) < UNLIMITED else None


def _read_flat_keyed(path: Path) -> dict[str, int]:
    """The numbers of a flat-keyed file (lines such as ``oom_kill 3``); empty when it cannot be
    read.
    """
    lines = (line.split() for line in (text_of(path) or "").splitlines())
    return {parts[0]: int(parts[1]) for parts in lines if len(parts) == 2 and parts[1].isdecimal()}


def _mounts(root: Path) -> Iterator[_Mount]:
    """All hierarchies that are mounted."""
    for line in (text_of(root / "proc/self/mountinfo") or "").splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        kind = after.split(" ")
        if (
            not separator
            or kind[0] not in ("cgroup", "cgroup2")
            or len(fields) < 5
            or len(kind) < 3
        ):
            continue
        yield _Mount(
            root=_unescaped(fields[3]),
            point=_unescaped(fields[4]),
            options=frozenset(kind[2].split(",")),
            version=2 if kind[0] == "cgroup2" else 1,
        )


def _unescaped(field: str) -> str:
    """Blanks and backslashes are octal escapes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _memberships(root: Path, controller: Controller) -> Iterator[tuple[Literal[1, 2], str]]:
    """Versions of the hierarchies that may have ``controller``, and the path of this process in
    each.
    """
    for line in (text_of(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            yield 1, path
        elif number == "0" and not controllers:
            yield 2, path


def _chain(root: Path, mount: _Mount, path: str) -> list[Path]:
    """The directories of the group and its ancestors up to the mount point, innermost first.

    The innermost visible ancestor stands for a group that the mount does not show (cgroup
    namespace, removed group).
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


_found_groups: dict[tuple[Path, Controller], tuple[Cgroup, ...]] = {}
"""By root and controller."""


def groups(root: Path, controller: Controller) -> tuple[Cgroup, ...]:
    """The group of this process and its ancestors, innermost first, in all hierarchies with
    ``controller``; those in which it was when they were first found.
    """
    known = _found_groups.get((root, controller))
    if known is not None:
        return known
    found = _look_for_groups(root, controller)
    if found:  # none may also mean that this process has too many files open now
        _found_groups[root, controller] = found
    return found


def _look_for_groups(root: Path, controller: Controller) -> tuple[Cgroup, ...]:
    mounts = list(_mounts(root))
    visible_groups: list[Cgroup] = []
    for version, path in _memberships(root, controller):
        chains = (
            _chain(root, mount, path)
            for mount in mounts
            if mount.version == version and (version == 2 or controller in mount.options)
        )
        # A hierarchy may be mounted several times: read the mount that shows most of it.
        longest = max(chains, key=len, default=[])
        visible_groups += (Cgroup(directory=directory, version=version) for directory in longest)
    return tuple(visible_groups)


def _least(values: Iterable[Number | None]) -> Number | None:
    return min((value for value in values if value is not None), default=None)


def cpu_quota(root: Path = ROOT) -> float | None:
    """CPU seconds per second that this process may use, the least over all groups; None without a
    limit.
    """
    return _least(_quota(group) for group in groups(root, "cpu"))


def _quota(group: Cgroup) -> float | None:
    """CPU seconds per second."""
    if group.version == 1:
        quota = _number(group.directory / "cpu.cfs_quota_us")
        period = _number(group.directory / "cpu.cfs_period_us")
    else:
        words = (text_of(group.directory / "cpu.max") or "").split()
        quota = _decimal(words[0]) if words else None  # "max": no limit
        period = _decimal(words[1]) if len(words) > 1 else DEFAULT_PERIOD_US
    return quota / period if quota and period else None


def _decimal(word: str) -> int | None:
    return int(word) if word.isdecimal() else None


def _memory_limit(group: Cgroup) -> int | None:
    """In bytes. ``memory.high`` counts as a limit, because above it the kernel stalls the group."""
    names = ("memory.limit_in_bytes",) if group.version == 1 else ("memory.max", "memory.high")
    return _least(_number(group.directory / name) for name in names)


def memory_limit(root: Path = ROOT) -> int | None:
    """Bytes of memory that this process may use, the least over all groups; None without a
    limit.
    """
    return _least(_memory_limit(group) for group in groups(root, "memory"))


def memory_headroom(root: Path = ROOT) -> int | None:
    """Bytes that can be allocated, inactive page cache included, before a group reaches its limit;
    None: no limit.
    """
    rooms = []
    for group in groups(root, "memory"):
        limit = _memory_limit(group)
        if limit is None:
            continue
        if group.version == 1:
            usage_file = "memory.usage_in_bytes"
            cache_key = "total_inactive_file"
        else:
            usage_file = "memory.current"
            cache_key = "inactive_file"
        usage = _number(group.directory / usage_file) or 0
        cache = _read_flat_keyed(group.directory / "memory.stat").get(cache_key, 0)
        used = max(0, usage - cache)
        rooms.append(max(0, limit - used))
    return min(rooms, default=None)


def oom_kills(root: Path = ROOT) -> int | None:
    """Processes of this group, or else of the machine, that were killed because memory ran out;
    None: unknown.
    """
    for group in groups(root, "memory"):
        name = "memory.oom_control" if group.version == 1 else "memory.events"
        counts = _read_flat_keyed(group.directory / name)
        if "oom_kill" in counts:
            return counts["oom_kill"]
    return _read_flat_keyed(root / "proc/vmstat").get("oom_kill")


@dataclass(frozen=True, slots=True, kw_only=True)
class _ThrottleCounter:
    """A counter in an open file ``cpu.stat``."""

    descriptor: int
    key: bytes
    unit_s: float


class ThrottleMeter:
    """Seconds for which quotas have kept this control group and its ancestors off the CPU.

    The files are opened once; a reading takes a few microseconds. It is a sum over all groups (the
    kernel counts the effect of a quota only in the group that has it) and over all CPUs, so that it
    may grow faster than wall time.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self._counters: list[_ThrottleCounter] = []
        for group in groups(root, "cpu"):
            key = "throttled_time" if group.version == 1 else "throttled_usec"
            unit_s = 1e-9 if group.version == 1 else 1e-6
            path = group.directory / "cpu.stat"
            if key in _read_flat_keyed(path):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                self._counters.append(
                    _ThrottleCounter(descriptor=descriptor, key=key.encode(), unit_s=unit_s)
                )

    def read(self) -> float | None:
        """Seconds so far; None when the kernel does not report it."""
        total_s = 0.0
        for counter in self._counters:
            try:
                words = os.pread(counter.descriptor, 4096, 0).split()
                total_s += int(words[words.index(counter.key) + 1]) * counter.unit_s
            except (OSError, ValueError):
                return None  # the group was removed meanwhile
        return total_s if self._counters else None

    def close(self) -> None:
        """May be called again."""
        while self._counters:
            os.close(self._counters.pop().descriptor)


def throttled_s(root: Path = ROOT) -> float | None:
    """One reading of a :class:`ThrottleMeter`."""
    with contextlib.closing(ThrottleMeter(root)) as meter:
        return meter.read()
