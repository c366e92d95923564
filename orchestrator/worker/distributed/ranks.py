"""The ranks of one attempt: who we are among them, and what they tell each other.

Every collective is called by all ranks in the same order. Sums give the same bits on every rank: each number is added
up in a fixed order. (Over the network, of more than two ranks, that order depends on the place in the array: the same
numbers at other places may have other last bits.) Who waits longer than :func:`timeout_s` for the others gets an error
and ends; the supervisor ends the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from orchestrator.core.errors import OrchestratorError
from orchestrator.worker.distributed.exchange import Exchange


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

    def all_gather_array(self, array: NDArray[Any]) -> NDArray[Any]:
        return array[None]

    def all_gather_object(self, one: Any) -> list[Any]:
        return [one]

    def any(self, flag: bool) -> bool:
        return flag

    def close(self) -> None:
        """Nothing is held."""


ALONE = Alone()


def own_share(count: int, ranks: Ranks) -> range:
    """Which of ``count`` things, say environments, belong to this rank: as many as to every other."""
    each = count // ranks.size
    return range(ranks.rank * each, (ranks.rank + 1) * each)


def moments_over_ranks(
    ranks: Ranks, count: NDArray[Any] | int, means: NDArray[np.float64], squares: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean, and sum of squared distances from it, over all ranks: of as many numbers as there are of both here.

    In one exchange, and as exact as if the common mean had been known before: what lies between the ranks' own means is
    added (Chan, Golub & LeVeque 1979).

    :param count: numbers that each rank has of each, the same everywhere.
    :param means: of this rank's numbers. :param squares: the sum of their squared distances from it.
    """
    everywhere = ranks.all_gather_array(np.stack([means, squares]))
    mean = everywhere[:, 0].mean(axis=0)
    return mean, everywhere[:, 1].sum(axis=0) + count * np.square(everywhere[:, 0] - mean).sum(axis=0)


def require_equal(ranks: Ranks, digest: str, what: str) -> None:
    """:raises RanksError: ``digest`` differs between ranks."""
    digests: Sequence[str] = ranks.all_gather_object(digest)
    strangers = [number for number, other in enumerate(digests) if other != digests[0]]
    if strangers:
        named = ", ".join(map(str, strangers))
        raise RanksError(f"{what} of rank {named} differ from those of rank 0: the ranks have drifted apart")
