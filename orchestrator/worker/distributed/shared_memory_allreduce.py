"""Memory that the ranks of one machine share: each writes into slots of its own, and all read those of all.

Numbers go from core to core without the kernel, some ten times as fast as over a socket of the same machine. An
exchange is a *round*. Each rank counts up, in the shared memory, the last round for which it has written its slot and
the last in which it has read all that it wants. There are two slots a rank, used in turns: one is written again when
everybody has done with the round before last.

Who waits looks again and again, and after a while sleeps a little each time; where there are fewer cores than ranks at
once, for the one that is waited for may need this very core. (Giving it away by ``sched_yield`` alone does not help:
Linux shares cores out between sessions first, of which each rank has its own.)
Counters are written after the numbers that they announce, and processors of the x86 family show others all that one
writes in that order. Others need not: there ranks exchange over the network, as those of several machines do.
"""

from __future__ import annotations

import mmap
import os
import pickle
import platform
import secrets
import select
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.distributed.exchange import all_gather_bytes

SLOT_BYTES = 2**20
"""Larger arrays take several rounds."""
SPIN_S = 0.002
"""Of waiting, before one sleeps, where every rank has a core of its own."""
SLEEP_SHARE, LONGEST_SLEEP_S = 0.05, 0.001
"""Of what one has waited so far; so waiting takes about that share longer than it must."""
_LINE = 128
"""Bytes: what different ranks write lies so far apart that no two share a cache line, nor a pair that is fetched."""
_NONCE_BYTES = 16
_ORDERED = frozenset({"x86_64", "AMD64"})
"""Processors that show stores in the order in which they were made."""


class RankUnreachableError(RuntimeError):
    """Another rank has ended, or takes too long."""


class SharedMemoryAllreduce:
    """Collectives over shared memory; see :class:`orchestrator.worker.distributed.exchange.Exchange`.

    Sums are made by every rank for itself, in order of rank: the same bits everywhere.

    :param memory: of :func:`size_bytes`, shared with the others.
    :param pidfds: of every rank, our own included: ready when it has ended.
    :raises RankUnreachableError: (every collective) another rank has ended, or has not come within ``timeout_s``.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        memory: mmap.mmap,
        pidfds: Sequence[int],
        *,
        timeout_s: float,
        spin_s: float,
        slot_bytes: int,
    ) -> None:
        self._memory, self._rank, self._size, self._pidfds = memory, rank, size, pidfds
        self._timeout_s, self._spin_s, self._slot_bytes = timeout_s, spin_s, slot_bytes
        self._counters = memoryview(memory)[_LINE : _LINE * (1 + 2 * size)].cast("q")
        step = _LINE // 8
        self._written = [2 * step * one for one in range(size)]
        self._read = [2 * step * one + step for one in range(size)]
        self._others = [one for one in range(size) if one != rank]
        self._round = 0
        self._slots: dict[np.dtype[Any], list[list[NDArray[Any]]]] = {}

    def close(self) -> None:
        for end in self._pidfds:
            os.close(end)

    def all_reduce(self, array: NDArray[Any]) -> None:
        for part in self._parts(array):
            slots = self._write(part)
            self._add_up(slots, part)
            self._done()

    def reduce(self, array: NDArray[Any]) -> None:
        for part in self._parts(array):
            slots = self._write(part)
            if self._rank == 0:
                self._add_up(slots, part)
            self._done()

    def broadcast(self, array: NDArray[Any]) -> None:
        for part in self._parts(array):
            if self._rank == 0:
                self._write(part)
            else:
                slots = self._begin(part)
                self._wait(self._written[0], self._round, 0)
                part[:] = slots[0]
            self._done()

    def all_gather_array(self, array: NDArray[Any]) -> NDArray[Any]:
        found = np.empty((self._size, array.size), array.dtype)
        begin = 0
        for part in self._parts(array):
            slots = self._write(part)
            for rank, slot in enumerate(slots):
                self._wait(self._written[rank], self._round, rank)
                found[rank, begin : begin + len(part)] = slot
            self._done()
            begin += len(part)
        return found.reshape(self._size, *array.shape)

    def all_gather_object(self, one: Any) -> list[Any]:
        # Not signed, as it is over the network: who could write to this memory could do so with all of ours.
        return [pickle.loads(content) for content in all_gather_bytes(self.all_gather_array, pickle.dumps(one))]

    def _parts(self, array: NDArray[Any]) -> Iterator[NDArray[Any]]:
        """``array`` as one row, in parts that fit into a slot."""
        flat = array.reshape(-1)
        assert np.shares_memory(flat, array) or not array.size, "what is exchanged lies in one piece"
        step = self._slot_bytes // array.itemsize
        for begin in range(0, len(flat), step):
            yield flat[begin : begin + step]

    def _begin(self, part: NDArray[Any]) -> list[NDArray[Any]]:
        """Begin a round → every rank's slot in it."""
        self._round += 1
        for rank in self._others:
            self._wait(self._read[rank], self._round - 2, rank)
        slots = self._slots.get(part.dtype) or self._typed(part.dtype)
        return [slot[: len(part)] for slot in slots[self._round % 2]]

    def _write(self, part: NDArray[Any]) -> list[NDArray[Any]]:
        """Begin a round, and let the others see ``part``."""
        slots = self._begin(part)
        slots[self._rank][:] = part
        self._counters[self._written[self._rank]] = self._round
        return slots

    def _add_up(self, slots: Sequence[NDArray[Any]], part: NDArray[Any]) -> None:
        for rank in self._others:
            self._wait(self._written[rank], self._round, rank)
        np.add(slots[0], slots[1], out=part)
        for slot in slots[2:]:
            np.add(part, slot, out=part)

    def _done(self) -> None:
        self._counters[self._read[self._rank]] = self._round

    def _wait(self, counter: int, least: int, rank: int) -> None:
        """For ``rank``, to whom the counter belongs, to bring it that far."""
        counters = self._counters
        if counters[counter] >= least:
            return
        began = perf_counter()
        while counters[counter] < least:
            waited_s = perf_counter() - began
            if waited_s < self._spin_s:
                os.sched_yield()
                continue
            pause_s = min(SLEEP_SHARE * waited_s, LONGEST_SLEEP_S)
            ended = select.select([self._pidfds[rank]], (), (), pause_s)[0]
            if counters[counter] >= least:
                return
            if ended:
                raise RankUnreachableError(f"rank {rank} has ended")
            if waited_s > self._timeout_s:
                raise RankUnreachableError(f"rank {rank} did not come")

    def _typed(self, dtype: np.dtype[Any]) -> list[list[NDArray[Any]]]:
        """All slots as arrays: first, which of the two; then whose."""
        begin, count = _LINE * (1 + 2 * self._size), self._slot_bytes // dtype.itemsize
        self._slots[dtype] = [
            [
                np.frombuffer(self._memory, dtype, count, begin + self._slot_bytes * (2 * rank + which))
                for rank in range(self._size)
            ]
            for which in range(2)
        ]
        return self._slots[dtype]


