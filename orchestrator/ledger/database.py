"""An SQLite file of a run directory."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from orchestrator.ledger import database_file
from orchestrator.ledger.database_file import bindable_values, translate_errors

READER_PATIENCE_S = 1.0
"""How long the end of a file waits for readers, so that the file alone is the whole of it."""


class Database:
    """Opened with :meth:`create` or :meth:`open`. Writes belong to one transaction until
    :meth:`commit`.

    :raises LedgerUnavailableError: by any method, if it stays locked for longer than it is waited
        for, or its file system fails.
    :raises LedgerError: by any method, for damage.
    :raises DiskFullError: by any method, when there is no space to write.
    """

    schema: ClassVar[str]
    """Creates the tables, of which one is ``program``."""
    format: ClassVar[int]

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection

    @classmethod
    def create(cls, path: Path) -> Self:
        """Create an empty file. :raises LedgerError: ``path`` exists or cannot be written."""
        database_file.create(path, cls.schema, cls.format)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False, is_sound: bool = False) -> Self:
        """Open an existing file.

        :raises LedgerError: it is missing, damaged, of another program or of another format.

        :param is_sound: whether it was found free of damage before, so that not the whole file is
            examined again.
        """
        return cls(
            path,
            database_file.connect(path, cls.format, read_only=read_only, is_sound=is_sound),
        )

    def close(self) -> None:
        """Commit and close. The file alone has everything then, readable on a read-only file system
        too.
        """
        try:
            self.commit()
            # While another process reads, the write-ahead file stays, and remains valid.
            give_up_at = time.monotonic() + READER_PATIENCE_S
            with translate_errors(self.path):
                while not self._remove_log() and time.monotonic() < give_up_at:
                    time.sleep(0.02)
        finally:
            self._connection.close()

    def _remove_log(self) -> bool:
        try:
            self._connection.execute("PRAGMA busy_timeout=50")
            mode: str = self._connection.execute("PRAGMA journal_mode=DELETE").fetchone()[0]
        except sqlite3.OperationalError:  # another process reads
            return False
        return mode == "delete"

    def abandon(self) -> None:
        """Close without writing; what was not committed is lost."""
        self._connection.close()

    def commit(self) -> None:
        """Write the open transaction, or drop it and raise."""
        with translate_errors(self.path):
            try:
                self._connection.commit()
            except BaseException:
                self._connection.rollback()
                raise

    def wait_for_lock(self, seconds: float = database_file.BUSY_S) -> None:
        """How long every further call waits for another process that has the file locked."""
        with translate_errors(self.path):
            self._connection.execute(f"PRAGMA busy_timeout={int(seconds * 1000)}")

    def _execute(self, sql: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> sqlite3.Cursor:
        with translate_errors(self.path):
            return self._connection.execute(sql, bindable_values(values))

    def select(self, sql: str, values: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Return the rows of a statement."""
        with translate_errors(self.path):
            return self._execute(sql, values).fetchall()

    def change(self, sql: str, values: Sequence[Any] = ()) -> None:
        """Execute a statement that changes something: part of the open transaction."""
        self._execute(sql, values)
