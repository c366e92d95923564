"""Mistakes that all robots of a call share, finished jobs whose robots stay unexamined, and
messages for Python."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

import pytest
from supervisor_helpers import make_job

from orchestrator.api import train
from orchestrator.core.errors import Problem
from orchestrator.core.job import Job, Paused, State, Succeeded
from orchestrator.core.paths import RunPaths
from orchestrator.core.robot_hash import robot_hash
from orchestrator.examination.preflight import JobVerdict
from orchestrator.ledger import JobRow
from orchestrator.server.verdicts import shared_problems, verdicts_of_finished

GOOD = JobVerdict()


def refused(*, settings: str | None = None, code: str | None = None) -> JobVerdict:
    return JobVerdict(
        problem=Problem(where="", message="x"), settings_problem=settings, code_problem=code
    )


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([refused(settings="no such option")], ["no such option"]),
        ([refused(settings="no such option"), refused()], ["no such option"]),
        ([refused(settings="no such option"), GOOD], []),
        ([refused(), refused()], []),
        ([refused(code="NaN")], []),
        ([refused(code="NaN"), refused(code="NaN"), refused()], ["NaN"]),
        ([refused(code="NaN"), refused(code="NameError")], []),
        ([refused(code="NaN"), refused(code="NaN"), GOOD], []),
    ],
)
def test_only_what_no_robot_causes_is_shared(
    verdicts: list[JobVerdict], expected: list[str]
) -> None:
    jobs = [
        dataclasses.replace(make_job(f"job{i}"), xml_source=Path(f"/{i}.xml"))
        for i in range(len(verdicts))
    ]
    assert (
        shared_problems(jobs, {job.job_id: one for job, one in zip(jobs, verdicts, strict=True)})
        == expected
    )


def test_finished_jobs_stay_unexamined_while_their_robot_and_settings_are_the_same(
    tmp_path: Path,
) -> None:
    paths, source = RunPaths(tmp_path / "run"), tmp_path / "bodies/robot.xml"
    job = make_job("a")
    spec = dataclasses.replace(job.spec, task="forward", entry_point=None, xml="robot/robot.xml")
    job = dataclasses.replace(job, spec=spec, xml_source=source)
    for folder in (source.parent, paths.job("a").robot):
        folder.mkdir(parents=True)
        (folder / "robot.xml").write_text("<mujoco/>")
    paths.job("a").model.write_bytes(b"x")
    paths.job("a").vecnormalize.write_bytes(b"x")
    digest = robot_hash("robot.xml", {"robot.xml": source})

    def known(declared: Job = job, state: State | None = None) -> bool:
        row = JobRow(
            job=job,
            state=state or Succeeded(),
            attempts=1,
            fingerprint=spec.fingerprint(),
            robot_hash=digest,
        )
        verdict = verdicts_of_finished([row], [declared], paths).get("a")
        return verdict is not None and (verdict.xml, verdict.robot_hash) == ("robot.xml", digest)

    assert known()
    assert not known(state=Paused(failures=0))
    assert not known(dataclasses.replace(job, spec=dataclasses.replace(spec, task="auto")))
    assert not known(dataclasses.replace(job, xml_source=tmp_path / "other/robot.xml"))
    (paths.job("a").robot / "part.stl").touch()
    assert not known()
    (paths.job("a").robot / "part.stl").unlink()
    paths.job("a").model.unlink()
    assert not known()
    paths.job("a").model.write_bytes(b"x")
    assert known()
    source.write_text("<mujoco model='other'/>")
    assert not known()
    source.unlink()
    os.mkfifo(source)
    assert not known(), "a named pipe is not waited for"


@pytest.fixture
def script_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The folder of the script, which has the module of a task, and the current directory."""
    script, here = tmp_path / "script", tmp_path / "here"
    for folder in (script, here):
        folder.mkdir()
    (script / "my_tasks.py").touch()
    monkeypatch.chdir(here)
    monkeypatch.setattr(
        sys.modules["__main__"], "__file__", str(script / "script.py"), raising=False
    )
    return script, here


def test_the_module_of_a_task_is_looked_for_here_and_then_beside_the_script(
    tmp_path: Path, script_elsewhere: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.api import code_folder

    script, here = script_elsewhere
    monkeypatch.setattr(
        sys, "path", [str(tmp_path), *sys.path]
    )  # as scripts do that insert a folder
    assert code_folder("my_tasks:Crawl") == script
    assert code_folder("other:Crawl") == code_folder("forward") == code_folder(None) == here
    (here / "my_tasks.py").touch()
    assert code_folder("my_tasks:Crawl") == here
    (here / "my_tasks.py").unlink()
    monkeypatch.delattr(sys.modules["__main__"], "__file__")
    monkeypatch.setattr(sys, "path", [str(script), *sys.path])
    assert code_folder("my_tasks:Crawl") == script


def test_nothing_to_train_is_no_result() -> None:
    results = train([])
    assert (results, results.run_dir) == ([], None)
    assert repr(results) == "<0 results, 0 succeeded, run_dir=None>"
