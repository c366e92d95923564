"""Whether a process beside this one still works, judged from outside by its signs of life."""

from __future__ import annotations

from dataclasses import dataclass, field

MOST_A_LOOK_S = 1.0
"""So much of the time between two looks counts: a watcher that was stopped itself, or had to wait,
saw nothing."""


@dataclass(slots=True, kw_only=True)
class Liveness:
    """For how long a process has been silent, and for how long stopped (SIGSTOP), while it was
    watched.
    """

    silent_s: float = field(default=0.0, init=False)
    stopped_s: float = field(default=0.0, init=False)
    looked_at: float
    """When it was looked at last, of a monotonic clock; at first, when it was started."""

    def look(self, now: float, *, has_beaten: bool, is_stopped: bool) -> None:
        """:param has_beaten: whether there was a sign of life since the last look."""
        passed_s = min(now - self.looked_at, MOST_A_LOOK_S)
        self.looked_at = now
        self.silent_s = 0.0 if has_beaten else self.silent_s + passed_s
        self.stopped_s = self.stopped_s + passed_s if is_stopped and not has_beaten else 0.0
