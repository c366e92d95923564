"""The ranks of one attempt: who we are among them, and what they tell each other.

Every collective is called by all ranks in the same order. Sums give the same bits on every rank: each part of an array
is added up in one place, in a fixed order, and handed on. (Of more than two ranks that order depends on the place in
the array: the same numbers at other places may have other last bits.) Who waits longer than :func:`patience_s` for the
others gets an error and ends; the supervisor ends the rest.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, Protocol

import torch
from numpy.typing import NDArray
from torch import nn

from orchestrator.contract import Backend
from orchestrator.errors import OrchestratorError
from orchestrator.worker.outcome import RankLostError

PATIENCE_S = 30.0
"""For the others in a collective: longer than a checkpoint or the slowest reset may take, and no longer."""
PATIENCE_VARIABLE = "ORCHESTRATOR_RANKS_PATIENCE_S"
"""Environment variable: another patience, the same for all ranks."""
MEETING_S = 300.0
"""For the others to start."""


class RanksError(OrchestratorError):
    """The ranks were started wrongly, or differ where they must not: it would happen again."""


class Ranks(Protocol):
    """A rank's view of all."""

    rank: int
    size: int
    seconds: float
    """Spent in collectives so far, waiting for others included."""

    def all_reduce(self, array: NDArray[Any]) -> None:
        """Over all ranks, in place."""

    def reduce(self, array: NDArray[Any]) -> None:
        """Over all ranks, in place on rank 0; what the others are left with means nothing."""

    def broadcast(self, array: NDArray[Any]) -> None:
        """Rank 0's values, in place on every rank."""

    def all_gather(self, one: Any) -> list[Any]:
        """What each rank gives, in order of rank, on every rank. Pickled: for small things."""

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

    def all_gather(self, one: Any) -> list[Any]:
        return [one]

    def any(self, flag: bool) -> bool:
        return flag

    def close(self) -> None:
        """Nothing is held."""


ALONE = Alone()


class Group:
    """Ranks in processes of their own, over ``torch.distributed``.

    :param backend: ``gloo`` or ``nccl``; arrays that nccl is to add up travel over ``device``.
    :raises RankLostError: they did not meet, or have lost each other.
    """

    def __init__(self, backend: Literal["gloo", "nccl"], meeting: Mapping[str, Any], device: torch.device) -> None:
        import torch.distributed as dist

        self._dist = dist
        self.seconds = 0.0
        self._patience_s = patience_s()
        patience = timedelta(seconds=self._patience_s)
        try:
            dist.init_process_group(backend, timeout=timedelta(seconds=MEETING_S), **meeting)
            # Objects and flags always go over gloo: they live in main memory.
            self._small = dist.new_group(backend="gloo", timeout=patience)
            self._large = dist.new_group(backend=backend, timeout=patience)
        except RuntimeError as error:
            raise RankLostError(f"the ranks did not meet within {MEETING_S:.0f} s: {_one_line(error)}") from error
        except ValueError as error:
            raise RanksError(f"the ranks cannot meet: {_one_line(error)}") from error
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._device = device if backend == "nccl" else None

    def all_reduce(self, array: NDArray[Any]) -> None:
        self._collective(array, lambda tensor: self._dist.all_reduce(tensor, group=self._large))

    def reduce(self, array: NDArray[Any]) -> None:
        self._collective(array, lambda tensor: self._dist.reduce(tensor, 0, group=self._large))

    def broadcast(self, array: NDArray[Any]) -> None:
        self._collective(array, lambda tensor: self._dist.broadcast(tensor, 0, group=self._large))

    def all_gather(self, one: Any) -> list[Any]:
        everything: list[Any] = [None] * self.size
        self._timed(lambda: self._dist.all_gather_object(everything, one, group=self._small))
        return everything

    def any(self, flag: bool) -> bool:
        count = torch.tensor([float(flag)])
        self._timed(lambda: self._dist.all_reduce(count, group=self._small))
        return bool(count.item())

    def close(self) -> None:
        self._dist.destroy_process_group()

    def parallel(self, module: nn.Module, *example: Any) -> nn.Module:
        """``module`` in DistributedDataParallel, so that its gradients are means over all ranks after ``backward``.

        They are united as soon as a bucket of them is complete; a small policy fits into one, so that there is nothing
        to overlap with and waiting can be measured.

        After the first ``backward`` the buckets are laid out anew, and sums may have other last bits from then on. So
        that a training which is resumed has the same ones as a training that never stopped, this is done beforehand.

        :param example: arguments of its ``forward``, which returns tensors, or None in the place of some.
        :raises RankLostError: the ranks have lost each other.
        """
        from torch.nn.parallel import DistributedDataParallel

        devices = None if self._device is None else [self._device.index or 0]
        with self._answered():
            wrapped = DistributedDataParallel(
                module, device_ids=devices, process_group=self._large, gradient_as_bucket_view=True
            )
            wrapped.register_comm_hook(None, lambda _, bucket: self._mean(bucket.buffer()))
            for _ in range(2):
                outputs = [output.sum() for output in wrapped(*example) if output is not None]
                torch.stack(outputs).sum().backward()  # type: ignore[no-untyped-call]
        wrapped.zero_grad()
        return wrapped

    def _mean(self, gradients: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        gradients.div_(self.size)
        self._timed(lambda: self._dist.all_reduce(gradients, group=self._large))
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(gradients)
        return done

    def _collective(self, array: NDArray[Any], collective: Callable[[torch.Tensor], object]) -> None:
        tensor = torch.from_numpy(array)
        if self._device is None:
            self._timed(lambda: collective(tensor))
            return
        there = tensor.to(self._device)
        self._timed(lambda: collective(there))
        tensor.copy_(there)

    def _timed(self, collective: Callable[[], object]) -> None:
        started = perf_counter()
        with self._answered():
            collective()
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

    :raises RanksError: the environment speaks of another number of ranks than the job.
    :raises RankLostError: they did not meet.
    """
    if size == 1:
        return Alone()
    told = os.environ.get("WORLD_SIZE")
    if told is None or "RANK" not in os.environ or int(told) != size:
        found = "unset" if told is None else told
        raise RanksError(
            f"the job has resources.ranks = {size}, but WORLD_SIZE is {found}: start it with `run`, or with as many "
            f"processes as it has ranks (torchrun --nproc-per-node {size})"
        )
    if backend == "auto":
        backend = "nccl" if device.type == "cuda" else "gloo"
    if "MASTER_ADDR" in os.environ:
        return Group(backend, {"init_method": "env://"}, device)
    import torch.distributed as dist

    store = dist.FileStore(str(rendezvous), size)  # type: ignore[attr-defined]
    return Group(backend, {"store": store, "rank": int(os.environ["RANK"]), "world_size": size}, device)


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


def require_equal(ranks: Ranks, digest: str, what: str) -> None:
    """:raises RanksError: ``digest`` differs between ranks."""
    digests: Sequence[str] = ranks.all_gather(digest)
    strangers = [number for number, other in enumerate(digests) if other != digests[0]]
    if strangers:
        named = ", ".join(map(str, strangers))
        raise RanksError(f"{what} of rank {named} differ from those of rank 0: the ranks have drifted apart")
