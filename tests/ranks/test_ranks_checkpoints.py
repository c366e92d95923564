"""Checkpoints of several ranks: each goes on with what was its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import ranks_helpers as helpers
from executor_helpers import until_exit
from replay_helpers import Training, add, held, training_of
from stable_baselines3.common.buffers import ReplayBuffer

from orchestrator.core.exit_record import ExitRecord
from orchestrator.executors.launcher import Launch
from orchestrator.executors.processes import Processes
from orchestrator.worker.training import checkpoint

pytestmark = pytest.mark.nightly


def row_after_row(directory: Path, rank: Any, rows: range) -> tuple[Training, ReplayBuffer]:
    """A training with a buffer of this rank, with a checkpoint after every second row."""
    training, buffer = training_of(directory, rank)
    for row in rows:
        add(buffer, rank.rank, row)
        if row % 2:
            training.save(row + 1)
    return training, buffer


def test_every_rank_resumes_with_its_own_replay_buffer(tmp_path: Path) -> None:
    helpers.in_threads(2, lambda rank: row_after_row(tmp_path, rank, range(6)))

    def resumed(rank: Any) -> tuple[int, list[float]]:
        training, buffer = training_of(tmp_path, rank)
        return training.checkpoints.resume().iteration, held(buffer)

    assert helpers.in_threads(2, resumed) == [
        (6, [4, 5, 2, 3]),
        (6, [1004, 1005, 1002, 1003]),
    ]


def test_ranks_remove_the_rows_that_no_checkpoint_needs_and_at_the_end_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "TRANSFER_S", 0.0)
    trainings = helpers.in_threads(2, lambda rank: row_after_row(tmp_path, rank, range(40))[0])
    paths = trainings[0].paths
    for rank in range(2):
        assert 3 <= len(list(paths.replay(rank).iterdir())) <= 4, (
            "of the last four rows, at one of two checkpoints"
        )
    trainings[0].checkpoints.drop_replay()
    assert [path.name for path in paths.checkpoints.iterdir()] == ["checkpoint-000000000080.pt"]


def test_when_the_replay_buffer_of_one_rank_is_damaged_all_go_back_to_the_checkpoint_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainings = helpers.in_threads(2, lambda rank: row_after_row(tmp_path, rank, range(6))[0])
    newest = max(trainings[1].paths.replay(1).iterdir())
    newest.write_bytes(b"")

    def resumed(rank: Any) -> tuple[int, list[float]]:
        training, buffer = training_of(tmp_path, rank)
        return training.checkpoints.resume().iteration, held(buffer)

    assert helpers.in_threads(2, resumed) == [(4, [0, 1, 2, 3]), (4, [1000, 1001, 1002, 1003])]
    output = capsys.readouterr().out
    assert f"checkpoint-000000000012.pt is damaged (its replay buffer: {newest.name}" in output


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
        executor = Processes()
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
