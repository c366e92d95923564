"""Where root alone decides what lies at a path, and where it is another user."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from user_helpers import ANN, only_root

from orchestrator.experiment.processes import done_by_owner
from orchestrator.machine.users import NOBODY, user_who_decides

pytestmark = only_root


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of root, within reach of others, with a run directory in a folder."""
    with tempfile.TemporaryDirectory() as name:
        made = Path(name)
        made.chmod(0o755)
        (made / "above/run").mkdir(parents=True)
        yield made


def test_root_decides_in_its_own_folders_and_what_is_not_there(folder: Path) -> None:
    assert user_who_decides(folder / "above/run") is None
    assert user_who_decides(folder / "above/run/../run") is None
    assert user_who_decides(folder / "above/missing/run") is None


@pytest.mark.parametrize("which", ["above", "above/run"])
def test_who_owns_it_or_a_folder_above_decides(folder: Path, which: str) -> None:
    os.chown(folder / which, ANN, ANN)
    assert user_who_decides(folder / "above/run") == ANN


@pytest.mark.parametrize("mode", [0o775, 0o757])
@pytest.mark.parametrize("which", ["above", "above/run"])
def test_where_others_may_write_anybody_decides(folder: Path, which: str, mode: int) -> None:
    (folder / which).chmod(mode)
    assert user_who_decides(folder / "above/run") == NOBODY


def test_in_a_sticky_folder_others_cannot_replace_what_is_of_root(folder: Path) -> None:
    (folder / "above").chmod(0o1777)
    assert user_who_decides(folder / "above/run") is None
    assert user_who_decides(folder / "above") == NOBODY, "they can put something beside it"


def test_a_link_is_decided_by_who_made_it_and_by_who_decides_where_it_leads(folder: Path) -> None:
    (folder / "link").symlink_to("above/run")
    assert user_who_decides(folder / "link") is None
    assert user_who_decides(folder / "link/jobs") is None
    os.lchown(folder / "link", ANN, ANN)
    assert user_who_decides(folder / "link/jobs") == ANN
    os.lchown(folder / "link", 0, 0)
    os.chown(folder / "above", ANN, ANN)
    assert user_who_decides(folder / "link/jobs") == ANN
    (folder / "circle").symlink_to("circle")
    assert user_who_decides(folder / "circle/run") == NOBODY


def test_who_is_not_root_acts_as_who_they_are(folder: Path) -> None:
    os.chown(folder / "above", ANN, ANN)
    (answer,) = done_by_owner.done_by(ANN, lambda: [str(user_who_decides(folder / "above"))])
    assert answer == "None"
