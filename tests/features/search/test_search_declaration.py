"""What is said of a run directory by what its search was declared as."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trial_helpers import Told, search_run

from orchestrator.core.paths import RunPaths
from orchestrator.features.search import FEATURE
from orchestrator.features.search.search_paths import SearchPaths
from orchestrator.features.search.trials import TrialReader


def test_a_declaration_without_a_search_and_without_rungs_has_no_trials(tmp_path: Path) -> None:
    paths = search_run(tmp_path / "run", [Told()])
    declared = json.loads(SearchPaths(paths.root).declaration.read_text())
    del declared["data"]["search"]
    SearchPaths(paths.root).declaration.write_text(json.dumps(declared))
    assert TrialReader.of(paths) is None


def test_an_impossible_path_has_no_line_of_a_search() -> None:
    paths = RunPaths(Path("x" * 5000))
    with pytest.raises(OSError, match="too long"):
        SearchPaths(paths.root).declaration.exists()
    assert FEATURE.watch is not None
    assert FEATURE.watch(paths) is None
