"""Whatever a checkpoint file holds: the one before it is resumed from, or an error says what to
do."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fuzz_helpers import changed, emptied, fuzz
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.worker.runtime.failures import CheckpointError
from orchestrator.worker.training.checkpoint import FORMAT, CheckpointStore
from orchestrator.worker.training.sealed_files import seal

pytestmark = pytest.mark.nightly


def content_of(state: object) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return seal(file.getvalue())


VALID = content_of(
    {"format": FORMAT, "fingerprint": "f", "env_steps": 200, "weights": torch.arange(20.0)}
)


CONTENTS = st.one_of(
    st.binary(max_size=60),
    changed(VALID),
    st.binary(max_size=60).map(seal),
    st.sampled_from(
        [
            content_of(state)
            for state in ([], {}, {"format": FORMAT, "fingerprint": 3}, None, {"format": FORMAT})
        ]
    ),
)


def resume_beside(directory: Path, make: Callable[[Path], object]) -> None:
    """``make`` puts something in the place of the newest of two checkpoints."""
    store = CheckpointStore(directory, "f")
    store.save(100, {"weights": torch.arange(3.0)})
    make(store.path(200))
    try:
        state = store.newest()
    except CheckpointError as error:
        assert str(store.path(200)) in str(error)  # noqa: PT017 - either is right
    except ValueError as error:
        assert "was written under" in str(error)  # noqa: PT017
    else:
        assert state is not None
        assert state["env_steps"] == 100 or not store.problems


def test_any_content_of_a_checkpoint_is_set_aside_or_explained(tmp_path: Path) -> None:
    @fuzz(40)
    @given(content=CONTENTS)
    def check(content: bytes) -> None:
        resume_beside(emptied(tmp_path / "checkpoints"), lambda path: path.write_bytes(content))

    check()
