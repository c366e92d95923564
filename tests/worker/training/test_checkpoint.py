"""Checkpoints that cannot be loaded: damage gives way to the one before, anything else fails the
attempt. Nothing is deleted.
"""

from __future__ import annotations

import errno
import io
import random
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import worker_helpers as helpers

from orchestrator.core.exit_codes import ExitCode
from orchestrator.worker.runtime.failures import CheckpointError
from orchestrator.worker.training import checkpoint, sealed_files
from orchestrator.worker.training.checkpoint import CheckpointStore


class Stateful:
    """An object of the user's in a checkpoint, whose unpickling does :attr:`deed`."""

    deed: Callable[[], None] = staticmethod(lambda: None)

    def __getstate__(self) -> dict[str, int]:
        return {"joint": 3}

    def __setstate__(self, state: dict[str, int]) -> None:
        Stateful.deed()


def module_with_class(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("users_robots")
    Stateful.__module__, module.Stateful = module.__name__, Stateful  # type: ignore[attr-defined]
    monkeypatch.setattr(Stateful, "__module__", module.__name__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def written(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def raiser(error: BaseException) -> Callable[..., None]:
    def deed(*_: object, **__: object) -> None:
        raise error

    return deed


CAUSES: dict[str, Callable[[pytest.MonkeyPatch, types.ModuleType], None]] = {
    "a class that is gone": lambda patch, module: patch.delattr(module, "Stateful"),
    "an error of the user's class": lambda patch, _: patch.setattr(
        Stateful, "deed", raiser(ValueError("no knee"))
    ),
    "memory": lambda patch, _: patch.setattr(torch, "load", raiser(MemoryError())),
    "the disk": lambda patch, _: patch.setattr(
        checkpoint, "open_regular", raiser(OSError(errno.EIO, "Input/output error"))
    ),
}


@pytest.mark.parametrize("cause", CAUSES.values(), ids=CAUSES.keys())
def test_an_error_that_is_no_damage_fails_the_attempt_and_every_checkpoint_stays(
    cause: Callable[[pytest.MonkeyPatch, types.ModuleType], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = module_with_class(monkeypatch)
    store = CheckpointStore(tmp_path, "f")
    for env_steps in (128, 256):
        store.save(env_steps, {"envs": module.Stateful()})
    before = written(tmp_path)
    with monkeypatch.context() as patch:
        cause(patch, module)
        with pytest.raises(CheckpointError) as raised:
            store.newest()
    text = str(raised.value)
    assert "checkpoint-000000000256.pt" in text
    assert type(raised.value.__cause__).__name__ in text
    assert "`retry`" in text
    assert written(tmp_path) == before
    found = store.newest()
    assert found is not None
    assert found["env_steps"] == 256


def test_whichever_bit_is_wrong_the_checkpoint_before_is_used(
    tmp_path: Path,
) -> None:
    dice = random.Random(5)
    store = CheckpointStore(tmp_path, "f")
    for env_steps in (128, 256):
        store.save(env_steps, {"at": env_steps})
    newest = tmp_path / "checkpoint-000000000256.pt"
    whole = newest.read_bytes()
    for bit in dice.sample(range(8 * len(whole)), 100):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        newest.write_bytes(content)
        state = CheckpointStore(tmp_path, "f").newest()
        assert state is not None
        assert state["at"] == state["env_steps"] == 128, bit


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
