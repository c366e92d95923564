"""The replay buffer on disk: every row once, whole or noticed, and never more than is needed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from replay_helpers import Training, training_of
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer

from orchestrator.worker.ranks.ranks import ALONE, Ranks
from orchestrator.worker.training import checkpoint, replay
from orchestrator.worker.training.replay import Replay

N_ENVS = 2


VECTOR = spaces.Box(-1, 1, (3,), np.float32)


SPACES: dict[str, spaces.Space[Any]] = {
    "vectors": VECTOR,
    "a dict": spaces.Dict({"eye": spaces.Box(0, 255, (4, 4, 1), np.uint8), "arm": VECTOR}),
}


def make(space: spaces.Space[Any] = VECTOR, rows: int = 10) -> ReplayBuffer:
    kind = DictReplayBuffer if isinstance(space, spaces.Dict) else ReplayBuffer
    return kind(rows * N_ENVS, space, VECTOR, device="cpu", n_envs=N_ENVS)


def fill(buffer: ReplayBuffer, first: int, end: int) -> None:
    """Rows that are functions of their number."""
    for row in range(first, end):
        space = buffer.observation_space
        space.seed(row)
        seen = [space.sample() for _ in range(2 * N_ENVS)]
        if isinstance(space, spaces.Dict):
            now, after = (
                {key: np.stack([one[key] for one in half]) for key in space}
                for half in halves(seen)
            )
        else:
            now, after = map(np.stack, halves(seen))
        infos = [{"TimeLimit.truncated": row % 3 == 0} for _ in range(N_ENVS)]
        numbers = np.full(N_ENVS, row, np.float32)
        buffer.add(now, after, np.full((N_ENVS, 3), row / 100), numbers, numbers % 2 == 0, infos)  # type: ignore[arg-type]


def halves(items: list[Any]) -> tuple[list[Any], list[Any]]:
    return items[:N_ENVS], items[N_ENVS:]


def content(buffer: ReplayBuffer) -> list[Any]:
    held = buffer.size()
    return [
        buffer.pos,
        buffer.full,
        *(array[:held].tobytes() for array in replay.arrays_of(buffer).values()),
    ]


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())
@pytest.mark.parametrize("stops", [[4], [4, 9], [10], [7, 12], [7, 12, 19, 26], [3, 25], [40, 41]])
def test_what_comes_back_is_what_the_buffer_held(
    tmp_path: Path, space: spaces.Space[Any], stops: list[int]
) -> None:
    buffer = make(space)
    written = Replay(tmp_path, buffer)
    reached = 0
    for stop in stops:
        fill(buffer, reached, stop)
        written.save(stop)
        reached = stop
    again = make(space)
    Replay(tmp_path, again).restore(reached)
    assert content(again) == content(buffer)


def test_rows_are_written_once_and_in_files_of_limited_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = make(rows=100)
    written = Replay(tmp_path, buffer)
    row_bytes = sum(array[0].nbytes for array in replay.arrays_of(buffer).values())
    monkeypatch.setattr(replay, "MOST_BYTES", 8 * row_bytes)
    fill(buffer, 0, 20)
    written.save(20)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert [path.name for path in sorted(before)] == [
        "rows-000000000000-000000000008.npz",
        "rows-000000000008-000000000016.npz",
        "rows-000000000016-000000000020.npz",
    ]
    fill(buffer, 20, 22)
    written.save(22)
    (added,) = set(tmp_path.iterdir()) - set(before)
    assert added.name == "rows-000000000020-000000000022.npz"
    assert {path: path.stat().st_mtime_ns for path in before} == before
    again = make(rows=100)
    Replay(tmp_path, again).restore(22)
    assert content(again) == content(buffer)


def test_what_was_written_after_the_checkpoint_is_forgotten(tmp_path: Path) -> None:
    buffer = make()
    written = Replay(tmp_path, buffer)
    for first, end in ((0, 4), (4, 8)):
        fill(buffer, first, end)
        written.save(end)
    other = make()
    resumed = Replay(tmp_path, other)
    resumed.restore(4)
    fill(other, 4, 7)
    resumed.save(7)
    assert [path.name for path in sorted(tmp_path.iterdir())][1:] == [
        "rows-000000000004-000000000007.npz"
    ]
    again = make()
    Replay(tmp_path, again).restore(7)
    assert content(again) == content(other)


def test_a_checkpoint_whose_newest_rows_are_damaged_gives_way_to_the_one_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    buffer = make()
    training = Training(tmp_path, buffer)
    for end in (4, 8, 12):
        fill(buffer, end - 4, end)
        training.save(end)
    (training.paths.replay(0) / "rows-000000000010-000000000012.npz").write_bytes(b"")
    again, before = make(), make()
    resumed = Training(tmp_path, again)
    assert resumed.checkpoints.resume().iteration == 8
    assert resumed.attempt.facts.resumed_from == 16
    fill(before, 0, 8)
    assert content(again) == content(before)
    output = capsys.readouterr().out
    assert "checkpoint-000000000024.pt is damaged (its replay buffer: rows-000000000010" in output
    assert (training.paths.checkpoints / "checkpoint-000000000024.pt.damaged").exists()


def test_on_disk_are_the_rows_of_the_checkpoints_that_are_kept_and_at_last_none(
    tmp_path: Path,
) -> None:
    buffer = make()
    training = Training(tmp_path, buffer)
    replay_files = training.paths.replay(0)
    for end in range(2, 42, 2):
        fill(buffer, end - 2, end)
        training.save(end)
        files = sorted(replay_files.iterdir())
        assert len(files) <= 6
        assert int(files[0].name.split("-")[1]) == max(0, end - 12)
    training.save(42)
    assert replay_files.exists()
    training.checkpoints.drop_replay()
    assert [path.name for path in training.paths.checkpoints.iterdir()] == [
        "checkpoint-000000000084.pt"
    ]
    assert Training(tmp_path, make()).checkpoints.resume().iteration == 42


class TwoRanks(Ranks):
    """The other rank has what this one has."""

    size = 2

    def all_gather_object(self, value: Any) -> list[Any]:
        return [value, value]


@pytest.mark.parametrize(
    ("ranks", "kept"), [(ALONE, ([3, 4], [4, 5])), (TwoRanks(), ([1, 2, 3, 4], [4, 5]))]
)
def test_of_several_ranks_checkpoints_stay_while_rows_may_be_on_their_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: Ranks, kept: tuple[list[int], ...]
) -> None:
    now = 0.0
    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(monotonic=lambda: now))
    training, _ = training_of(tmp_path, ranks)
    found = {}
    for rows, now in enumerate((100.0, 120.0, 140.0, 170.0, 300.0), 1):  # noqa: B007
        training.save(rows)
        found[rows] = [steps // N_ENVS for steps in training.checkpoints._env_steps()]
    assert (found[4], found[5]) == kept
