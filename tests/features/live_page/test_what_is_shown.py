"""What the live page shows of experiments that are named otherwise, or damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from host_helpers import on_another_host
from supervisor_helpers import Run, make_job

from orchestrator.client.events import News
from orchestrator.client.run_watch import LiveSection, RunWatch
from orchestrator.core.feature import Feature
from orchestrator.experiment import run_directory
from orchestrator.features.live_page.folder_source import FolderSource
from orchestrator.features.live_page.run_source import RunSource
from orchestrator.ledger import summary


def test_an_experiment_has_the_name_that_was_recorded_last_or_that_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("robots", "earlier"):
        (tmp_path / name).mkdir()
        Run(tmp_path / name, [make_job("j0")]).ledger.close()
        (tmp_path / name / "supervisor.lock").touch()
    sessions = [{"experiment": "before"}, {"experiment": "the robots"}, {"note": "unreadable"}]
    (tmp_path / "robots/provenance.json").write_text(json.dumps(sessions))
    shown = FolderSource(tmp_path).read().put
    runs = [json.loads(text)["name"] for name, text in shown.items() if name != "head"]
    assert sorted(runs) == ["earlier", "the robots"]
    head = RunSource(tmp_path / "robots").read().put["head"]
    assert json.loads(head)["name"] == "the robots"


def test_features_are_not_asked_while_the_supervisor_runs_on_another_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[bool] = []

    class Watch(RunWatch):
        def look(self) -> tuple[News, ...]:
            looks.append(True)
            return ()

        def section(self) -> LiveSection:
            return LiveSection(title="Looks", text=str(len(looks)))

    watching = Feature(name="watching", about="x.", watch=lambda paths: Watch())
    monkeypatch.setattr("orchestrator.client.run_watch.features", lambda: (watching,))
    with run_directory.claim(tmp_path / "run") as paths:
        ledger = Run(paths.root, [make_job("j0")]).ledger
        summary.write(paths, ledger)
        ledger.close()
        with on_another_host(monkeypatch):
            shown = RunSource(paths.root).read().put
        assert "on another host" in json.loads(shown["head"])["text"]
        assert "job:j0" in shown
        assert json.loads(shown["sections"]) == []
        assert looks == []
        (section,) = json.loads(RunSource(paths.root).read().put["sections"])
        assert (section["title"], section["text"]) == ("Looks", "1")
