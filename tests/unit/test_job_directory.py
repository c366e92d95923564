"""What the supervisor does in a job's directory: each attempt finds it as it must be, and what nobody needs goes."""

from __future__ import annotations

from pathlib import Path

import pytest
from supervisor_helpers import Experiment, behaviours, ledgers_closed, make_job, make_spec  # noqa: F401 - a fixture

from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.executors.fake import Behaviour
from orchestrator.supervisor import job_directory


def test_what_an_earlier_launch_of_the_same_number_left_is_gone(tmp_path: Path) -> None:
    paths, spec = JobPaths(tmp_path), make_spec("a-s0", ranks=2)
    attempt = paths.attempt(3)
    attempt.root.mkdir(parents=True)
    for left in (attempt.rendezvous, attempt.exit_of(0), attempt.exit_of(1), attempt.worker_log):
        left.write_text("left")
    job_directory.prepare(paths, 3, spec)
    assert [path.name for path in attempt.root.iterdir()] == ["worker.log"]
    assert WorkerSpec.from_json(paths.spec.read_text()) == spec


@pytest.mark.parametrize(("folders", "number"), [((), 1), ((0, 1), 1), ((0, 1, 2), 2), ((0, 1, 2, 3), 3), ((0, 3), 1)])
def test_no_attempt_begins_beside_the_folder_of_the_next(tmp_path: Path, folders: tuple[int, ...], number: int) -> None:
    paths = JobPaths(tmp_path)
    for folder in folders:
        paths.attempt(folder).root.mkdir(parents=True)
    assert job_directory.free_number(paths, 1) == number


def test_launches_that_a_power_cut_took_from_the_ledger_do_not_supersede_the_next(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, [make_job("a-s0", max_retries=1)], behaviours({"a-s0": Behaviour()}))
    job = experiment.paths.job("a-s0")
    job.attempt(0).root.mkdir(parents=True)
    job.attempt(1).root.mkdir()
    assert experiment.run() == {"a-s0": "SUCCEEDED"}
    assert [launch.number for launch in experiment.fake.launches] == [1]


def test_replay_buffers_of_ranks_that_ran_elsewhere_are_removed_when_the_training_is_done(tmp_path: Path) -> None:
    experiment = Experiment(
        tmp_path,
        [make_job("done", ranks=2), make_job("failed", ranks=2)],
        behaviours({"done": Behaviour(), "failed": Behaviour(returncode=1)}),
        cpus=4,
    )
    for job_id in ("done", "failed"):
        rows = experiment.paths.job(job_id).replay(1) / "rows-000000000000-000000000008.npz"
        rows.parent.mkdir(parents=True)
        rows.write_bytes(b"rows")
    assert experiment.run() == {"done": "SUCCEEDED", "failed": "FAILED"}
    assert not experiment.paths.job("done").replay(1).exists()
    assert experiment.paths.job("failed").replay(1).exists(), "`retry` goes on with it"
