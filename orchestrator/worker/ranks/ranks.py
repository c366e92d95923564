"""The ranks of one attempt, as training sees them: collectives, and helpers built on them.

All ranks call every collective in the same order. Sums have the same bits on every rank, because
each number is added up in a fixed order. (Over the network, with more than two ranks, that order
depends on the position in the array: the same numbers at other positions may have other last bits.)
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from orchestrator.core.errors import OrchestratorError


class RanksError(OrchestratorError):
    """The ranks were started wrongly, or differ where they must be equal: it would happen again."""


Values: TypeAlias = Any
"""An array, or over the network a tensor; contiguous. It is changed in place."""


class Ranks:
    """All ranks, as one of them sees them. All call the same collectives in the same order.

    This class itself is an attempt's only rank: every collective returns what it was given.

    :raises RankLostError: (every collective) the ranks have lost each other.
    """

    rank = 0
    size = 1
    seconds = 0.0
    """Seconds spent in collectives so far, including waiting for others."""

    def all_reduce(self, array: Values) -> None:
        """Replace ``array`` by the sum over all ranks."""

    def broadcast(self, array: Values) -> None:
        """Replace ``array`` by rank 0's."""

    def all_gather_array(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return ``(ranks, …)``: every rank's ``array``, which all have the same shape."""
        return array[None]

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return every rank's ``value`` in order of rank. They are pickled: for small objects."""
        return [value]

    def any(self, *flags: bool) -> list[bool]:
        """Which of ``flags`` are true on any rank."""
        of_ranks = self.all_gather_array(np.array(flags))
        return [bool(of_flag.any()) for of_flag in of_ranks.T]

    def close(self) -> None:
        """No collective follows."""


ALONE = Ranks()


def own_share(count: int, ranks: Ranks) -> range:
    """Indices of those of ``count`` things (environments) that belong to this rank: as many as to
    every other.
    """
    each = count // ranks.size
    return range(ranks.rank * each, (ranks.rank + 1) * each)


def moments_over_ranks(
    ranks: Ranks,
    count: NDArray[Any] | int,
    means: NDArray[np.float64],
    squares: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Means over all ranks, and sums of squared distances from them, each ``(n,)``, for ``n`` sets
    of numbers.

    One exchange, and as exact as if the common mean had been known beforehand: the distances
    between the ranks' own means are added (Chan, Golub & LeVeque 1979).

    :param count: numbers that each rank has of each set, the same on every rank.
    :param means: ``(n,)`` of this rank's numbers. :param squares: ``(n,)`` sums of squared
        distances from them.
    """
    of_ranks = ranks.all_gather_array(np.stack([means, squares]))
    means_of_ranks = of_ranks[:, 0]
    squares_of_ranks = of_ranks[:, 1]
    mean = means_of_ranks.mean(axis=0)
    between = np.square(means_of_ranks - mean).sum(axis=0)
    return mean, squares_of_ranks.sum(axis=0) + count * between
