"""The ranks of one attempt: who we are among them, and what they tell each other.

Every collective is called by all ranks in the same order. Sums give the same bits on every rank: each number is added
up in a fixed order. (Over the network, of more than two ranks, that order depends on the place in the array: the same
numbers at other places may have other last bits.) Who waits longer than :func:`patience_s` for the others gets an error
and ends; the supervisor ends the rest.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from orchestrator.core.errors import OrchestratorError
from orchestrator.core.worker_spec import Backend
from orchestrator.worker.distributed import exchange, shared_memory_allreduce
from orchestrator.worker.distributed.exchange import MEETING_S, Exchange, Network, Seal
from orchestrator.worker.runtime.outcome import RankLostError

PATIENCE_S = 30.0
"""For the others in a collective: longer than a checkpoint or the slowest reset may take, and no longer."""
PATIENCE_VARIABLE = "ORCHESTRATOR_RANKS_PATIENCE_S"
"""Environment variable: another patience, the same for all ranks."""


class RanksError(OrchestratorError):
    """The ranks were started wrongly, or differ where they must not: it would happen again."""


class Ranks(Exchange, Protocol):
    """A rank's view of all.

    :raises RankLostError: (every collective) the ranks have lost each other.
    """

    rank: int
    size: int
    seconds: float
    """Spent in collectives so far, waiting for others included."""

    def any(self, flag: bool) -> bool:
        """Whether it is true on any rank."""

    def close(self) -> None:
        """No collective follows."""


class Alone:
    """The only rank."""

    rank, size, seconds = 0, 1, 0.0

    def all_reduce(self, array: NDArray[Any]) -> None:
        """It is the sum already."""

    reduce = broadcast = all_reduce

    def side_by_side(self, array: NDArray[Any]) -> NDArray[Any]:
        return array[None]

    def all_gather(self, one: Any) -> list[Any]:
        return [one]

    def any(self, flag: bool) -> bool:
        return flag

    def close(self) -> None:
        """Nothing is held."""


ALONE = Alone()


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
        self._patience_s = patience_s()
        self._network: Network | None = None
        seal = Seal(secret, rank)
        tell = exchange.gatherer(store, rank, size, seal)
        shared = shared_memory_allreduce.share(rank, size, tell, self._patience_s) if sharing else None
        self.shares_memory = shared is not None and backend == "gloo"
        if shared is not None and backend == "gloo":  # gloo's threads would wake up a hundred times a second
            self._small: Exchange = shared
            self._large: Exchange = shared
            return
        import torch.distributed as dist

        patience = timedelta(seconds=self._patience_s)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=MEETING_S))
        # Objects and flags never go over nccl: they live in main memory.
        self._small = shared or Network(dist.new_group(backend="gloo", timeout=patience), size, seal)
        self._device = device if backend == "nccl" else None
        self._network = Network(dist.new_group(backend=backend, timeout=patience), size, seal, self._device)
        self._large = self._network
        exchange.let_gloo_give_way()

    def all_reduce(self, array: NDArray[Any]) -> None:
        with self._timed():
            self._large.all_reduce(array)

    def reduce(self, array: NDArray[Any]) -> None:
        with self._timed():
            self._large.reduce(array)

    def broadcast(self, array: NDArray[Any]) -> None:
        with self._timed():
            self._large.broadcast(array)

    def side_by_side(self, array: NDArray[Any]) -> NDArray[Any]:
        with self._timed():
            return self._small.side_by_side(array)

    def all_gather(self, one: Any) -> list[Any]:
        with self._timed():
            return self._small.all_gather(one)

    def any(self, flag: bool) -> bool:
        return bool(self.side_by_side(np.array([flag])).any())

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
                f"{self._patience_s:g} s ({_one_line(error)})"
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
        store, rank = exchange.meeting_place(size, rendezvous)
        return Group(backend, store, rank, size, device, secret, sharing=sharing)
    except RuntimeError as error:
        raise RankLostError(f"the ranks did not meet within {MEETING_S:.0f} s: {_one_line(error)}") from error
    except ValueError as error:
        raise RanksError(f"the ranks cannot meet: {_one_line(error)}") from error


def patience_s() -> float:
    """How long a rank waits for the others in a collective. :raises RanksError: the environment says no number."""
    told = os.environ.get(PATIENCE_VARIABLE, str(PATIENCE_S))
    try:
        seconds = float(told)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise RanksError(f"{PATIENCE_VARIABLE} is {told!r}: expected a number of seconds, such as 60")
    return seconds


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def own_part(count: int, ranks: Ranks) -> range:
    """Which of ``count`` things, say environments, belong to this rank: as many as to every other."""
    each = count // ranks.size
    return range(ranks.rank * each, (ranks.rank + 1) * each)


def pooled(
    ranks: Ranks, count: NDArray[Any] | int, means: NDArray[np.float64], squares: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean, and sum of squared distances from it, over all ranks: of as many numbers as there are of both here.

    In one exchange, and as exact as if the common mean had been known before: what lies between the ranks' own means is
    added (Chan, Golub & LeVeque 1979).

    :param count: numbers that each rank has of each, the same everywhere.
    :param means: of this rank's numbers. :param squares: the sum of their squared distances from it.
    """
    everywhere = ranks.side_by_side(np.stack([means, squares]))
    mean = everywhere[:, 0].mean(axis=0)
    return mean, everywhere[:, 1].sum(axis=0) + count * np.square(everywhere[:, 0] - mean).sum(axis=0)


def require_equal(ranks: Ranks, digest: str, what: str) -> None:
    """:raises RanksError: ``digest`` differs between ranks."""
    digests: Sequence[str] = ranks.all_gather(digest)
    strangers = [number for number, other in enumerate(digests) if other != digests[0]]
    if strangers:
        named = ", ".join(map(str, strangers))
        raise RanksError(f"{what} of rank {named} differ from those of rank 0: the ranks have drifted apart")
