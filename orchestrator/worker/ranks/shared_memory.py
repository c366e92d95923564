"""Collectives of the ranks of one machine over shared memory: each rank writes its own slots and
reads those of all.

Numbers pass from core to core without the kernel, some ten times as fast as over a local socket. An
exchange is a *round*. Each rank has two counters in the shared memory: the last round whose slot it
has written, and the last round whose slots it has finished reading. Each rank has two slots, used
in turns: one is written again when every rank has finished the round before last.

A waiting rank polls the counter, and after a while sleeps a little each time. Where there are fewer
cores than ranks it sleeps at once, because the other rank may need this core. (``sched_yield``
alone does not help: Linux distributes CPU time between sessions first, and each rank has a session
of its own.) Counters are written after the numbers that they announce, and x86 processors make
stores visible in that order. Other processors need not: there ranks exchange over the network, like
those of several machines.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import platform
import secrets
from collections.abc import Callable, Iterator
from time import perf_counter, sleep
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.ranks.exchange import all_gather_bytes
from orchestrator.worker.ranks.ranks import Ranks

SLOT_BYTES = 2**20
"""Larger arrays take several rounds."""
SPIN_S = 0.002
"""Time of polling before a rank sleeps, where every rank has a core of its own."""
SLEEP_SHARE = 0.05
"""A sleep lasts this share of the time waited so far, so that waiting takes about that share longer
than necessary."""
LONGEST_SLEEP_S = 0.001
_LINE = 128
"""Bytes between counters of different ranks: no two share a cache line, nor a pair of lines fetched
together."""
_NONCE_BYTES = 16
_ORDERED = frozenset({"x86_64", "AMD64"})
"""Processors that make stores visible in program order."""


class RankUnreachableError(RuntimeError):
    """Another rank does not answer in time."""


class SharedMemoryAllreduce(Ranks):
    """Collectives over shared memory, of arrays only.

    Every rank adds up for itself, in order of rank: the same bits everywhere.

    :param memory: of :func:`size_bytes` bytes, shared with the other ranks.
    :raises RankUnreachableError: (every collective) another rank has not answered within
        ``timeout_s``.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        memory: mmap.mmap,
        *,
        timeout_s: float,
        spin_s: float,
        slot_bytes: int,
    ) -> None:
        self.rank = rank
        self.size = size
        self._timeout_s = timeout_s
        self._spin_s = spin_s
        self._slot_bytes = slot_bytes
        begin = _LINE * (1 + 2 * size)
        self._counters = memoryview(memory)[_LINE:begin].cast("q")
        step = _LINE // 8
        self._written = [2 * step * other for other in range(size)]
        self._read = [2 * step * other + step for other in range(size)]
        self._others = [other for other in range(size) if other != rank]
        self._round = 0
        slots = np.frombuffer(memory, np.uint8, 2 * size * slot_bytes, begin)
        self._slots = slots.reshape(2, size, slot_bytes)
        """By turn, then by rank."""
        self._typed_slots: dict[np.dtype[Any], list[list[NDArray[Any]]]] = {}

    def all_reduce(self, array: NDArray[Any]) -> None:
        for part in self._parts(array):
            slots = self._write(part)
            for rank in self._others:
                self._wait(self._written[rank], self._round, rank)
            np.add(slots[0], slots[1], out=part)
            for slot in slots[2:]:
                np.add(part, slot, out=part)
            self._mark_round_read()

    reduce = all_reduce

    def broadcast(self, array: NDArray[Any]) -> None:
        for part in self._parts(array):
            if self.rank == 0:
                self._write(part)
            else:
                slots = self._begin(part)
                self._wait(self._written[0], self._round, 0)
                part[:] = slots[0]
            self._mark_round_read()

    def all_gather_array(self, array: NDArray[Any]) -> NDArray[Any]:
        gathered = np.empty((self.size, array.size), array.dtype)
        begin = 0
        for part in self._parts(array):
            slots = self._write(part)
            for rank, slot in enumerate(slots):
                self._wait(self._written[rank], self._round, rank)
                gathered[rank, begin : begin + len(part)] = slot
            self._mark_round_read()
            begin += len(part)
        return gathered.reshape(self.size, *array.shape)

    def all_gather_object(self, value: Any) -> list[Any]:
        # Not signed, unlike over the network: whoever can write to this memory can write to all of
        # this process's.
        return [
            pickle.loads(content)
            for content in all_gather_bytes(self.all_gather_array, pickle.dumps(value))
        ]

    def _parts(self, array: NDArray[Any]) -> Iterator[NDArray[Any]]:
        flat = array.reshape(-1)
        assert np.shares_memory(flat, array) or not array.size, "arrays must be contiguous"
        step = self._slot_bytes // array.itemsize
        for begin in range(0, len(flat), step):
            yield flat[begin : begin + step]

    def _begin(self, part: NDArray[Any]) -> list[NDArray[Any]]:
        """Begin a round and return every rank's slot in it."""
        self._round += 1
        for rank in self._others:
            self._wait(self._read[rank], self._round - 2, rank)
        dtype = part.dtype
        if dtype not in self._typed_slots:
            self._typed_slots[dtype] = [list(turn) for turn in self._slots.view(dtype)]
        return [slot[: len(part)] for slot in self._typed_slots[dtype][self._round % 2]]

    def _write(self, part: NDArray[Any]) -> list[NDArray[Any]]:
        """Begin a round and publish ``part``. Returns every rank's slot."""
        slots = self._begin(part)
        slots[self.rank][:] = part
        self._counters[self._written[self.rank]] = self._round
        return slots

    def _mark_round_read(self) -> None:
        self._counters[self._read[self.rank]] = self._round

    def _wait(self, counter: int, least: int, rank: int) -> None:
        """Wait until ``rank``, which owns the counter, has brought it to ``least``."""
        counters = self._counters
        if counters[counter] >= least:
            return
        began = perf_counter()
        while counters[counter] < least:
            waited_s = perf_counter() - began
            if waited_s < self._spin_s:
                os.sched_yield()
            elif waited_s < self._timeout_s:
                sleep(min(SLEEP_SHARE * waited_s, LONGEST_SLEEP_S))
            else:
                raise RankUnreachableError(f"rank {rank} did not answer")


