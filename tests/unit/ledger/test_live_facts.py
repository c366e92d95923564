"""What `status` shows of running and waiting jobs as of now."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_launcher import NEVER, Behaviour
from supervisor_helpers import (
    FOREVER,
    Run,
    behaviours,
    ledgers_closed,  # noqa: F401 - a fixture
    make_job,
)

from orchestrator.client import run_snapshot
from orchestrator.client.run_snapshot import Snapshot
from orchestrator.core.job import AttemptOutcome, Cancelled, Cause, Failed, Job, Paused, Succeeded
from orchestrator.core.messages import Progress
from orchestrator.experiment import run_directory
from orchestrator.server import disk_admission

LONGEST_S = 10_000.0
"""Simulated time after which what is awaited has not come."""


def seen(
    root: Path, jobs: list[Job], behave: dict[str, Any], condition: Callable[[Snapshot], bool]
) -> Snapshot:
    """The first reading of a running experiment for which ``condition`` holds."""
    found: list[Snapshot] = []
    with run_directory.claim(root) as paths:
        holder = run_directory.holder(paths)
        assert holder is not None

        def stop_when_seen() -> str:
            snapshot = run_snapshot.status(root)
            if condition(snapshot) or experiment.fake.time_s > LONGEST_S:
                found.append(snapshot)
                return "seen"
            return ""

        experiment = Run(
            root, jobs, behaviours(behave), holder=holder.key, reason_to_stop=stop_when_seen
        )
        experiment.go()
    return found[0]


def test_status_has_what_running_jobs_report(tmp_path: Path) -> None:
    progress = Progress(phase="evaluating", env_steps=500, cpu_share=0.75, run_delay_share=0.25)
    reports = Behaviour(after_s=NEVER, progress_every_s=1.0, progress=progress)
    jobs = [make_job(name) for name in ("reports", "silent", "waits")]
    snapshot = seen(
        tmp_path,
        jobs,
        {"reports": reports, "silent": FOREVER},
        lambda now: any(row["phase"] == "evaluating" for row in now.rows),
    )
    facts = {
        row["job_id"]: [
            row["phase"],
            row["cpu_share"],
            row["run_delay_share"],
            row["waiting"],
        ]
        for row in snapshot.rows
    }
    assert facts == {
        "reports": ["evaluating", 0.75, 0.25, None],
        "silent": ["starting", None, None, None],
        "waits": [None] * 4,
    }
    assert all(row["wall_s"] is not None for row in snapshot.rows if row["state"] == "RUNNING")


def test_status_says_that_jobs_wait_for_disk_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_admission, "free_mib", lambda _: 100)
    snapshot = seen(
        tmp_path,
        [make_job(min_free_disk_mib=1024)],
        {},
        lambda now: any(row["waiting"] for row in now.rows),
    )
    (row,) = snapshot.rows
    assert row["waiting"] is not None
    assert all(text in row["waiting"] for text in ("100 MiB", "1,024 MiB", str(tmp_path)))


def start(experiment: Run, number: int, started_at: float) -> None:
    experiment.begin("a", number=number, cpus=(), started_at=started_at)


def test_the_time_of_a_resumed_job_counts_up_and_without_a_supervisor_none_is_running(
    tmp_path: Path,
) -> None:
    experiment = Run(tmp_path, [make_job("a")])
    start(experiment, 0, time.time() - 1000.0)
    outcome = AttemptOutcome(cause=Cause.INTERRUPTED)
    experiment.ledger.end_attempt(
        "a", 0, ended_at=time.time(), wall_s=50.0, returncode=None, outcome=outcome, record=None
    )
    start(experiment, 1, time.time() - 100.0)
    experiment.ledger.close()
    with run_directory.claim(tmp_path):
        (row,) = run_snapshot.status(tmp_path).rows
        assert row["state"] == "RUNNING"
        assert 150.0 <= (row["wall_s"] or 0.0) < 1000.0
    (row,) = run_snapshot.status(tmp_path).rows
    assert (row["state"], row["wall_s"], row["pid"]) == ("PENDING", 50.0, None)


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ([Succeeded(), Succeeded()], 0),
        ([Succeeded(), Failed(cause=Cause.ERROR, message="")], 1),
        ([None, Cancelled()], 1),
        ([Succeeded(), Cancelled(is_undeclared=True)], 0),
        ([Succeeded(), None], 130),
        ([Succeeded(), Paused()], 130),
    ],
)
def test_the_exit_code_of_status(states: list[Any], code: int, tmp_path: Path) -> None:
    experiment = Run(tmp_path, [make_job(f"j{number}") for number, _ in enumerate(states)])
    for number, state in enumerate(states):
        if state is not None:
            experiment.ledger.set_state(f"j{number}", state)
    experiment.ledger.close()
    assert run_snapshot.exit_code_of(run_snapshot.status(tmp_path)) == code
