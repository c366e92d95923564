"""``summary.json`` and ``summary.csv``: one row a job, made from the ledger, written whole."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from orchestrator.contract import DISK_FULL_ERRNOS, RunPaths, write_whole
from orchestrator.errors import DiskFullError


def write(paths: RunPaths, rows: Sequence[dict[str, Any]]) -> None:
    """:raises DiskFullError: when the disk is full.
    :raises OSError: whatever else the disk answers.
    """
    text = io.StringIO(newline="")
    if rows:
        writer = csv.DictWriter(text, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows({**row, "cpus": " ".join(map(str, row["cpus"] or ()))} for row in rows)
    try:
        write_whole(paths.summary_json, to_json(rows), durable=False)
        write_whole(paths.summary_csv, text.getvalue(), durable=False)
    except OSError as error:
        if error.errno in DISK_FULL_ERRNOS:
            raise DiskFullError(f"{paths.root}: no space left on the disk") from error
        raise


def to_json(rows: Sequence[dict[str, Any]]) -> str:
    return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"
