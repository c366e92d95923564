"""The status of a file, or None."""

from __future__ import annotations

from pathlib import Path

from orchestrator.core.files.file_status import status_of


def test_a_file_has_a_status(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    found = status_of(tmp_path / "file")
    assert found is not None
    assert found.st_size == 3


def test_what_is_no_file_has_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("missing", "file/below", "long" * 1000):
        assert status_of(tmp_path / name) is None
