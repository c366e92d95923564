"""Whole files through a file system that both sides reach."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from file_helpers import tree
from file_sync_helpers import synchronise

from orchestrator.features.ray.file_sync import storage as storages
from orchestrator.features.ray.file_sync.chunks import FilePart, FileSyncError, StoredFile
from orchestrator.features.ray.file_sync.receiver import Receiver
from orchestrator.features.ray.file_sync.sender import Sender
from orchestrator.features.ray.file_sync.storage import Storage

LARGE = os.urandom(3 * 2**20 + 5)


@pytest.fixture(params=["memory", "file"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    uri = (
        f"memory://file-sync-{tmp_path.name}"
        if request.param == "memory"
        else f"file://{tmp_path}/storage"
    )
    made = Storage(uri, "run-1")
    yield made
    made.clear()


def stored_names(storage: Storage) -> list[str]:
    filesystem, folder = storages.open_uri(storage.uri)
    return [str(name) for name in filesystem.find(folder)]


def job_directory(tmp_path: Path) -> Path:
    root = tmp_path / "node"
    (root / "checkpoints").mkdir(parents=True)
    (root / "checkpoints/checkpoint-000000000512.pt").write_bytes(LARGE)
    (root / "eval.json").write_text("{}")
    (root / "progress.csv").write_text("row\n" * 50_000)
    return root


def test_large_whole_files_go_through_the_storage_and_leave_nothing_there(
    storage: Storage, tmp_path: Path
) -> None:
    root = job_directory(tmp_path)
    receiver = Receiver(tmp_path / "driver", storage=pickle.loads(pickle.dumps(storage)))
    kinds = {}
    for chunk in Sender(root, storage=storage).scan():
        kinds[chunk.path] = type(chunk)
        if isinstance(chunk, StoredFile):
            assert len(stored_names(storage)) == 1
        receiver.apply(chunk)
    assert kinds == {
        "progress.csv": FilePart,
        "eval.json": FilePart,
        "checkpoints/checkpoint-000000000512.pt": StoredFile,
    }
    assert tree(tmp_path / "driver") == tree(root)
    assert stored_names(storage) == []


def test_a_file_that_changes_while_it_is_copied_is_not_taken(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = job_directory(tmp_path)
    put = Storage.put

    def changed_meanwhile(self: Storage, file: io.BufferedReader) -> str:
        name = put(self, file)
        with (root / "checkpoints/checkpoint-000000000512.pt").open("ab") as checkpoint:
            checkpoint.write(b"more")
        return name

    monkeypatch.setattr(Storage, "put", changed_meanwhile)
    sender, receiver = Sender(root, storage=storage), Receiver(tmp_path / "driver", storage=storage)
    assert not any(isinstance(chunk, StoredFile) for chunk in synchronise(sender, receiver))
    assert sender.is_incomplete
    assert stored_names(storage) == []
    monkeypatch.undo()
    synchronise(sender, receiver)
    assert tree(tmp_path / "driver") == tree(root)


def test_a_file_of_another_size_is_refused(storage: Storage, tmp_path: Path) -> None:
    receiver = Receiver(tmp_path / "driver", storage=storage)
    with pytest.raises(FileSyncError, match=r"model.zip: --storage .* has 4 bytes, not 5"):
        receiver.apply(StoredFile("model.zip", storage.put(io.BytesIO(b"four")), 5))
    assert tree(tmp_path / "driver") == {}


def test_a_storage_is_checked_by_writing_to_it(storage: Storage) -> None:
    storage.check()
    assert stored_names(storage) == []
