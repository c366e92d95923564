"""What travels to a node, and the pieces in which everything travels."""

from __future__ import annotations

import os
import pickle
import subprocess
import tracemalloc
from pathlib import Path

import pytest
from file_sync_helpers import (
    JOB,
    MIB,
    ROWS_0,
    ROWS_1,
    part,
    paths_of,
    tail,
    tree,
    write,
)

from orchestrator.executors.ray.file_sync import (
    Chunk,
    FilePart,
    FileSyncError,
    Receiver,
    RemovedFile,
    Sender,
    StoredFile,
    chunks,
    outgoing_chunks,
)
from orchestrator.executors.ray.file_sync.chunks import Payload, payload_bytes


def test_a_worker_gets_what_it_needs_and_no_more(tmp_path: Path) -> None:
    write(tmp_path / "home", JOB)
    away = Receiver(tmp_path / "away")
    for piece in outgoing_chunks(tmp_path / "home"):
        away.apply(piece)
    there = {
        path.relative_to(tmp_path / "away").as_posix() for path in (tmp_path / "away").rglob("*") if path.is_file()
    }
    assert there == {
        "spec.json",
        "robot/hopper.xml",
        "robot/.assets/leg.stl",
        "progress.csv",
        "timings.csv",
        "checkpoints/checkpoint-000000000512.pt",
        "checkpoints/checkpoint-000000001024.pt",
        ROWS_0,
        ROWS_1,
    }
    assert all((tmp_path / "away" / name).read_bytes() == (tmp_path / "home" / name).read_bytes() for name in there)


def test_a_rank_elsewhere_gets_the_checkpoints_and_its_own_replay_buffer(tmp_path: Path) -> None:
    write(tmp_path, JOB)
    for rank, (own, other) in enumerate(((ROWS_0, ROWS_1), (ROWS_1, ROWS_0))):
        sent = paths_of(list(outgoing_chunks(tmp_path, ranks=[rank])))
        assert own in sent
        assert other not in sent
        assert "checkpoints/checkpoint-000000001024.pt" in sent


def test_a_link_does_not_travel_silently(tmp_path: Path) -> None:
    write(tmp_path / "home", JOB)
    (tmp_path / "home/checkpoints").rename(tmp_path / "elsewhere")
    (tmp_path / "home/checkpoints").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileSyncError, match=r"home/checkpoints: is a link, .* put in its place what it means"):
        list(outgoing_chunks(tmp_path / "home"))


def test_a_link_that_has_nothing_to_do_with_it_is_no_obstacle(tmp_path: Path) -> None:
    write(tmp_path / "home", JOB)
    (tmp_path / "home/preview.png").symlink_to(tmp_path / "elsewhere.png")
    assert "spec.json" in paths_of(list(outgoing_chunks(tmp_path / "home")))


def test_a_job_directory_that_somebody_writes_to_does_not_go_out_half(tmp_path: Path) -> None:
    write(tmp_path, JOB)
    sent = outgoing_chunks(tmp_path)
    next(sent)
    for path in (tmp_path / "checkpoints").glob("*.pt"):
        path.unlink()
    with pytest.raises(FileSyncError, match="changed while they were sent"):
        list(sent)


# -- pieces


def test_memory_is_bounded_and_compression_is_used_where_it_pays(tmp_path: Path) -> None:
    size = 24 * MIB
    write(tmp_path / "away", {"model.zip": b"", "worker.log": b"worker: a line\n" * (size // 15)})
    with (tmp_path / "away/model.zip").open("wb") as file:
        for _ in range(24):
            file.write(os.urandom(MIB))
    home = Receiver(tmp_path / "home")
    source = Sender(tmp_path / "away")
    carried = {"model.zip": 0, "worker.log": 0}
    tracemalloc.start()
    for piece in source.scan():
        assert payload_bytes(piece) <= MIB
        carried[piece.path] += payload_bytes(piece)
        home.apply(piece)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * MIB
    assert carried["model.zip"] == size
    assert carried["worker.log"] < size / 20
    for name in carried:
        same = ["cmp", str(tmp_path / "away" / name), str(tmp_path / "home" / name)]
        assert subprocess.run(same, check=False).returncode == 0


@pytest.mark.parametrize(
    "piece", [part("eval.json"), tail("a.csv", 7, b"x"), RemovedFile("a"), StoredFile("a", "b" * 32, 3)]
)
def test_pieces_pickle_small(piece: Chunk) -> None:
    content = pickle.dumps(piece)
    assert len(content) < 250
    assert pickle.loads(content) == piece


@pytest.mark.parametrize("content", [b"no zlib at all", chunks.zlib.compress(bytes(chunks.CHUNK_BYTES + 1))])
def test_a_damaged_piece_is_refused(tmp_path: Path, content: bytes) -> None:
    home = Receiver(tmp_path)
    with pytest.raises(FileSyncError, match="damaged"):
        home.apply(FilePart("eval.json", 0, Payload(content, is_packed=True), is_last=True))
    assert tree(tmp_path) == {}
