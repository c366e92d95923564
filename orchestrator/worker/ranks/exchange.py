"""How ranks meet, and their collectives over the network (:mod:`.shared_memory` is for one
machine).

Anyone who can reach the ports of torch's store and of gloo can write to them, and a pickle runs
code when it is loaded. So every pickle is signed, and none is loaded before its signature has been
verified (:class:`MessageSigner`). Arrays are not signed: they are only numbers.
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
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.rendezvous import rendezvous as meet

from orchestrator.core.processes.environment_variables import RANKS_SECRET_VARIABLE
from orchestrator.worker.ranks.ranks import Ranks, Values
from orchestrator.worker.runtime.failures import RankLostError

RENDEZVOUS_TIMEOUT_S = 300.0
"""Time for the other ranks to start."""
SHORTEST_SECRET = 32
"""Length of the shortest secret that is accepted, in characters."""
GLOO_LOOP = "gloo_tcp_loop"
"""Name of gloo's network threads."""


class MessageSigner:
    """Turns objects into signed bytes and back: HMAC (RFC 2104) with SHA-256.

    A signature covers the content, the sender and the number of the exchange, so that no message
    can be replayed. Every rank has one signer, used for the same exchanges in the same order.

    :param secret: the same for all ranks of the attempt.
    """

    BYTES = 32
    """Length of a signature."""

    def __init__(self, secret: str, rank: int) -> None:
        self._secret = secret.encode()
        self._rank = rank
        self._calls = itertools.count()

    def all_gather_object(
        self, value: Any, all_gather: Callable[[bytes], Sequence[bytes]]
    ) -> list[Any]:
        """Return every rank's ``value`` in order of rank.

        :param all_gather: sends a message to the other ranks and returns the messages of all, its
            own included.
        :raises RankLostError: a signature is wrong; that message was not loaded.
        """
        call = next(self._calls)
        content = pickle.dumps(value)
        messages = all_gather(self._signature(call, self._rank, content) + content)
        for rank, message in enumerate(messages):
            expected = self._signature(call, rank, message[self.BYTES :])
            if not hmac.compare_digest(message[: self.BYTES], expected):
                raise RankLostError(
                    f"a message of rank {rank} is not signed with the secret of this attempt"
                    f" ({RANKS_SECRET_VARIABLE}): another program writes to the ranks' ports, or they have different"
                    " secrets"
                )
        return [pickle.loads(message[self.BYTES :]) for message in messages]

    def _signature(self, call: int, rank: int, content: bytes) -> bytes:
        return hmac.digest(self._secret, f"{call}/{rank}/".encode() + content, hashlib.sha256)


def all_gather_bytes(ranks: Ranks, content: bytes) -> list[bytes]:
    """Return every rank's ``content``, of any length."""
    lengths = ranks.all_gather_array(np.array([len(content)]))[:, 0]
    padded = np.zeros(lengths.max(), np.uint8)
    padded[: len(content)] = np.frombuffer(content, np.uint8)
    rows = ranks.all_gather_array(padded)
    return [row[:length].tobytes() for row, length in zip(rows, lengths, strict=True)]


class NetworkExchange(Ranks):
    """Collectives of arrays over a process group of ``torch.distributed``.

    :param device: arrays are copied to it for the exchange.
    """

    def __init__(self, group: Any, size: int, device: torch.device) -> None:
        self._group = group
        self.size = size
        self._device = device

    def all_reduce(self, array: Values) -> None:
        self._on_device(array, lambda tensor: dist.all_reduce(tensor, group=self._group))

    def broadcast(self, array: Values) -> None:
        self._on_device(array, lambda tensor: dist.broadcast(tensor, 0, group=self._group))

    def all_gather_array(self, array: NDArray[Any]) -> NDArray[Any]:
        tensor = torch.from_numpy(array).to(self._device)
        tensors = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(tensors, tensor, group=self._group)
        return np.stack([gathered.cpu().numpy() for gathered in tensors])

    def _on_device(self, array: Values, collective: Callable[[torch.Tensor], object]) -> None:
        tensor = torch.as_tensor(array)
        on_device = tensor.to(self._device)
        collective(on_device)
        if on_device is not tensor:
            tensor.copy_(on_device)


def lower_gloo_priority() -> None:
    """Keep gloo's network threads from preempting the thread that waits for their data.

    During an exchange they compute nearly all the time, in the kernel. On the one core of a rank
    the waiting thread then waits for the end of a time slice, some 4 ms. Under the batch policy
    they are not preferred when they wake up: an exchange takes a tenth of the time on average.
    """
    for task in Path("/proc/self/task").iterdir():
        # A thread may end between listing and reading.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if (task / "comm").read_text().strip() == GLOO_LOOP:
                os.sched_setscheduler(int(task.name), os.SCHED_BATCH, os.sched_param(0))


def rank_secret() -> str:
    """Return the secret with which ranks sign messages. :raises ValueError: there is none, or it is
    short enough to be guessed.
    """
    secret = os.environ.get(RANKS_SECRET_VARIABLE, "")
    if len(secret) < SHORTEST_SECRET:
        raise ValueError(
            f"{RANKS_SECRET_VARIABLE} has {len(secret)} characters, expected {SHORTEST_SECRET} or more: start the job"
            " with `run`, or set the variable for all ranks, such as to the output of `openssl rand -hex 32`"
        )
    return secret


def rendezvous_store(size: int, rendezvous: Path) -> Any:
    """Return the store where the ranks meet. :raises ValueError: the environment is incomplete."""
    limit = timedelta(seconds=RENDEZVOUS_TIMEOUT_S)
    store: Any
    if "MASTER_ADDR" in os.environ:
        store, *_ = next(meet("env://", timeout=limit))
    else:
        store = dist.FileStore(str(rendezvous), size)  # type: ignore[attr-defined]
    store.set_timeout(limit)
    return store


def store_all_gather(
    store: Any, rank: int, size: int, signer: MessageSigner
) -> Callable[[Any], list[Any]]:
    """``all_gather_object`` through ``store``, for use before there is a process group."""
    calls = itertools.count()

    def all_gather(message: bytes) -> list[bytes]:
        call = next(calls)
        store.set(f"{call}/{rank}", message)
        return [store.get(f"{call}/{other}") for other in range(size)]

    return lambda value: signer.all_gather_object(value, all_gather)
