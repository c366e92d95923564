"""What comes home from a node: which pieces are made, and in what order."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from file_sync_helpers import (
    JOB,
    LONG_AGO_S,
    MIB,
    ROWS_0,
    ROWS_1,
    FakeWorker,
    append,
    bring,
    part,
    paths_of,
    replace,
    tail,
    tree,
    write,
)

from orchestrator.executors.ray.file_sync import Appended, FilePart, Receiver, RemovedFile, Sender, outgoing_chunks
from orchestrator.executors.ray.file_sync import sender as sources


def test_what_came_from_home_is_not_sent_back(tmp_path: Path) -> None:
    write(tmp_path / "home", JOB, age=None)
    away = Receiver(tmp_path / "away")
    for piece in outgoing_chunks(tmp_path / "home"):
        away.apply(piece)
    source = Sender.of_copy(tmp_path / "away")
    assert list(source.scan()) == []
    append(tmp_path / "away/progress.csv", "2\n")
    assert list(source.scan()) == [tail("progress.csv", 4, b"2\n")]
    (tmp_path / "away/checkpoints/checkpoint-000000000512.pt").unlink()
    assert list(source.scan()) == [RemovedFile("checkpoints/checkpoint-000000000512.pt")]


def test_all_that_arises_comes_home_but_spec_robot_and_what_is_hidden(tmp_path: Path) -> None:
    write(tmp_path, JOB)
    sent = set(paths_of(list(Sender(tmp_path).scan())))
    hidden = {name for name in JOB if "/." in f"/{name}"}
    assert sent == JOB.keys() - hidden - {"spec.json", "robot.sha256", "robot/hopper.xml", "attempts/0/rendezvous"}


def test_ranks_on_several_machines_send_what_is_their_own(tmp_path: Path) -> None:
    write(tmp_path, JOB)
    everything = set(paths_of(list(Sender(tmp_path).scan())))
    of_1 = {ROWS_1, "attempts/0/rank-1.log", "attempts/0/rank-1.exit.json"}
    assert set(paths_of(list(Sender(tmp_path, ranks=[1]).scan()))) == of_1
    assert set(paths_of(list(Sender(tmp_path, ranks=[0]).scan()))) == everything - of_1
    assert set(paths_of(list(Sender(tmp_path, ranks=[0, 1]).scan()))) == everything


def test_what_relies_on_others_is_sent_after_them(tmp_path: Path) -> None:
    write(tmp_path, {"checkpoints/checkpoint-000000000256.pt": "oldest", **JOB})
    source = Sender(tmp_path)
    sent = paths_of(list(source.scan()))
    order = ["progress.csv", ROWS_0, "checkpoints/checkpoint-000000001024.pt", "model.zip", "attempts/0/exit.json"]
    assert [path for path in sent if path in order] == order
    write(tmp_path, {"checkpoints/checkpoint-000000002048.pt": "newest", "attempts/0/exit.json": '{"code": 0}'})
    (tmp_path / "checkpoints/checkpoint-000000000256.pt").unlink()
    append(tmp_path / "progress.csv", "2\n")
    assert [(type(piece), piece.path) for piece in source.scan()] == [
        (Appended, "progress.csv"),
        (FilePart, "checkpoints/checkpoint-000000002048.pt"),
        (RemovedFile, "checkpoints/checkpoint-000000000256.pt"),
        (FilePart, "attempts/0/exit.json"),
    ]


def test_a_checkpoint_that_the_worker_gave_up_goes_first_of_all(tmp_path: Path) -> None:
    write(tmp_path, JOB)
    source = Sender(tmp_path)
    list(source.scan())
    (tmp_path / "checkpoints/checkpoint-000000001024.pt").unlink()
    replace(tmp_path / "progress.csv", "a\n")
    assert paths_of(list(source.scan())) == ["checkpoints/checkpoint-000000001024.pt", "progress.csv"]


@pytest.mark.parametrize("look", ["listing", "_opened"])
def test_a_checkpoint_that_comes_while_we_look_leaves_the_one_before_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    """A look at the folder that is under way then may see neither."""
    older, newer = (f"checkpoints/checkpoint-{steps:012d}.pt" for steps in (512, 1024))
    write(tmp_path, {older: "older", "progress.csv": "a\n"})
    source = Sender(tmp_path)
    list(source.scan())
    append(tmp_path / "progress.csv", "1\n")
    listing, opened = sources.patterns.listing, sources._opened
    later = iter([True])

    def older_is_gone(*arguments: Any) -> dict[str, os.stat_result]:
        found = listing(*arguments)
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

    if look == "listing":
        monkeypatch.setattr(sources.patterns, "listing", older_is_gone)
    else:
        monkeypatch.setattr(sources, "_opened", newer_is_there)
    assert paths_of(list(source.scan())) == ["progress.csv", newer, older]


def test_when_the_new_checkpoints_vanish_before_they_are_sent_the_old_ones_stay_at_home(tmp_path: Path) -> None:
    write(tmp_path / "away", {"checkpoints/checkpoint-000000000512.pt": "older", "progress.csv": "a\n"})
    source, home = Sender(tmp_path / "away"), Receiver(tmp_path / "home")
    bring(source, home)
    (tmp_path / "away/checkpoints/checkpoint-000000000512.pt").unlink()
    write(tmp_path / "away", {"checkpoints/checkpoint-000000001024.pt": "newer"})
    append(tmp_path / "away/progress.csv", "1\n")
    for piece in source.scan():
        home.apply(piece)
        (tmp_path / "away/checkpoints/checkpoint-000000001024.pt").unlink()
        write(tmp_path / "away", {"checkpoints/checkpoint-000000002048.pt": "newest"})
    assert source.is_behind
    assert tree(tmp_path / "home/checkpoints") == {"checkpoint-000000000512.pt": b"older"}
    bring(source, home)
    assert not source.is_behind
    assert tree(tmp_path / "home/checkpoints") == {"checkpoint-000000002048.pt": b"newest"}


def test_what_has_not_changed_is_neither_sent_nor_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, JOB)
    source = Sender(tmp_path)
    list(source.scan())
    monkeypatch.setattr(sources, "_opened", lambda path: pytest.fail(f"{path} was opened"))
    assert list(source.scan()) == []
    assert not source.is_behind


def test_a_file_changed_within_the_same_tick_of_the_clock_is_noticed(tmp_path: Path) -> None:
    path, now_ns = tmp_path / "eval.json", time.time_ns()
    path.write_text("old")
    os.utime(path, ns=(now_ns, now_ns))
    source = Sender(tmp_path)
    list(source.scan())
    path.write_text("new")
    os.utime(path, ns=(now_ns, now_ns))
    assert list(source.scan()) == [part("eval.json", b"new")]


def test_a_directory_that_is_gone_is_an_error_and_not_taken_for_empty(tmp_path: Path) -> None:
    write(tmp_path / "away", JOB)
    source = Sender(tmp_path / "away")
    list(source.scan())
    shutil.rmtree(tmp_path / "away")
    with pytest.raises(FileNotFoundError, match="away"):
        list(source.scan())


def test_links_and_special_files_away_do_not_come_home(tmp_path: Path) -> None:
    write(tmp_path / "secret", {"key": "secret"})
    away = tmp_path / "away"
    write(away, {"eval.json": "{}"})
    (away / "model.zip").symlink_to(tmp_path / "secret/key")
    (away / "attempts").symlink_to(tmp_path / "secret")
    (away / "folder").symlink_to(tmp_path / "secret")
    os.mkfifo(away / "pipe")
    assert paths_of(list(Sender(away).scan())) == ["eval.json"]


def test_a_file_that_turns_into_a_link_or_a_pipe_while_we_look_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "away", {"eval.json": "{}", "model.zip": "trained"})
    write(tmp_path, {"key": "secret"})
    listing = sources.patterns.listing

    def then_changed(*arguments: Any) -> dict[str, os.stat_result]:
        found = listing(*arguments)
        for name in found:
            (tmp_path / "away" / name).unlink()
        (tmp_path / "away/eval.json").symlink_to(tmp_path / "key")
        os.mkfifo(tmp_path / "away/model.zip")
        return found

    monkeypatch.setattr(sources.patterns, "listing", then_changed)
    source = Sender(tmp_path / "away")
    assert list(source.scan()) == []
    assert source.is_behind


# -- tables and logs


def test_of_a_table_that_grows_only_its_growth_is_sent(tmp_path: Path) -> None:
    away, home = tmp_path / "away", tmp_path / "home"
    write(away, {"timings.csv": "iteration\n" * 2000})
    source, mirror = Sender(away), Receiver(home)
    assert [type(piece) for piece in bring(source, mirror)] == [FilePart]
    append(away / "timings.csv", "2001\n")
    assert bring(source, mirror) == [tail("timings.csv", 20_000, b"2001\n")]
    assert tree(home) == tree(away)


def test_a_table_written_anew_is_sent_anew_even_if_it_ends_alike(tmp_path: Path) -> None:
    away, home = tmp_path / "away", tmp_path / "home"
    rows = "1,2,3\n" * 2000
    write(away, {"progress.csv": f"a,b,c\n{rows}"})
    source, mirror = Sender(away), Receiver(home)
    bring(source, mirror)
    replace(away / "progress.csv", f"a,b,d\n{rows}")
    assert [type(piece) for piece in bring(source, mirror)] == [FilePart]
    assert tree(home) == tree(away)


def test_a_log_cut_in_place_and_grown_beyond_what_it_was_is_sent_anew(tmp_path: Path) -> None:
    away, home = tmp_path / "away", tmp_path / "home"
    log = "attempts/0/worker.log"
    write(away, {log: "worker: line\n" * 1000})
    source, mirror = Sender(away), Receiver(home)
    bring(source, mirror)
    os.truncate(away / log, 20)
    append(away / log, "worker: other\n" * 1000)
    assert [type(piece) for piece in bring(source, mirror)] == [FilePart]
    assert tree(home) == tree(away)


def test_a_log_changed_in_place_between_its_pieces_is_sent_anew(tmp_path: Path) -> None:
    away, home = tmp_path / "away", tmp_path / "home"
    write(away, {"worker.log": os.urandom(3 * MIB)})
    source, mirror = Sender(away), Receiver(home)
    changing = source.scan()
    mirror.apply(next(changing))
    write(away, {"worker.log": os.urandom(3 * MIB)})
    assert list(changing) == []
    assert source.is_behind
    bring(source, mirror)
    assert tree(home) == tree(away)


@pytest.mark.parametrize("given_up_after", range(1, 12))
def test_a_scan_may_be_given_up_after_any_piece(tmp_path: Path, given_up_after: int) -> None:
    away, home = tmp_path / "away", tmp_path / "home"
    worker = FakeWorker(away, 0, seed=1, ages=itertools.count(LONG_AGO_S), buffered=True)
    source, mirror = Sender(away), Receiver(home)
    while not worker.is_done:
        for piece in itertools.islice(source.scan(), given_up_after):
            mirror.apply(piece)
        for _ in range(9):
            worker.step()
    bring(source, mirror)
    assert tree(home) == tree(away)
