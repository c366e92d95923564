"""orchestrator.worker.distributed.process_group."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from orchestrator.core.worker_spec import Backend
from orchestrator.worker.distributed import exchange, shared_memory_allreduce
from orchestrator.worker.distributed.exchange import RENDEZVOUS_TIMEOUT_S, Exchange, MessageSigner, NetworkExchange
from orchestrator.worker.distributed.ranks import ALONE, Ranks, RanksError
from orchestrator.worker.runtime.exit_record import RankLostError

COLLECTIVE_TIMEOUT_S = 30.0
"""For the others in a collective: longer than a checkpoint or the slowest reset may take, and no longer."""


COLLECTIVE_TIMEOUT_VARIABLE = "ORCHESTRATOR_RANKS_PATIENCE_S"
"""Environment variable: another patience, the same for all ranks."""


class Group:
    """Ranks in processes of their own, who meet at a store of ``torch.distributed``.

    :param backend: ``gloo`` or ``nccl``; arrays that nccl is to add up travel over ``device``.
    :param store: of ``torch.distributed``, the same for all.
    :param secret: by which they know each other.
    :param sharing: whether they exchange over shared memory where they can, rather than over gloo.
    :raises RankLostError: they did not meet, or have lost each other.
    """

    shares_memory: bool
    """Whether arrays travel over memory that all ranks share, rather than over the network."""

    def __init__(
        self,
        backend: Literal["gloo", "nccl"],
        store: Any,
        rank: int,
        size: int,
        device: torch.device,
        secret: str,
        *,
        sharing: bool = False,
    ) -> None:
        self.rank, self.size, self.seconds = rank, size, 0.0
        self._store = store  # for the others, who may not have read all of it yet
        self._timeout_s = timeout_s()
        self._network: NetworkExchange | None = None
        seal = MessageSigner(secret, rank)
        tell = exchange.store_all_gather(store, rank, size, seal)
        shared = shared_memory_allreduce.share(rank, size, tell, self._timeout_s) if sharing else None
        self.shares_memory = shared is not None and backend == "gloo"
        if shared is not None and backend == "gloo":  # gloo's threads would wake up a hundred times a second
            self._small: Exchange = shared
            self._large: Exchange = shared
            return
        import torch.distributed as dist

        patience = timedelta(seconds=self._timeout_s)
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=RENDEZVOUS_TIMEOUT_S)
        )
        # Objects and flags never go over nccl: they live in main memory.
        self._small = shared or NetworkExchange(dist.new_group(backend="gloo", timeout=patience), size, seal)
        self._device = device if backend == "nccl" else None
        self._network = NetworkExchange(dist.new_group(backend=backend, timeout=patience), size, seal, self._device)
        self._large = self._network
        exchange.lower_gloo_priority()

    def all_reduce(self, array: NDArray[Any]) -> None:
        with self._timed():
            self._large.all_reduce(array)

    def reduce(self, array: NDArray[Any]) -> None:
        with self._timed():
            self._large.reduce(array)

    def broadcast(self, array: NDArray[Any]) -> None:
        with self._timed():
            self._large.broadcast(array)

    def all_gather_array(self, array: NDArray[Any]) -> NDArray[Any]:
        with self._timed():
            return self._small.all_gather_array(array)

    def all_gather_object(self, one: Any) -> list[Any]:
        with self._timed():
            return self._small.all_gather_object(one)

    def any(self, flag: bool) -> bool:
        return bool(self.all_gather_array(np.array([flag])).any())

    def close(self) -> None:
        if self._network is not None:
            import torch.distributed as dist

            dist.destroy_process_group()

    def parallel(self, module: nn.Module, *example: Any) -> nn.Module:
        """``module`` in DistributedDataParallel, over the network: after ``backward`` its gradients are means over all.

        They are united as soon as a bucket of them is complete; a small policy fits into one, so that there is nothing
        to overlap with and waiting can be measured.

        After the first ``backward`` the buckets are laid out anew, and sums may have other last bits from then on. So
        that a training which is resumed has the same ones as a training that never stopped, this is done beforehand.

        :param example: arguments of its ``forward``, which returns tensors, or None in the place of some.
        :raises RankLostError: the ranks have lost each other.
        """
        from torch.nn.parallel import DistributedDataParallel

        assert self._network is not None, "over shared memory gradients travel as they are"
        devices = None if self._device is None else [self._device.index or 0]
        with self._answered():
            wrapped = DistributedDataParallel(
                module, device_ids=devices, process_group=self._network.group, gradient_as_bucket_view=True
            )
            wrapped.register_comm_hook(None, lambda _, bucket: self._mean(bucket.buffer()))
            for _ in range(2):
                outputs = [output.sum() for output in wrapped(*example) if output is not None]
                torch.stack(outputs).sum().backward()  # type: ignore[no-untyped-call]
        wrapped.zero_grad()
        return wrapped

    def _mean(self, gradients: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        gradients.div_(self.size)
        if gradients.device.type == "cpu":
            self.all_reduce(gradients.numpy())
        else:
            assert self._network is not None
            with self._timed():
                self._network.all_reduce_tensor(gradients)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(gradients)
        return done

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """:raises RankLostError: the others do not answer in it."""
        started = perf_counter()
        with self._answered():
            yield
        self.seconds += perf_counter() - started

    @contextmanager
    def _answered(self) -> Iterator[None]:
        """:raises RankLostError: the others do not answer in it."""
        try:
            yield
        except RuntimeError as error:
            raise RankLostError(
                f"rank {self.rank} of {self.size} has lost the others: one of them has ended, or has not answered for "
                f"{self._timeout_s:g} s ({_one_line(error)})"
            ) from error


def join(size: int, backend: Backend, device: torch.device, rendezvous: Path) -> Ranks:
    """Meet the other ranks; alone where there are none.

    ``RANK`` says who we are. With ``MASTER_ADDR`` in the environment (``torchrun``, a cluster's launcher) they meet
    there; else over the file ``rendezvous``, which all see and which belongs to this attempt alone.

    :raises RanksError: the environment speaks of another number of ranks than the job, or has no secret for them.
    :raises RankLostError: they did not meet.
    """
    if size == 1:
        return ALONE
    told = os.environ.get("WORLD_SIZE")
    if told is None or "RANK" not in os.environ or int(told) != size:
        found = "unset" if told is None else told
        raise RanksError(
            f"the job has resources.ranks = {size}, but WORLD_SIZE is {found}: start it with `run`, or with as many "
            f"processes as it has ranks (torchrun --nproc-per-node {size})"
        )
    sharing = backend == "auto"
    if backend == "auto":
        backend = "nccl" if device.type == "cuda" else "gloo"
    try:
        secret = exchange.secret()
        store, rank = exchange.rendezvous_store(size, rendezvous)
        return Group(backend, store, rank, size, device, secret, sharing=sharing)
    except RuntimeError as error:
        raise RankLostError(
            f"the ranks did not meet within {RENDEZVOUS_TIMEOUT_S:.0f} s: {_one_line(error)}"
        ) from error
    except ValueError as error:
        raise RanksError(f"the ranks cannot meet: {_one_line(error)}") from error


def timeout_s() -> float:
    """How long a rank waits for the others in a collective. :raises RanksError: the environment says no number."""
    told = os.environ.get(COLLECTIVE_TIMEOUT_VARIABLE, str(COLLECTIVE_TIMEOUT_S))
    try:
        seconds = float(told)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise RanksError(f"{COLLECTIVE_TIMEOUT_VARIABLE} is {told!r}: expected a number of seconds, such as 60")
    return seconds


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