def size_bytes(ranks: int, slot_bytes: int = SLOT_BYTES) -> int:
    """Return the size of the shared memory for that many ranks."""
    return _LINE * (1 + 2 * ranks) + 2 * ranks * slot_bytes


class _RankFacts(NamedTuple):
    """What ranks tell each other before they share memory."""

    pid: int
    file: int
    """Descriptor of the memory, on rank 0."""
    nonce: bytes
    """What that memory begins with, on rank 0."""
    cpus: set[int]
    """CPUs that it may run on."""


def connect(
    rank: int,
    size: int,
    all_gather_object: Callable[[Any], list[Any]],
    timeout_s: float,
    slot_bytes: int = SLOT_BYTES,
) -> SharedMemoryAllreduce | None:
    """Connect ranks that call this at the same time. Return None if they cannot share memory: on
    several machines, or in several containers.

    The memory belongs to no file: nothing is left of it when the ranks have ended, however they
    end.

    :param all_gather_object: exchanges objects between the ranks, and certainly with nobody else.
    """
    can_share = platform.machine() in _ORDERED and hasattr(os, "memfd_create")
    nonce = secrets.token_bytes(_NONCE_BYTES)
    n_bytes = size_bytes(size, slot_bytes)
    file = -1
    if can_share and rank == 0:
        with contextlib.suppress(OSError):  # not allowed here: then no rank can open it
            file = os.memfd_create("ranks")
            os.truncate(file, n_bytes)
            os.pwrite(file, nonce, 0)
    cpus = os.sched_getaffinity(0) if can_share else set()
    facts = _RankFacts(pid=os.getpid(), file=file, nonce=nonce, cpus=cpus)
    everyone: list[_RankFacts] = all_gather_object(facts)
    memory = _open_memory(everyone[0], n_bytes) if can_share else None
    can_all_share = all(all_gather_object(memory is not None))
    if file >= 0:
        os.close(file)
    if memory is None or not can_all_share:
        return None
    all_cpus = set[int]().union(*(other.cpus for other in everyone))
    return SharedMemoryAllreduce(
        rank,
        size,
        memory,
        timeout_s=timeout_s,
        spin_s=SPIN_S if size <= len(all_cpus) else 0.0,
        slot_bytes=slot_bytes,
    )


def _open_memory(first: _RankFacts, n_bytes: int) -> mmap.mmap | None:
    """Open the memory that rank 0 has made. Return None if this is another machine or container,
    where that pid is no process or a strange one.
    """
    try:
        with open(f"/proc/{first.pid}/fd/{first.file}", "r+b", buffering=0) as shared:  # noqa: PTH123
            memory = mmap.mmap(shared.fileno(), n_bytes)
    except (OSError, ValueError):
        return None
    return memory if memory[:_NONCE_BYTES] == first.nonce else None
