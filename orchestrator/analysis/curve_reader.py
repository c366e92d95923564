"""The learning curve of a job while it trains: only what has been added to ``progress.csv`` is read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from orchestrator.analysis.run_reader import CURVE_COLUMNS, CURVE_POINTS, numbers
from orchestrator.core.regular_files import LARGEST_BYTES, open_regular, read_up_to


class NewPoints(NamedTuple):
    """Points ``(env_steps, ep_rew_mean)`` to be appended to a curve, which is emptied before where it starts over."""

    points: list[tuple[float, float]]
    starts_over: bool = False


class CurveReader:
    """Thinned to about :data:`CURVE_POINTS` points, which never change once they are known unless training goes back.

    :param total: env_steps of the whole training.
    """

    def __init__(self, path: Path, total: int) -> None:
        self._path, self._spacing = path, total / CURVE_POINTS
        self._inode, self._offset, self._header = 0, 0, b""
        self._points: list[tuple[float, float]] = []

    def is_due(self, env_steps: int) -> bool:
        """Whether a job that has come to ``env_steps`` can have another point, or has gone back."""
        last = self._points[-1][0] if self._points else -self._spacing
        return env_steps - last >= self._spacing or env_steps < last

    def read(self) -> NewPoints:
        """The points since the last call; none where the file is missing."""
        try:
            with open_regular(self._path) as file:
                found = os.fstat(file.fileno())
                grows = found.st_ino == self._inode and found.st_size >= self._offset and self._header != b""
                if grows:
                    file.seek(self._offset)
                content = read_up_to(file, LARGEST_BYTES)
        except OSError:
            return NewPoints([])
        content = content[: content.rfind(b"\n") + 1]
        if grows:
            self._offset += len(content)
            points = self._thinned(self._header + content, self._points[-1:])
            self._points += points
            return NewPoints(points)
        self._inode, self._offset = found.st_ino, len(content)
        self._header = content[: content.find(b"\n") + 1]
        before, self._points = self._points, self._thinned(content, [])
        if self._points[: len(before)] == before:  # rewritten, with a column more
            return NewPoints(self._points[len(before) :])
        return NewPoints(self._points, starts_over=True)

    def _thinned(self, content: bytes, known: list[tuple[float, float]]) -> list[tuple[float, float]]:
        """:param known: the last point, if there is one."""
        kept = list(known)
        for steps, value in numbers(content, CURVE_COLUMNS):
            is_far = not kept or (steps is not None and steps - kept[-1][0] >= self._spacing)
            if is_far and steps is not None and value is not None:
                kept.append((steps, value))
        return kept[len(known) :]
