"""``algo = "module:Class"``: any algorithm with Stable-Baselines3's interface is trained, resumed and
played.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import worker_helpers as helpers
from stable_baselines3.common.evaluation import evaluate_policy

import orchestrator
from orchestrator.core.errors import SpecError
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.examination import preflight
from orchestrator.jobfile import Experiment, from_mapping

MODULE = """
import inspect

import numpy as np
from stable_baselines3 import SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer


class Noted(ReplayBuffer):
    pass


class Eager(SAC):
    '''SAC with another default.'''

    def __init__(self, policy, env, learning_starts=50, **kwargs):
        super().__init__(policy, env, learning_starts=learning_starts, **kwargs)


class Forgetful(Eager):
    def __init__(self, policy, env, **kwargs):
        super().__init__(policy, env, replay_buffer_class=Noted, **kwargs)


something = 5
"""
EAGER = {
    "algo": "mine:Eager",
    "hyperparameters": {"buffer_size": 1500, "batch_size": 16, "train_freq": 4},
}
OF_CONTRIB: dict[str, dict[str, Any]] = {
    name: {"algo": f"sb3_contrib:{name}", **changes}
    for name, changes in {
        "TQC": {"hyperparameters": {**helpers.SMALL["sac"], "top_quantiles_to_drop_per_net": 3}},
        "CrossQ": {"hyperparameters": helpers.SMALL["sac"]},
        "RecurrentPPO": {
            "hyperparameters": {
                **helpers.SMALL["ppo"],
                "policy": "MlpLstmPolicy",
                "policy_kwargs": {"lstm_hidden_size": 8},
            }
        },
    }.items()
}


def job(directory: Path, **changes: Any) -> JobPaths:
    directory.mkdir(parents=True, exist_ok=True)
    (directory.parent / "mine.py").write_text(MODULE)
    given: dict[str, Any] = {
        "env": "Pendulum-v1",
        "total_timesteps": 1300,
        "checkpoint_every": 512,
        "policy_kwargs": {"net_arch": [8]},
        "search_path": str(directory.parent),
        "normalize": True,
    }
    return helpers.job(directory, helpers.spec(**{**given, **changes}))


def pause_and_resume(paths: JobPaths) -> tuple[ExitRecord, str]:
    """Train with a pause in the middle. Returns the record and the log of the second attempt."""
    spec = WorkerSpec.from_json(paths.spec.read_text())
    paths.spec.write_text(dataclasses.replace(spec, pause_at=640).to_json())
    record, log = helpers.train_here(paths, 0)
    assert record.code == ExitCode.PAUSED, log
    paths.spec.write_text(spec.to_json())
    record, log = helpers.train_here(paths, 1)
    assert record.code == ExitCode.SUCCEEDED, log
    assert (record.resumed_from or 0) >= 640
    return record, log


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(EAGER, id="a class of the user's"),
        pytest.param(OF_CONTRIB["TQC"], id="TQC", marks=pytest.mark.nightly),
        pytest.param(OF_CONTRIB["CrossQ"], id="CrossQ", marks=pytest.mark.nightly),
    ],
)
def test_resumed_it_learns_the_same_bits(tmp_path: Path, changes: dict[str, Any]) -> None:
    record = helpers.train_to_its_end(job(tmp_path / "undisturbed", **changes))
    resumed, _ = pause_and_resume(job(tmp_path / "paused", **changes))
    assert record.learner == resumed.learner == "sb3"
    assert resumed.weights_sha256 == record.weights_sha256


@pytest.mark.parametrize(
    "changes",
    [
        EAGER | {"algo": "mine:Forgetful"},
        pytest.param(OF_CONTRIB["RecurrentPPO"], marks=pytest.mark.nightly),
    ],
)
def test_what_a_checkpoint_has_is_said_and_training_goes_on(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    record, log = pause_and_resume(job(tmp_path / "paused", **changes))
    assert record.env_steps >= 1300
    assert "its other attributes begin anew" in log


@pytest.mark.nightly
def test_it_is_played_and_loaded_as_it_was_trained(tmp_path: Path) -> None:
    paths = job(tmp_path / "job", **EAGER, eval_episodes=2)
    helpers.train_to_its_end(paths)
    returns = json.loads(paths.eval.read_text())["deterministic"]["returns"]
    for checkpoint in (None, "latest"):
        model, env = orchestrator.load(paths.root, n_envs=2, checkpoint=checkpoint)
        rewards, _ = evaluate_policy(model, env, 2, return_episode_rewards=True)
        assert rewards == returns


# -- the job file


def declared(folder: Path, **changes: Any) -> Experiment:
    (folder / "mine.py").write_text(MODULE)
    values = {"name": "a", "env": "Pendulum-v1", **changes}
    return from_mapping({"name": "x", "jobs": [values]}, source="x.toml", base=folder)


def test_arguments_are_passed_on_as_they_are(tmp_path: Path) -> None:
    (job,) = declared(
        tmp_path, algo="mine:Eager", algo_kwargs={"buffer_size": 900, "train_freq": [2, "step"]}
    ).jobs
    assert job.spec.algo == "mine:Eager"
    assert job.spec.hyperparameters == {"buffer_size": 900, "train_freq": [2, "step"]}
    assert job.spec.search_path == str(tmp_path)


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"algo": "dqn"}, "algo"),
        ({"algo": "sb3_contrib:"}, "algo"),
        ({"algo_kwargs": {"gamma": 0.9}}, "algo_kwargs"),
        ({"algo": "mine:Eager", "algo_kwargs": {"seed": 1}}, "algo_kwargs.seed"),
        ({"algo": "mine:Eager", "init": "model.zip"}, "init"),
        ({"algo": "mine:Eager", "learner": "fast"}, "learner"),
        ({"algo": "mine:Eager", "resources": {"ranks": 2}}, "resources.ranks"),
        ({"algo": "mine:Eager", "ppo": {"gamma": 0.9}}, "ppo"),
    ],
)
def test_what_does_not_fit_is_refused_at_its_place(
    tmp_path: Path, changes: dict[str, Any], where: str
) -> None:
    with pytest.raises(SpecError) as error:
        declared(tmp_path, **changes)
    assert [problem.where for problem in error.value.problems] == [f"jobs[0].{where}"]


def test_what_is_no_algorithm_is_refused_when_it_is_examined(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("1 / 0")
    wrong = ["gone:Eager", "mine:Eagerly", "mine:something", "mine:Noted", "broken:Eager"]
    wrong += ["mine:BaseAlgorithm"]
    robot = {"xml": str(helpers.REPOSITORY / "mjcf/hopper.xml")}
    jobs = [{"env": "Pendulum-v1", "algo": algo} for algo in wrong]
    jobs += [{**robot, "algo": algo} for algo in ("mine:Noted", "mine:Eager")]
    named = [{"name": str(number), **values} for number, values in enumerate(jobs)]
    experiment = from_mapping({"name": "x", "jobs": named}, source="x.toml", base=tmp_path)
    verdicts = preflight.examine(experiment.jobs, staging=tmp_path / "staging", processes=1)
    problems = [verdicts[job.job_id].problem for job in experiment.jobs]
    assert problems.pop() is None
    assert [problem.where for problem in problems if problem] == [
        f"jobs[{number}].algo" for number in range(len(wrong) + 1)
    ]
    assert all(jobs[number]["algo"] in str(problem) for number, problem in enumerate(problems))
    assert str(problems[1]).endswith(
        "mine:Eagerly: module 'mine' has nothing to call named 'Eagerly'"
    )
