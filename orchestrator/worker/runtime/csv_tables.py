"""CSV files that grow row by row, ``progress.csv`` and ``timings.csv``, and are cut back on
resume.
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterable, Mapping, Sequence
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
            with path.open(newline="", errors="replace") as file:
                lines = list(csv.reader(file))
            self._columns = lines[0] if lines else self._columns
            rows = lines[1 : keep + 1]
        self._write_whole(rows)

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row. A column that the file lacks is added to it; None and missing values become
        empty cells.

        :raises OSError: it cannot be written.
        """
        new = [name for name in row if name not in self._columns]
        if new:
            self._add_columns(new)
        # Opened for each row (tens of microseconds, once an iteration), so that nothing stays in a
        # buffer.
        with self._path.open("a", newline="") as file:
            file.write(_line(row.get(name) for name in self._columns))
        self.rows += 1

    def _add_columns(self, names: Sequence[str]) -> None:
        """Add columns, which are empty in the rows that are there."""
        with self._path.open(newline="") as file:
            lines = list(csv.reader(file))
        rows = lines[1:] if self._columns else lines
        empty = [""] * len(names)
        self._columns += names
        self._write_whole([row + empty for row in rows])

    def _write_whole(self, rows: list[list[str]]) -> None:
        header = [self._columns] if self._columns else []
        write_whole(self._path, "".join(_line(cells) for cells in header + rows))
        self.rows = len(rows)


def set_aside(path: Path) -> Path | None:
    """Give a table with rows another name, so that it is kept when the training starts over;
    returns the new path.
    """
    if not path.exists() or path.read_bytes().count(b"\n") < 2:
        return None
    return path.rename(path.with_name(f"{path.name}.before-{time.strftime('%Y%m%dT%H%M%S')}"))


def _line(cells: Iterable[object]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


class LoggerTable(KVWriter):
    """Writes the values of Stable-Baselines3's logger into a :class:`CsvTable`, under the logger's
    own names.
    """

    def __init__(self, table: CsvTable) -> None:
        self.table = table
        self.latest: Mapping[str, Any] = {}
        """The row that was written last."""

    def write(
        self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0
    ) -> None:
        self.latest = filter_excluded_keys(key_values, key_excluded, "csv")
        self.table.append(self.latest)

    def close(self) -> None:
        """Nothing to do: every row is on the disk already."""
