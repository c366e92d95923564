"""``summary.json`` and ``summary.csv``: one row a job, made from the ledger; each file appears whole."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence

from orchestrator.core.atomic_files import writing_whole
from orchestrator.core.errors import DiskFullError
from orchestrator.core.exit_codes import DISK_FULL_ERRNOS
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import listed
from orchestrator.ledger.rows import SummaryRow


def writing(paths: RunPaths, pages: Iterable[Sequence[SummaryRow]]) -> Iterator[None]:
    """Write both, a page of rows a step; they appear with the last step, and not at all when it is never made.

    :raises DiskFullError: when the disk is full.
    :raises OSError: whatever else the disk answers.
    """
    try:
        with (
            writing_whole(paths.summary_json, durable=False) as array,
            writing_whole(paths.summary_csv, durable=False) as table,
        ):
            array.write(b"[\n")
            for number, page in enumerate(pages):
                if number:
                    yield
                    array.write(b",\n")
                else:
                    table.write(_header(page[0]).encode())
                array.write(",\n".join(map(_line, page)).encode())
                table.write(_cells(page).encode())
            array.write(b"\n]\n")
    except OSError as error:
        if error.errno in DISK_FULL_ERRNOS:
            raise DiskFullError(f"{paths.root}: no space left on the disk") from error
        raise


def write(paths: RunPaths, rows: Sequence[SummaryRow]) -> None:
    """Write both at once; errors as of :func:`writing`."""
    for _ in writing(paths, [rows] if rows else []):
        continue


def to_json(rows: Iterable[SummaryRow]) -> str:
    """A JSON array, one line a job."""
    return "[\n" + ",\n".join(map(_line, rows)) + "\n]\n"


def _line(row: SummaryRow) -> str:
    return json.dumps(row, ensure_ascii=False)


def _columns(row: SummaryRow) -> list[str]:
    """A traceback has many lines; a table that is read line by line goes without."""
    return [name for name in row if name != "traceback"]


def _header(row: SummaryRow) -> str:
    text = io.StringIO(newline="")
    csv.writer(text).writerow(_columns(row))
    return text.getvalue()


def _cells(page: Sequence[SummaryRow]) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    for row in page:
        values = [value for name, value in row.items() if name != "traceback"]
        writer.writerow(" ".join(map(str, value)) if isinstance(value, list) else value for value in values)
    return text.getvalue()


LEARNERS_SHOWN = 4
"""Reasons against the fast learner that the line about learners gives; and the jobs that it names for each."""


def learner_summary(rows: Sequence[SummaryRow]) -> str:
    """How many jobs each learner trains; where it is not the fast one, why and which. Empty: none is known yet.

    ``fast × 11, sb3 × 1 (auto: its action space is a Discrete, …: cartpole-s0)``
    """
    of: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        if row["learner"] is not None:
            why = "" if row["learner"] == "fast" else row["learner_reason"] or ""
            of.setdefault(row["learner"], {}).setdefault(why, []).append(row["job_id"])
    jobs_of = {learner: sum(map(len, groups.values())) for learner, groups in of.items()}
    all_alike = sum(map(len, of.values())) == 1
    told = []
    for learner, count in sorted(jobs_of.items(), key=lambda item: -item[1]):
        known = [(why, jobs) for why, jobs in of[learner].items() if why]
        whys = [why if all_alike else f"{why}: {listed(jobs, LEARNERS_SHOWN)}" for why, jobs in known[:LEARNERS_SHOWN]]
        whys += [f"and {len(known) - LEARNERS_SHOWN} more reasons"] * (len(known) > LEARNERS_SHOWN)
        told.append(f"{learner} × {count}" + (f" ({'; '.join(whys)})" if whys else ""))
    return ", ".join(told)
