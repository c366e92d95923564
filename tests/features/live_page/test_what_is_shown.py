"""What the live page shows of experiments that are named otherwise, or damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from supervisor_helpers import Experiment, make_job

from orchestrator.features.live_page.folder_source import FolderSource
from orchestrator.features.live_page.run_source import RunSource


def test_an_experiment_has_the_name_that_was_recorded_last_or_that_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("robots", "earlier"):
        (tmp_path / name).mkdir()
        Experiment(tmp_path / name, [make_job("j0")]).ledger.close()
        (tmp_path / name / "supervisor.lock").touch()
    sessions = [{"experiment": "before"}, {"experiment": "the robots"}, {"note": "another version"}]
    (tmp_path / "robots/provenance.json").write_text(json.dumps(sessions))
    shown = FolderSource(tmp_path).read().put
    runs = [json.loads(text)["name"] for name, text in shown.items() if name != "head"]
    assert sorted(runs) == ["earlier", "the robots"]
    head = RunSource(tmp_path / "robots").read().put["head"]
    assert json.loads(head)["name"] == "the robots"
