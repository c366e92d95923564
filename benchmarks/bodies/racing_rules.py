"""Other rules than that of this program by which a trial gets a further seed, for comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence

from orchestrator.features.search.racing import Beliefs, Contender

LEAST_GAP = 1e-9
"""Two that seem equal are this far apart."""


def within_bounds(
    contenders: Sequence[Contender], beliefs: Beliefs, *, most_seeds: int
) -> int | None:
    """Of those that may be the best the one with the fewest seeds (Maron & Moore 1994, "Hoeffding
    Races"): those whose mean with its error reaches that of the leader without its own.
    """
    known = [one for one in contenders if one.number in beliefs]
    if len(known) < 2:
        return None
    leader = max(known, key=lambda one: beliefs[one.number].mean)
    least = beliefs[leader.number].mean - (beliefs[leader.number].error or 0.0)
    may_be_best = [
        one
        for one in known
        if beliefs[one.number].mean + (beliefs[one.number].error or 0.0) >= least
    ]
    open_ones = [one for one in may_be_best if one.seeds < most_seeds]
    if len(may_be_best) < 2 or not open_ones:
        return None
    return min(open_ones, key=lambda one: (one.seeds, -beliefs[one.number].mean)).number


def by_budget_allocation(
    contenders: Sequence[Contender], beliefs: Beliefs, *, most_seeds: int
) -> int | None:
    """The one that is furthest behind its share of the seeds: inversely as the square of its
    distance from the leader (optimal computing budget allocation, Chen et al. 2000).
    """
    known = [one for one in contenders if one.number in beliefs]
    if len(known) < 2:
        return None
    leader = max(known, key=lambda one: beliefs[one.number].mean)
    shares = {}
    for one in known:
        gap = beliefs[leader.number].mean - beliefs[one.number].mean
        shares[one.number] = max(gap, LEAST_GAP) ** -2
    del shares[leader.number]
    shares[leader.number] = math.hypot(*shares.values())
    seeds = sum(one.seeds for one in known) + 1
    whole = sum(shares.values())
    open_ones = [one for one in known if one.seeds < most_seeds]
    if not open_ones:
        return None
    return max(open_ones, key=lambda one: seeds * shares[one.number] / whole - one.seeds).number
