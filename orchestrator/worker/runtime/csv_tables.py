"""CSV files that grow row by row, ``progress.csv`` and ``timings.csv``, and are cut back on
resume.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stable_baselines3.common.logger import KVWriter, filter_excluded_keys

from orchestrator.core.files.atomic_files import write_whole


class CsvTable:
    """A CSV file that grows by rows, and by a column when a row has a new one.

    :param keep: rows of an earlier attempt that stay. Later ones (written after the checkpoint that
        training resumes from, the last one perhaps torn) are cut off.
    """

    def __init__(self, path: Path, *, keep: int = 0, columns: Sequence[str] = ()) -> None:
        self._path = path
        self._columns = list(columns)
        self.rows = 0
        """Rows in the file, without the header."""
        rows: list[list[str]] = []
        if keep and path.exists():
            self._columns, *rows = self._read() or [self._columns]
        self._write_whole(rows[:keep])

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row. A column that the file lacks is added to it; None and missing values become
        empty cells.

        :raises OSError: it cannot be written.
        """
        new = [name for name in row if name not in self._columns]
        if new:
            rows = self._read()[1:] if self._columns else []
            self._columns += new
            self._write_whole([[*cells, *[""] * len(new)] for cells in rows])
        # Opened for each row (tens of microseconds, once an iteration), so that nothing stays in a
        # buffer.
        with self._path.open("a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(row.get(name) for name in self._columns)
        self.rows += 1

    def _read(self) -> list[list[str]]:
        with self._path.open(newline="", errors="replace") as file:
            return list(csv.reader(file))

    def _write_whole(self, rows: Sequence[Sequence[str]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(
            [self._columns, *rows] if self._columns else rows
        )
        write_whole(self._path, text.getvalue())
        self.rows = len(rows)


class LoggerTable(CsvTable, KVWriter):
    """Holds the values of Stable-Baselines3's logger, under the logger's own names."""

    latest: Mapping[str, Any] = {}
    """The row that was written last."""

    def write(
        self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0
    ) -> None:
        self.latest = filter_excluded_keys(key_values, key_excluded, "csv")
        self.append(self.latest)

    def close(self) -> None:
        """Nothing to do: every row is on the disk already."""
