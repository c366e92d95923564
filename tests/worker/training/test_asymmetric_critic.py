"""``asymmetric = true``: the critic sees what an episode has drawn, and the actor does not."""

from __future__ import annotations

import dataclasses
import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import worker_helpers as helpers

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest
from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.envs import env_factory
from orchestrator.worker.envs.randomization.randomized_simulation import RandomizedSimulation
from orchestrator.worker.policies import job_policy
from orchestrator.worker.robots.preflight_child import check
from orchestrator.worker.training import learners, start_policy
from orchestrator.worker.training.start_policy import StartPolicy

QUADRUPED = Path(__file__).parents[3] / "mjcf/quadruped.xml"
RANDOMIZE = {
    "body.trunk.mass": "scale(0.7, 1.3)",
    "actuator.*.kp": "uniform(10, 30)",
    "action.delay": "choice(0, 1, 2)",
    "observation.noise": "normal(0, 0.01)",
}
DRAWN = ("actuator.*.kp", "body.trunk.mass", "action.delay")


def job(directory: Path, algo: str = "ppo", **changes: Any) -> tuple[WorkerSpec, JobPaths]:
    given: dict[str, Any] = {"task": "forward", "xml": "robot/quadruped.xml", "normalize": True}
    given |= {"task_options": {"max_episode_steps": 40}, "randomize": RANDOMIZE, "asymmetric": True}
    (directory / "robot").mkdir(parents=True)
    shutil.copy(QUADRUPED, directory / "robot")
    spec = helpers.algorithm(algo, **given | changes)
    return spec, helpers.job(directory, spec)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[WorkerSpec, JobPaths]]:
    """Jobs that are trained to their ends, each once; not to be changed."""

    @functools.cache
    def once(algo: str, learner: str = "auto") -> tuple[WorkerSpec, JobPaths]:
        spec, paths = job(tmp_path_factory.mktemp(algo) / "job", algo, learner=learner)
        helpers.train_to_its_end(paths)
        return spec, paths

    return once


def of_robot(batch: RandomizedSimulation) -> np.ndarray:
    return np.column_stack([batch.draws.values[key.key] for key in batch.keys])


def test_the_last_observations_are_what_the_episode_has_drawn() -> None:
    settings: Any = {"n_envs": 3, "seed": 7}
    options = {"max_episode_steps": 5}
    plain = RandomizedSimulation(QUADRUPED, "auto", options, RANDOMIZE, **settings)
    batch = RandomizedSimulation(QUADRUPED, "auto", options, RANDOMIZE, asymmetric=True, **settings)
    assert batch.privileged_names == DRAWN
    assert batch.observation_size == plain.observation_size + 3
    seen, same = batch.reset(), plain.reset()
    for _ in range(12):
        assert np.array_equal(seen[:, :-3], same)
        assert seen[:, -3:-1] == pytest.approx(of_robot(batch))
        assert set(seen[:, -1]) <= {0.0, 1.0, 2.0}
        assert seen.dtype == same.dtype
        kept = of_robot(batch)
        result, other = batch.step(np.zeros((3, 8))), plain.step(np.zeros((3, 8)))
        seen, same = result.observations, other.observations
        for episode in result.ended:
            assert episode.terminal_observation[-3:-1] == pytest.approx(kept[episode.env])
    assert np.array_equal(batch.set_state(batch.get_state()), seen)


@pytest.mark.parametrize(
    "which",
    [
        ("ppo",),
        *(
            pytest.param(which, marks=pytest.mark.nightly)
            for which in (("sac",), ("ppo", "sb3"), ("a2c",), ("td3",))
        ),
    ],
    ids=["fast", "sac", "sb3", "a2c", "td3"],
)
def test_the_actor_is_blind_to_them_after_training_and_the_critic_is_not(
    which: tuple[str, ...], trained: Callable[..., tuple[WorkerSpec, JobPaths]]
) -> None:
    _, paths = trained(*which)
    model, env = job_policy.load(paths.root, n_envs=4)
    observations = np.array(env.reset())
    others = observations.copy()
    others[:, -3:] = np.random.default_rng(0).normal(size=(4, 3))
    assert np.array_equal(
        model.predict(observations, deterministic=True)[0],
        model.predict(others, deterministic=True)[0],
    )
    values = [
        critic(model, torch.as_tensor(rows, dtype=torch.float32)) for rows in (observations, others)
    ]
    assert not np.allclose(*values)


