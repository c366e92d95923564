"""The learning curve of a job while it trains, as points that are added to it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from orchestrator.analysis.run_reader import CURVE_COLUMNS, CURVE_POINTS, numbers_of_file


class NewPoints(NamedTuple):
    """Points ``(env_steps, ep_rew_mean)`` to be appended to a curve, which is emptied before where
    it starts over.
    """

    points: list[tuple[float, float]]
    starts_over: bool = False


class CurveReader:
    """The curve, thinned to about :data:`CURVE_POINTS` points. These never change once they are
    known, unless training goes back.

    :param total: env_steps of the whole training.
    """

    def __init__(self, path: Path, total: int) -> None:
        self._path = path
        self._spacing = total / CURVE_POINTS
        self._points: list[tuple[float, float]] = []

    def is_due(self, env_steps: int) -> bool:
        """Return whether a job at ``env_steps`` can have another point, or has gone back."""
        last = self._points[-1][0] if self._points else -self._spacing
        return env_steps - last >= self._spacing or env_steps < last

    def read(self) -> NewPoints:
        """Return the points since the last call; none if the file is missing."""
        before = self._points
        points: list[tuple[float, float]] = []
        for steps, value in numbers_of_file(self._path, CURVE_COLUMNS):
            is_far = not points or (steps is not None and steps - points[-1][0] >= self._spacing)
            if is_far and steps is not None and value is not None:
                points.append((steps, value))
        if not points:  # it is being replaced
            return NewPoints([])
        self._points = points
        if points[: len(before)] == before:
            return NewPoints(points[len(before) :])
        return NewPoints(points, starts_over=True)
