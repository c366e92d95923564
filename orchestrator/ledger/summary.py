"""``summary.json`` and ``summary.csv``: one row per job, made from the ledger; both files appear
whole.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Any, cast

from orchestrator.core import job_parts
from orchestrator.core.decoding import checked_row, parsed_json
from orchestrator.core.errors import LedgerError, LedgerFailingError, disk_full_explained
from orchestrator.core.files.atomic_files import writing_whole
from orchestrator.core.files.regular_files import LARGEST_BYTES, open_regular, read_up_to
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import listed, plain
from orchestrator.ledger import Ledger
from orchestrator.ledger.rows import SummaryRow

FORMULA_SIGNS = ("=", "+", "-", "@")
"""With these, what a spreadsheet takes for a formula begins."""
NOT_IN_TABLE = (
    "traceback",
    "measures",
    "waits_for",
    "phase",
    "cpu_share",
    "run_delay_share",
    "reported_at",
    "competitors",
    "waiting",
)
"""Keys of ``summary.json`` without a column: tools read a table line by line; each measure has its
own column; and what jobs do at this moment is of no use later."""
TIMES = {"started": "started_at", "ended": "ended_at"}
"""Columns with a time in ISO 8601 → the keys with the same time in seconds since the epoch."""
MOST_MEASURES = 100
"""Columns for measures."""
LEARNERS_SHOWN = 4
"""Learners and reasons in a summary of them, and jobs that it names for each."""


def write(paths: RunPaths, ledger: Ledger) -> None:
    """Write both files.

    :raises DiskFullError, LedgerError, OSError: the files before are still there.
    """
    rows = ledger.summary()
    columns = _columns(rows)
    with (
        disk_full_explained(paths.root),
        writing_whole(paths.summary_json, durable=False) as array,
        writing_whole(paths.summary_csv, durable=False) as table,
    ):
        array.write(to_json(rows).encode())
        table.write(_csv([map(_cell, columns), *(_cells(row, columns) for row in rows)]))


def read(paths: RunPaths) -> tuple[list[SummaryRow], float | None]:
    """The rows of ``summary.json``, and when it was written; none and None before it is.

    :raises LedgerFailingError: its file system fails.
    :raises LedgerError: it is damaged.
    """
    try:
        with open_regular(paths.summary_json) as file:
            rows = parsed_json(read_up_to(file, LARGEST_BYTES))
            written = os.fstat(file.fileno()).st_mtime
        checked = [{**row, **checked_row(SummaryRow, row)} for row in rows]
    except FileNotFoundError:
        return [], None
    except (OSError, KeyError, TypeError, ValueError) as error:
        kind = LedgerFailingError if isinstance(error, OSError) else LedgerError
        raise kind(f"{paths.summary_json}: cannot be read: {error}") from error
    return cast(list[SummaryRow], checked), written


def to_json(rows: Iterable[Mapping[str, object]]) -> str:
    return "[\n" + ",\n".join(map(_line, rows)) + "\n]\n"


def _line(row: Mapping[str, object]) -> str:
    return plain(json.dumps(row, ensure_ascii=False))


def _columns(rows: Sequence[SummaryRow]) -> list[str]:
    """Names of the columns: those of every row, of features, of what a matrix varies, and measures."""
    names = dict.fromkeys(
        [*SummaryRow.__annotations__, *job_parts.column_names(), *chain.from_iterable(rows[:1])]
    )
    measures = dict.fromkeys(name for row in rows for name in row["measures"] or ())
    columns = [name for name in names if name not in NOT_IN_TABLE]
    columns += TIMES
    return columns + [name for name in measures if name not in columns][:MOST_MEASURES]


def _cells(row: SummaryRow, columns: Iterable[str]) -> Iterator[object]:
    values: Mapping[str, Any] = {**(row["measures"] or {}), **row}
    for name in columns:
        yield _iso_time(values[TIMES[name]]) if name in TIMES else _cell(values.get(name))


def _iso_time(seconds: float | None) -> str | None:
    """``1732176972.5`` → ``2024-11-21T08:16:12+00:00``; None for None, and for what is no time of a
    calendar.
    """
    if seconds is not None:
        with contextlib.suppress(OverflowError, OSError, ValueError):
            return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    return None


def _cell(value: object) -> object:
    """Text in one line; one that a spreadsheet would take for a formula begins with an
    apostrophe.
    """
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


def learner_summary(rows: Iterable[SummaryRow]) -> str:
    """Return how many jobs each learner trains, and why some do not use the fast one; empty when no
    learner is known yet.

    ``fast × 11, sb3 × 1 (auto: its action space is a Discrete, …: cartpole-s0)``
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if (learner := row["learner"]) is not None:
            reason = "" if learner == "fast" else row["learner_reason"] or ""
            groups.setdefault((learner, reason), []).append(row["job_id"])
    texts = []
    for (learner, reason), jobs in sorted(groups.items(), key=lambda group: -len(group[1])):
        names = f": {listed(jobs, LEARNERS_SHOWN)}" if len(groups) > 1 else ""
        why = f" ({reason}{names})" if reason else ""
        texts.append(f"{learner} × {len(jobs)}{why}")
    return listed(texts, LEARNERS_SHOWN)
