"""Checkpoints of several ranks: each goes on with what was its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import ranks_helpers as helpers
from executor_helpers import until_exit
from replay_helpers import N_ENVS, add, held, state_of, store_of
from stable_baselines3.common.buffers import ReplayBuffer

from orchestrator.core.exit_record import ExitRecord
from orchestrator.executors.base import Launch
from orchestrator.executors.local import LocalExecutor
from orchestrator.worker.training.checkpoint import CheckpointStore

pytestmark = pytest.mark.nightly


def row_after_row(directory: Path, rank: Any, rows: range) -> tuple[CheckpointStore, ReplayBuffer]:
    """A store over a buffer of this rank, with a checkpoint after every second row."""
    store, buffer = store_of(directory, rank.rank)
    for row in rows:
        add(buffer, rank.rank, row)
        if row % 2:
            store.save((row + 1) * N_ENVS, state_of(rank), rank)
    return store, buffer


def test_every_rank_resumes_with_its_own_replay_buffer(tmp_path: Path) -> None:
    helpers.in_threads(2, lambda rank: row_after_row(tmp_path, rank, range(6)))

    def resumed(rank: Any) -> tuple[Any, list[float]]:
        store, buffer = row_after_row(tmp_path, rank, range(0))
        state = store.newest(rank)
        assert state is not None
        return state["envs"], held(buffer)

    assert helpers.in_threads(2, resumed) == [
        ("of rank 0", [4, 5, 2, 3]),
        ("of rank 1", [1004, 1005, 1002, 1003]),
    ]


def test_ranks_remove_the_rows_that_no_checkpoint_needs_and_at_the_end_all(
    tmp_path: Path,
) -> None:
    def trained(rank: Any) -> CheckpointStore:
        return row_after_row(tmp_path, rank, range(40))[0]

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
    assert f"checkpoint-000000000012.pt is damaged (its replay buffer: {newest.name}" in output


def test_a_checkpoint_of_another_number_of_ranks_is_refused(
    tmp_path: Path,
) -> None:
    def save(rank: Any) -> None:
        CheckpointStore(tmp_path, "of three").save(48, state_of(rank), rank)

    helpers.in_threads(3, save)
    with pytest.raises(ValueError, match=r"checkpoint-000000000048\.pt was written under other"):
        CheckpointStore(tmp_path, "of one").newest()


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
