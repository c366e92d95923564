"""The file of the ledger: how it is created, checked for damage and opened, and what SQLite's
errors mean.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.core.errors import (
    DiskFullError,
    LedgerBusyError,
    LedgerDamagedError,
    LedgerError,
    LedgerFailingError,
    disk_full_explained,
)
from orchestrator.core.files.atomic_files import sync_directory
from orchestrator.core.files.trial_file import write_trial
from orchestrator.core.front_end import option, repeat_call
from orchestrator.core.text import storable
from orchestrator.machine.users import ask_owner

APPLICATION_ID = 0x4F524348  # "ORCH"
BUSY_S = 10.0
LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
NOT_PERMITTED = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN)
OF_FILE_SYSTEM = (*NOT_PERMITTED, sqlite3.SQLITE_IOERR)
MOST_AT_ONCE = 1 << 16
"""Bytes by which SQLite lets a file of a ledger grow at once, at most."""
ADVICE = (
    "it was left as it is. Move it away, and `run JOBS.toml` takes the jobs over from their directories;"
    " `run --fresh` starts over"
)


def create(path: Path, schema: str, format_: int) -> None:
    """Create a ledger without jobs. A process that is killed meanwhile leaves none, and after a power
    cut an earlier ledger that was moved away does not come back in its place.
    """
    if path.exists():
        raise LedgerError(f"{path}: already exists")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    _remove_temporary_files(path)
    with translate_errors(path):
        try:
            with contextlib.closing(sqlite3.connect(temporary)) as connection:
                connection.executescript(
                    f"PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={format_}; BEGIN; {schema} COMMIT;"
                )
                with connection:
                    connection.execute("INSERT INTO program VALUES (?)", (_program_version(),))
            temporary.rename(path)
            # What is committed would be lost with the name. Some file systems cannot do it.
            with contextlib.suppress(OSError):
                sync_directory(path.parent)
        except BaseException:
            _remove_temporary_files(path)
            raise


def _program_version() -> str:
    from orchestrator.machine import provenance  # which takes a while to import

    return provenance.version(provenance.OURS) or "unknown"


def _remove_temporary_files(path: Path) -> None:
    for file in path.parent.glob(f".{path.name}.*.tmp*"):
        with contextlib.suppress(OSError):  # what stays is in nobody's way
            file.unlink()


def connect(
    path: Path, format_: int, *, read_only: bool = False, is_sound: bool = False
) -> sqlite3.Connection:
    """A connection to an existing ledger, checked as :meth:`Ledger.open` says."""
    if path.is_symlink():
        raise LedgerError(
            f"{path}: is a symbolic link, expected the ledger itself; remove it, or copy the file here"
        )
    if not path.is_file():
        raise LedgerError(f"{path}: there is no ledger; is this a run directory?")
    has_log = _size(path.with_name(f"{path.name}-wal")) > 0
    uri = path.absolute().as_uri()
    with translate_errors(path), decoding(path):
        connection = sqlite3.connect(f"{uri}?mode=ro", uri=True, timeout=BUSY_S)
        try:
            try:
                connection.execute("PRAGMA schema_version").fetchone()
            except sqlite3.OperationalError:
                # On a read-only file system there can be no shared-memory file, and no writer
                # either. Elsewhere the log must be read, too.
                if os.access(path.parent, os.W_OK):
                    raise
                connection.close()
                connection = sqlite3.connect(f"{uri}?immutable=1", uri=True)
            # Before anything is written: what may be damaged is left as it is.
            _examine(connection, path, format_, has_log=has_log, is_sound=is_sound)
            if not read_only:
                connection.close()
                connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level="IMMEDIATE")
                connection.execute("PRAGMA journal_mode=WAL")
                # A killed process loses nothing committed; only a power cut may lose the last
                # moments, never the file.
                connection.execute("PRAGMA synchronous=NORMAL")
        except BaseException:
            connection.close()
            raise
    connection.row_factory = sqlite3.Row
    return connection


def _examine(
    connection: sqlite3.Connection, path: Path, format_: int, *, has_log: bool, is_sound: bool
) -> None:
    """:raises LedgerError: it is no ledger of this format, or damaged."""
    if _size(path) == 0:
        raise LedgerError(f"{path}: the ledger is empty (0 bytes); {ADVICE}")
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise LedgerError(f"{path}: the database of another program, or a damaged ledger; {ADVICE}")
    written: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if written != format_:
        raise LedgerError(
            f"{path}: the run directory has format {written}, written by {_writer(connection)} of this program, and"
            f" this version needs format {format_}; it was left as it is. Use that version, or start over with"
            f" {option('fresh', True)}"
        )
    if is_sound:
        return
    damage: str = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    page_bytes: int = connection.execute("PRAGMA page_size").fetchone()[0]
    if _size(path) % page_bytes and not has_log:
        # SQLite reads the missing bytes as zeros; with a log it may not read them
        damage = "truncated within a page"
    if damage != "ok":
        raise LedgerError(f"{path}: the ledger is damaged ({' '.join(damage.split())}); {ADVICE}")


def _writer(connection: sqlite3.Connection) -> str:
    try:
        (program,) = connection.execute("SELECT version FROM program").fetchone()
    except (sqlite3.Error, TypeError):  # no such table, or nothing in it
        return "another version"
    return f"version {program}"


@contextlib.contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Raise SQLite's errors as :class:`LedgerError`, or one of its kinds, or :class:`DiskFullError`."""
    try:
        yield
    except sqlite3.Error as error:
        code = _primary_code(error)
        if code == sqlite3.SQLITE_FULL:
            raise DiskFullError(f"{path}: {DiskFullError.what}") from error
        may_be_opened = code == sqlite3.SQLITE_CANTOPEN and os.access(path, os.W_OK)
        if code == sqlite3.SQLITE_IOERR or may_be_opened:
            _try_to_grow(path)
        raise _error_class(code)(f"{path}: {_description(code, error, path)}") from error


