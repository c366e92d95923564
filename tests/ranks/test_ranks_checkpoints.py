"""Checkpoints of several ranks: each goes on with what was its own, also where each has its files on another node."""

from __future__ import annotations

import itertools
import math
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
from file_sync_helpers import synchronise
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from orchestrator.core.paths import JobPaths
from orchestrator.executors.ray.file_sync.receiver import Receiver
from orchestrator.executors.ray.file_sync.sender import Sender, outgoing_chunks
from orchestrator.worker.training import checkpoint
from orchestrator.worker.training.checkpoint import OF_EACH_RANK, CheckpointStore
from orchestrator.worker.training.replay import Replay

BUFFER_ROWS = 4
N_ENVS = 2
"""Of all ranks together."""


def store_of(
    directory: Path, rank: int, now: Callable[[], float] = time.monotonic
) -> tuple[CheckpointStore, ReplayBuffer]:
    box = spaces.Box(-1, 1, (2,), np.float32)
    buffer = ReplayBuffer(BUFFER_ROWS, box, box, n_envs=1)
    replay = Replay(directory / JobPaths(Path()).replay(rank).name, buffer)
    return CheckpointStore(directory, "f", replay, N_ENVS, now=now), buffer


def add(buffer: ReplayBuffer, rank: int, row: int) -> None:
    one = np.full((1, 2), number(rank, row), np.float32)
    buffer.add(one, one, one, one[0, :1], np.zeros(1), [{}])


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


def test_every_rank_goes_on_with_its_own_replay_buffer(tmp_path: Path) -> None:
    helpers.in_threads(2, lambda rank: row_after_row(tmp_path, rank, range(6)))

    def resumed(rank: Any) -> tuple[Any, list[float]]:
        store, buffer = row_after_row(tmp_path, rank, range(0))
        state = store.newest(rank)
        assert state is not None
        return state["ranks"][rank.rank]["envs"], held(buffer)

    assert helpers.in_threads(2, resumed) == [("of rank 0", [4, 5, 2, 3]), ("of rank 1", [1004, 1005, 1002, 1003])]


def test_ranks_forget_the_rows_that_no_checkpoint_needs_and_at_last_all_are_removed(tmp_path: Path) -> None:
    def trained(rank: Any) -> CheckpointStore:
        minutes = itertools.count(step=checkpoint.TRANSFER_S)  # one between any two looks at the clock
        return row_after_row(tmp_path, rank, range(40), now=lambda: next(minutes))[0]

    stores = helpers.in_threads(2, trained)
    for name in ("replay", "replay-of-rank-1"):
        assert 3 <= len(list((tmp_path / name).iterdir())) <= 4, "of the last four rows, at one of two checkpoints"
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
        f"checkpoint-000000000012.pt is removed because its replay buffer is damaged: rank 1: {newest.name}" in output
    )


def test_where_no_checkpoint_is_left_no_rank_keeps_rows(tmp_path: Path) -> None:
    helpers.in_threads(2, lambda rank: row_after_row(tmp_path, rank, range(6)))
    for path in tmp_path.glob("*.pt"):
        path.unlink()
    assert helpers.in_threads(2, lambda rank: row_after_row(tmp_path, rank, range(0))[0].newest(rank)) == [None, None]
    assert [list((tmp_path / name).iterdir()) for name in ("replay", "replay-of-rank-1")] == [[], []]


def test_a_checkpoint_of_another_number_of_ranks_is_refused_with_both_numbers(tmp_path: Path) -> None:
    def save(rank: Any) -> None:
        CheckpointStore(tmp_path, "of three").save(48, state_of(rank), rank)

    helpers.in_threads(3, save)
    message = r"checkpoint-000000000048\.pt was written under resources\.ranks = 3, not 1; remove the checkpoints"
    with pytest.raises(ValueError, match=message):
        CheckpointStore(tmp_path, "of one").newest()


# -- on nodes that share no files