def critic(model: Any, observations: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        if hasattr(model.policy, "predict_values"):
            return model.policy.predict_values(observations).numpy()
        return model.critic(observations, torch.zeros(len(observations), 8))[0].numpy()


def test_a_new_actor_is_blind_before_any_training(tmp_path: Path) -> None:
    spec, paths = job(tmp_path / "job", learner="sb3")
    venv = env_factory.make(spec, paths.root, n_envs=2, seed=0)
    weights = learners.build(spec, venv).model.policy.mlp_extractor.policy_net[0].weight
    assert (weights[:, -3:] == 0).all()
    assert (weights[:, :-3] != 0).all()


@pytest.mark.parametrize("learner", ["fast", pytest.param("sb3", marks=pytest.mark.nightly)])
def test_a_resumed_training_has_the_same_weights(
    tmp_path: Path, learner: str, trained: Callable[..., tuple[WorkerSpec, JobPaths]]
) -> None:
    _, whole = trained("ppo", *["sb3"] * (learner == "sb3"))
    record = ExitRecord.from_json(whole.attempt(0).exit.read_text())
    assert record.learner == learner
    spec, parts = job(tmp_path / "parts", learner=learner)
    parts.spec.write_text(dataclasses.replace(spec, pause_at=600).to_json())
    assert helpers.train_here(parts)[0].code == ExitCode.PAUSED
    parts.spec.write_text(spec.to_json())
    resumed, log = helpers.train_here(parts, 1)
    assert (resumed.code, resumed.weights_sha256) == (ExitCode.SUCCEEDED, record.weights_sha256), (
        log
    )


@pytest.mark.nightly
def test_an_actor_that_starts_from_another_policy_is_blind_too(tmp_path: Path) -> None:
    _, first = job(tmp_path / "first", asymmetric=False)
    helpers.train_to_its_end(first)
    _, second = job(
        tmp_path / "second", evaluate={"body.trunk.mass": ["*0.8", "*1.2"]}, eval_episodes=1
    )
    record = helpers.train_to_its_end(second)
    assert record.weights_sha256


def initial(source: dict[str, Any], staged: Path, algo: str) -> ExaminationAnswer:
    """The examination of an asymmetric job that starts from ``source``."""
    own = {"algo": algo, "policy": "MlpPolicy", "normalize": True, "use_sde": False}
    net = {"policy_kwargs": helpers.algorithm(algo, task="forward").policy_kwargs}
    if "source" in source:
        source = {"source": {**source["source"], **own, **net}}
    request = ExaminationRequest(
        xml=str(QUADRUPED),
        task="forward",
        randomize=RANDOMIZE,
        asymmetric=True,
        init={**own, **net, **source},
    )
    return check(dataclasses.replace(request, stage_to=str(staged), simulate_s=0.01))


@pytest.mark.parametrize("algo", ["ppo", pytest.param("sac", marks=pytest.mark.nightly)])
def test_a_job_starts_from_a_policy_whose_critic_saw_the_same(
    tmp_path: Path, algo: str, trained: Callable[..., tuple[WorkerSpec, JobPaths]]
) -> None:
    spec, first = trained(algo)
    examined = initial({"path": str(first.root)}, tmp_path / "staged", algo)
    assert examined.problem is None
    assert "exact copy" in str(examined.init)
    venv = env_factory.make(spec, first.root, n_envs=2, seed=0)
    model = learners.build(spec, env_factory.normalized_env(spec, venv)).model
    kept = StartPolicy.from_file(tmp_path / "staged.init", str(examined.init_sha256))
    assert "exact copy" in start_policy.start(model, kept)
    assert all(
        torch.equal(kept.policy[name], own) for name, own in model.policy.state_dict().items()
    )


@pytest.mark.parametrize(
    ("options", "randomize", "left_out"),
    [
        ({}, {"observation.noise": "normal(0, 1)"}, False),
        ({}, {"body.trunk.mass": "scale(0.7, 1.3)"}, True),
        ({"observe": "proprioception"}, {}, True),
    ],
)
def test_a_critic_that_sees_what_the_actor_sees_is_told_in_one_warning(
    options: dict[str, Any], randomize: dict[str, Any], left_out: bool
) -> None:
    request = ExaminationRequest(
        xml=str(QUADRUPED),
        task="forward",
        task_options=options,
        randomize=randomize,
        asymmetric=True,
        simulate_s=0.01,
    )
    answer = check(request)
    assert answer.problem is None
    found = [text for text in answer.warnings if "asymmetric" in text]
    assert len(found) == (not left_out)
    assert all('task_options.observe = "proprioception"' in text for text in found)
    assert not any(
        "asymmetric" in text
        for text in check(dataclasses.replace(request, asymmetric=False)).warnings
    )
