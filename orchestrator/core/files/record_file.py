"""Records that another process, or an earlier one, has left in a file of their own."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from orchestrator.core.decoding import decode
from orchestrator.core.files.regular_files import LARGEST_BYTES, read_regular

T = TypeVar("T")


def read_record(
    kind: type[T],
    path: Path,
    most_bytes: int = LARGEST_BYTES,
) -> T | None:
    """The dataclass ``kind`` in ``path``, as :func:`decode` reads it. None where there is no such
    file, and where it cannot be read, was damaged by a power cut or is of another version: for who
    goes on without the record.
    """
    try:
        return decode(kind, read_regular(path, most_bytes))
    except (OSError, ValueError):
        return None
