"""`clean` removes what nothing needs, and nothing else: afterwards a run directory can do what it
could before."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from command_helpers import Experiment, invoke

from orchestrator.client import cleaning
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.job import Attempt, AttemptOutcome
from orchestrator.core.paths import RunPaths
from orchestrator.experiment import run_directory
from orchestrator.ledger import Ledger

TIME = "20260101T000000"
JOB = "hopper-s0"


def contents(folder: Path) -> dict[str, bytes | str]:
    """What is below ``folder``: the bytes of files and the targets of links."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(folder))] = str(path.readlink())
        elif path.is_file():
            found[str(path.relative_to(folder))] = path.read_bytes()
    return {name: content for name, content in found.items() if "supervisor.lock" not in name}


def add_attempt(run_dir: Path) -> None:
    """Let the job have had an attempt before its last."""
    job = RunPaths(run_dir).job(JOB)
    shutil.copytree(job.attempt(0).root, job.attempt(1).root)
    ledger = Ledger.open(run_dir / "ledger.sqlite3")
    ledger.start_attempt(
        Attempt(job_id=JOB, number=1, cpus=(), gpus=(), started_at=1.0), queue_s=0.0
    )
    record = ExitRecord.from_json(job.attempt(1).exit.read_text())
    outcome = AttemptOutcome(cause=None)
    ledger.end_attempt(
        JOB,
        1,
        ended_at=2.0,
        wall_s=1.0,
        returncode=ExitCode.SUCCEEDED,
        outcome=outcome,
        record=record,
    )
    ledger.close()


@pytest.fixture
def littered(finished: Experiment) -> Experiment:
    """A finished experiment with leftovers of every kind, and with what only looks like one."""
    run_dir, job = finished.run_dir, RunPaths(finished.run_dir).job(JOB)
    add_attempt(run_dir)
    shutil.copytree(run_dir, finished.cwd / f"run.{TIME}")
    (run_dir / f"replaced/{JOB}.{TIME}").mkdir(parents=True)
    (run_dir / f"replaced/{JOB}.{TIME}/model.zip").write_bytes(b"x" * 100)
    (run_dir / f"replaced/ledger.sqlite3.{TIME}-2").write_bytes(b"x" * 100)
    (job.checkpoints / "checkpoint-000000000064.pt.damaged").write_bytes(b"x" * 100)
    for path in (
        finished.cwd / "elsewhere/checkpoints",
        finished.cwd / f"run.{TIME}-2",
        run_dir / "bench",
    ):
        path.mkdir(parents=True)
    kept = finished.cwd / "elsewhere/checkpoints/checkpoint-000000000001.pt"
    kept.write_bytes(b"x")
    (job.checkpoints / "checkpoint-000000000001.pt.damaged").symlink_to(kept)
    (run_dir / f"replaced/other.{TIME}").symlink_to(finished.cwd / "elsewhere")
    (run_dir / "replaced/notes.txt").write_text("mine")
    (job.root / "notes.damaged").write_text("mine")
    (run_dir / "jobs/mine/attempts/0").mkdir(parents=True)
    (run_dir / "jobs/mine/attempts/0/worker.log").write_text("mine")
    (run_dir / f"bench/x.{TIME}").write_text("mine")
    (finished.cwd / f"run.{TIME}-3").symlink_to(finished.cwd / f"run.{TIME}")
    return finished


def test_what_is_listed_is_removed_and_nothing_else(littered: Experiment) -> None:
    before = contents(littered.cwd)
    shown = json.loads(invoke("clean", "run", "--dry-run", "--json", cwd=littered.cwd).stdout)
    assert contents(littered.cwd) == before
    assert {row["kind"]: row["count"] for row in shown["kinds"]} == {
        **dict.fromkeys(cleaning.KINDS, 1),
        cleaning.REPLACED: 2,
        cleaning.CHECKPOINTS: 2,
    }
    assert {row["kind"]: row["bytes"] for row in shown["kinds"]}[cleaning.REPLACED] == 200
    job = f"run/jobs/{JOB}"
    gone = {
        *(name for name in before if name.startswith((f"run.{TIME}/", f"run/replaced/{JOB}"))),
        f"run/replaced/ledger.sqlite3.{TIME}-2",
        f"{job}/checkpoints/checkpoint-000000000064.pt.damaged",
        f"{job}/attempts/0/worker.log",
        *(
            f"run/jobs/{name}/checkpoints/checkpoint-000000000384.pt"
            for name in (JOB, "balancer-s0")
        ),
    }
    assert gone < before.keys()
    done = invoke("clean", "run", cwd=littered.cwd)
    assert (done.returncode, done.stderr) == (0, "")
    assert "removed 7 items" in done.stdout
    assert before.keys() - contents(littered.cwd).keys() == gone
    assert "nothing to remove" in invoke("clean", "run", cwd=littered.cwd).stdout


def test_jobs_that_are_not_done_keep_every_checkpoint(finished: Experiment) -> None:
    with contextlib.closing(
        sqlite3.connect(finished.run_dir / "ledger.sqlite3", isolation_level=None)
    ) as ledger:
        ledger.execute("UPDATE jobs SET state = 'PENDING'")
    done = json.loads(invoke("clean", "run", "--json", cwd=finished.cwd).stdout)
    assert done["paths"] == []


def test_a_run_directory_that_is_held_is_left_alone(littered: Experiment) -> None:
    before = contents(littered.cwd)
    with run_directory.claim(littered.run_dir):
        refused = invoke("clean", "run", cwd=littered.cwd)
    assert (refused.returncode, "held by another supervisor" in refused.stderr) == (2, True)
    with run_directory.claim(littered.cwd / f"run.{TIME}"):
        shown = json.loads(invoke("clean", "run", "--dry-run", "--json", cwd=littered.cwd).stdout)
    assert {row["kind"]: row["count"] for row in shown["kinds"]}[cleaning.FORMER] == 0
    assert contents(littered.cwd) == before
    assert invoke("clean", "elsewhere", cwd=littered.cwd).returncode == 2


@pytest.mark.nightly
def test_a_cleaned_run_directory_reports_and_resumes(littered: Experiment) -> None:
    expected = json.loads((littered.run_dir / "summary.json").read_text())
    assert invoke("clean", "run", cwd=littered.cwd).returncode == 0
    assert invoke("report", "run", cwd=littered.cwd).returncode == 0
    assert invoke("run", "run", cwd=littered.cwd).returncode == 0
    weights = {row["job_id"]: row["weights_sha256"] for row in expected}
    again = json.loads((littered.run_dir / "summary.json").read_text())
    assert {row["job_id"]: row["weights_sha256"] for row in again} == weights
    # As after a kill during the last iteration: it goes on from the newest checkpoint, to the same
    # end.
    with contextlib.closing(
        sqlite3.connect(littered.run_dir / "ledger.sqlite3", isolation_level=None)
    ) as ledger:
        ledger.execute("UPDATE jobs SET state = 'PENDING' WHERE job_id = 'balancer-s0'")
    resumed = invoke("run", "run", cwd=littered.cwd)
    assert (resumed.returncode, "balancer-s0 at 512" in resumed.stdout) == (0, True), resumed.stdout
    again = json.loads((littered.run_dir / "summary.json").read_text())
    assert {row["job_id"]: row["weights_sha256"] for row in again} == weights
