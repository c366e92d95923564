"""What is done again and again: not too often, and where it may take long, so rarely that it takes
little of the time.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often something is done."""

    every_s: float = 0.0
    """Least seconds between two times."""
    share: float = math.inf
    """Largest share of the time that it may take, above 0: what takes long is done less often. By
    default it does not matter how long it takes."""
    longest_s: float = math.inf
    """Most seconds between two times, whatever it takes."""

    def pause_s(self, took_s: float) -> float:
        """Seconds until the next time. :param took_s: what the last one took."""
        return min(self.longest_s, max(self.every_s, took_s / self.share))


class Pacer:
    """Says when the next time is, of something that is done at a pace. The first is at once."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._due = -math.inf

    def is_due(self, now: float | None = None) -> bool:
        """:param now: seconds on the caller's clock; None: as of now, by ``time.monotonic``."""
        return (time.monotonic() if now is None else now) >= self._due

    def wait(self, seconds: float | None = None, now: float | None = None) -> None:
        """The next time is in ``seconds``; None: the least ones of the pace."""
        pause_s = self._pace.every_s if seconds is None else seconds
        self._due = (time.monotonic() if now is None else now) + pause_s

    @contextlib.contextmanager
    def time_block(self, now: float | None = None) -> Iterator[None]:
        """The block does it once. From its end, or from ``now``, the pause is counted; if the block
        raises, the next time is as it was.
        """
        begun = time.monotonic()
        yield
        ended = time.monotonic()
        self.wait(self._pace.pause_s(ended - begun), ended if now is None else now)
