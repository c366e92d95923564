"""The changes of a job directory on a node: which chunks are made, and in what order."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from file_helpers import tree
from file_sync_helpers import (
    JOB,
    ROWS_0,
    ROWS_1,
    append,
    paths_of,
    replace,
    synchronise,
    tail,
    write,
)

from orchestrator.features.ray.file_sync import sender as sender_module
from orchestrator.features.ray.file_sync.chunks import Appended, FilePart, RemovedFile
from orchestrator.features.ray.file_sync.receiver import Receiver
from orchestrator.features.ray.file_sync.sender import Sender, outgoing_chunks


def test_what_a_worker_removes_of_a_shorter_training_is_removed_at_the_driver(
    tmp_path: Path,
) -> None:
    results = dict.fromkeys(("eval.json", "moment.npz", "preview.png"), "of the shorter one")
    write(tmp_path / "driver", JOB | results)
    node, driver = Receiver(tmp_path / "node"), Receiver(tmp_path / "driver")
    for chunk in outgoing_chunks(tmp_path / "driver"):
        node.apply(chunk)
    sender = Sender.of_copy(tmp_path / "node")
    for name in results:
        (tmp_path / "node" / name).unlink()
    write(tmp_path / "node", {"model.zip": "of the longer one", "eval.json": "of the longer one"})
    for chunk in sender.scan():
        driver.apply(chunk)
    left = [name for name in results if (tmp_path / "driver" / name).exists()]
    assert left == ["eval.json"]
    assert (tmp_path / "driver/eval.json").read_text() == "of the longer one"


def test_all_files_are_sent_except_inputs_and_hidden_ones(tmp_path: Path) -> None:
    write(tmp_path, JOB)
    sent = set(paths_of(list(Sender(tmp_path).scan())))
    hidden = {name for name in JOB if "/." in f"/{name}"}
    inputs = {"spec.json", "robot.sha256", "robot/hopper.xml", "init.pt"}
    assert sent == JOB.keys() - hidden - inputs - {"attempts/0/rendezvous"}


def test_ranks_on_several_machines_send_their_own_files(tmp_path: Path) -> None:
    write(tmp_path, JOB)
    everything = set(paths_of(list(Sender(tmp_path).scan())))
    of_1 = {ROWS_1, "attempts/0/rank-1.log", "attempts/0/rank-1.exit.json"}
    assert set(paths_of(list(Sender(tmp_path, ranks=[1]).scan()))) == of_1
    assert set(paths_of(list(Sender(tmp_path, ranks=[0]).scan()))) == everything - of_1
    assert set(paths_of(list(Sender(tmp_path, ranks=[0, 1]).scan()))) == everything


def test_files_are_sent_after_those_that_they_depend_on(tmp_path: Path) -> None:
    write(tmp_path, {"checkpoints/checkpoint-000000000256.pt": "oldest", **JOB})
    sender = Sender(tmp_path)
    sent = paths_of(list(sender.scan()))
    order = [
        "progress.csv",
        ROWS_0,
        "checkpoints/checkpoint-000000001024.pt",
        "model.zip",
        "attempts/0/exit.json",
    ]
    assert [path for path in sent if path in order] == order
    write(
        tmp_path,
        {"checkpoints/checkpoint-000000002048.pt": "newest", "attempts/0/exit.json": '{"code": 0}'},
    )
    (tmp_path / "checkpoints/checkpoint-000000000256.pt").unlink()
    append(tmp_path / "progress.csv", "2\n")
    assert [(type(chunk), chunk.path) for chunk in sender.scan()] == [
        (Appended, "progress.csv"),
        (FilePart, "checkpoints/checkpoint-000000002048.pt"),
        (RemovedFile, "checkpoints/checkpoint-000000000256.pt"),
        (FilePart, "attempts/0/exit.json"),
    ]


def test_a_checkpoint_rejected_by_the_worker_is_removed_first(tmp_path: Path) -> None:
    write(tmp_path, JOB)
    sender = Sender(tmp_path)
    list(sender.scan())
    (tmp_path / "checkpoints/checkpoint-000000001024.pt").unlink()
    replace(tmp_path / "progress.csv", "a\n")
    assert paths_of(list(sender.scan())) == [
        "checkpoints/checkpoint-000000001024.pt",
        "progress.csv",
    ]


@pytest.mark.parametrize("look", ["list_files", "_open_regular"])
def test_a_checkpoint_written_during_a_scan_does_not_remove_the_previous_one_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    """A concurrent listing of the folder may see neither."""
    older, newer = (f"checkpoints/checkpoint-{steps:012d}.pt" for steps in (512, 1024))
    write(tmp_path, {older: "older", "progress.csv": "a\n"})
    sender = Sender(tmp_path)
    list(sender.scan())
    append(tmp_path / "progress.csv", "1\n")
    list_files, opened = sender_module.patterns.list_files, sender_module._open_regular
    later = iter([True])

    def older_is_gone(*arguments: Any) -> dict[str, os.stat_result]:
        found = list_files(*arguments)
        if next(later, False):
            found.pop(older, None)
            write(tmp_path, {newer: "newer"})
            (tmp_path / older).unlink()
        return found

    def newer_is_there(*arguments: Any) -> Any:
        if next(later, False):
            write(tmp_path, {newer: "newer"})
            (tmp_path / older).unlink()
        return opened(*arguments)

    if look == "list_files":
        monkeypatch.setattr(sender_module.patterns, "list_files", older_is_gone)
    else:
        monkeypatch.setattr(sender_module, "_open_regular", newer_is_there)
    assert paths_of(list(sender.scan())) == ["progress.csv", newer, older]


def test_unchanged_files_are_neither_sent_nor_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, JOB)
    sender = Sender(tmp_path)
    list(sender.scan())
    monkeypatch.setattr(
        sender_module, "_open_regular", lambda path: pytest.fail(f"{path} was opened")
    )
    assert list(sender.scan()) == []
    assert not sender.is_incomplete


def test_a_directory_that_is_gone_is_an_error_not_an_empty_directory(tmp_path: Path) -> None:
    write(tmp_path / "node", JOB)
    sender = Sender(tmp_path / "node")
    list(sender.scan())
    shutil.rmtree(tmp_path / "node")
    with pytest.raises(FileNotFoundError, match="node"):
        list(sender.scan())


def test_links_and_special_files_are_not_sent(tmp_path: Path) -> None:
    write(tmp_path / "secret", {"key": "secret"})
    node = tmp_path / "node"
    write(node, {"eval.json": "{}"})
    (node / "model.zip").symlink_to(tmp_path / "secret/key")
    (node / "attempts").symlink_to(tmp_path / "secret")
    (node / "folder").symlink_to(tmp_path / "secret")
    os.mkfifo(node / "pipe")
    assert paths_of(list(Sender(node).scan())) == ["eval.json"]


# -- tables and logs


def test_only_the_appended_rows_of_a_table_are_sent(tmp_path: Path) -> None:
    node, driver = tmp_path / "node", tmp_path / "driver"
    write(node, {"timings.csv": "iteration\n" * 2000})
    sender, receiver = Sender(node), Receiver(driver)
    assert [type(chunk) for chunk in synchronise(sender, receiver)] == [FilePart]
    append(node / "timings.csv", "2001\n")
    assert synchronise(sender, receiver) == [tail("timings.csv", 20_000, b"2001\n")]
    assert tree(driver) == tree(node)
