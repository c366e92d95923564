"""A worker forked from the template process trains the same bits as one that is exec'ed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import worker_helpers as helpers
from executor_helpers import DEADLINE_S, events_until, until_exit

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.paths import JobPaths
from orchestrator.executors import worker_template
from orchestrator.executors.executor import AttemptId
from orchestrator.executors.launcher import Launch
from orchestrator.executors.processes import Processes

ROBOTS = helpers.REPOSITORY / "mjcf"


@pytest.fixture(scope="module")
def executor() -> Iterator[Processes]:
    executor = Processes()
    yield executor
    executor.close()


def job(root: Path, name: str, **changes: Any) -> JobPaths:
    paths = helpers.job(
        root / name, helpers.spec(**{"task": "balance", "xml": "robot/balancer.xml"} | changes)
    )
    (paths.root / "robot").mkdir()
    (paths.root / "robot/balancer.xml").write_bytes((ROBOTS / "balancer.xml").read_bytes())
    return paths


def submit(executor: Processes, paths: JobPaths, number: int = 0, **changes: Any) -> AttemptId:
    paths.attempt(number).root.mkdir(parents=True)
    cpus = (max(os.sched_getaffinity(0)),)
    launch = Launch(
        job_id=paths.root.name,
        number=number,
        job_dir=paths.root,
        cpus=cpus,
        gpus=(),
        threads=1,
        **changes,
    )
    return executor.submit(launch)


def record_of(paths: JobPaths, number: int = 0) -> ExitRecord:
    return ExitRecord.from_json(paths.attempt(number).exit.read_text())


def trained(paths: JobPaths) -> list[dict[str, str]]:
    """``progress.csv`` without the columns of the clock."""
    return [
        {name: value for name, value in row.items() if not name.startswith("time/")}
        for row in helpers.rows(paths.progress_csv)
    ]


@pytest.mark.nightly
def test_weights_evaluation_and_tables_are_those_of_a_worker_that_is_execed(
    tmp_path: Path, executor: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = {
        how: [
            job(tmp_path, f"{learner}-{how}", learner=learner, normalize=True)
            for learner in ("fast", "sb3")
        ]
        for how in ("exec", "fork")
    }
    monkeypatch.setattr(worker_template, "IMPORT_PATIENCE_S", 0.0)
    handles = [submit(executor, paths, fork=True) for paths in jobs["exec"]]
    executor._template._wait_until = time.monotonic() + DEADLINE_S
    handles += [submit(executor, paths, fork=True) for paths in jobs["fork"]]
    assert {end.returncode for end in until_exit(executor, *handles).values()} == {0}
    for by_exec, forked in zip(*jobs.values(), strict=True):
        assert "importing" in by_exec.attempt(0).worker_log.read_text()
        assert "not by fork" not in forked.attempt(0).worker_log.read_text()
        expected, record = record_of(by_exec), record_of(forked)
        same = (
            "code",
            "message",
            "weights_sha256",
            "learner",
            "eval_mean",
            "ep_rew_mean",
            "env_steps",
            "cpus",
        )
        assert {name: getattr(record, name) for name in same} == {
            name: getattr(expected, name) for name in same
        }
        assert record.weights_sha256
        for measured in ("import_s", "cpu_s"):  # clock and CPU time begin with the fork
            assert getattr(record, measured) < getattr(expected, measured)
        assert trained(forked) == trained(by_exec)


@pytest.mark.nightly
def test_a_forked_worker_that_is_killed_resumes_to_the_same_weights(
    tmp_path: Path, executor: Processes
) -> None:
    undisturbed, killed = (
        job(tmp_path, name, total_timesteps=4096) for name in ("undisturbed", "killed")
    )
    until_exit(executor, submit(executor, undisturbed, fork=True))
    first = submit(executor, killed, fork=True)
    assert first.pid is not None
    events_until(executor, lambda _: any(killed.checkpoints.glob("*.pt")))
    os.kill(first.pid, signal.SIGKILL)
    assert until_exit(executor, first)[first].returncode == -signal.SIGKILL
    second = submit(executor, killed, number=1, fork=True)
    assert until_exit(executor, second)[second].returncode == ExitCode.SUCCEEDED
    assert record_of(killed, 1).resumed_from
    assert record_of(killed, 1).weights_sha256 == record_of(undisturbed).weights_sha256 is not None


USERS_TASK = """
from orchestrator.worker.tasks.balance import Balance


class Mine(Balance):
    pass
"""


@pytest.mark.nightly
def test_a_users_task_is_trained_by_a_forked_worker(tmp_path: Path, executor: Processes) -> None:
    (tmp_path / "users_tasks.py").write_text(USERS_TASK)
    paths = job(tmp_path, "users-task", task="users_tasks:Mine", search_path=str(tmp_path))
    [end] = until_exit(executor, submit(executor, paths, fork=True)).values()
    record = record_of(paths)
    assert (end.returncode, record.message, record.start) == (0, "", "fork")


USERS_CODE = """
import random
import gymnasium
import numpy

print("drawn", random.random(), numpy.random.random())


def make_env(xml=None, seed=0):
    return gymnasium.make("{env_id}")
"""


@pytest.mark.nightly
def test_a_users_code_is_imported_by_the_forked_worker_itself_and_trains_the_same_bits(
    tmp_path: Path, executor: Processes
) -> None:
    drawn, weights = [], {}
    for env_id in ("CartPole-v1", "Pendulum-v1"):
        for fork in (True, False):
            folder = tmp_path / f"{env_id}-{fork}"
            folder.mkdir()
            (folder / "same_name.py").write_text(USERS_CODE.format(env_id=env_id))
            spec = helpers.spec(entry_point="same_name:make_env", search_path=str(folder))
            paths = helpers.job(folder / folder.name, spec)
            [end] = until_exit(executor, submit(executor, paths, fork=fork)).values()
            assert end.returncode == 0
            assert record_of(paths).start == ("fork" if fork else "exec")
            log = paths.attempt(0).worker_log.read_text()
            drawn += [line for line in log.splitlines() if line.startswith("drawn")]
            weights[env_id, fork] = record_of(paths).weights_sha256
    assert len(set(drawn)) == 4, "a forked worker does not continue the generators of the template"
    for env_id in ("CartPole-v1", "Pendulum-v1"):
        assert weights[env_id, True] == weights[env_id, False] is not None
