"""The simulated module ``signal``: its handlers are those of the supervisor that lives, and the world
delivers to them.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection
from typing import Any

from tests.simulation.world import World

Handler = Any
"""A function, or what Python has for the absence of one."""


class SimulatedSignal:
    """In the place of the module ``signal`` where signals are handled."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._handlers: dict[int, Handler] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(signal, name)

    def getsignal(self, number: int) -> Handler:
        return self._handlers.get(number, signal.SIG_DFL)

    def signal(self, number: int, handler: Handler) -> Handler:
        before = self.getsignal(number)
        self._handlers[number] = handler
        self._world.signalled = self._deliver
        return before

    def pthread_sigmask(self, _how: int, _mask: Collection[int]) -> set[int]:
        return set()

    def _deliver(self, number: int) -> None:
        handler: Callable[[int, object], object] = self.getsignal(number)
        if callable(handler):
            handler(number, None)
