"""Ranks that exchange over shared memory: sums, large and small things, and those who end or never
come."""

from __future__ import annotations

import itertools
import mmap
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import ranks_helpers as helpers
import torch

from orchestrator.worker.ranks import shared_memory
from orchestrator.worker.ranks.process_group import ProcessGroup
from orchestrator.worker.ranks.shared_memory import SharedMemoryAllreduce

SLOT_BYTES = 256
PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def small_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "SLOT_BYTES", SLOT_BYTES)


def boards(size: int, *, timeout_s: float = PATIENCE_S) -> list[SharedMemoryAllreduce]:
    """Of ranks that are threads of ours."""
    memory = mmap.mmap(-1, shared_memory.size_bytes(size))
    settings: dict[str, Any] = {"timeout_s": timeout_s, "spin_s": 1e-4}
    return [SharedMemoryAllreduce(rank, size, memory, **settings) for rank in range(size)]


def on_each(size: int, function: Callable[[SharedMemoryAllreduce, int], Any]) -> list[Any]:
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(function, boards(size), range(size)))


# -- what comes out

LENGTHS = (0, 1, 31, 32, 33, 500)
"""Of float64, 32 fill a slot."""


def of_rank(rank: int, length: int, dtype: type) -> np.ndarray:
    return (np.random.default_rng([rank, length]).normal(size=length) * 10.0 ** (8 * rank)).astype(
        dtype
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_sums_are_those_in_order_of_rank_to_the_bit(size: int, dtype: type) -> None:
    def summed(shared: SharedMemoryAllreduce, rank: int) -> list[bytes]:
        found = []
        for length in LENGTHS:
            array = of_rank(rank, length, dtype)
            shared.all_reduce(array)
            found.append(array.tobytes())
            shared.broadcast(array)
            assert array.tobytes() == found[-1]
        return found

    expected = []
    for length in LENGTHS:
        total = of_rank(0, length, dtype)
        for rank in range(1, size):
            total = total + of_rank(rank, length, dtype)
        expected.append(total.tobytes())
    assert on_each(size, summed) == [expected] * size


def test_arrays_of_any_size_are_gathered_in_order_of_rank() -> None:
    def gathered(shared: SharedMemoryAllreduce, rank: int) -> Any:
        return shared.all_gather_array(np.full((3, 100), rank, np.int32))

    for of_ranks in on_each(3, gathered):
        assert of_ranks.shape == (3, 3, 100)
        assert [np.unique(array).tolist() for array in of_ranks] == [[0], [1], [2]]


def test_nobody_overwrites_what_a_slow_rank_has_not_read() -> None:
    rounds = 300

    def run(shared: SharedMemoryAllreduce, rank: int) -> list[float]:
        dice, found = random.Random(rank), []
        for number in range(rounds):
            if dice.random() < 0.1:
                time.sleep(dice.random() * 0.005)
            array = np.full(20, float(number if rank == 0 else 0))
            way = number % 3
            if way == 0:
                shared.all_reduce(array)
            elif way == 1:
                shared.broadcast(array)
            else:
                array[:] = shared.all_gather_array(array)[0]
            found += np.unique(array).tolist()
        return found

    assert on_each(3, run) == [[float(number) for number in range(rounds)]] * 3


# -- who ends, and who does not come


def test_who_waits_in_vain_gives_up() -> None:
    first, _ = boards(2, timeout_s=0.05)
    with pytest.raises(RuntimeError, match="rank 1 did not answer"):
        first.all_reduce(np.zeros(3))


# -- who can share


def shared(size: int) -> list[SharedMemoryAllreduce | None]:
    def share(rank: Any) -> SharedMemoryAllreduce | None:
        return shared_memory.connect(rank.rank, size, rank.all_gather_object, PATIENCE_S)

    return helpers.in_threads(size, share)


def test_ranks_of_one_machine_share_and_poll_where_each_has_a_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for cpus, spin_s in (({0, 1, 2}, shared_memory.SPIN_S), ({0, 1}, 0.0)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cpus=cpus: cpus)
        assert [rank and rank._spin_s for rank in shared(3)] == [spin_s] * 3


def test_ranks_do_not_share_where_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> int:
        raise PermissionError(name)

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert shared(2) == [None] * 2


def test_memory_of_a_gpu_that_is_used_up_is_no_lost_rank() -> None:
    group = ProcessGroup.__new__(ProcessGroup)
    with pytest.raises(torch.OutOfMemoryError), group._collective():
        raise torch.OutOfMemoryError


def test_ranks_of_different_machines_do_not_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the pid of the first rank is no process, or a stranger with another file."""
    opened, files = shared_memory._open_memory, itertools.count()

    def open_elsewhere(path: str, nonce: bytes, n_bytes: int) -> Any:
        elsewhere = next(files) == 1
        return opened(path, bytes(16) if elsewhere else nonce, n_bytes)

    monkeypatch.setattr(shared_memory, "_open_memory", open_elsewhere)
    assert shared(3) == [None] * 3
