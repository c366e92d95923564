"""What trackers are told of a job: its settings, the rows of its ``progress.csv``, and how it has
ended.
"""

from __future__ import annotations

import contextlib
import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.analysis import run_reader
from orchestrator.core.files.regular_files import read_regular
from orchestrator.core.job_parts import under_keys
from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.features.tracking.growing_table import GrowingTable
from orchestrator.ledger import SummaryRow

STEP = "time/total_timesteps"
ELAPSED = "time/time_elapsed"
MOST_BYTES = 1 << 24
"""Of a table that are read at once, and sent before more is read."""
NOT_SETTINGS = (
    "parts",
    "job_id",
    "name",
    "search_path",
    "extended_from",
    "pause_at",
    "measure_training",
    "after",
    "init_sha256",
    "init_env_steps",
    "video",
    "preview",
)
"""Fields of a spec that are no settings of the training."""


@dataclass(frozen=True, slots=True)
class Point:
    """One row of ``progress.csv``: an iteration."""

    env_steps: int
    values: Mapping[str, float]
    """Finite numbers by column, ``time/total_timesteps`` among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumbersMark:
    """Which numbers of a job there are: they are told anew when this differs."""

    state: str
    env_steps: int
    evaluated_at: int
    """When ``eval.json`` was written, in nanoseconds; 0: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsMark:
    """Which results of a job there are. Video and preview may be made last of all, and are then
    sent by themselves.
    """

    numbers: NumbersMark
    video_at: int
    """When the video was written, in nanoseconds; 0: there is none."""
    preview_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResults:
    """What is known of a job that has ended."""

    summary: Mapping[str, Any]
    """Its row of ``summary.json``, without what is not known."""
    evaluation: Mapping[str, float]
    """Means over the final episodes, such as ``eval/deterministic/mean``, and at points of the
    grid, such as ``eval/grid/body.trunk.mass *0.7``."""
    eval_file: Path | None
    video: Path | None
    preview: Path | None

    @property
    def state(self) -> str:
        return str(self.summary["state"])

    @property
    def mark(self) -> ResultsMark:
        return ResultsMark(
            numbers=NumbersMark(
                state=self.state,
                env_steps=self.summary["env_steps"],
                evaluated_at=_written_at(self.eval_file),
            ),
            video_at=_written_at(self.video),
            preview_at=_written_at(self.preview),
        )

    def pictures(self, known: ResultsMark | None = None) -> Mapping[str, Path]:
        """``video`` and ``preview``, as far as they are there and are not those of ``known``."""
        mark = self.mark
        found: dict[str, Path] = {}
        if self.video is not None and (known is None or mark.video_at != known.video_at):
            found["video"] = self.video
        if self.preview is not None and (known is None or mark.preview_at != known.preview_at):
            found["preview"] = self.preview
        return found


def _written_at(path: Path | None) -> int:
    return 0 if path is None else path.stat().st_mtime_ns


def settings(paths: JobPaths) -> dict[str, Any]:
    """The settings of a job by dotted key: numbers, texts, true and false, or lists of them.

    :raises OSError, ValueError: ``spec.json`` cannot be read.
    """
    spec = WorkerSpec.from_json(read_regular(paths.spec))
    values = {**spec.values(), **under_keys(spec.parts)}
    kept = {
        name: value
        for name, value in values.items()
        if name not in NOT_SETTINGS and value not in (None, {}, ())
    }
    return _flat(kept)


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def results(paths: JobPaths, row: SummaryRow) -> JobResults:
    """Of a job that has ended."""
    evaluation = run_reader.evaluation(paths.eval) or {}
    means: dict[str, float | None] = {}
    if "deterministic" in evaluation:
        episodes = evaluation["deterministic"]
        means |= {
            f"eval/deterministic/{name}": episodes[name] for name in ("mean", "std", "length_mean")
        }
        means |= {
            f"eval/deterministic/{name}": value for name, value in episodes["measures"].items()
        }
    means |= {
        f"eval/grid/{_place(point['at'])}": point["mean"] for point in evaluation.get("grid", ())
    }
    left_out = ("traceback", "measures", "waits_for", "pid")
    return JobResults(
        summary={
            name: value for name, value in row.items() if value is not None and name not in left_out
        },
        evaluation={name: value for name, value in means.items() if value is not None},
        eval_file=_if_file(paths.eval),
        video=_if_file(paths.video),
        preview=_if_file(paths.preview),
    )


def _if_file(path: Path) -> Path | None:
    return path if path.is_file() else None


def _place(at: Mapping[str, float | str]) -> str:
    """``body.trunk.mass *0.7 geom.floor.friction 0.4``"""
    return " ".join(f"{key} {_value_text(value)}" for key, value in at.items())


def _value_text(value: float | str) -> str:
    return value if isinstance(value, str) else repr(value).removesuffix(".0")


class ProgressTail:
    """Reads what is new in a ``progress.csv`` that grows, and that is replaced when its job
    resumes.
    """

    def __init__(self, path: Path) -> None:
        self._table = GrowingTable(path, MOST_BYTES)

    @property
    def modified(self) -> float:
        """When the table was written last."""
        return self._table.modified

    def new_points(self, after: int) -> list[Point]:
        """Points beyond ``after`` env_steps that have not been returned yet, in their order; each
        only once.

        A resumed training repeats iterations that it has lost: their points are the ones that were
        there before.
        """
        points: list[Point] = []
        while not points:  # a part of the table may have none beyond `after`
            lines = self._table.new_lines()[0]
            if not lines:
                break
            (header,) = _cells(self._table.header)
            for cells in _cells(lines):
                values = _numbers(header, cells) if len(cells) == len(header) else {}
                env_steps = values.get(STEP)
                if env_steps is not None and env_steps > after:
                    after = int(env_steps)
                    points.append(Point(after, values))
        return points


def _cells(lines: bytes) -> list[list[str]]:
    return list(csv.reader(lines.decode("utf-8", "replace").replace("\0", "").splitlines()))


def _numbers(header: Sequence[str], cells: Sequence[str]) -> dict[str, float]:
    """The finite numbers of a row, by column."""
    numbers: dict[str, float] = {}
    for name, cell in zip(header, cells, strict=True):
        with contextlib.suppress(ValueError):  # the cell is empty, or text
            value = float(cell)
            if math.isfinite(value):
                numbers[name] = value
    return numbers
