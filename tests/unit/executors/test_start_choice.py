"""Which workers are forked, and why: decided from the job and from how many such jobs are due."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_launcher import Behaviour, FakeLauncher, SimulatedLauncher
from supervisor_helpers import (
    Run,
    ledgers_closed,  # noqa: F401 - a fixture
    make_job,
    names,
)

from orchestrator.core.job import Job
from orchestrator.executors import start_choice
from orchestrator.executors.launcher import Launch

BUILT_IN = {"env": None, "xml": "robot/pole.xml", "task": "balance"}


def forkable(job_id: str = "a-s0", **resources: Any) -> Job:
    return make_job(job_id, spec=BUILT_IN, **resources)


@pytest.mark.parametrize(
    ("job", "due", "never_forks", "has_forked", "is_forked", "why"),
    [
        (forkable(), 3, "", False, True, "3 or more jobs that can be forked are due"),
        (forkable(), 2, "", False, False, "fewer than 3 jobs that can be forked are due"),
        (forkable(), 1, "", True, True, "there is a template process, of jobs launched before"),
        (forkable(), 3, "this executor does not", False, False, "this executor does not"),
        (forkable(start="exec"), 9, "", True, False, 'resources.start = "exec"'),
        (forkable(start="fork"), 1, "", False, True, 'resources.start = "fork"'),
        (forkable(start="fork", gpus=1), 9, "", True, False, "the job uses a GPU"),
        (forkable(ranks=2), 9, "", True, False, "the job has several ranks"),
    ],
)
def test_the_choice(
    job: Job, due: int, never_forks: str, has_forked: bool, is_forked: bool, why: str
) -> None:
    choice = start_choice.choose(job, due=due, never_forks=never_forks, has_forked=has_forked)
    assert (choice.is_forked, choice.why) == (is_forked, why)


def forks(tmp_path: Path, jobs: list[Job], executor: FakeLauncher | None = None) -> dict[str, bool]:
    experiment = Run(tmp_path, jobs, cpus=2, **({} if executor is None else {"launcher": executor}))
    assert set(experiment.go().values()) == {"SUCCEEDED"}
    launches = (executor or experiment.fake).launches
    return {launch.job_id: launch.fork for launch in launches}


def test_three_jobs_are_forked_and_so_are_those_that_follow(tmp_path: Path) -> None:
    assert set(forks(tmp_path, [forkable(name) for name in names(5)]).values()) == {True}


def test_two_jobs_are_execed_also_beside_others_that_cannot_be_forked(tmp_path: Path) -> None:
    jobs = [forkable("a"), make_job("b", start="exec"), make_job("c", start="exec"), forkable("d")]
    assert set(forks(tmp_path, jobs).values()) == {False}


def test_jobs_wait_while_their_template_is_prepared_and_those_of_another_demand_do_not(
    tmp_path: Path,
) -> None:
    class Preparing(SimulatedLauncher):
        def prepare_to_fork(self) -> bool:
            return self.time_s >= 5.0

    begun: dict[str, float] = {}

    def behave(launch: Launch) -> Behaviour:
        begun[launch.job_id] = executor.time_s
        return Behaviour()

    executor = Preparing(behave=behave)
    jobs = [*(forkable(name) for name in names(3)), make_job("other", start="exec", memory_mib=50)]
    experiment = Run(tmp_path, jobs, cpus=2, launcher=executor, now=executor.now)
    assert set(experiment.go().values()) == {"SUCCEEDED"}
    assert begun["other"] < 1.0
    assert [begun[name] >= 5.0 for name in names(3)] == [True] * 3
    assert executor.time_s < 9.0
