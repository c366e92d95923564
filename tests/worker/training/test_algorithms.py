from __future__ import annotations

import base64
import dataclasses
import json
import zipfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import worker_helpers as helpers
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.paths import JobPaths
from orchestrator.core.progress_columns import progress_columns
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.examination.examination_requests import requests_of
from orchestrator.jobfile import from_mapping
from orchestrator.worker.envs import env_factory
from orchestrator.worker.robots.preflight_child import check
from orchestrator.worker.runtime.failures import Diverged
from orchestrator.worker.training import algorithms, checkpoint, learners, nan_guard, trained_policy

ALGORITHMS = ("sac", "td3", "a2c")


def stock(spec: WorkerSpec, directory: Path, **changes: Any) -> tuple[algorithms.Model, Path, Path]:
    """What a user would have written by hand: the model after ``learn()``, ``model.zip`` and
    ``vecnormalize.pkl``."""
    torch.set_num_threads(spec.threads)  # another number adds up in another order
    assert spec.env is not None
    env_id = spec.env
    venv: Any = DummyVecEnv([lambda: Monitor(gymnasium.make(env_id)) for _ in range(spec.n_envs)])
    if spec.normalize:
        venv = VecNormalize(venv)
    hyperparameters = {**spec.hyperparameters, **changes}
    model = algorithms.class_of(spec.algo)(
        spec.policy,
        venv,
        seed=spec.seed,
        device="cpu",
        policy_kwargs=dict(spec.policy_kwargs),
        **hyperparameters,
    )
    model.learn(spec.total_timesteps)
    model.save(directory / "stock.zip")
    if spec.normalize:
        venv.save(str(directory / "stock.pkl"))
    return model, directory / "stock.zip", directory / "stock.pkl"


NOISE = NormalActionNoise(np.zeros(1), np.full(1, 0.2))


BY_HAND: dict[str, dict[str, Any]] = {
    **{algo: {} for algo in ALGORITHMS},
    "td3": {"action_noise": NOISE},
}
"""What is written otherwise for Stable-Baselines3 than in a job file."""


@pytest.fixture(
    scope="module",
    params=[
        algo if algo in ("sac", "a2c") else pytest.param(algo, marks=pytest.mark.nightly)
        for algo in ALGORITHMS
    ],
)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> JobPaths:
    """A training that is over."""
    spec = helpers.algorithm(request.param, normalize=True, n_envs=3, eval_episodes=3)
    paths = helpers.job(tmp_path_factory.mktemp(request.param) / "job", spec)
    helpers.train_to_its_end(paths)
    return paths


def spec_of(paths: JobPaths) -> WorkerSpec:
    return WorkerSpec.from_json(paths.spec.read_text())


@pytest.mark.nightly
def test_weights_statistics_and_tables_are_those_of_stock_learn(
    trained: JobPaths, tmp_path: Path
) -> None:
    spec, record = spec_of(trained), ExitRecord.from_json(trained.attempt(0).exit.read_text())
    assert record.learner == "sb3"
    assert (
        record.learner_reason
        == f"auto: algo is {spec.algo}, and the fast learner supports only ppo"
    )
    model, theirs, statistics = stock(spec, tmp_path, **BY_HAND[spec.algo])
    assert helpers.same_bits(helpers.parameters(trained.model), helpers.parameters(theirs))
    assert helpers.normalization(trained.vecnormalize) == helpers.normalization(statistics)
    last = helpers.rows(trained.progress_csv)[-1]
    assert all(last.values())
    assert int(last["time/total_timesteps"]) == record.env_steps == model.num_timesteps
    assert int(last["train/n_updates"]) == model._n_updates


@pytest.mark.nightly
def test_conditions_of_a_curriculum_may_name_what_the_algorithm_logs(trained: JobPaths) -> None:
    of_machine = {"time/fps", "time/time_elapsed", "time/iterations", "time/episodes"}
    logged = {name for name, cell in helpers.rows(trained.progress_csv)[-1].items() if cell}
    assert logged - of_machine == set(progress_columns(spec_of(trained).algo))


def test_model_loads_with_its_own_class_alone_and_without_the_replay_buffer(
    trained: JobPaths,
) -> None:
    with zipfile.ZipFile(trained.model) as archive:
        data = json.loads(archive.read("data"))
        assert sum(info.file_size for info in archive.infolist()) < 200_000
    assert "replay_buffer" not in data
    pickled = [
        base64.b64decode(one[":serialized:"]) for one in data.values() if ":serialized:" in str(one)
    ]
    assert pickled
    assert not any(b"orchestrator" in content for content in pickled), (
        "then it would be needed to load it"
    )
    model = algorithms.class_of(spec_of(trained).algo).load(trained.model, device="cpu")
    assert model.num_timesteps >= 1300
    assert model.predict(np.zeros(3, np.float32))[0].shape == (1,)


