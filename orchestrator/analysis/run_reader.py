"""The reader of what workers leave in a job directory: ``timings.csv``, ``progress.csv``,
``eval.json``.

Files may be read while they are written: a last line without its newline is left out, and so is a
line that has another number of cells than the header. A missing file has no rows. (``exit.json`` is
read by :func:`orchestrator.core.exit_record.read_exit_record`, which the supervisor needs as well.)
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

STEPS_COLUMN = "time/total_timesteps"
CURVE_COLUMNS = (STEPS_COLUMN, "rollout/ep_rew_mean")
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
    """Of the grid of the final evaluation."""

    at: Mapping[str, float | str]
    """Key → its value, as in the job file."""
    mean: float | None


class EvaluationFile(TypedDict, total=False):
    """From ``eval.json``; the grid is absent where the file has none."""

    episodes: Any
    deterministic: Episodes
    grid: Sequence[EvaluatedPoint]


def read_json(path: Path) -> Any:
    """The content of a JSON file; None when the file is missing or not JSON."""
    try:
        return parsed_json(read_regular(path))
    except (OSError, ValueError):
        return None


def read_json_object(path: Path) -> dict[str, Any] | None:
    """As :func:`read_json`; None also for anything but an object."""
    content = read_json(path)
    return content if isinstance(content, dict) else None


def last_session(provenance: Path) -> dict[str, Any]:
    """The last entry of ``provenance.json``, that of the last ``run``; empty when there is none."""
    content = read_json(provenance)
    if isinstance(content, list) and content:
        content = content[-1]
    return content if isinstance(content, dict) else {}


def iterations(path: Path) -> list[Iteration]:
    """The rows of a ``timings.csv``; a row without ``env_steps`` or ``wall_s`` is damaged and left
    out.
    """
    rows = map(Iteration._make, _numbers_of_file(path, COLUMNS))
    return [row for row in rows if row.env_steps is not None and row.wall_s is not None]


def learning_curve(path: Path) -> LearningCurve:
    """The points of a ``progress.csv``, thinned to about :data:`CURVE_POINTS`, the last one
    kept.
    """
    points = [
        (steps, value)
        for steps, value in _numbers_of_file(path, CURVE_COLUMNS)
        if steps is not None and value is not None
    ]
    stride = max(1, math.ceil(len(points) / CURVE_POINTS))
    thinned = points[::stride]
    if points and (len(points) - 1) % stride:
        thinned.append(points[-1])
    return thinned


def rises(path: Path, column: str) -> list[float]:
    """env_steps of the rows of a ``progress.csv`` after which a column has a higher value; none
    where it is missing.
    """
    found: list[float] = []
    steps_before = 0.0
    value_before = math.inf
    for steps, value in _numbers_of_file(path, (STEPS_COLUMN, column)):
        if steps is not None and value is not None:
            if value > value_before:
                found.append(steps_before)
            steps_before = steps
            value_before = value
    return found


def evaluation(path: Path) -> EvaluationFile | None:
    """The content of an ``eval.json``; None when there is none."""
    content = read_json_object(path)
    if content is None:
        return None
    result: EvaluationFile = {"episodes": content.get("episodes")}
    if "deterministic" in content:
        result["deterministic"] = _episodes(content["deterministic"])
    if isinstance(content.get("grid"), list):
        result["grid"] = [_point(point) for point in content["grid"] if isinstance(point, Mapping)]
    return result


def finite(value: Any) -> float | None:
    """``value`` when it is a number, and not too large, else None."""
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:  # JSON has whole numbers of any length
        return None
    return number if abs(number) <= LARGEST else None


def _episodes(content: Any) -> Episodes:
    episodes = _mapping(content)
    measures = _mapping(episodes.get("measures"))
    return {
        "mean": finite(episodes.get("mean")),
        "std": finite(episodes.get("std")),
        "length_mean": finite(episodes.get("length_mean")),
        "measures": {
            str(name): finite(measure.get("mean"))
            for name, measure in measures.items()
            if isinstance(measure, Mapping)
        },
    }


def _mapping(value: Any) -> Mapping[Any, Any]:
    """``value`` when it is a mapping, otherwise an empty one."""
    return value if isinstance(value, Mapping) else {}


def _point(content: Mapping[str, Any]) -> EvaluatedPoint:
    """A point of the grid, without values that are no finite numbers."""
    values = {
        str(key): value if isinstance(value, str) else finite(value)
        for key, value in _mapping(content.get("at")).items()
    }
    known = {key: value for key, value in values.items() if value is not None}
    return {"at": known, "mean": finite(content.get("mean"))}


def _numbers_of_file(path: Path, columns: Sequence[str]) -> Iterator[list[Any]]:
    """:func:`numbers` of a file; no rows where it cannot be read."""
    try:
        content = read_regular(path)
    except (OSError, ValueError):  # nothing has been written yet, or the job's files are gone
        return
    yield from numbers(content, columns)


def numbers(content: bytes, columns: Sequence[str]) -> Iterator[list[Any]]:
    """The named columns of a CSV file row by row: ``float | None``, None for a cell that is no
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
                yield _complete(line, places) or [_cell(line, place) for place in places]
    except csv.Error:
        return  # the rows up to here are sound


def _complete(line: Sequence[str], places: Sequence[int | None]) -> list[float] | None:
    """A row of numbers alone, as nearly all are; None for any other. Much faster than cell by
    cell.
    """
    try:
        values = [float(line[place]) for place in places]  # type: ignore[index]
    except (ValueError, TypeError):
        return None
    return values if sum(map(abs, values)) <= LARGEST else None


def _cell(line: Sequence[str], place: int | None) -> float | None:
    """The number in a cell. :param place: None: the file has no such column."""
    try:
        return None if place is None else finite(float(line[place]))
    except ValueError:
        return None
