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
import platform
import secrets
from collections.abc import Callable, Iterator
from time import perf_counter, sleep
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
_ORDERED = "x86_64"
"""The processors that make stores visible in program order."""


class SharedMemoryAllreduce(Ranks):
    """Collectives over shared memory, of arrays only.

    Every rank adds up for itself, in order of rank: the same bits everywhere.

    :param memory: of :func:`size_bytes` bytes, shared with the other ranks.
    :raises RuntimeError: (every collective) another rank has not answered within
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
    ) -> None:
        self.rank = rank
        self.size = size
        self._timeout_s = timeout_s
        self._spin_s = spin_s
        begin = _LINE * (1 + 2 * size)
        counters = memoryview(memory)[_LINE:begin].cast("q")
        step = _LINE // 8
        self._written = counters[:: 2 * step]
        """For each rank, the last round whose slot it has written."""
        self._read = counters[step :: 2 * step]
        """For each rank, the last round whose slots it has read."""
        self._round = 0
        slots = np.frombuffer(memory, np.uint8, 2 * size * SLOT_BYTES, begin)
        self._slots = slots.reshape(2, size, SLOT_BYTES)
        """By turn, then by rank."""
        self._typed_slots: dict[np.dtype[Any], list[list[NDArray[Any]]]] = {}

    def all_reduce(self, array: NDArray[Any]) -> None:
        for part, slots in self._rounds(array, range(self.size)):
            np.add(slots[0], slots[1], out=part)
            for slot in slots[2:]:
                np.add(part, slot, out=part)

    def broadcast(self, array: NDArray[Any]) -> None:
        for part, slots in self._rounds(array, range(1)):
            part[:] = slots[0]

    def all_gather_array(self, array: NDArray[Any]) -> NDArray[Any]:
        parts = [np.stack(slots) for _, slots in self._rounds(array, range(self.size))]
        return np.concatenate(parts, axis=1).reshape(self.size, *array.shape)

    def _rounds(
        self, array: NDArray[Any], writers: range
    ) -> Iterator[tuple[NDArray[Any], list[NDArray[Any]]]]:
        """Exchange ``array`` in as many rounds as it needs. Yield in each one a part of it, and all
        slots, which hold the ``writers``' parts until the next round.
        """
        flat = array.reshape(-1)
        dtype = array.dtype
        step = SLOT_BYTES // array.itemsize
        if dtype not in self._typed_slots:
            self._typed_slots[dtype] = [list(turn) for turn in self._slots.view(dtype)]
        for begin in range(0, len(flat), step):
            part = flat[begin : begin + step]
            self._round += 1
            for rank in range(self.size):
                self._wait(self._read, rank, self._round - 2)
            slots = [slot[: len(part)] for slot in self._typed_slots[dtype][self._round % 2]]
            if self.rank in writers:
                slots[self.rank][:] = part
                self._written[self.rank] = self._round
            for rank in writers:
                self._wait(self._written, rank, self._round)
            yield part, slots
            self._read[self.rank] = self._round

    def _wait(self, counters: memoryview, rank: int, least: int) -> None:
        """Wait until ``rank`` has brought its counter to ``least``."""
        if counters[rank] >= least:
            return
        began = perf_counter()
        while counters[rank] < least:
            waited_s = perf_counter() - began
            if waited_s < self._spin_s:
                os.sched_yield()
            elif waited_s < self._timeout_s:
                sleep(min(SLEEP_SHARE * waited_s, LONGEST_SLEEP_S))
            else:
                raise RuntimeError(f"rank {rank} did not answer")


def size_bytes(ranks: int) -> int:
    """Return the size of the shared memory for that many ranks."""
    return _LINE * (1 + 2 * ranks) + 2 * ranks * SLOT_BYTES


def connect(
    rank: int, size: int, all_gather_object: Callable[[Any], list[Any]], timeout_s: float
) -> SharedMemoryAllreduce | None:
    """Connect ranks that call this at the same time. Return None if they cannot share memory: on
    several machines, in several containers, or on processors that reorder stores.

    The memory belongs to no file: nothing is left of it when the ranks have ended, however they
    end.

    :param all_gather_object: exchanges objects between the ranks, and certainly with nobody else.
    """
    file = -1
    place: tuple[str, bytes] = ("", b"")  # where rank 0 has the memory, and what it begins with
    if rank == 0 and platform.machine() == _ORDERED:
        with contextlib.suppress(OSError):  # not allowed here: then no rank can open it
            file = os.memfd_create("ranks")
            place = f"/proc/{os.getpid()}/fd/{file}", secrets.token_bytes(_NONCE_BYTES)
            os.truncate(file, size_bytes(size))
            os.pwrite(file, place[1], 0)
    places, cpus = zip(*all_gather_object((place, os.sched_getaffinity(0))), strict=True)
    path, nonce = places[0]
    memory = _open_memory(path, nonce, size_bytes(size))
    can_all_share = all(all_gather_object(memory is not None))
    if file >= 0:
        os.close(file)
    if memory is None or not can_all_share:
        return None
    spin_s = SPIN_S if size <= len(set[int]().union(*cpus)) else 0.0
    return SharedMemoryAllreduce(rank, size, memory, timeout_s=timeout_s, spin_s=spin_s)


def _open_memory(path: str, nonce: bytes, n_bytes: int) -> mmap.mmap | None:
    """Open the memory that rank 0 has made. Return None if this is another machine or container,
    where its pid is no process or a strange one.
    """
    try:
        with open(path, "r+b", buffering=0) as shared:  # noqa: PTH123
            memory = mmap.mmap(shared.fileno(), n_bytes)
    except (OSError, ValueError):
        return None
    return memory if memory[:_NONCE_BYTES] == nonce else None
