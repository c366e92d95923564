"""A record in a file of its own is read whole, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.core.files.record_file import read_record


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    pid: int


def test_a_record_is_read(tmp_path: Path) -> None:
    (tmp_path / "record").write_bytes(b'{"pid": 3}\n')
    assert read_record(Record, tmp_path / "record") == Record(pid=3)


@pytest.mark.parametrize("content", [b"", b'{"pid": ', b'{"pid": "3"}', b'{"other": 1}', b"\xff"])
def test_a_damaged_record_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "record").write_bytes(content)
    assert read_record(Record, tmp_path / "record") is None


def test_where_no_file_is_there_is_no_record_and_one_too_large_is_none(tmp_path: Path) -> None:
    assert read_record(Record, tmp_path / "record") is None
    assert read_record(Record, tmp_path) is None
    (tmp_path / "record").write_bytes(b'{"pid": 3}\n')
    assert read_record(Record, tmp_path / "record", most_bytes=5) is None
