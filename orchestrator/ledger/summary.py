"""``summary.json`` and ``summary.csv``: one row per job, made from the ledger; both files appear whole."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol, cast

from orchestrator.core.atomic_files import writing_whole
from orchestrator.core.decoding import parsed_json
from orchestrator.core.errors import LedgerError, disk_full_explained
from orchestrator.core.paths import RunPaths
from orchestrator.core.regular_files import LARGEST_BYTES, open_regular, read_up_to
from orchestrator.core.text import listed, plain
from orchestrator.ledger.rows import IsKnown, SummaryRow, checked

FORMULA_SIGNS = ("=", "+", "-", "@")
NOT_IN_TABLE = ("traceback", "measures", "waits_for")
"""Keys of ``summary.json`` without a column: tools read a table line by line; each measure has its own column."""
TIMES = {"started": "started_at", "ended": "ended_at"}
"""Columns with a time in ISO 8601 → the keys with the same time in seconds since the epoch."""
MOST_MEASURES = 100
"""Columns for measures."""


class Pages(Protocol):
    """Gives the rows in pages. A page is empty if ``is_known`` says of its jobs that it is not needed."""

    def __call__(self, *, is_known: IsKnown) -> Iterable[Sequence[SummaryRow]]: ...


@dataclass(slots=True, kw_only=True)
class SummaryFiles:
    """Writes both files again and again. It keeps the content of pages of which no job has moved or runs."""

    paths: RunPaths
    moved: set[str] = field(default_factory=set)
    """Jobs that have come to another state since :meth:`writing` began; whoever moves them adds them."""
    _moved_before: set[str] = field(default_factory=set, init=False)
    _columns: Sequence[str] = field(default=(), init=False)
    _kept: dict[int, Sequence[bytes]] = field(default_factory=dict, init=False)
    """Compressed content of both files, by :attr:`_page`."""
    _kept_before: Mapping[int, Sequence[bytes]] = field(default_factory=dict, init=False)
    _page: int = field(default=0, init=False)
    """Hash of the names of the jobs of a page."""

    def writing(self, pages: Pages, measure_names: Callable[[], Collection[str]] = lambda: ()) -> Iterator[None]:
        """Write both files, one page of rows per step; they appear with the last one.

        :param measure_names: gives the columns of the table for measures; called once there is a page.
        :raises DiskFullError, OSError: the files before are still there.
        """
        columns: list[str] = []
        self._moved_before, self._kept_before = self.moved, {}  # the first page tells the columns, and is always read
        self.moved, kept, self._kept = set(), self._kept, {}
        with (
            disk_full_explained(self.paths.root),
            writing_whole(self.paths.summary_json, durable=False) as array,
            writing_whole(self.paths.summary_csv, durable=False) as table,
        ):
            array.write(b"[\n")
            for page in pages(is_known=self._is_known):
                if columns:
                    yield
                    array.write(b",\n")
                else:
                    columns = _columns(page[0], measure_names())
                    table.write(_csv([map(_cell, columns)]))
                    self._kept_before = kept if columns == self._columns else {}
                    self._columns = columns
                for file, content in zip((array, table), self._contents(page), strict=True):
                    file.write(content)
            array.write(b"\n]\n")

    def _is_known(self, job_ids: Sequence[str]) -> bool:
        self._page = hash(tuple(job_ids))
        return self._page in self._kept_before and self._moved_before.isdisjoint(job_ids)

    def _contents(self, page: Sequence[SummaryRow]) -> Sequence[bytes]:
        """What the page, or the known one if it is empty, has in both files."""
        if not page:
            self._kept[self._page] = self._kept_before[self._page]
            return [zlib.decompress(content) for content in self._kept[self._page]]
        contents = ",\n".join(map(_line, page)).encode(), _csv(_cells(row, self._columns) for row in page)
        if all(row["state"] != "RUNNING" and row["waits_for"] is None for row in page):  # nothing but a move changes it
            self._kept[self._page] = [zlib.compress(content, 1) for content in contents]
        return contents


def write(paths: RunPaths, rows: Sequence[SummaryRow]) -> None:
    """Write both files at once, with the errors of :meth:`SummaryFiles.writing`."""
    names = dict.fromkeys(name for row in rows for name in row["measures"] or ())
    for _ in SummaryFiles(paths=paths).writing(lambda **_: [rows] if rows else [], lambda: names):
        continue


def read(paths: RunPaths) -> tuple[list[SummaryRow], float | None]:
    """The rows of ``summary.json``, and when it was written; none and None before it is.

    :raises LedgerError: it is not what this version of the program writes.
    """
    try:
        with open_regular(paths.summary_json) as file:
            rows, written = parsed_json(read_up_to(file, LARGEST_BYTES)), os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return [], None
    except (OSError, ValueError) as error:
        raise LedgerError(f"{paths.summary_json}: cannot be read: {error}") from error
    try:
        # An earlier version has written none of the first two.
        missing = {"measures": None, "waits_for": None}
        return [cast(SummaryRow, checked(SummaryRow, {**missing, **row})) for row in rows], written
    except (KeyError, TypeError, ValueError) as error:
        advice = "use the program with which its supervisor runs"
        text = f"{paths.summary_json}: was written by another version of this program ({error})"
        raise LedgerError(f"{text}; {advice}") from error


def to_json(rows: Iterable[Mapping[str, object]]) -> str:
    return "[\n" + ",\n".join(map(_line, rows)) + "\n]\n"


def _line(row: Mapping[str, object]) -> str:
    return plain(json.dumps(row, ensure_ascii=False))


def _columns(row: SummaryRow, measure_names: Collection[str]) -> list[str]:
    """Names of the columns: later versions of this program add new ones after those that there were."""
    own = [*(name for name in row if name not in NOT_IN_TABLE), *TIMES]
    return own + [name for name in measure_names if name not in own][:MOST_MEASURES]


def _cells(row: SummaryRow, columns: Iterable[str]) -> Iterator[object]:
    values: Mapping[str, Any] = {**(row["measures"] or {}), **row}
    for name in columns:
        yield _iso_time(values[TIMES[name]]) if name in TIMES else _cell(values.get(name))


def _iso_time(seconds: float | None) -> str | None:
    """``1732176972.5`` → ``2024-11-21T08:16:12+00:00``; None for None, and for what is no time of a calendar."""
    if seconds is not None:
        with contextlib.suppress(OverflowError, OSError, ValueError):
            return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    return None


def _cell(value: object) -> object:
    """Text in one line; one that a spreadsheet would take for a formula begins with an apostrophe."""
    if isinstance(value, list):
        value = " ".join(map(str, value))
    if not isinstance(value, str):
        return value
    text = plain(value)
    return f"'{text}" if text.startswith(FORMULA_SIGNS) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _csv(lines: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(lines)
    return text.getvalue().encode()


LEARNERS_SHOWN = 4
"""Number of reasons against the fast learner that :func:`learner_summary` gives, and of jobs that it names for each."""


def learner_summary(rows: Sequence[SummaryRow]) -> str:
    """How many jobs each learner trains, and why some do not use the fast one; empty when no learner is known yet.

    ``fast × 11, sb3 × 1 (auto: its action space is a Discrete, …: cartpole-s0)``
    """
    jobs_by_reason: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        if row["learner"] is not None:
            reason = "" if row["learner"] == "fast" else row["learner_reason"] or ""
            jobs_by_reason.setdefault(row["learner"], {}).setdefault(reason, []).append(row["job_id"])
    all_alike = sum(map(len, jobs_by_reason.values())) == 1
    parts = []
    for learner, groups in sorted(jobs_by_reason.items(), key=lambda item: -sum(map(len, item[1].values()))):
        reasons = [
            reason if all_alike else f"{reason}: {listed(jobs, LEARNERS_SHOWN)}"
            for reason, jobs in groups.items()
            if reason
        ]
        text = "; ".join(reasons[:LEARNERS_SHOWN])
        if len(reasons) > LEARNERS_SHOWN:
            text += f"; and {len(reasons) - LEARNERS_SHOWN} more reasons"
        parts.append(f"{learner} × {sum(map(len, groups.values()))}" + (f" ({text})" if text else ""))
    return ", ".join(parts)