def _primary_code(error: sqlite3.Error) -> int:
    """0 of errors that are not SQLite's own."""
    # The low byte is the primary error code, the others extend it.
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def _error_class(code: int) -> type[LedgerError]:
    """:param code: a primary error code."""
    if code in LOCKED:
        return LedgerBusyError
    return LedgerFailingError if code in OF_FILE_SYSTEM else LedgerError


@contextlib.contextmanager
def decoding(path: Path) -> Iterator[None]:
    """Raise errors from reading a row as damage to the ledger."""
    try:
        yield
    except (ValueError, KeyError, TypeError, IndexError) as error:
        text = f"{path}: the ledger is damaged (a row cannot be read: {error!r}); {ADVICE}"
        raise LedgerDamagedError(text) from error


def bindable_values(values: Sequence[Any] | Mapping[str, Any]) -> Sequence[Any] | Mapping[str, Any]:
    """``values`` as SQLite takes them: it refuses text that is no UTF-8 with an error that is none
    of its own.
    """
    if isinstance(values, Mapping):
        return {
            name: storable(value) if isinstance(value, str) else value
            for name, value in values.items()
        }
    return [storable(value) if isinstance(value, str) else value for value in values]


def _description(code: int, error: sqlite3.Error, path: Path) -> str:
    """What is wrong and what to do. :param code: the primary error code of ``error``."""
    if code in NOT_PERMITTED:
        advice = f"fix the permissions of its folder or choose another {option('run_dir')}"
        return f"the ledger cannot be written ({error}); {ask_owner(path) or advice}"
    if code in LOCKED:
        return f"the ledger is locked by another process ({error}); end that process and try again"
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return f"the ledger is damaged ({error}); {ADVICE}"
    if code == sqlite3.SQLITE_IOERR:
        what = "its file system has failed to read or write it"
        return f"{error}: {what}; look at the file system and its disk, then {repeat_call()}"
    return f"the ledger cannot be used ({error}); {ADVICE}"


def _size(path: Path) -> int:
    """0 where there is none: who closes a ledger last removes its write-ahead file."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _try_to_grow(path: Path) -> None:
    """Find out whether a file of the ledger may grow: SQLite does not say why it could not write.

    :raises DiskFullError: the disk is full, a quota or the limit on the size of a file is reached.
    """
    files = [path.with_name(f"{path.name}{ending}") for ending in ("", "-wal", "-shm")]
    # Where no file can be made at all, SQLite's error is the one to tell.
    with contextlib.suppress(OSError), disk_full_explained(path):
        write_trial(path.parent, size=MOST_AT_ONCE, at=max(map(_size, files)))
