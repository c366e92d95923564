"""How many jobs of a search wait while others train."""

from __future__ import annotations

import math

from orchestrator.features.search.declaration.spec import learns

FEW = 4
"""So many wait at least, if as many run: a point takes a moment, and a slot shall not wait for it."""
SHARE = 4
"""Of so many jobs that run one more waits."""


def queued_ahead(sampler: str | None, jobs_at_once: int) -> int:
    """Number of jobs that wait, at least one.

    A sampler that learns proposes a point with what is known when it is asked, so that it is asked
    late. On tables of bodies with sixteen jobs at once, ``tpe`` had 0.93 times the regret where four
    waited and not sixteen.

    :param sampler: None where nothing is proposed.
    """
    if sampler is None or not learns(sampler):
        return max(1, jobs_at_once)
    return queued_late(jobs_at_once)


def queued_late(jobs_at_once: int) -> int:
    """The same where what is known decides which job is next, as of further seeds."""
    running = max(1, jobs_at_once)
    return min(running, max(FEW, math.ceil(running / SHARE)))
