"""``summary.json`` and ``summary.csv``: one row a job, made from the ledger, written whole."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.contract import DISK_FULL_ERRNOS, RunPaths, write_whole
from orchestrator.errors import DiskFullError


def write(paths: RunPaths, rows: Iterable[Mapping[str, Any]]) -> None:
    """:param rows: taken one by one: ten thousand of them are not kept.

    :raises DiskFullError: when the disk is full.
    :raises OSError: whatever else the disk answers.
    """
    table = io.StringIO(newline="")
    writer: csv.DictWriter[str] | None = None
    lines = []
    for row in rows:
        if writer is None:
            # A traceback has many lines; a table that is read line by line goes without.
            writer = csv.DictWriter(table, [name for name in row if name != "traceback"], extrasaction="ignore")
            writer.writeheader()
        writer.writerow(
            {key: " ".join(map(str, value)) if isinstance(value, list) else value for key, value in row.items()}
        )
        lines.append(_line(row))
    try:
        write_whole(paths.summary_json, _array(lines), durable=False)
        write_whole(paths.summary_csv, table.getvalue(), durable=False)
    except OSError as error:
        if error.errno in DISK_FULL_ERRNOS:
            raise DiskFullError(f"{paths.root}: no space left on the disk") from error
        raise


def to_json(rows: Iterable[Mapping[str, Any]]) -> str:
    """A JSON array, one line a job."""
    return _array(map(_line, rows))


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False)


def _array(lines: Iterable[str]) -> str:
    return "[\n" + ",\n".join(lines) + "\n]\n"
