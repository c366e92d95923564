"""Decisions of ``verify``: which jobs are verified, and what short trainings prove about them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from supervisor_helpers import edit_robot, make_job, staged_robot, with_robots

from orchestrator.core.errors import UsageError
from orchestrator.core.job import Job
from orchestrator.core.paths import RunPaths
from orchestrator.core.robot_hash import hash_of_copy
from orchestrator.features.verify import cases, verification, verification_runs
from orchestrator.features.verify.cases import Case, case_job, choose, neighbour_of
from orchestrator.features.verify.certificate import Evidence, judge
from orchestrator.features.verify.verification import VerifyOptions, verify
from orchestrator.features.verify.verification_runs import Kill, ShortTraining
from orchestrator.ledger import Ledger
from orchestrator.server import job_directory


@pytest.fixture
def job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With one job, in the current folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "jobs.toml"
    path.write_text(
        'name = "e"\n[[jobs]]\nname = "good"\nenv = "CartPole-v1"\ntotal_timesteps = 64\n'
    )
    return path


def test_wrong_usage_names_what_is_wrong_and_leaves_nothing(tmp_path: Path, job_file: Path) -> None:
    for source, options, message in (
        (job_file, VerifyOptions(jobs=["god"]), "no such job; did you mean good-s0"),
        (job_file, VerifyOptions(iterations=2), "--iterations 2: expected at least 3"),
        (tmp_path, VerifyOptions(), "not a run directory"),
    ):
        with pytest.raises(UsageError, match=message):
            verify(source, options, lambda _: None)
    assert not list(tmp_path.rglob("certificate.json"))


def test_it_does_not_work_where_an_experiment_lies_and_leaves_that_as_it_is(
    tmp_path: Path, job_file: Path
) -> None:
    paths = RunPaths(tmp_path / "out/verify")
    paths.job("trained-s0").root.mkdir(parents=True)
    (paths.job("trained-s0").root / "model.zip").write_text("weights")
    Ledger.create(paths.ledger).close()
    with pytest.raises(UsageError, match=r"out/verify: holds an experiment.*another --output"):
        verify(job_file, VerifyOptions(output=tmp_path / "out"), lambda _: None)
    assert (paths.job("trained-s0").root / "model.zip").read_text() == "weights"
    assert paths.ledger.exists()


def named(name: str, xml: str | None = "/robots/hopper.xml") -> Job:
    return dataclasses.replace(make_job(name), xml_source=None if xml is None else Path(xml))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["hopper-s1"], ["hopper-s1"]),
        (["hopper-s"], ["hopper-s1", "hopper-s10"]),
        (["*-s10", "walk"], ["hopper-s10", "walker-s0"]),
        (["*"], ["hopper-s1", "hopper-s10", "walker-s0"]),
    ],
)
def test_jobs_are_named_by_id_beginning_or_pattern(names: list[str], expected: list[str]) -> None:
    jobs = [named("hopper-s1"), named("hopper-s10"), named("walker-s0")]
    chosen, left_out = choose(jobs, names, Path("jobs.toml"))
    assert [one.job_id for one in chosen] == expected
    assert left_out == {}


def test_one_job_of_each_robot_and_of_each_environment_with_its_arguments_is_verified() -> None:
    def of_env(name: str, **arguments: object) -> Job:
        spec = {"task": None, "entry_point": "my:make_env", "env_kwargs": arguments}
        return make_job(name, spec=spec)

    jobs = [named("hopper-s0"), named("hopper-s1"), of_env("a"), of_env("b"), of_env("c", wind=[1])]
    chosen, left_out = choose(jobs, [], Path("jobs.toml"))
    assert [job.job_id for job in chosen] == ["hopper-s0", "a", "c"]
    assert left_out.keys() == {"hopper-s1", "b"}


def test_a_job_that_paused_at_a_rung_trains_to_the_end_of_its_verification() -> None:
    at_rung = make_job("a-s0", spec={"pause_at": 64, "checkpoint_every": 64})
    short = case_job(at_rung, 6)
    assert short.spec.attempt_end == 6 * at_rung.spec.steps_an_iteration
    neighbour = neighbour_of([Case(job=at_rung, bundle=None)], 0).job
    assert neighbour.spec.attempt_end == neighbour.spec.total_timesteps > short.spec.attempt_end


def test_an_algorithm_class_learns_in_its_verification() -> None:
    spec = {"algo": "mine:Class", "hyperparameters": {"learning_starts": 5000}}
    job = make_job("a-s0", spec=spec)
    assert case_job(job, 6).spec.total_timesteps >= 5000 + 5 * job.spec.steps_an_iteration


def test_an_altered_robot_is_not_verified(tmp_path: Path) -> None:
    root, staged = tmp_path / "run", staged_robot(tmp_path / "staged")
    experiment = with_robots(root, staged, "altered", "intact")
    for job in experiment.jobs:
        directory = experiment.paths.job(job.job_id)
        job_directory.prepare(directory, 0, job.spec)
        directory.robot_hash.write_text(hash_of_copy(staged, "hopper.xml") or "")
    edit_robot(experiment.paths.job("altered").robot)
    experiment.ledger.close()
    found, left_out = cases.of_run_dir(root, ["*"])
    assert [case.job.job_id for case in found] == ["intact"]
    assert "jobs/altered/robot/hopper.xml" in left_out["altered"]


def test_groups_hold_what_runs_at_once() -> None:
    cases = [
        Case(job=named(f"r{cores}-s{index}"), bundle=None)
        for index, cores in enumerate((1, 1, 2, 1))
    ]

    def room(jobs: list[Job]) -> bool:
        return sum(int(one.job_id[1]) for one in jobs) <= 2

    found = verification_runs.groups(cases, room)
    assert [[one.job.job_id for one in group] for group in found] == [
        ["r1-s0", "r1-s1"],
        ["r2-s2"],
        ["r1-s3"],
    ]


SAME, OTHER = (
    ShortTraining(sha256="a", neighbours=1, was_killed=True),
    ShortTraining(sha256="b", neighbours=1, was_killed=True),
)


def evidence(**changes: Any) -> Evidence:
    return Evidence(**{"alone": [SAME], "together": [SAME], "resumed": [SAME], **changes})


def test_the_same_weights_each_time_are_a_pass() -> None:
    verdict = judge("hopper-s0", evidence())
    assert (verdict.verdict, verdict.reasons, verdict.notes, verdict.slowdown) == (
        "PASS",
        [],
        [],
        None,
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"together": [SAME, OTHER], "alone": [SAME, SAME]}, "depends on what runs beside it"),
        ({"together": [OTHER], "again": SAME}, "depends on what runs beside it"),
        ({"together": [OTHER], "again": OTHER}, "even in two trainings alone"),
        ({"alone": [SAME, OTHER]}, "even in two trainings alone"),
        ({"resumed": [OTHER]}, "resumed from the beginning"),
        (
            {"resumed": [dataclasses.replace(OTHER, resumed_from=64)]},
            "the checkpoint at 64 env_steps",
        ),
        (
            {"resumed": [dataclasses.replace(OTHER, unsaveable="a file")]},
            r"cannot be saved \(a file\)",
        ),
        ({"resumed": [OTHER], "is_foreign": True}, "outside of its attributes"),
        (
            {"resumed": [dataclasses.replace(SAME, was_killed=False)]},
            "ended before it could be killed",
        ),
        (
            {"alone": [ShortTraining(sha256=None, problem="knee fell off")]},
            "alone it was not trained to the end: knee",
        ),
        (
            {"resumed": [ShortTraining(sha256=None, problem="no memory")]},
            "killed and resumed it was not .*: no memory",
        ),
    ],
)
def test_everything_else_is_a_fail_that_says_why(changes: dict[str, Any], reason: str) -> None:
    verdict = judge("hopper-s0", evidence(**changes))
    assert verdict.verdict == "FAIL"
    assert len(verdict.reasons) == 1
    assert re.search(reason, verdict.reasons[0])


def test_the_slow_down_is_of_iterations_or_of_repeats() -> None:
    slow = dataclasses.replace(SAME, iteration_s=(2.0, 2.1, 1.9, 2.0, 2.0))
    fast = dataclasses.replace(SAME, iteration_s=(1.0, 1.0, 1.1, 0.9, 1.0))
    once = judge("hopper-s0", evidence(alone=[fast], together=[slow])).slowdown
    assert once is not None
    assert (once.value, once.n) == (2.0, 5)
    twice = judge("hopper-s0", evidence(alone=[fast, fast], together=[slow, slow])).slowdown
    assert twice is not None
    assert (twice.value, twice.n) == (2.0, 2)


def test_a_subject_is_its_job_but_short_and_a_neighbour_goes_on_and_on() -> None:
    job = named("hopper-s0")
    job = dataclasses.replace(
        job,
        spec=dataclasses.replace(
            job.spec, hyperparameters={"n_steps": 64}, n_envs=2, eval_episodes=3
        ),
    )
    short = case_job(job, 4, to_be_killed=True)
    assert (short.spec.total_timesteps, short.spec.checkpoint_every, short.spec.eval_episodes) == (
        512,
        1,
        0,
    )
    assert short.max_retries == 1
    neighbour = neighbour_of([Case(job=short, bundle=None)], 0)
    assert neighbour.job.job_id == neighbour.job.spec.job_id == "neighbour-0"
    assert neighbour.job.spec.total_timesteps > 1000 * short.spec.total_timesteps
    assert neighbour.job.max_retries == 0


def test_jobs_that_learn_late_are_killed_after_they_have_begun_to_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ppo, sac = named("ppo-s0"), named("sac-s0")
    late = {"learning_starts": 10_000, "train_freq": 8}
    sac = dataclasses.replace(
        sac, spec=dataclasses.replace(sac.spec, algo="sac", n_envs=1, hyperparameters=late)
    )
    cases = [Case(job=job, bundle=None) for job in (ppo, sac)]
    one = verification._Verification(
        cases=cases,
        left_out={},
        options=VerifyOptions(iterations=6),
        scratch=RunPaths(tmp_path),
        tell=lambda _: None,
    )
    asked: list[dict[str, int]] = []

    def train(
        _name: str, some: list[Case], _jobs_at_once: int, *, kills: dict[str, Kill]
    ) -> dict[str, ShortTraining]:
        asked.append({job_id: kill.iterations for job_id, kill in kills.items()})
        return {
            case.job.job_id: ShortTraining(sha256="a", was_killed=len(asked) > 1) for case in some
        }

    monkeypatch.setattr(verification._Verification, "_train", staticmethod(train))
    for found in one.evidence.values():
        found.alone.append(SAME)
    one._train_killed(cases, 0)
    waiting = case_job(sac, 6).spec.total_timesteps // sac.spec.steps_an_iteration - 6
    assert waiting > 3
    assert asked == [{"ppo-s0": 3, "sac-s0": waiting + 3}, {"ppo-s0": 2, "sac-s0": waiting + 2}]
