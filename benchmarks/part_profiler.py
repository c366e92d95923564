"""A profile of a program by named parts; the time of a part excludes the parts that it calls."""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

Result = TypeVar("Result")


class Parts:
    """CPU time by part, for one thread."""

    def __init__(self) -> None:
        self.cpu_s: defaultdict[str, float] = defaultdict(float)
        self._inside: list[str] = []
        self._since_s = time.process_time()

    def clear(self) -> None:
        """Reset all figures."""
        self.cpu_s.clear()

    def enter(self, part: str) -> None:
        self._book()
        self._inside.append(part)

    def leave(self) -> None:
        self._book()
        self._inside.pop()

    def _book(self) -> None:
        now_s = time.process_time()
        if self._inside:
            self.cpu_s[self._inside[-1]] += now_s - self._since_s
        self._since_s = now_s

    def timed(self, part: str, call: Callable[..., Result]) -> Callable[..., Result]:
        @functools.wraps(call)
        def wrapped(*values: Any, **named: Any) -> Result:
            self.enter(part)
            try:
                return call(*values, **named)
            finally:
                self.leave()

        return wrapped

    def stepped(self, part: str, steps: Iterator[Result]) -> Iterator[Result]:
        """``steps``, with the time of each recorded."""
        advance = self.timed(part, next)
        nothing = object()
        while (step := advance(steps, nothing)) is not nothing:
            yield step


class _Timed:
    def __init__(self, parts: Parts, part: str, it: object) -> None:
        self._parts = parts
        self._part = part
        self._it = it

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._it, name)
        if not callable(attribute):
            return attribute
        wrapped = self._parts.timed(self._part, attribute)
        setattr(self, name, wrapped)  # found directly from now on
        return wrapped


def timed(parts: Parts, part: str, it: Result) -> Result:
    """A proxy of ``it`` that records calls of its methods under ``part``."""
    return cast("Result", _Timed(parts, part, it))
