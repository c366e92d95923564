"""Checkpoints of several ranks, each of which has its files on a node of its own."""

from __future__ import annotations

import math
import random
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks_helpers as helpers
import worker_helpers as worker
from file_sync_helpers import synchronise
from replay_helpers import BUFFER_ROWS, N_ENVS, add, held, number, state_of, store_of

from orchestrator.core.paths import JobPaths
from orchestrator.features.ray.file_sync.receiver import Receiver
from orchestrator.features.ray.file_sync.sender import Sender, outgoing_chunks
from orchestrator.worker.training import checkpoint

pytestmark = pytest.mark.nightly


class Nodes:
    """Two ranks, each on a node of its own, whose files are copied to one run directory. The clock
    is simulated."""

    def __init__(self, root: Path, dice: random.Random) -> None:
        self.received = JobPaths(root / "received")
        self.time_s = 0.0
        self._root, self._dice = root, dice
        self._starts = 0
        self.received.checkpoints.mkdir(parents=True)
        self.begin()

    def begin(self) -> None:
        """Start again on other nodes, from the files that were received."""
        self._starts += 1
        directories = [self._root / f"start-{self._starts}-of-rank-{rank}" for rank in range(2)]
        for rank, directory in enumerate(directories):
            copy = Receiver(directory, durable=False)
            for chunk in outgoing_chunks(self.received.root, ranks=[rank]):
                copy.apply(chunk)
            JobPaths(directory).checkpoints.mkdir(parents=True, exist_ok=True)
        made = [
            store_of(JobPaths(directory).checkpoints, rank, lambda: self.time_s)
            for rank, directory in enumerate(directories)
        ]
        self._stores, self._buffers = [store for store, _ in made], [buffer for _, buffer in made]
        states = helpers.in_threads(2, lambda rank: self._stores[rank.rank].newest(rank))
        assert states[0] is None or states[0]["env_steps"] == states[1]["env_steps"]
        self.rows = 0 if states[0] is None else states[0]["rows"]
        self._saved = [(-math.inf, self.rows)]
        self._senders = [
            Sender.of_copy(directory, ranks=[rank]) for rank, directory in enumerate(directories)
        ]
        self._receivers = [
            Receiver(self.received.root, name=f"-{rank}", durable=False) for rank in range(2)
        ]
        self._received_at = [self.time_s] * 2

    def train(self) -> None:
        for _ in range(self._dice.randrange(1, 4)):
            for rank, buffer in enumerate(self._buffers):
                add(buffer, rank, self.rows)
            self.rows += 1

        def save(rank: Any) -> None:
            self._stores[rank.rank].save(self.rows * N_ENVS, state_of(rank), rank)

        self._saved.append((self.time_s, self.rows))
        helpers.in_threads(2, save)

    @property
    def certain_rows(self) -> int:
        """Rows of the newest checkpoint that is old enough to have been received with all of its
        files."""
        return max(
            rows for when, rows in self._saved if when <= self.time_s - checkpoint.TRANSFER_S
        )

    def wait(self, seconds: float) -> None:
        """Receive some of the files, at least those that will be older than :data:`TRANSFER_S`
        after ``seconds``."""
        ranks = [0, 1]
        self._dice.shuffle(ranks)
        for rank in ranks:
            is_late = self.time_s + seconds - self._received_at[rank] > checkpoint.TRANSFER_S
            if not is_late and self._dice.random() < 0.6:
                continue
            for chunk in self._senders[rank].scan():
                self._receivers[rank].apply(chunk)
                if not is_late and self._dice.random() < 0.1:
                    break  # the rest stays on the node
            else:
                self._received_at[rank] = self.time_s
        self.time_s += seconds

    def check_buffers(self) -> None:
        for rank, buffer in enumerate(self._buffers):
            newest = {row % BUFFER_ROWS: number(rank, row) for row in range(self.rows)}
            assert held(buffer) == [newest[index] for index in sorted(newest)]


