"""``benchmarks.size`` finds who imports a feature, and counts what is whose."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import size

KERNEL = """
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.features.bells.tower import Tower
else:
    import orchestrator.features.bells


def ring() -> None:
    import importlib

    from orchestrator.features import bells

    importlib.import_module("orchestrator.features.bells.tower").ring(bells)
"""
BELLS = """
import orchestrator.core.feature
from orchestrator.features.bells import tower
from orchestrator.features.carillon.notes import NOTES
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A program with a feature that another one and the kernel import."""
    for name, text in {
        "core/feature.py": KERNEL,
        "worker/train.py": "x = 1",
        "features/__init__.py": "",
        "features/bells/__init__.py": BELLS,
        "features/bells/tower.py": "",
        "features/carillon/notes.py": "NOTES = ()",
        "executors/rope.py": "from orchestrator.features.bells import tower",
    }.items():
        file = tmp_path / "orchestrator" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


def test_planted_imports_of_features_are_found_and_those_for_types_told_apart(root: Path) -> None:
    parts = size.survey(root, {"orchestrator/executors": "bells"})
    assert {name: len(part.imports) for name, part in parts.items()} == {
        "kernel": 4,
        "worker": 0,
        "bells": 1,
        "carillon": 0,
    }
    assert [one.line for one in parts["kernel"].imports if one.is_for_types] == [5]
    assert sorted(one.line for one in parts["kernel"].imports) == [5, 7, 13, 15]
    shown = size.table(parts)
    assert "| bells | 3 |" in shown
    assert "orchestrator/features/bells/__init__.py:4 imports carillon\n" in f"{shown}\n"
    assert "orchestrator/core/feature.py:5 imports bells (under TYPE_CHECKING)" in shown


def test_size_is_of_what_a_module_says_not_of_how_it_is_laid_out(root: Path) -> None:
    train = root / "orchestrator/worker/train.py"
    before = size.survey(root, {})["worker"]
    train.write_text("# The first one.\nx = (\n    1\n)\n")
    assert size.survey(root, {})["worker"] == before
    train.write_text("x = 1 + 1")
    assert size.survey(root, {})["worker"].nodes > before.nodes
    assert (before.modules, before.nodes) == (1, 5)


def test_what_belongs_to_a_feature_elsewhere_is_counted_as_its_own(root: Path) -> None:
    (kernel_import,) = [
        one for one in size.survey(root, {})["kernel"].imports if one.path.name == "rope.py"
    ]
    assert kernel_import.feature == "bells"
    assert size.survey(root, {"orchestrator/executors": "bells"})["bells"].modules == 3
