"""Ranks that are processes of their own: how they join, and their collectives.

A rank that waits for the others longer than the job file's ``distributed.timeout`` raises and ends;
the supervisor ends the rest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from numpy.typing import NDArray

from orchestrator.core.processes.environment_variables import RANK_VARIABLE, WORLD_SIZE_VARIABLE
from orchestrator.core.worker_spec import COLLECTIVE_TIMEOUT_S, Backend
from orchestrator.worker.ranks import exchange, shared_memory
from orchestrator.worker.ranks.exchange import (
    RENDEZVOUS_TIMEOUT_S,
    MessageSigner,
    NetworkExchange,
)
from orchestrator.worker.ranks.ranks import ALONE, Ranks, RanksError, Values
from orchestrator.worker.runtime.failures import RankLostError


class ProcessGroup(Ranks):
    """Ranks in processes of their own, which meet at a store of ``torch.distributed``.

    :param backend: ``"auto"`` is shared memory if all ranks can and ``device`` is a CPU, else gloo,
        and nccl on a GPU.
    :param store: of ``torch.distributed``, the same for all ranks.
    :param secret: signs the objects that ranks send each other.
    :param timeout_s: how long a rank waits for the others in a collective.
    :raises RankLostError: the ranks did not meet, or have lost each other.
    """

    def __init__(
        self,
        backend: Backend,
        store: Any,
        rank: int,
        size: int,
        device: torch.device,
        secret: str,
        timeout_s: float = COLLECTIVE_TIMEOUT_S,
    ) -> None:
        self.rank = rank
        self.size = size
        self.seconds = 0.0
        self._store = store  # kept for the others, who may not have read all of it yet
        self._timeout_s = timeout_s
        self._signer = MessageSigner(secret, rank)
        self._arrays: Ranks
        """For gradients and parameters."""
        self._messages: Ranks
        """For objects and flags, which are in main memory: never over nccl."""
        if backend == "auto" and device.type == "cpu":
            gather = exchange.store_all_gather(store, rank, size, self._signer)
            shared = shared_memory.connect(rank, size, gather, timeout_s)
            if shared is not None:
                # Without gloo, whose threads would wake up a hundred times a second.
                self._arrays = self._messages = shared
                return
        if backend == "auto":
            backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(
            backend,
            store=store,
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=RENDEZVOUS_TIMEOUT_S),
        )
        timeout = timedelta(seconds=timeout_s)
        gloo = dist.new_group(backend="gloo", timeout=timeout)
        self._arrays = self._messages = NetworkExchange(gloo, size, torch.device("cpu"))
        if backend == "nccl":
            nccl = dist.new_group(backend="nccl", timeout=timeout)
            self._arrays = NetworkExchange(nccl, size, device)
        exchange.lower_gloo_priority()

    def all_reduce(self, array: Values) -> None:
        with self._collective():
            self._arrays.all_reduce(array)

    def broadcast(self, array: Values) -> None:
        with self._collective():
            self._arrays.broadcast(array)

    def all_gather_array(self, array: NDArray[Any]) -> NDArray[Any]:
        with self._collective():
            return self._messages.all_gather_array(array)

    def all_gather_object(self, value: Any) -> list[Any]:
        with self._collective():
            return self._signer.all_gather_object(
                value,
                lambda message: exchange.all_gather_bytes(self._messages, message),
            )

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()

    @contextmanager
    def _collective(self) -> Iterator[None]:
        """Count the time in the block. :raises RankLostError: the others do not answer."""
        started = perf_counter()
        try:
            yield
        except torch.OutOfMemoryError:  # a RuntimeError, of this rank alone
            raise
        except RuntimeError as error:
            raise RankLostError(
                f"rank {self.rank} of {self.size} has lost the others: one of them has ended, or has not answered for "
                f"{self._timeout_s:g} s ({_one_line(error)})"
            ) from error
        self.seconds += perf_counter() - started


def join(
    size: int,
    backend: Backend,
    device: torch.device,
    rendezvous: Path,
    timeout_s: float = COLLECTIVE_TIMEOUT_S,
) -> Ranks:
    """Join the other ranks. Return at once if there are none.

    ``RANK`` is this rank's number. With ``MASTER_ADDR`` in the environment (``torchrun``, a
    cluster's launcher) they meet there, else through the file ``rendezvous``, which all can access
    and which belongs to this attempt alone.

    :raises RanksError: the environment names another number of ranks than the job, or has no secret
        for them.
    :raises RankLostError: they could not meet.
    """
    if size == 1:
        return ALONE
    world_size = os.environ.get(WORLD_SIZE_VARIABLE)
    if RANK_VARIABLE not in os.environ or world_size != str(size):
        raise RanksError(
            f"the job has resources.ranks = {size}, but {WORLD_SIZE_VARIABLE} is {world_size or 'unset'}: start it "
            f"with `run`, or with as many processes as it has ranks (torchrun --nproc-per-node {size})"
        )
    rank = int(os.environ[RANK_VARIABLE])
    try:
        secret = exchange.rank_secret()
        store = exchange.rendezvous_store(size, rendezvous)
        return ProcessGroup(backend, store, rank, size, device, secret, timeout_s)
    except RuntimeError as error:
        raise RankLostError(f"the ranks could not meet: {_one_line(error)}") from error
    except ValueError as error:
        raise RanksError(f"the ranks cannot meet: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
