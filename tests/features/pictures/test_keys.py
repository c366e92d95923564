"""The keys ``preview`` and ``video`` of jobs, and the jobs that they mean."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from ended_helpers import ended_jobs
from supervisor_helpers import make_job

from orchestrator.core.errors import SpecError
from orchestrator.core.paths import RunPaths
from orchestrator.features.pictures import after_run
from orchestrator.features.pictures.after_run import PicturesAfterRun
from orchestrator.jobfile import from_mapping
from orchestrator.ledger import Ledger
from orchestrator.ledger.rows import DeclaredJob

WITHOUT_PICTURES = """
import sys
from pathlib import Path
from orchestrator.core import feature

others = tuple(one for one in feature.features() if one.name != "pictures")
feature.features = lambda: others
from orchestrator.core.errors import SpecError
from orchestrator.jobfile import load

job = load(Path("without.toml")).jobs[0].spec
print(job.fingerprint(), job.preview, job.video)
try:
    load(Path("with.toml"))
except SpecError as error:
    print(error)
"""


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
    wrong = {"name": "t", "jobs": [{**jobs[0], "video": "true"}]}
    with pytest.raises(SpecError, match=r"jobs\[0\].video: expected true or false"):
        from_mapping(wrong, source="t.toml", base=Path())


def test_without_the_feature_a_job_is_the_same_and_its_keys_are_unknown(tmp_path: Path) -> None:
    job = 'name = "t"\n[[jobs]]\nname = "p"\nenv = "Pendulum-v1"\n'
    (tmp_path / "without.toml").write_text(job)
    (tmp_path / "with.toml").write_text(f"{job}video = true\n")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PICTURES],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    facts, *refusal = done.stdout.splitlines()
    data = {"name": "t", "jobs": [{"name": "p", "env": "Pendulum-v1"}]}
    (with_feature,) = from_mapping(data, source="t.toml", base=tmp_path).jobs
    assert facts == f"{with_feature.spec.fingerprint()} False False"
    assert "jobs[0].video: unknown key; known keys: " in "\n".join(refusal)


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
    ended, _ = ended_jobs(paths, list(specs), ledger=ledger)
    made: dict[str, object] = {}
    monkeypatch.setattr(after_run, "make_missing", lambda *_, **wanted: made.update(wanted))
    PicturesAfterRun().add_results(ended, lambda: False)
    ledger.close()
    assert made == {"with_video": {"a-s0"}, "without_preview": {"c-s0"}}
