"""Read what workers leave in a job directory: ``timings.csv``, ``progress.csv``, ``eval.json``.

Files may be read while they are written: a last line without its newline is left out, and so is a
line that has another number of cells than the header. A missing file has no rows.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypedDict

from orchestrator.core.decoding import LARGEST, parsed_json
from orchestrator.core.files.regular_files import read_regular
from orchestrator.core.timing_columns import COLUMNS, Iteration

CURVE_COLUMNS = ("time/total_timesteps", "rollout/ep_rew_mean")
"""Of ``progress.csv``."""
CURVE_POINTS = 120
"""A learning curve is thinned to about so many points; a figure cannot show more."""


LearningCurve: TypeAlias = Sequence[tuple[float, float]]
"""``(env_steps, ep_rew_mean)``"""


class Episodes(TypedDict):
    """Mean and deviation of their returns, means of their lengths and of the task's measures."""

    mean: float | None
    std: float | None
    length_mean: float | None
    """Control steps."""
    measures: Mapping[str, float | None]


class EvaluatedPoint(TypedDict):
    """A point of the grid of the final evaluation."""

    at: Mapping[str, float | str]
    """Key → its value, as in the job file."""
    mean: float | None


class EvaluationFile(TypedDict, total=False):
    """From ``eval.json``; the grid is absent where the file has none."""

    episodes: Any
    deterministic: Episodes
    grid: Sequence[EvaluatedPoint]


def read_json(path: Path) -> Any:
    """Return the content of a JSON file, or None if it is missing or not JSON."""
    try:
        return parsed_json(read_regular(path))
    except (OSError, ValueError):
        return None


def read_json_object(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file, or None if there is none."""
    content = read_json(path)
    return content if isinstance(content, dict) else None


def last_session(provenance: Path) -> dict[str, Any]:
    """Return the last entry of ``provenance.json``, that of the last ``run``; empty if there is none."""
    content = read_json(provenance)
    if isinstance(content, list) and content:
        content = content[-1]
    return _mapping(content)


def iterations(path: Path) -> list[Iteration]:
    """Return the rows of a ``timings.csv`` that have ``env_steps`` and ``wall_s``."""
    rows = map(Iteration._make, numbers_of_file(path, COLUMNS))
    return [row for row in rows if row.env_steps is not None and row.wall_s is not None]


def learning_curve(path: Path) -> LearningCurve:
    """Return the points of a ``progress.csv``, thinned to about :data:`CURVE_POINTS`, with the last."""
    points = [
        (steps, value)
        for steps, value in numbers_of_file(path, CURVE_COLUMNS)
        if steps is not None and value is not None
    ]
    stride = max(1, math.ceil(len(points) / CURVE_POINTS))
    thinned = points[::stride]
    if points and (len(points) - 1) % stride:
        thinned.append(points[-1])
    return thinned


def evaluation(path: Path) -> EvaluationFile | None:
    """Return the content of an ``eval.json``, or None if there is none."""
    content = read_json_object(path)
    if content is None:
        return None
    result: EvaluationFile = {"episodes": content.get("episodes")}
    if "deterministic" in content:
        episodes = _mapping(content["deterministic"])
        measures = _mapping(episodes.get("measures"))
        result["deterministic"] = {
            "mean": finite(episodes.get("mean")),
            "std": finite(episodes.get("std")),
            "length_mean": finite(episodes.get("length_mean")),
            "measures": {
                name: finite(_mapping(measure).get("mean")) for name, measure in measures.items()
            },
        }
    if isinstance(content.get("grid"), list):
        points = map(_mapping, content["grid"])
        result["grid"] = [
            {"at": _mapping(point.get("at")), "mean": finite(point.get("mean"))} for point in points
        ]
    return result


def finite(value: Any) -> float | None:
    """Return ``value`` if it is a number, and not too large, else None."""
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:  # JSON has whole numbers of any length
        return None
    return number if abs(number) <= LARGEST else None


def _mapping(value: Any) -> dict[str, Any]:
    """Return ``value`` if it is a mapping, otherwise an empty one."""
    return value if isinstance(value, dict) else {}


def numbers_of_file(path: Path, columns: Sequence[str]) -> Iterator[list[Any]]:
    """Yield :func:`numbers` of a file; no rows if it cannot be read."""
    try:
        content = read_regular(path)
    except (OSError, ValueError):  # nothing has been written yet, or the job's files are gone
        return
    yield from numbers(content, columns)


def numbers(content: bytes, columns: Sequence[str]) -> Iterator[list[Any]]:
    """Yield the named columns of a CSV file row by row: ``float | None``, None for a cell that is no
    finite number.

    :param content: of the file, which begins with its header.
    """
    text = content.decode("utf-8", "replace").replace("\0", "")
    lines = csv.reader(text[: text.rfind("\n") + 1].splitlines())
    try:
        header = next(lines, [])
        places = [header.index(name) if name in header else None for name in columns]
        for line in lines:
            if len(line) == len(header):
                yield [None if place is None else _number(line[place]) for place in places]
    except csv.Error:
        return  # the rows up to here are sound


def _number(cell: str) -> float | None:
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if abs(number) <= LARGEST else None