class Nodes:
    """Two ranks, each on a node of its own, their files on the way to one home. The clock is simulated."""

    def __init__(self, root: Path, dice: random.Random) -> None:
        self.home = JobPaths(root / "home")
        self.time_s = 0.0
        self._root, self._dice = root, dice
        self._lives = 0
        self.home.checkpoints.mkdir(parents=True)
        self.begin()

    def begin(self) -> None:
        """Anew on other nodes, from what is at home."""
        self._lives += 1
        places = [self._root / f"life-{self._lives}-of-rank-{rank}" for rank in range(2)]
        for rank, place in enumerate(places):
            copy = Receiver(place, durable=False)
            for piece in outgoing_chunks(self.home.root, ranks=[rank]):
                copy.apply(piece)
            JobPaths(place).checkpoints.mkdir(parents=True, exist_ok=True)
        made = [store_of(JobPaths(place).checkpoints, rank, lambda: self.time_s) for rank, place in enumerate(places)]
        self._stores, self._buffers = [store for store, _ in made], [buffer for _, buffer in made]
        states = helpers.in_threads(2, lambda rank: self._stores[rank.rank].newest(rank))
        assert states[0] is None or states[0]["env_steps"] == states[1]["env_steps"]
        self.rows = 0 if states[0] is None else states[0]["rows"]
        self._saved = [(-math.inf, self.rows)]
        self._sources = [Sender.of_copy(place, ranks=[rank]) for rank, place in enumerate(places)]
        self._homes = [Receiver(self.home.root, name=f"-{rank}", durable=False) for rank in range(2)]
        self._home_at = [self.time_s] * 2

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
        """Of the newest checkpoint that is long enough ago to be at home, with all that belongs to it."""
        return max(rows for when, rows in self._saved if when <= self.time_s - checkpoint.TRANSFER_S)

    def wait(self, seconds: float) -> None:
        """Some of what was written comes home, at the latest what is :data:`TRANSFER_S` old once the time is over."""
        ranks = [0, 1]
        self._dice.shuffle(ranks)
        for rank in ranks:
            is_late = self.time_s + seconds - self._home_at[rank] > checkpoint.TRANSFER_S
            if not is_late and self._dice.random() < 0.6:
                continue
            for piece in self._sources[rank].scan():
                self._homes[rank].apply(piece)
                if not is_late and self._dice.random() < 0.1:
                    break  # the rest is as far as the node only
            else:
                self._home_at[rank] = self.time_s
        self.time_s += seconds

    def check_buffers(self) -> None:
        for rank, buffer in enumerate(self._buffers):
            newest = {row % BUFFER_ROWS: number(rank, row) for row in range(self.rows)}
            assert held(buffer) == [newest[place] for place in sorted(newest)]


@pytest.mark.parametrize("seed", range(4))
def test_whenever_all_nodes_are_lost_all_ranks_can_go_on_from_what_had_to_be_at_home(tmp_path: Path, seed: int) -> None:
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


def test_no_rank_keeps_rows_at_home_that_no_checkpoint_there_needs(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, random.Random(1))
    for _ in range(60):
        nodes.train()
        nodes.wait(20.0)
    most = checkpoint.TRANSFER_S / 20.0 + 2
    assert checkpoint.KEPT < len(list(nodes.home.checkpoints.glob("*.pt"))) <= most + 3, "some are still on the way"
    for rank in range(2):
        assert len(list(nodes.home.replay(rank).iterdir())) <= most + BUFFER_ROWS + 3


SETTLED_S = 1.0
AS_ON_A_FAST_NETWORK = f"""
import sys
from orchestrator.worker import __main__
from orchestrator.worker.training import checkpoint
checkpoint.TRANSFER_S = {SETTLED_S}
__main__.main(sys.argv[4:])
"""
LOOK_EVERY_S = 0.02


class Apart:
    """An attempt of two ranks that share no files; what they write comes home."""

    def __init__(self, home: JobPaths, root: Path, number: int) -> None:
        places = [root / f"rank-{rank}" for rank in range(2)]
        for rank, place in enumerate(places):
            copy = Receiver(place, durable=False)
            for piece in outgoing_chunks(home.root, ranks=[rank]):
                copy.apply(piece)
        self._sources = [Sender.of_copy(place, ranks=[rank]) for rank, place in enumerate(places)]
        self._homes = [Receiver(home.root, name=f"-{rank}", durable=False) for rank in range(2)]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.attempt = helpers.Attempt(
            home,
            number,
            commands=[[sys.executable, "-c", AS_ON_A_FAST_NETWORK]] * 2,
            directories=[JobPaths(place) for place in places],
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """To the end, or until ``until``; then both nodes are lost at once."""
        with self.attempt:
            while any(process.poll() is None for process in self.attempt.processes):
                self._bring()
                if until():
                    return
                time.sleep(LOOK_EVERY_S)
            self._bring()

    def _bring(self) -> None:
        for source, home in zip(self._sources, self._homes, strict=True):
            synchronise(source, home)


def test_ranks_on_nodes_that_share_no_files_forget_and_lose_nothing(tmp_path: Path) -> None:
    spec = helpers.spec("sac", total_timesteps=6144)
    (undisturbed, _) = helpers.run(worker.job(tmp_path / "undisturbed", spec))
    home = worker.job(tmp_path / "home", spec)

    def forgotten() -> bool:
        return all(
            home.replay(rank).exists() and not list(home.replay(rank).glob("rows-000000000000-*")) for rank in range(2)
        )

    Apart(home, tmp_path / "first", 0).run(until=forgotten)
    assert forgotten()
    second = Apart(home, tmp_path / "second", 1)
    second.run()
    assert second.attempt.codes() == [0, 0], second.attempt.log
    for record in second.attempt.records:
        assert record.weights_sha256 == undisturbed.weights_sha256
        assert record.resumed_from is not None
    assert not home.replay(0).exists()
    assert [path.name for path in home.checkpoints.glob("*.pt")] == ["checkpoint-000000006144.pt"]
