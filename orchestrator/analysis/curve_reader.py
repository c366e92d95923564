"""The learning curve of a job while it trains: only what has been added to ``progress.csv`` is
read.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from orchestrator.analysis.growing_table import GrowingTable
from orchestrator.analysis.run_reader import CURVE_COLUMNS, CURVE_POINTS, numbers


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
        self._table = GrowingTable(path)
        self._spacing = total / CURVE_POINTS
        self._points: list[tuple[float, float]] = []

    def is_due(self, env_steps: int) -> bool:
        """Whether a job that has come to ``env_steps`` can have another point, or has gone back."""
        last = self._points[-1][0] if self._points else -self._spacing
        return env_steps - last >= self._spacing or env_steps < last

    def read(self) -> NewPoints:
        """The points since the last call; none where the file is missing."""
        lines, is_new_file = self._table.new_lines()
        if not is_new_file:
            points = self._thinned_points(lines, self._points[-1:])
            self._points += points
            return NewPoints(points)
        before = self._points
        self._points = self._thinned_points(lines, [])
        if self._points[: len(before)] == before:  # rewritten, with a column more
            return NewPoints(self._points[len(before) :])
        return NewPoints(self._points, starts_over=True)

    def _thinned_points(
        self, lines: bytes, known: list[tuple[float, float]]
    ) -> list[tuple[float, float]]:
        """The points in ``lines`` that are far enough from each other, and from the last one.

        :param known: that last point; empty where there is none.
        """
        kept = list(known)
        for steps, value in numbers(self._table.header + lines, CURVE_COLUMNS):
            is_far = not kept or (steps is not None and steps - kept[-1][0] >= self._spacing)
            if is_far and steps is not None and value is not None:
                kept.append((steps, value))
        return kept[len(known) :]