@pytest.mark.parametrize("seed", range(4))
def test_whenever_all_nodes_are_lost_all_ranks_resume_from_the_received_files(
    tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    nodes = Nodes(tmp_path, dice)
    for _ in range(12):
        for _ in range(dice.randrange(1, 12)):
            nodes.train()
            nodes.wait(dice.uniform(5.0, 30.0))
        certain = nodes.certain_rows
        nodes.begin()
        nodes.check_buffers()
        assert nodes.rows >= certain
    assert nodes.rows > 3 * BUFFER_ROWS


def test_no_received_rows_stay_that_no_received_checkpoint_needs(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, random.Random(1))
    for _ in range(60):
        nodes.train()
        nodes.wait(20.0)
    most = checkpoint.TRANSFER_S / 20.0 + 2
    assert checkpoint.KEPT < len(list(nodes.received.checkpoints.glob("*.pt"))) <= most + 3, (
        "some are still being copied"
    )
    for rank in range(2):
        assert len(list(nodes.received.replay(rank).iterdir())) <= most + BUFFER_ROWS + 3


SHORT_TRANSFER_S = 1.0
FAST_NETWORK_WORKER = f"""
import sys
from orchestrator.worker import __main__
from orchestrator.worker.training import checkpoint
checkpoint.TRANSFER_S = {SHORT_TRANSFER_S}
__main__.main(sys.argv[4:])
"""
LOOK_EVERY_S = 0.02


class SeparateNodes:
    """An attempt of two ranks that share no files; what they write is copied to the run
    directory."""

    def __init__(self, received: JobPaths, root: Path, number: int) -> None:
        directories = [root / f"rank-{rank}" for rank in range(2)]
        for rank, directory in enumerate(directories):
            copy = Receiver(directory, durable=False)
            for chunk in outgoing_chunks(received.root, ranks=[rank]):
                copy.apply(chunk)
        self._senders = [
            Sender.of_copy(directory, ranks=[rank]) for rank, directory in enumerate(directories)
        ]
        self._receivers = [
            Receiver(received.root, name=f"-{rank}", durable=False) for rank in range(2)
        ]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.attempt = helpers.Attempt(
            received,
            number,
            commands=[[sys.executable, "-c", FAST_NETWORK_WORKER]] * 2,
            directories=[JobPaths(directory) for directory in directories],
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Run to the end, or until ``until`` is true; then both nodes are lost at once."""
        with self.attempt:
            while any(process.poll() is None for process in self.attempt.processes):
                self._synchronise()
                if until():
                    return
                time.sleep(LOOK_EVERY_S)
            self._synchronise()

    def _synchronise(self) -> None:
        for sender, receiver in zip(self._senders, self._receivers, strict=True):
            synchronise(sender, receiver)


def test_ranks_on_nodes_that_share_no_files_remove_old_rows_and_lose_nothing(
    tmp_path: Path,
) -> None:
    hyperparameters = {**worker.SMALL["sac"], "buffer_size": 600, "gradient_steps": 2}
    spec = helpers.spec("sac", total_timesteps=4096, hyperparameters=hyperparameters)
    (undisturbed, _) = helpers.run(worker.job(tmp_path / "undisturbed", spec))
    received = worker.job(tmp_path / "received", spec)

    def first_rows_removed() -> bool:
        return all(
            received.replay(rank).exists()
            and not list(received.replay(rank).glob("rows-000000000000-*"))
            for rank in range(2)
        )

    SeparateNodes(received, tmp_path / "first", 0).run(until=first_rows_removed)
    assert first_rows_removed()
    second = SeparateNodes(received, tmp_path / "second", 1)
    second.run()
    assert second.attempt.codes() == [0, 0], second.attempt.log
    for record in second.attempt.records:
        assert record.weights_sha256 == undisturbed.weights_sha256
        assert record.resumed_from is not None
    assert not received.replay(0).exists()
    assert [path.name for path in received.checkpoints.glob("*.pt")] == [
        "checkpoint-000000004096.pt"
    ]
