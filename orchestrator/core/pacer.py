"""Rate limiter: at most once per ``every_s``, and at most a ``share`` of the time."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The limits of a rate."""

    every_s: float = 0.0
    """Minimum interval in seconds."""
    share: float = math.inf
    """Maximum share of the time that the work may take, above 0: the interval grows with its
    duration. By default the duration is ignored."""
    longest_s: float = math.inf
    """Maximum interval in seconds, whatever the work takes."""

    def pause_s(self, took_s: float) -> float:
        """Return the seconds to wait. :param took_s: duration of the last run."""
        return min(self.longest_s, max(self.every_s, took_s / self.share))


class Pacer:
    """Tells when work is due at a pace. It is due at once the first time."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._due = -math.inf

    def is_due(self, now: float | None = None) -> bool:
        """Return whether the work is due.

        :param now: seconds on the caller's clock; None: ``time.monotonic()``.
        """
        return (time.monotonic() if now is None else now) >= self._due

    def wait(self, seconds: float | None = None, now: float | None = None) -> None:
        """Make the work due in ``seconds``; None: after the minimum interval."""
        pause_s = self._pace.every_s if seconds is None else seconds
        self._due = (time.monotonic() if now is None else now) + pause_s

    @contextlib.contextmanager
    def time_block(self, now: float | None = None) -> Iterator[None]:
        """Run the work in the block and schedule the next run from its end, or from ``now``. If the
        block raises, the schedule is unchanged.
        """
        begun = time.monotonic()
        yield
        ended = time.monotonic()
        self.wait(self._pace.pause_s(ended - begun), ended if now is None else now)
