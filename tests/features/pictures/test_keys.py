"""The keys ``preview`` and ``video`` of jobs, and the jobs that they mean."""

from __future__ import annotations

from pathlib import Path

import pytest
from supervisor_helpers import make_job

from orchestrator.core.paths import RunPaths
from orchestrator.features.pictures import after_run
from orchestrator.jobfile import from_mapping
from orchestrator.ledger import Ledger
from orchestrator.ledger.rows import DeclaredJob


def test_previews_are_drawn_and_videos_made_as_a_job_says() -> None:
    jobs = [
        {"name": "plain", "env": "Pendulum-v1"},
        {"name": "own", "env": "Pendulum-v1", "video": True, "preview": False},
    ]
    found = from_mapping({"name": "t", "jobs": jobs}, source="t.toml", base=Path())
    assert [(job.spec.preview, job.spec.video) for job in found.jobs] == [
        (True, False),
        (False, True),
    ]


def test_the_ledger_says_of_which_jobs_pictures_are_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = RunPaths(tmp_path)
    ledger = Ledger.create(paths.ledger)
    specs = {"a-s0": {"video": True, "preview": True}, "b-s0": {"preview": True}, "c-s0": {}}
    ledger.put_jobs(
        DeclaredJob(position=number, job=make_job(name, spec=spec))
        for number, (name, spec) in enumerate(specs.items())
    )
    ledger.close()
    made: dict[str, object] = {}
    monkeypatch.setattr(after_run, "make_missing", lambda *_, **wanted: made.update(wanted))
    after_run.main(str(paths.root), "1")
    assert made == {"with_video": {"a-s0"}, "without_preview": {"c-s0"}}
