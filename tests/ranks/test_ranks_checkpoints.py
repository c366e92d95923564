"""Checkpoints of several ranks: each goes on with what was its own, also where each has its files
on another node."""

from __future__ import annotations

import itertools
import math
import os
import random
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ranks_helpers as helpers
import worker_helpers as worker
from executor_helpers import until_exit
from file_sync_helpers import synchronise
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.paths import JobPaths
from orchestrator.executors.base import Launch
from orchestrator.executors.local import LocalExecutor
from orchestrator.executors.ray.file_sync.receiver import Receiver
from orchestrator.executors.ray.file_sync.sender import Sender, outgoing_chunks
from orchestrator.worker.training import checkpoint
from orchestrator.worker.training.checkpoint import OF_EACH_RANK, CheckpointStore
from orchestrator.worker.training.replay import Replay

BUFFER_ROWS = 4
N_ENVS = 2
"""Environments of all ranks together."""


def store_of(
    directory: Path, rank: int, now: Callable[[], float] = time.monotonic
) -> tuple[CheckpointStore, ReplayBuffer]:
    box = spaces.Box(-1, 1, (2,), np.float32)
    buffer = ReplayBuffer(BUFFER_ROWS, box, box, n_envs=1)
    replay = Replay(directory / JobPaths(Path()).replay(rank).name, buffer)
    return CheckpointStore(directory, "f", replay, N_ENVS, now=now), buffer


def add(buffer: ReplayBuffer, rank: int, row: int) -> None:
    values = np.full((1, 2), number(rank, row), np.float32)
    buffer.add(values, values, values, values[0, :1], np.zeros(1), [{}])


def number(rank: int, row: int) -> float:
    return 1000.0 * rank + row


def row_after_row(
    directory: Path, rank: Any, rows: range, now: Callable[[], float] = time.monotonic
) -> tuple[CheckpointStore, ReplayBuffer]:
    """A store over a buffer of this rank, with a checkpoint after every second row."""
    store, buffer = store_of(directory, rank.rank, now)
    for row in rows:
        add(buffer, rank.rank, row)
        if row % 2:
            store.save((row + 1) * N_ENVS, state_of(rank), rank)
    return store, buffer


def state_of(rank: Any) -> dict[str, Any]:
    return dict.fromkeys(OF_EACH_RANK, f"of rank {rank.rank}")


def held(buffer: ReplayBuffer) -> list[float]:
    return buffer.rewards[: buffer.size(), 0].tolist()


def test_every_rank_resumes_with_its_own_replay_buffer(tmp_path: Path) -> None:
    helpers.in_threads(2, lambda rank: row_after_row(tmp_path, rank, range(6)))

    def resumed(rank: Any) -> tuple[Any, list[float]]:
        store, buffer = row_after_row(tmp_path, rank, range(0))
        state = store.newest(rank)
        assert state is not None
        return state["ranks"][rank.rank]["envs"], held(buffer)

    assert helpers.in_threads(2, resumed) == [
        ("of rank 0", [4, 5, 2, 3]),
        ("of rank 1", [1004, 1005, 1002, 1003]),
    ]


def test_ranks_remove_the_rows_that_no_checkpoint_needs_and_at_the_end_all(tmp_path: Path) -> None:
    def trained(rank: Any) -> CheckpointStore:
        minutes = itertools.count(
            step=checkpoint.TRANSFER_S
        )  # one between any two looks at the clock
        return row_after_row(tmp_path, rank, range(40), now=lambda: next(minutes))[0]

    stores = helpers.in_threads(2, trained)
    for name in ("replay", "replay-of-rank-1"):
        assert 3 <= len(list((tmp_path / name).iterdir())) <= 4, (
            "of the last four rows, at one of two checkpoints"
        )
    stores[0].drop_replay()
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-000000000080.pt"]


def test_when_the_replay_buffer_of_one_rank_is_damaged_all_go_back_to_the_checkpoint_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    helpers.in_threads(2, lambda rank: row_after_row(tmp_path, rank, range(6)))
    newest = max((tmp_path / "replay-of-rank-1").iterdir())
    newest.write_bytes(b"")

    def resumed(rank: Any) -> tuple[int, list[float]]:
        store, buffer = row_after_row(tmp_path, rank, range(0))
        state = store.newest(rank)
        assert state is not None
        return state["env_steps"], held(buffer)

    assert helpers.in_threads(2, resumed) == [(8, [0, 1, 2, 3]), (8, [1000, 1001, 1002, 1003])]
    output = capsys.readouterr().out
    assert (
        f"checkpoint-000000000012.pt is damaged (rank 1: its replay buffer is damaged: {newest.name}"
        in output
    )


def test_where_no_checkpoint_is_left_no_rank_keeps_rows(tmp_path: Path) -> None:
    helpers.in_threads(2, lambda rank: row_after_row(tmp_path, rank, range(6)))
    for path in tmp_path.glob("*.pt"):
        path.unlink()
    assert helpers.in_threads(
        2, lambda rank: row_after_row(tmp_path, rank, range(0))[0].newest(rank)
    ) == [None, None]
    assert [list((tmp_path / name).iterdir()) for name in ("replay", "replay-of-rank-1")] == [
        [],
        [],
    ]


def test_a_checkpoint_of_another_number_of_ranks_is_refused_with_both_numbers(
    tmp_path: Path,
) -> None:
    def save(rank: Any) -> None:
        CheckpointStore(tmp_path, "of three").save(48, state_of(rank), rank)

    helpers.in_threads(3, save)
    message = r"checkpoint-000000000048\.pt was written under resources\.ranks = 3, not 1; remove the checkpoints"
    with pytest.raises(ValueError, match=message):
        CheckpointStore(tmp_path, "of one").newest()


# -- on nodes that share no files


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


def test_what_one_rank_is_asked_for_or_its_clock_says_all_ranks_do(tmp_path: Path) -> None:
    """The last two checkpoints are kept: of the first iteration and the end, or of all
    iterations."""
    weights: set[str | None] = set()
    for name, interval_s, saved in (
        ("asked by a signal", 1e9, [256, 2048]),
        ("by time", 1e-9, [1792, 2048]),
    ):
        paths = helpers.job(tmp_path / name, checkpoint_every=None, checkpoint_every_s=interval_s)
        paths.attempt(0).root.mkdir(parents=True)
        cpus = tuple(os.sched_getaffinity(0)) * 2
        launch = Launch(
            job_id="job", number=0, job_dir=paths.root, cpus=cpus, gpus=(), threads=1, ranks=2
        )
        executor = LocalExecutor()
        try:
            handle = executor.submit(launch)
            if interval_s > 1:
                executor.checkpoint(handle)  # before any rank has a handler for it
            assert until_exit(executor, handle)[handle].returncode == 0
        finally:
            executor.close()
        assert (
            sorted(int(path.stem.partition("-")[2]) for path in paths.checkpoints.glob("*.pt"))
            == saved
        )
        records = [
            ExitRecord.from_json(paths.attempt(0).exit_of(rank).read_text()) for rank in range(2)
        ]
        weights |= {record.weights_sha256 for record in records}
    assert len(weights) == 1, "checkpoints at any time change no bit"
