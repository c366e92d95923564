"""The files sent to a node, and the chunks that carry them."""

from __future__ import annotations

from pathlib import Path

import pytest
from file_helpers import tree
from file_sync_helpers import (
    JOB,
    ROWS_0,
    ROWS_1,
    paths_of,
    write,
)

from orchestrator.features.ray.file_sync import chunks
from orchestrator.features.ray.file_sync.chunks import (
    FilePart,
    FileSyncError,
    Payload,
)
from orchestrator.features.ray.file_sync.receiver import Receiver
from orchestrator.features.ray.file_sync.sender import outgoing_chunks


def test_a_worker_gets_what_it_needs_and_no_more(tmp_path: Path) -> None:
    write(tmp_path / "driver", JOB)
    receiver = Receiver(tmp_path / "node")
    for chunk in outgoing_chunks(tmp_path / "driver"):
        receiver.apply(chunk)
    there = {
        path.relative_to(tmp_path / "node").as_posix()
        for path in (tmp_path / "node").rglob("*")
        if path.is_file()
    }
    assert there == {
        "spec.json",
        "robot/hopper.xml",
        "robot/.assets/leg.stl",
        "init.pt",
        "progress.csv",
        "timings.csv",
        "eval.json",
        "checkpoints/checkpoint-000000000512.pt",
        "checkpoints/checkpoint-000000001024.pt",
        ROWS_0,
        ROWS_1,
    }
    assert all(
        (tmp_path / "node" / name).read_bytes() == (tmp_path / "driver" / name).read_bytes()
        for name in there
    )


def test_a_rank_on_another_node_gets_the_checkpoints_and_its_own_replay_buffer(
    tmp_path: Path,
) -> None:
    write(tmp_path, JOB)
    for rank, (own, other) in enumerate(((ROWS_0, ROWS_1), (ROWS_1, ROWS_0))):
        sent = paths_of(list(outgoing_chunks(tmp_path, ranks=[rank])))
        assert own in sent
        assert other not in sent
        assert "checkpoints/checkpoint-000000001024.pt" in sent


def test_a_link_among_the_files_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "driver", JOB)
    (tmp_path / "driver/checkpoints").rename(tmp_path / "elsewhere")
    (tmp_path / "driver/checkpoints").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(
        FileSyncError, match=r"driver/checkpoints: symbolic links .* replace the link by its target"
    ):
        list(outgoing_chunks(tmp_path / "driver"))


def test_a_job_directory_that_changes_meanwhile_is_not_sent_in_part(tmp_path: Path) -> None:
    write(tmp_path, JOB)
    sent = outgoing_chunks(tmp_path)
    next(sent)
    for path in (tmp_path / "checkpoints").glob("*.pt"):
        path.unlink()
    with pytest.raises(FileSyncError, match="changed while they were sent"):
        list(sent)


# -- chunks


@pytest.mark.parametrize(
    "content", [b"not zlib data", chunks.zlib.compress(bytes(chunks.CHUNK_BYTES + 1))]
)
def test_a_damaged_chunk_is_refused(tmp_path: Path, content: bytes) -> None:
    receiver = Receiver(tmp_path)
    with pytest.raises(FileSyncError, match="damaged"):
        receiver.apply(FilePart("eval.json", 0, Payload(content, is_compressed=True), is_last=True))
    assert tree(tmp_path) == {}
