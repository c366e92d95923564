"""Whatever a worker does, and whenever one looks: home ends as away is, and can be gone on from at any instant."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from file_sync_helpers import FakeWorker, assert_resumable, bring, damage, tree
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.executors.ray.file_sync import Receiver, Sender, Storage, outgoing_chunks, patterns, sender

STORAGE = Storage("memory://mirror-properties", "run")
WORK = st.tuples(st.just("work"), st.integers(1, 40))
SCAN = st.tuples(st.just("scan"), st.lists(st.integers(-1, 6), min_size=1, max_size=8))
"""Before each look at a folder or a file, and after each piece, the worker does so many steps, again and again. -1: the
scan is given up, or the worker pauses."""
RESTART = st.tuples(st.just("restart"), st.booleans())
"""Of the worker, in the same place; with the newest checkpoint damaged."""
LOSE = st.tuples(st.just("lose"), st.booleans())
"""The node; at home too all is killed, and another begins."""
ACTIONS = st.lists(st.one_of(WORK, WORK, SCAN, SCAN, RESTART, LOSE), max_size=25)


@contextlib.contextmanager
def small_pieces() -> Iterator[Path]:
    """So that every file has several; and no waiting for the disk."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        mock.patch("orchestrator.executors.ray.file_sync.chunks.CHUNK_BYTES", 64),
        mock.patch("orchestrator.executors.ray.file_sync.chunks.COMPARED_BYTES", 16),
        mock.patch("orchestrator.executors.ray.file_sync.sender.STORED_FROM_BYTES", 100),
        mock.patch("os.fsync"),
    ):
        yield Path(scratch)


class Story:
    """One job: home, the node where it is now, and what carries its files."""

    def __init__(self, scratch: Path, *, buffered: bool, aged: bool, storage: Storage | None) -> None:
        self._scratch, self._buffered, self._storage = scratch, buffered, storage
        self._ages = itertools.count(1_000_000_000) if aged else None
        self._number, self._seeds = -1, itertools.count()
        self.home_root = scratch / "home"
        (self.home_root / "robot").mkdir(parents=True)
        (self.home_root / "robot/robot.xml").write_text("<mujoco/>")
        (self.home_root / "spec.json").write_text("{}")
        self.lose(both=True)

    def lose(self, *, both: bool) -> None:
        """The next attempt, on another node."""
        self._number += 1
        self.away = self._scratch / f"away-{self._number}"
        if both or self._number == 0:
            self.home = Receiver(self.home_root, storage=self._storage)
        copy = Receiver(self.away, storage=self._storage, durable=False)
        for piece in outgoing_chunks(self.home_root, storage=self._storage):
            copy.apply(piece)
        self.source = Sender.of_copy(self.away, storage=self._storage)
        gone_out, at_home = tree(self.away), tree(self.home_root)
        assert {path: at_home[path] for path in gone_out} == gone_out
        self.earlier = {path: content for path, content in at_home.items() if path not in gone_out}
        self.restart(damaged=False)

    def restart(self, *, damaged: bool) -> None:
        if damaged:
            damage(self.away)
        seed = next(self._seeds)
        self.worker = FakeWorker(self.away, self._number, seed=seed, ages=self._ages, buffered=self._buffered)

    def work(self, steps: int) -> None:
        for _ in range(steps):
            self.worker.step()

    def scan(self, meanwhile: list[int]) -> None:
        steps = itertools.cycle(meanwhile)
        with self._busy(steps):
            for piece in self.source.scan():
                self.home.apply(piece)
                assert_resumable(self.home_root)
                count = next(steps)
                if count < 0:
                    return
                self.work(count)

    @contextlib.contextmanager
    def _busy(self, steps: Iterator[int]) -> Iterator[None]:
        """The worker works while the source looks."""

        def after_some_work(function: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*arguments: Any) -> Any:
                self.work(next(steps))
                return function(*arguments)

            return wrapped

        with contextlib.ExitStack() as stack:
            for module, name in (
                (patterns, "_look"),
                (patterns, "checkpoints"),
                (sender, "_opened"),
                (sender, "_read"),
            ):
                stack.enter_context(mock.patch.object(module, name, after_some_work(getattr(module, name))))
            yield

    def finish(self) -> None:
        """The worker is killed where it is; one last scan."""
        for piece in self.source.scan():
            self.home.apply(piece)
            assert_resumable(self.home_root)
        assert not self.source.is_behind
        assert tree(self.home_root) == {**self.earlier, **tree(self.away)}
        self.home.close()
        assert not list(self.home_root.rglob(".*"))


@settings(deadline=None, max_examples=150)
@given(actions=ACTIONS, buffered=st.booleans(), aged=st.booleans(), stored=st.booleans())
def test_home_can_be_gone_on_from_at_every_instant_and_ends_as_away_is(
    actions: list[tuple[str, object]], buffered: bool, aged: bool, stored: bool
) -> None:
    with small_pieces() as scratch:
        story = Story(scratch, buffered=buffered, aged=aged, storage=STORAGE if stored else None)
        for verb, argument in actions:
            match verb, argument:
                case "work", int(steps):
                    story.work(steps)
                case "scan", list(meanwhile):
                    story.scan(meanwhile)
                case "restart", bool(damaged):
                    story.restart(damaged=damaged)
                case "lose", bool(both):
                    story.lose(both=both)
        story.finish()


@settings(deadline=None, max_examples=50)
@given(
    contents=st.lists(
        st.lists(st.tuples(st.integers(0, 300), st.binary(max_size=150)), min_size=1, max_size=4),
        min_size=1,
        max_size=8,
    ),
    aged=st.booleans(),
)
def test_a_log_that_is_cut_back_and_written_on_anyhow_arrives_as_it_is(
    contents: list[list[tuple[int, bytes]]], aged: bool
) -> None:
    ages = itertools.count(1_000_000_000)
    with small_pieces() as scratch:
        away, home = scratch / "away", scratch / "home"
        away.mkdir()
        log = away / "worker.log"
        log.touch()
        log_source, mirror = Sender(away), Receiver(home)
        for writes in contents:
            for keep, data in writes:
                with log.open("r+b") as file:
                    file.truncate(min(keep, log.stat().st_size))
                    file.seek(0, 2)
                    file.write(data + f"{next(ages)}".encode() * 2)  # an end of its own, longer than what is compared
            if aged:
                seconds = next(ages)
                os.utime(log, (seconds, seconds))
            bring(log_source, mirror)
            assert (home / "worker.log").read_bytes() == log.read_bytes()


def test_the_properties_would_notice_checkpoints_that_come_before_their_rows() -> None:
    def no_rows(*_: object) -> Iterator[object]:
        yield from ()
        return True

    with small_pieces() as scratch, mock.patch.object(Sender, "_send_table", no_rows):
        story = Story(scratch, buffered=False, aged=True, storage=None)
        story.work(60)
        with pytest.raises(FileNotFoundError, match=r"progress\.csv"):
            story.scan([0])
