"""What the program uses of Ray, in the place of the package: tasks as streams of batches, on the
nodes of a simulated cluster.
"""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

from tests.simulation.world import World

LEAST_S = 0.001
"""A wait takes so long at least, or one for the rest of a rounded number would take no time."""


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause: Exception) -> None:
        super().__init__(repr(cause))
        self.cause = cause


class RayActorError(RayError):
    pass


class OutOfMemoryError(RayError):
    pass


class TaskCancelledError(RayError):
    pass


class WorkerCrashedError(RayError):
    pass


class NodeDiedError(RayError):
    pass


@dataclass(slots=True, kw_only=True, eq=False)
class Stream:
    """What a task yields, in order, as its driver sees it."""

    world: World
    kill: Callable[[], None] = lambda: None
    """Ends the process of the task."""
    _items: deque[tuple[float, Any]] = field(default_factory=deque)
    _last_at: float = 0.0

    def put(self, item: Any, *, late_s: float = 0.0) -> None:
        """:param item: a batch, or the error that reading raises."""
        self._last_at = max(self._last_at, self.world.now + late_s)
        self._items.append((self._last_at, item))
        self.world.at(self._last_at, lambda: None)  # whoever waits looks again

    @property
    def is_ready(self) -> bool:
        return bool(self._items) and self._items[0][0] <= self.world.now

    def __next__(self) -> Any:
        return self._items.popleft()[1]


@dataclass(slots=True, kw_only=True)
class Ray:
    """:param start: starts a task for an assignment, beside the agent of the node that it is for,
    and returns its stream.
    """

    world: World
    start: Callable[[Any, Any], Stream]

    def wait(
        self, streams: Sequence[Stream], *, num_returns: int = 1, timeout: float
    ) -> tuple[list[Stream], list[Stream]]:
        def is_any_ready() -> bool:
            return any(stream.is_ready for stream in streams)

        if timeout > 0 and not is_any_ready():
            self.world.pass_time(max(timeout, LEAST_S), until=is_any_ready)
        ready = [stream for stream in streams if stream.is_ready][:num_returns]
        return ready, [stream for stream in streams if stream not in ready]

    def get(self, item: Any) -> Any:
        if isinstance(item, Exception):
            raise item
        return item

    def cancel(self, stream: Stream, *, force: bool) -> None:
        assert force
        stream.kill()

    def remote(self, _function: Any) -> Any:
        return SimpleNamespace(options=self._options)

    def _options(self, **_: Any) -> Any:
        return SimpleNamespace(remote=self.start)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """``import ray`` gives this within the block."""
        modules = {
            name: ModuleType(name)
            for name in ("ray", "ray.exceptions", "ray.util", "ray.util.scheduling_strategies")
        }
        ray: Any = modules["ray"]
        ray.wait, ray.get, ray.cancel, ray.remote = self.wait, self.get, self.cancel, self.remote
        ray.exceptions, ray.util = modules["ray.exceptions"], modules["ray.util"]
        for error in (RayError, *RayError.__subclasses__()):
            setattr(ray.exceptions, error.__name__, error)
        strategies: Any = modules["ray.util.scheduling_strategies"]
        strategies.NodeAffinitySchedulingStrategy = lambda *_, **__: None
        strategies.PlacementGroupSchedulingStrategy = lambda *_, **__: None
        before = {name: sys.modules.get(name) for name in modules}
        sys.modules.update(modules)
        try:
            yield
        finally:
            for name, module in before.items():
                if module is None:
                    del sys.modules[name]
                else:
                    sys.modules[name] = module


class SimulatedSelect:
    """In the place of the module ``select``, by which a driver without tasks waits."""

    def __init__(self, world: World, is_awaited: Callable[[], bool]) -> None:
        self._world = world
        self._is_awaited = is_awaited

    def select(self, *_files: Any) -> None:
        timeout_s: float = _files[-1]
        if timeout_s > 0:
            self._world.pass_time(max(timeout_s, LEAST_S), until=self._is_awaited)
