"""Whatever a worker does and whenever it is scanned: a worker can resume from the driver's
directory at any instant, and it ends up equal to the node's.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from file_helpers import tree
from file_sync_helpers import FakeWorker, assert_resumable, damage
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.features.ray.file_sync import patterns, sender
from orchestrator.features.ray.file_sync.receiver import Receiver
from orchestrator.features.ray.file_sync.sender import Sender, outgoing_chunks
from orchestrator.features.ray.file_sync.storage import Storage

STORAGE = Storage("memory://file-sync-properties", "run")
WORK = st.tuples(st.just("work"), st.integers(1, 40))
SCAN = st.tuples(st.just("scan"), st.lists(st.integers(-1, 6), min_size=1, max_size=8))
"""The worker does so many steps, in a cycle, before each access to a folder or a file and after
each chunk. -1: the scan is abandoned, or the worker pauses."""
RESTART = st.tuples(st.just("restart"), st.booleans())
"""Restart the worker in the same directory; True: with the newest checkpoint damaged."""
LOSE = st.tuples(st.just("lose"), st.booleans())
"""Lose the node; True: the driver's process too."""
ACTIONS = st.lists(st.one_of(WORK, WORK, SCAN, SCAN, RESTART, LOSE), max_size=25)


@contextlib.contextmanager
def small_chunks() -> Iterator[Path]:
    """Limits so small that every file has several chunks; and no waiting for the disk."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        mock.patch("orchestrator.features.ray.file_sync.chunks.CHUNK_BYTES", 64),
        mock.patch("orchestrator.features.ray.file_sync.chunks.COMPARED_BYTES", 16),
        mock.patch("orchestrator.features.ray.file_sync.sender.STORED_FROM_BYTES", 100),
        mock.patch("os.fsync"),
    ):
        yield Path(scratch)


class Simulation:
    """One job: the driver's directory, the node where it runs now, and the synchronisation of its
    files."""

    def __init__(
        self, scratch: Path, *, buffered: bool, aged: bool, storage: Storage | None
    ) -> None:
        self._scratch, self._buffered, self._storage = scratch, buffered, storage
        self._ages = itertools.count(1_000_000_000) if aged else None
        self._number, self._seeds = -1, itertools.count()
        self.driver_root = scratch / "driver"
        (self.driver_root / "robot").mkdir(parents=True)
        (self.driver_root / "robot/robot.xml").write_text("<mujoco/>")
        (self.driver_root / "spec.json").write_text("{}")
        self.lose(both=True)

    def lose(self, *, both: bool) -> None:
        """Start the next attempt, on another node."""
        self._number += 1
        self.node = self._scratch / f"node-{self._number}"
        if both or self._number == 0:
            self.receiver = Receiver(self.driver_root, storage=self._storage)
        copy = Receiver(self.node, storage=self._storage, durable=False)
        for chunk in outgoing_chunks(self.driver_root, storage=self._storage):
            copy.apply(chunk)
        self.sender = Sender.of_copy(self.node, storage=self._storage)
        sent, at_driver = tree(self.node), tree(self.driver_root)
        assert {path: at_driver[path] for path in sent} == sent
        self.earlier = {path: content for path, content in at_driver.items() if path not in sent}
        self.restart(damaged=False)

    def restart(self, *, damaged: bool) -> None:
        if damaged:
            damage(self.node)
        seed = next(self._seeds)
        self.worker = FakeWorker(
            self.node, self._number, seed=seed, ages=self._ages, buffered=self._buffered
        )

    def work(self, steps: int) -> None:
        for _ in range(steps):
            self.worker.step()

    def scan(self, meanwhile: list[int]) -> None:
        steps = itertools.cycle(meanwhile)
        with self._busy(steps):
            for chunk in self.sender.scan():
                self.receiver.apply(chunk)
                assert_resumable(self.driver_root)
                count = next(steps)
                if count < 0:
                    return
                self.work(count)

    @contextlib.contextmanager
    def _busy(self, steps: Iterator[int]) -> Iterator[None]:
        """Let the worker work while the sender scans."""

        def after_some_work(function: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*arguments: Any) -> Any:
                self.work(next(steps))
                return function(*arguments)

            return wrapped

        with contextlib.ExitStack() as stack:
            for module, name in (
                (patterns, "_list_folder"),
                (patterns, "checkpoint_names"),
                (sender, "_open_regular"),
                (sender, "_read_at"),
            ):
                stack.enter_context(
                    mock.patch.object(module, name, after_some_work(getattr(module, name)))
                )
            yield

    def finish(self) -> None:
        """Kill the worker, and scan a last time."""
        for chunk in self.sender.scan():
            self.receiver.apply(chunk)
            assert_resumable(self.driver_root)
        assert not self.sender.is_incomplete
        assert tree(self.driver_root) == {**self.earlier, **tree(self.node)}
        self.receiver.close()
        assert not list(self.driver_root.rglob(".*"))


def test_a_worker_can_resume_at_every_instant_and_both_directories_end_up_equal() -> None:
    @settings(deadline=None, max_examples=20)
    @given(actions=ACTIONS, buffered=st.booleans(), aged=st.booleans(), stored=st.booleans())
    def simulate(
        actions: list[tuple[str, object]], buffered: bool, aged: bool, stored: bool
    ) -> None:
        with small_chunks() as scratch:
            job = Simulation(
                scratch, buffered=buffered, aged=aged, storage=STORAGE if stored else None
            )
            for verb, argument in actions:
                match verb, argument:
                    case "work", int(steps):
                        job.work(steps)
                    case "scan", list(meanwhile):
                        job.scan(meanwhile)
                    case "restart", bool(damaged):
                        job.restart(damaged=damaged)
                    case "lose", bool(both):
                        job.lose(both=both)
            job.finish()

    simulate()
