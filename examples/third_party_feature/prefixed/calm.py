"""The table ``calm`` of a job, and its part: exploration that ends once the policy is good enough.

Workers import this module, too, so that it imports :mod:`orchestrator.core` alone; the table is
in another one.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core.job_parts import JobPart


@dataclass(frozen=True, slots=True, kw_only=True)
class CalmSettings:
    above: float | None = None
    """Mean return above which the bonus for entropy ends; None: it never does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalmFacts:
    calm_since: int | None = None
    """env_steps at which it has ended."""


PART = JobPart(
    name="calm",
    settings=CalmSettings,
    facts=CalmFacts,
    loop="prefixed.calm_loop",
    columns={"calm since": lambda facts: facts.calm_since},
)
