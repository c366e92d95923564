"""How long the rest of an experiment takes: by the speed that running workers report, or by what
has ended.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SHORT_S = 60.0
"""Of jobs that take less on average, start and evaluation are a good part: their ends tell more
than their speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedWork:
    """What attempts have done that one supervisor has brought to their end. Times are of any one
    clock.
    """

    attempts: int = 0
    env_steps: int = 0
    wall_s: float = 0.0
    """Sum over the attempts."""
    begun: float = math.inf
    """When the first one began."""
    ended: float = -math.inf
    """When the last one ended."""

    def with_attempt(self, *, env_steps: int, begun: float, ended: float) -> EndedWork:
        return EndedWork(
            attempts=self.attempts + 1,
            env_steps=self.env_steps + env_steps,
            wall_s=self.wall_s + max(0.0, ended - begun),
            begun=min(self.begun, begun),
            ended=max(self.ended, ended),
        )

    def remaining_s(
        self, *, steps_to_go: int, env_steps_per_s: float, running: int
    ) -> float | None:
        """Seconds until ``steps_to_go`` are done; None where nothing tells.

        :param env_steps_per_s: what running workers report together; 0 where none does.
        :param running: how many attempts run.
        """
        reported_s = steps_to_go / env_steps_per_s if env_steps_per_s > 0 else None
        # As many as run at once: otherwise the time until the first end would count for one of them
        # alone.
        if not self.env_steps or self.attempts < max(1, running):
            return reported_s
        if reported_s is not None and self.wall_s >= SHORT_S * self.attempts:
            return reported_s
        return steps_to_go * (self.ended - self.begun) / self.env_steps


NOTHING_ENDED = EndedWork()
