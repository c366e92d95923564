"""Applying chunks to a directory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from file_helpers import tree
from file_sync_helpers import (
    ROWS_0,
    part,
    tail,
    write,
)

from orchestrator.features.ray.file_sync.chunks import (
    Chunk,
    FileSyncError,
    RemovedFile,
    StoredFile,
)
from orchestrator.features.ray.file_sync.receiver import Receiver

LEAVING = ["../out", "a/../../out", "/out", "", ".", "a//b", "a/./b", "a/", "..", "a\0b"]


@pytest.mark.parametrize("path", LEAVING)
@pytest.mark.parametrize(
    "make",
    [part, lambda path: tail(path, 0, b"x"), RemovedFile, lambda path: StoredFile(path, "name", 1)],
)
def test_no_chunk_leaves_the_directory(tmp_path: Path, path: str, make: Any) -> None:
    (tmp_path / "out").write_text("mine")
    receiver = Receiver(tmp_path / "driver")
    with pytest.raises(FileSyncError, match="is not a path inside a job directory"):
        receiver.apply(make(path))
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.parametrize("path", ["link", "link/file", "folder/link/file"])
@pytest.mark.parametrize("make", [part, lambda path: tail(path, 4, b"x"), RemovedFile])
def test_no_chunk_is_written_through_a_link(tmp_path: Path, path: str, make: Any) -> None:
    elsewhere = tmp_path / "elsewhere"
    write(elsewhere, {"file": "mine"})
    receiver = Receiver(tmp_path / "driver")
    link = tmp_path / "driver" / re.sub("link.*", "link", path)
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(elsewhere if path.endswith("file") else elsewhere / "file")
    with pytest.raises(FileSyncError, match="is a symbolic link"):
        receiver.apply(make(path))
    assert tree(elsewhere) == {"file": b"mine"}


def test_a_file_appears_when_it_is_whole_and_an_incomplete_one_is_removed(tmp_path: Path) -> None:
    write(tmp_path, {"model.zip": "before"})
    receiver = Receiver(tmp_path)
    receiver.apply(part("model.zip", b"aft", is_last=False))
    assert (tmp_path / "model.zip").read_bytes() == b"before"
    del receiver  # killed
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == [
        ".arriving.tmp"
    ]
    receiver = Receiver(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model.zip"]
    with pytest.raises(FileSyncError, match=r"model.zip: received its bytes from 3 on, after None"):
        receiver.apply(part("model.zip", b"er", offset=3))
    assert (tmp_path / "model.zip").read_bytes() == b"before"


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        (tail("progress.csv", 9, b"x"), "has 2 bytes; .* begin at 9"),
        (part("model.zip", b"x", offset=9), "received its bytes from 9 on, after"),
    ],
)
def test_a_chunk_that_got_lost_is_noticed(tmp_path: Path, lost: Chunk, message: str) -> None:
    write(tmp_path, {"progress.csv": "a\n"})
    receiver = Receiver(tmp_path)
    receiver.apply(part("model.zip", b"x", is_last=False))
    with pytest.raises(FileSyncError, match=message):
        receiver.apply(lost)


def test_folders_that_become_empty_are_removed(tmp_path: Path) -> None:
    write(tmp_path, {"checkpoints/checkpoint-000000001024.pt": "last", ROWS_0: "rows"})
    receiver = Receiver(tmp_path)
    receiver.apply(RemovedFile(ROWS_0))
    receiver.apply(RemovedFile(ROWS_0))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [
        "checkpoint-000000001024.pt"
    ]
