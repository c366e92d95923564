"""Whole files through a file system that both sides reach."""

from __future__ import annotations

import io
import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from file_helpers import tree
from file_sync_helpers import synchronise

from orchestrator.core.errors import UsageError
from orchestrator.features.ray.file_sync import storage as storages
from orchestrator.features.ray.file_sync.chunks import FilePart, FileSyncError, StoredFile
from orchestrator.features.ray.file_sync.receiver import Receiver
from orchestrator.features.ray.file_sync.sender import Sender, outgoing_chunks
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


def test_outgoing_files_can_use_the_storage_too(storage: Storage, tmp_path: Path) -> None:
    root = job_directory(tmp_path)
    copy = Receiver(tmp_path / "copy", storage=storage)
    for chunk in outgoing_chunks(root, storage=storage):
        copy.apply(chunk)
    assert (tmp_path / "copy/checkpoints/checkpoint-000000000512.pt").read_bytes() == LARGE
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


def test_clear_removes_only_the_files_of_its_own_subfolder(storage: Storage) -> None:
    neighbour = Storage(storage.uri, "run-2")
    kept = neighbour.put(io.BytesIO(b"theirs"))
    storage.put(io.BytesIO(b"ours"))
    storage.clear()
    storage.clear()
    assert [name.rpartition("/")[2] for name in stored_names(storage)] == [kept]
    neighbour.clear()


def test_a_storage_that_differs_between_machines_is_reported(tmp_path: Path) -> None:
    there, here = (Storage(f"file://{tmp_path}/{machine}", "run") for machine in ("there", "here"))
    root = job_directory(tmp_path)
    receiver = Receiver(tmp_path / "driver", storage=here)
    with pytest.raises(
        FileNotFoundError, match=f"{tmp_path}/here|every machine must see the same folder"
    ):
        synchronise(Sender(root, storage=there), receiver)
    assert "checkpoints/checkpoint-000000000512.pt" not in tree(tmp_path / "driver")


def test_a_file_of_another_size_is_refused(storage: Storage, tmp_path: Path) -> None:
    receiver = Receiver(tmp_path / "driver", storage=storage)
    with pytest.raises(FileSyncError, match=r"model.zip: --storage .* has 4 bytes, not 5"):
        receiver.apply(StoredFile("model.zip", storage.put(io.BytesIO(b"four")), 5))
    assert tree(tmp_path / "driver") == {}


def test_a_stored_file_needs_a_storage_here(tmp_path: Path) -> None:
    with pytest.raises(FileSyncError, match="no storage is configured here"):
        Receiver(tmp_path).apply(StoredFile("model.zip", "name", 5))


def test_a_storage_is_checked_by_writing_to_it(storage: Storage) -> None:
    storage.check()
    assert stored_names(storage) == []


def test_a_storage_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    uri = f"file://{tmp_path}/file/folder"
    with pytest.raises(OSError, match=f"checking --storage {uri}: Not a directory"):
        Storage(uri, "run").check()


def test_exceptions_of_a_file_system_become_os_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage("memory://file-sync-errors", "run")
    filesystem, _ = storages.open_uri(storage.uri)

    def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError("token expired")

    monkeypatch.setattr(type(filesystem), "open", fail)
    with pytest.raises(
        OSError, match="writing to --storage memory://file-sync-errors: RuntimeError: token expired"
    ):
        storage.put(io.BytesIO(b"x"))


@pytest.mark.parametrize(
    ("uri", "missing", "message"),
    [
        ("stram", None, r"--storage stram: expected auto, shared, stream or a URI such as s3://"),
        (
            "nosuch://x",
            None,
            r"--storage nosuch://x: fsspec does not know it \(Protocol not known: nosuch\)",
        ),
        (
            "s3://bucket/x",
            "s3fs",
            r"s3:// needs a package that is not installed here \(Install s3fs to access S3\)",
        ),
        (
            "file:///x",
            "fsspec.core",
            r"needs the package fsspec.* pip install -c constraints.txt \".\[ray\]\"",
        ),
    ],
)
def test_what_is_missing_for_a_uri_is_named(
    monkeypatch: pytest.MonkeyPatch, uri: str, missing: str | None, message: str
) -> None:
    if missing is not None:
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UsageError, match=message):
        Storage(uri, "run").check()