def size_bytes(ranks: int, slot_bytes: int = SLOT_BYTES) -> int:
    """Of the memory that a board of so many ranks needs."""
    return _LINE * (1 + 2 * ranks) + 2 * ranks * slot_bytes


def share(
    rank: int, size: int, all_gather_object: Callable[[Any], list[Any]], timeout_s: float, slot_bytes: int = SLOT_BYTES
) -> SharedMemoryAllreduce | None:
    """A board for all ranks, by whom this is called at the same time; None where they cannot share memory.

    That is where they are on several machines, or in containers or network namespaces that make it look so. The memory
    belongs to no file: nothing is left of it when the ranks are gone, however they end.

    :param all_gather_object: tells each rank what every one of them has given, and certainly nobody else.
    """
    own = _place()
    nonce = secrets.token_bytes(_NONCE_BYTES)
    file = -1
    if own is not None and rank == 0:
        try:
            file = os.memfd_create("ranks")
            os.truncate(file, size_bytes(size, slot_bytes))
            os.pwrite(file, nonce, 0)
        except OSError:  # not allowed here: then nobody shares
            own = None
    told = all_gather_object((own, os.getpid(), os.sched_getaffinity(0) if own is not None else set(), file, nonce))
    board: SharedMemoryAllreduce | None = None
    if own is not None and all(place == own for place, *_ in told):
        opened = _opened([pid for _, pid, *_ in told], file=told[0][3], expected=told[0][4], slot_bytes=slot_bytes)
        if opened is not None:
            cpus = set[int]().union(*(of_rank for _, _, of_rank, *_ in told))
            spin_s = SPIN_S if size <= len(cpus) else 0.0
            board = SharedMemoryAllreduce(
                rank, size, *opened, timeout_s=timeout_s, spin_s=spin_s, slot_bytes=slot_bytes
            )
    everywhere = all(all_gather_object(board is not None))
    if file >= 0:
        os.close(file)
    if board is not None and not everywhere:
        board.close()
    return board if everywhere else None


def _place() -> tuple[str, ...] | None:
    """The same for ranks that can see each other's processes and may share memory; None where nobody may."""
    if platform.machine() not in _ORDERED or not hasattr(os, "memfd_create") or not hasattr(os, "pidfd_open"):
        return None
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return boot, *(str(Path("/proc/self/ns", kind).readlink()) for kind in ("net", "pid"))
    except OSError:
        return None


def _opened(pids: Sequence[int], file: int, expected: bytes, slot_bytes: int) -> tuple[mmap.mmap, list[int]] | None:
    """The first process' ``file``, which begins with ``expected``, and every process' end; None where we may not."""
    ends: list[int] = []
    try:
        descriptor = os.open(f"/proc/{pids[0]}/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
        try:
            memory = mmap.mmap(descriptor, size_bytes(len(pids), slot_bytes))
        finally:
            os.close(descriptor)
        if memory[: len(expected)] != expected:  # a process of the same number elsewhere
            return None
        for pid in pids:
            ends.append(os.pidfd_open(pid))
    except (OSError, ValueError):
        for end in ends:
            os.close(end)
        return None
    return memory, ends
