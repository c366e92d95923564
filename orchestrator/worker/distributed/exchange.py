"""How ranks meet, and exchange what they have over the network; those of one machine have :mod:`.board` besides.

Whoever reaches the ports of torch's store and of gloo can write there, and what ranks tell each other as pickles would
run code when it is read. So each of these messages is signed, and none is read before its signature has been found to
be right (:class:`MessageSigner`). What is not signed are arrays: numbers, whoever they come from.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import itertools
import os
import pickle
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from orchestrator.core.environment import RANKS_SECRET_VARIABLE
from orchestrator.worker.runtime.exit_record import RankLostError

RENDEZVOUS_TIMEOUT_S = 300.0
"""For the others to start."""
SHORTEST_SECRET = 32
"""Characters."""
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

    def all_gather_array(self, array: NDArray[Any]) -> NDArray[Any]:
        """``(ranks, …)``: every rank's array, which have the same shape; a new one."""

    def all_gather_object(self, one: Any) -> list[Any]:
        """What each rank gives, in order of rank. Pickled: for small things."""


class MessageSigner:
    """Objects as signed bytes, and back: HMAC (RFC 2104) with SHA-256.

    With the content a signature covers who speaks and in which exchange it is: what was overheard cannot be said again.
    Every rank makes one, and uses it for the same exchanges in the same order.

    :param secret: of the attempt.
    """

    BYTES = 32
    """Of a signature."""

    def __init__(self, secret: str, rank: int) -> None:
        self._secret, self._rank = secret.encode(), rank
        self._calls = itertools.count()

    def all_gather_object(self, one: Any, exchanged: Callable[[bytes], Sequence[bytes]]) -> list[Any]:
        """What each rank gives, in order of rank.

        :param exchanged: tells the others a message → the messages of all, ours included.
        :raises RankLostError: one was not written by its rank; it has not been read.
        """
        call = next(self._calls)
        content = pickle.dumps(one)
        messages = exchanged(self._signature(call, self._rank, content) + content)
        contents = [self._verified(call, rank, message) for rank, message in enumerate(messages)]
        return [pickle.loads(content) for content in contents]

    def _verified(self, call: int, rank: int, message: bytes) -> bytes:
        content = message[self.BYTES :]
        if not hmac.compare_digest(message[: self.BYTES], self._signature(call, rank, content)):
            raise RankLostError(
                f"what rank {self._rank} got as a message of rank {rank} is not signed with the secret of this attempt:"
                " somebody else writes to the ports where the ranks meet, or they were started with different"
                f" {RANKS_SECRET_VARIABLE}. It was not read"
            )
        return content

    def _signature(self, call: int, rank: int, content: bytes) -> bytes:
        return hmac.digest(self._secret, f"{call}/{rank}/".encode() + content, hashlib.sha256)


def all_gather_bytes(all_gather_array: Callable[[NDArray[Any]], NDArray[Any]], content: bytes) -> list[bytes]:
    """What each rank gives, of whatever length. :param all_gather_array: as of :class:`Exchange`."""
    lengths = all_gather_array(np.array([len(content)]))[:, 0]
    padded = np.zeros(lengths.max(), np.uint8)
    padded[: len(content)] = np.frombuffer(content, np.uint8)
    return [row[:length].tobytes() for row, length in zip(all_gather_array(padded), lengths, strict=True)]


class NetworkExchange:
    """Over a process group of ``torch.distributed``.

    :param device: over which arrays travel; None: as they lie in main memory.
    """

    def __init__(self, group: Any, size: int, seal: MessageSigner, device: torch.device | None = None) -> None:
        import torch.distributed as dist

        self._dist, self.group, self._size, self._seal, self._device = dist, group, size, seal, device

    def all_reduce(self, array: NDArray[Any]) -> None:
        self._there_and_back(array, self.all_reduce_tensor)

    def all_reduce_tensor(self, tensor: torch.Tensor) -> None:
        self._dist.all_reduce(tensor, group=self.group)

    def reduce(self, array: NDArray[Any]) -> None:
        self._there_and_back(array, lambda tensor: self._dist.reduce(tensor, 0, group=self.group))

    def broadcast(self, array: NDArray[Any]) -> None:
        self._there_and_back(array, lambda tensor: self._dist.broadcast(tensor, 0, group=self.group))

    def all_gather_array(self, array: NDArray[Any]) -> NDArray[Any]:
        tensor = torch.from_numpy(array)
        tensor = tensor if self._device is None else tensor.to(self._device)
        found = [torch.empty_like(tensor) for _ in range(self._size)]
        self._dist.all_gather_object(found, tensor, group=self.group)
        return np.stack([one.cpu().numpy() for one in found])

    def all_gather_object(self, one: Any) -> list[Any]:
        return self._seal.all_gather_object(one, lambda message: all_gather_bytes(self.all_gather_array, message))

    def _there_and_back(self, array: NDArray[Any], collective: Callable[[torch.Tensor], object]) -> None:
        tensor = torch.from_numpy(array)
        if self._device is None:
            collective(tensor)
            return
        there = tensor.to(self._device)
        collective(there)
        tensor.copy_(there)


def lower_gloo_priority() -> None:
    """NetworkExchange threads of gloo shall not take the core from those that wait for what they have brought.

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


def secret() -> str:
    """By which the ranks know each other. :raises ValueError: there is none, or one that could be guessed."""
    told = os.environ.get(RANKS_SECRET_VARIABLE, "")
    if len(told) < SHORTEST_SECRET:
        found = f"has {len(told)} characters" if told else "is unset"
        raise ValueError(
            f"{RANKS_SECRET_VARIABLE} {found}; without a secret of {SHORTEST_SECRET} characters or more, who reaches"
            " their ports could run code in them. Start the job with `run`, or set the variable to the same for all"
            " ranks, such as what `openssl rand -hex 32` prints"
        )
    return told


def rendezvous_store(size: int, rendezvous: Path) -> tuple[Any, int]:
    """Where they meet, and who we are. :raises ValueError: the environment is incomplete."""
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous as meet

    limit = timedelta(seconds=RENDEZVOUS_TIMEOUT_S)
    store: Any
    if "MASTER_ADDR" in os.environ:
        store, rank, _ = next(meet("env://", timeout=limit))
    else:
        store = dist.FileStore(str(rendezvous), size)  # type: ignore[attr-defined]
        rank = int(os.environ["RANK"])
    store.set_timeout(limit)
    return store, rank


def store_all_gather(store: Any, rank: int, size: int, seal: MessageSigner) -> Callable[[Any], list[Any]]:
    """A function that tells each rank what every one of them has given, through ``store``."""
    calls = itertools.count()

    def exchanged(message: bytes) -> list[bytes]:
        call = next(calls)
        store.set(f"{call}/{rank}", message)
        return [store.get(f"{call}/{other}") for other in range(size)]

    return lambda one: seal.all_gather_object(one, exchanged)
