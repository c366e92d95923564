"""Ranks that are processes of their own: how they join, and their collectives.

A rank that waits longer than :func:`timeout_s` for the others raises and ends; the supervisor ends
the rest.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import torch
from numpy.typing import NDArray
from torch import nn

from orchestrator.core.processes.environment_variables import RANK_VARIABLE, WORLD_SIZE_VARIABLE
from orchestrator.core.worker_spec import COLLECTIVE_TIMEOUT_S, Backend
from orchestrator.worker.distributed import exchange, shared_memory_allreduce
from orchestrator.worker.distributed.exchange import (
    RENDEZVOUS_TIMEOUT_S,
    Exchange,
    MessageSigner,
    NetworkExchange,
)
from orchestrator.worker.distributed.ranks import ALONE, Ranks, RanksError
from orchestrator.worker.runtime.failures import RankLostError

COLLECTIVE_TIMEOUT_VARIABLE = "ORCHESTRATOR_RANKS_PATIENCE_S"
"""Environment variable that overrides the job file's ``distributed.timeout``; the same for all
ranks."""


class ProcessGroup(Ranks):
    """Ranks in processes of their own, which meet at a store of ``torch.distributed``.

    :param backend: ``gloo`` or ``nccl``; arrays that nccl adds up travel over ``device``.
    :param store: of ``torch.distributed``, the same for all ranks.
    :param secret: signs the objects that ranks send each other.
    :param sharing: whether to use shared memory in place of gloo where all ranks can.
    :param configured_s: how long a rank waits for the others, unless the environment says
        otherwise.
    :raises RankLostError: the ranks did not meet, or have lost each other.
    """

    shares_memory: bool
    """Whether arrays travel through memory that all ranks share, rather than over the network."""

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
        configured_s: float = COLLECTIVE_TIMEOUT_S,
    ) -> None:
        self.rank = rank
        self.size = size
        self.seconds = 0.0
        self._store = store  # kept for the others, who may not have read all of it yet
        self._timeout_s = timeout_s(configured_s)
        self._network: NetworkExchange | None = None
        signer = MessageSigner(secret, rank)
        gather = exchange.store_all_gather(store, rank, size, signer)
        shared = (
            shared_memory_allreduce.connect(rank, size, gather, self._timeout_s)
            if sharing
            else None
        )
        self.shares_memory = shared is not None and backend == "gloo"
        self._small: Exchange
        """For objects and flags, which are in main memory."""
        self._large: Exchange
        """For gradients and parameters."""
        if shared is not None and backend == "gloo":
            # Without gloo, whose threads would wake up a hundred times a second.
            self._small = shared
            self._large = shared
            return
        import torch.distributed as dist

        timeout = timedelta(seconds=self._timeout_s)
        start_timeout = timedelta(seconds=RENDEZVOUS_TIMEOUT_S)
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=size, timeout=start_timeout
        )
        # Never over nccl.
        self._small = shared or NetworkExchange(
            dist.new_group(backend="gloo", timeout=timeout), size, signer
        )
        self._device = device if backend == "nccl" else None
        group = dist.new_group(backend=backend, timeout=timeout)
        self._large = self._network = NetworkExchange(group, size, signer, self._device)
        exchange.lower_gloo_priority()

    def all_reduce(self, array: NDArray[Any]) -> None:
        with self._measure_time():
            self._large.all_reduce(array)

    def reduce(self, array: NDArray[Any]) -> None:
        with self._measure_time():
            self._large.reduce(array)

    def broadcast(self, array: NDArray[Any]) -> None:
        with self._measure_time():
            self._large.broadcast(array)

    def all_gather_array(self, array: NDArray[Any]) -> NDArray[Any]:
        with self._measure_time():
            return self._small.all_gather_array(array)

    def all_gather_object(self, value: Any) -> list[Any]:
        with self._measure_time():
            return self._small.all_gather_object(value)

    def close(self) -> None:
        if self._network is not None:
            import torch.distributed as dist

            dist.destroy_process_group()

    def parallel(self, module: nn.Module, *example: Any) -> nn.Module:
        """``module`` in DistributedDataParallel over the network: after ``backward`` its gradients
        are means over all.

        A bucket of gradients is averaged as soon as it is complete. A small policy fits into one
        bucket: nothing overlaps, and waiting can be measured.

        After the first ``backward`` the buckets are laid out anew, and sums may have other last
        bits from then on. To give a resumed training the same bits as one that was never stopped,
        that is done here.

        :param example: arguments of its ``forward``, which returns tensors, or None in place of
            some.
        :raises RankLostError: the ranks have lost each other.
        """
        from torch.nn.parallel import DistributedDataParallel

        assert self._network is not None, "over shared memory gradients are exchanged as they are"
        devices = None if self._device is None else [self._device.index or 0]
        with self._translate_errors():
            wrapped = DistributedDataParallel(
                module,
                device_ids=devices,
                process_group=self._network.group,
                gradient_as_bucket_view=True,
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
            with self._measure_time():
                self._network.all_reduce_tensor(gradients)
        devices: list[int | str | torch.device] = []
        if gradients.device.type != "cpu":
            devices = [gradients.device]
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        done.set_result(gradients)
        return done

    @contextmanager
    def _measure_time(self) -> Iterator[None]:
        started = perf_counter()
        with self._translate_errors():
            yield
        self.seconds += perf_counter() - started

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError:  # a RuntimeError, of this rank alone
            raise
        except RuntimeError as error:
            raise RankLostError(
                f"rank {self.rank} of {self.size} has lost the others: one of them has ended, or has not answered for "
                f"{self._timeout_s:g} s ({_one_line(error)})"
            ) from error


def join(
    size: int,
    backend: Backend,
    device: torch.device,
    rendezvous: Path,
    configured_s: float = COLLECTIVE_TIMEOUT_S,
) -> Ranks:
    """Join the other ranks; returns at once where there are none.

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
    sharing = backend == "auto"
    if backend == "auto":
        backend = "nccl" if device.type == "cuda" else "gloo"
    started = perf_counter()
    try:
        secret = exchange.rank_secret()
        store, rank = exchange.rendezvous_store(size, rendezvous)
        return ProcessGroup(
            backend, store, rank, size, device, secret, sharing=sharing, configured_s=configured_s
        )
    except RuntimeError as error:
        within = ""
        if perf_counter() - started >= RENDEZVOUS_TIMEOUT_S:
            within = f" within {RENDEZVOUS_TIMEOUT_S:.0f} s"
        raise RankLostError(f"the ranks could not meet{within}: {_one_line(error)}") from error
    except ValueError as error:
        raise RanksError(f"the ranks cannot meet: {_one_line(error)}") from error


def timeout_s(configured_s: float = COLLECTIVE_TIMEOUT_S) -> float:
    """How long a rank waits for the others in a collective. :raises RanksError: the variable holds
    no such number.
    """
    text = os.environ.get(COLLECTIVE_TIMEOUT_VARIABLE, str(configured_s))
    with contextlib.suppress(ValueError):  # it is no number, which is told below
        if 0 < float(text) < math.inf:
            return float(text)
    raise RanksError(
        f"{COLLECTIVE_TIMEOUT_VARIABLE} is {text!r}: expected a number of seconds, such as 60"
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
