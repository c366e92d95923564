"""Other rules than that of this program by which a trial gets a further seed, for comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence

from orchestrator.features.search.racing import Contender, shrunken

LEAST_GAP = 1e-9
"""Two that seem equal are this far apart."""


def top_two(contenders: Sequence[Contender], *, most_seeds: int) -> int | None:
    """The leader or its closest rival, whichever has fewer seeds: the rival that is least surely
    worse (top-two sampling, Russo 2016, without chance as in Jourdan et al. 2022, "Top Two
    Algorithms Revisited").
    """
    worth = shrunken(contenders)
    ranked = sorted(contenders, key=lambda one: -worth[one.number].mean)
    if len(ranked) < 2:
        return None
    leader = ranked[0]

    def surely_worse(one: Contender) -> float:
        gap = worth[leader.number].mean - worth[one.number].mean
        return gap**2 / (1 / one.seeds + 1 / leader.seeds)

    rival = min(ranked[1:], key=surely_worse)
    open_ones = [one for one in (leader, rival) if one.seeds < most_seeds]
    return min(open_ones, key=lambda one: one.seeds).number if open_ones else None


def by_budget_allocation(contenders: Sequence[Contender], *, most_seeds: int) -> int | None:
    """The one that is furthest behind its share of the seeds: inversely as the square of its
    distance from the leader (optimal computing budget allocation, Chen et al. 2000).
    """
    if len(contenders) < 2:
        return None
    worth = shrunken(contenders)
    leader = max(contenders, key=lambda one: worth[one.number].mean)
    shares = {}
    for one in contenders:
        gap = worth[leader.number].mean - worth[one.number].mean
        shares[one.number] = max(gap, LEAST_GAP) ** -2
    del shares[leader.number]
    shares[leader.number] = math.hypot(*shares.values())
    seeds = sum(one.seeds for one in contenders) + 1
    whole = sum(shares.values())
    open_ones = [one for one in contenders if one.seeds < most_seeds]
    if not open_ones:
        return None
    return max(open_ones, key=lambda one: seeds * shares[one.number] / whole - one.seeds).number