def test_the_policy_that_is_played_is_the_one_that_was_trained(trained: JobPaths) -> None:
    spec = dataclasses.replace(spec_of(trained), n_envs=1)
    finished = seen(spec, trained, None)
    assert finished == seen(
        spec, trained, trained_policy.read_checkpoint(trained, trained_policy.LATEST)
    )
    assert len(set(finished)) > 5
    checkpoint = trained_policy.read_checkpoint(trained, trained_policy.LATEST)
    starts = [seen(spec, trained, one, seed=6)[0] for one in (None, checkpoint)]
    assert starts[0] == starts[1] != finished[0], "the seed decides, and not that of the job"


def seen(
    spec: WorkerSpec,
    paths: JobPaths,
    checkpoint: trained_policy.Checkpoint | None,
    *,
    seed: int = 5,
) -> list[bytes]:
    """Observations of an episode played, which its actions made."""
    venv = env_factory.make(spec, paths.root, n_envs=1, seed=seed)
    act = trained_policy.load_policy(spec, paths, venv, checkpoint, seed=seed)
    observation, _ = act(None)
    found = []
    for _ in range(20):
        observation, _ = act(observation)
        found.append(observation.tobytes())
    return found


OWN_ENV = """
import gymnasium
import numpy as np


class Own(gymnasium.Env):
    render_mode = None
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    steps = length = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length = 0
        return self.np_random.random(3, np.float32), {{}}

    def step(self, action):
        self.steps += 1
        self.length += 1
        reward, observation = float(action[0]), self.np_random.random(3, np.float32)
        if self.steps > 300 and self.odd:
            {bad}
        return observation, reward, False, self.length == 10, {{}}


def make_env(xml, seed):
    env = Own()
    env.odd = seed == 4
    return env
"""


@pytest.mark.parametrize(
    ("algo", "bad", "message"),
    [
        pytest.param(
            "sac",
            "reward = float('inf')",
            "rewards are not finite: inf",
            marks=pytest.mark.nightly,
        ),
        ("td3", "observation = np.full(3, np.nan, np.float32)", "observations are not finite"),
        ("a2c", "reward = float('nan')", "rewards are not finite: nan"),
    ],
)
def test_numbers_that_are_not_finite_end_as_diverged_at_once(
    tmp_path: Path, algo: str, bad: str, message: str
) -> None:
    (tmp_path / "own_env.py").write_text(OWN_ENV.format(bad=bad))
    spec = helpers.algorithm(
        algo, entry_point="own_env:make_env", search_path=str(tmp_path), normalize=True
    )
    paths = helpers.job(tmp_path / "job", spec)
    record, log = helpers.train_here(paths)
    assert record.code == ExitCode.DIVERGED, log
    assert record.message.startswith("iteration 2 (env_steps 6"), (
        "found in the rollout that it was in"
    )
    assert message in record.message
    state = checkpoint.load(max(paths.checkpoints.glob("*.pt")).read_bytes())
    assert state["counters"]["num_timesteps"] == 512


def test_an_environment_that_does_not_suit_is_refused_before_launch() -> None:
    jobs = from_mapping(
        {
            "name": "test",
            "jobs": [
                {"name": algo, "algo": algo, "env": "CartPole-v1"} for algo in ("ppo", *ALGORITHMS)
            ],
        },
        source="robots.toml",
        base=Path(),
    ).jobs
    asked = [request for request, _ in requests_of(jobs)[0].values()]
    problems = {request.algo: check(request).problem for request in asked}
    assert problems["ppo"] is problems["a2c"] is None
    assert "its action space is Discrete(2); Stable-Baselines3's SAC needs a Box" in str(
        problems["sac"]
    )
    assert "Stable-Baselines3's TD3 needs a Box" in str(problems["td3"])


def model_of(spec: WorkerSpec) -> algorithms.Model:
    return learners.build(
        spec, env_factory.make(spec, Path(), n_envs=spec.n_envs, seed=spec.seed)
    ).model


def test_the_policy_is_to_blame_for_physics_that_its_nonsense_made_diverge() -> None:
    from orchestrator.worker.envs.divergence import PhysicsDiverged

    model = model_of(helpers.algorithm("td3"))
    with pytest.raises(PhysicsDiverged), nan_guard.explaining_divergence(model, 1):
        raise PhysicsDiverged("torn")
    with torch.no_grad():
        next(model.policy.parameters()).fill_(float("nan"))
    with (
        pytest.raises(Diverged, match=r"parameter actor\.mu\.0\.weight of the policy"),
        nan_guard.explaining_divergence(model, 1),
    ):
        raise PhysicsDiverged("torn")


def test_a_loss_that_is_not_finite_is_named() -> None:
    model = model_of(helpers.algorithm("sac"))
    model.set_logger(Logger(None, []))
    model.logger.record("train/critic_loss", float("inf"))
    with pytest.raises(nan_guard.NonFinite, match="train/critic_loss is not finite: inf"):
        nan_guard.check_losses(model)


"""SAC, TD3 and A2C: Stable-Baselines3's own numbers, and all that a training with PPO has."""
