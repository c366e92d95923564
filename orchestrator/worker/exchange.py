"""How ranks meet, and exchange what they have over the network; those of one machine have :mod:`.board` besides."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

MEETING_S = 300.0
"""For the others to start."""
GLOO_LOOP = "gloo_tcp_loop"
"""Name of the threads by which gloo reads and writes."""


class Exchange(Protocol):
    """Collectives, which all ranks call in the same order. Arrays lie in one piece and are changed in place.

    :raises RuntimeError: the others do not answer.
    """

    def all_reduce(self, array: NDArray[Any]) -> None:
        """The sum over all ranks."""

    def reduce(self, array: NDArray[Any]) -> None:
        """The sum over all ranks, on rank 0; what the others are left with means nothing."""

    def broadcast(self, array: NDArray[Any]) -> None:
        """Rank 0's values, on every rank."""

    def side_by_side(self, array: NDArray[Any]) -> NDArray[Any]:
        """``(ranks, …)``: every rank's array, which have the same shape; a new one."""

    def all_gather(self, one: Any) -> list[Any]:
        """What each rank gives, in order of rank. Pickled: for small things."""


class Network:
    """Over a process group of ``torch.distributed``.

    :param device: over which arrays travel; None: as they lie in main memory.
    """

    def __init__(self, group: Any, size: int, device: torch.device | None = None) -> None:
        import torch.distributed as dist

        self._dist, self.group, self._size, self._device = dist, group, size, device

    def all_reduce(self, array: NDArray[Any]) -> None:
        self._there_and_back(array, self.all_reduce_tensor)

    def all_reduce_tensor(self, tensor: torch.Tensor) -> None:
        self._dist.all_reduce(tensor, group=self.group)

    def reduce(self, array: NDArray[Any]) -> None:
        self._there_and_back(array, lambda tensor: self._dist.reduce(tensor, 0, group=self.group))

    def broadcast(self, array: NDArray[Any]) -> None:
        self._there_and_back(array, lambda tensor: self._dist.broadcast(tensor, 0, group=self.group))

    def side_by_side(self, array: NDArray[Any]) -> NDArray[Any]:
        tensor = torch.from_numpy(array)
        tensor = tensor if self._device is None else tensor.to(self._device)
        found = [torch.empty_like(tensor) for _ in range(self._size)]
        self._dist.all_gather(found, tensor, group=self.group)
        return np.stack([one.cpu().numpy() for one in found])

    def all_gather(self, one: Any) -> list[Any]:
        everything: list[Any] = [None] * self._size
        self._dist.all_gather_object(everything, one, group=self.group)
        return everything

    def _there_and_back(self, array: NDArray[Any], collective: Callable[[torch.Tensor], object]) -> None:
        tensor = torch.from_numpy(array)
        if self._device is None:
            collective(tensor)
            return
        there = tensor.to(self._device)
        collective(there)
        tensor.copy_(there)


def let_gloo_give_way() -> None:
    """Network threads of gloo shall not take the core from those that wait for what they have brought.

    While an exchange is under way they compute nearly all the time, in the kernel. On the one core of a rank the thread
    whose turn it is then waits for the end of a time slice, some 4 ms. As batch work they are not preferred when they
    wake up: an exchange takes a tenth of the time on average (``python -m benchmarks.allreduce``).
    """
    if not hasattr(os, "SCHED_BATCH"):
        return
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread of something else, over by now
            if (task / "comm").read_text().strip() == GLOO_LOOP:
                os.sched_setscheduler(int(task.name), os.SCHED_BATCH, os.sched_param(0))


def meeting_place(size: int, rendezvous: Path) -> tuple[Any, int]:
    """Where they meet, and who we are. :raises ValueError: the environment is incomplete."""
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous as meet

    limit = timedelta(seconds=MEETING_S)
    store: Any
    if "MASTER_ADDR" in os.environ:
        store, rank, _ = next(meet("env://", timeout=limit))
    else:
        store = dist.FileStore(str(rendezvous), size)  # type: ignore[attr-defined]
        rank = int(os.environ["RANK"])
    store.set_timeout(limit)
    return store, rank


def gatherer(store: Any, rank: int, size: int) -> Callable[[Any], list[Any]]:
    """A function that tells each rank what every one of them has given, through ``store``."""
    calls = itertools.count()

    def all_gather(one: Any) -> list[Any]:
        call = next(calls)
        store.set(f"{call}/{rank}", pickle.dumps(one))
        return [pickle.loads(store.get(f"{call}/{other}")) for other in range(size)]

    return all_gather
