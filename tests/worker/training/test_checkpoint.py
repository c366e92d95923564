"""Checkpoints that cannot be loaded: damage gives way to the one before, anything else fails the
attempt. Nothing is deleted.
"""

from __future__ import annotations

import errno
import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import worker_helpers as helpers

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.paths import JobPaths
from orchestrator.worker.training import checkpoint, sealed_files


def written(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def raiser(error: BaseException) -> Callable[..., None]:
    def deed(*_: object, **__: object) -> None:
        raise error

    return deed


def trained(directory: Path) -> JobPaths:
    paths = helpers.job(directory, helpers.spec(checkpoint_every=128))
    helpers.train_to_its_end(paths)
    return paths


@pytest.mark.parametrize(
    ("owner", "name", "error"),
    [
        pytest.param(torch, "load", AttributeError("no class Knee"), id="a class that is gone"),
        pytest.param(torch, "load", MemoryError(), id="memory"),
        pytest.param(checkpoint, "open_regular", OSError(errno.EIO, "I/O error"), id="the disk"),
    ],
)
def test_an_error_that_is_no_damage_fails_the_attempt_and_every_checkpoint_stays(
    owner: Any, name: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = trained(tmp_path)
    before = written(paths.checkpoints)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, raiser(error))
        record, _ = helpers.train_here(paths, 1)
    assert record.code == ExitCode.ERROR
    for text in ("checkpoint-000000000512.pt", type(error).__name__, "`retry`"):
        assert text in record.message
    assert written(paths.checkpoints) == before


def test_a_checkpoint_of_other_settings_is_refused_and_kept(tmp_path: Path) -> None:
    paths = trained(tmp_path)
    before = written(paths.checkpoints)
    paths.spec.write_text(helpers.spec(checkpoint_every=128, normalize=True).to_json())
    record, _ = helpers.train_here(paths, 1)
    assert record.code == ExitCode.ERROR
    assert "written under other settings" in record.message
    assert written(paths.checkpoints) == before


def test_whichever_bit_is_wrong_the_checkpoint_before_is_used(tmp_path: Path) -> None:
    dice = random.Random(5)
    paths = trained(tmp_path)
    newest = max(paths.checkpoints.iterdir())
    whole = newest.read_bytes()
    for bit in dice.sample(range(8 * len(whole)), 100):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        with pytest.raises(sealed_files.DamagedError):
            checkpoint.load(bytes(content))
    newest.write_bytes(bytes(content))
    record, _ = helpers.train_here(paths, 1)
    assert (record.code, record.resumed_from) == (ExitCode.SUCCEEDED, 384)
    assert newest.with_name(f"{newest.name}.damaged").exists()


def test_a_training_without_an_intact_checkpoint_starts_over(tmp_path: Path) -> None:
    paths = helpers.job(tmp_path, helpers.spec())
    assert helpers.train_here(paths)[0].code == ExitCode.SUCCEEDED
    for path in paths.checkpoints.glob("*.pt"):
        path.write_bytes(path.read_bytes()[:-9])
    record, log = helpers.train_here(paths, 1)
    assert (record.code, record.resumed_from) == (ExitCode.SUCCEEDED, None)
    assert "starts at 0 env_steps" in log
    assert [row["iteration"] for row in helpers.rows(paths.timings_csv)] == ["1", "2", "3", "4"]


def test_a_state_that_no_longer_fits_fails_the_attempt_with_the_checkpoint_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = helpers.job(tmp_path, helpers.spec())
    helpers.train_here(paths)
    (newest,) = (
        path for path in paths.checkpoints.iterdir() if path.name == "checkpoint-000000000512.pt"
    )
    state = checkpoint.load(newest.read_bytes())
    state["policy"]["new_layer"] = torch.zeros(3)
    content = io.BytesIO()
    torch.save(state, content)
    written = sealed_files.seal(content.getvalue())
    newest.write_bytes(written)
    record, _ = helpers.train_here(paths, 1)
    assert record.code == ExitCode.ERROR
    assert "checkpoint-000000000512.pt cannot be loaded" in record.message
    assert "new_layer" in record.message
    assert newest.read_bytes() == written
