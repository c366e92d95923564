"""Evaluation after training: a function of job and policy, of whole episodes."""

from __future__ import annotations

import contextlib
import json
import pickle
import random
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import worker_helpers as helpers
from stable_baselines3 import PPO

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.messages import Progress
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.envs import env_factory
from orchestrator.worker.envs.simulation import Simulation
from orchestrator.worker.runtime.failures import Diverged
from orchestrator.worker.training import evaluation

CART = """
<mujoco><option timestep="0.02"/>
  <worldbody><geom type="plane" size="9 9 1"/>
    <body name="cart" pos="0 0 0.5"><geom type="box" size="0.3 0.2 0.1"/>
      <joint name="x" type="slide" axis="1 0 0"/><joint name="z" type="slide" axis="0 0 1"/>
      <body name="arm"><joint name="swing" axis="0 1 0"/><geom type="capsule" size="0.05" fromto="0 0 0 0 0 0.4"/>
      </body>
    </body></worldbody>
  <actuator><motor joint="x" gear="30" ctrllimited="true" ctrlrange="-1 1"/>
    <motor joint="swing" gear="2" ctrllimited="true" ctrlrange="-1 1"/></actuator></mujoco>
"""


STEPS = 25


PLAIN = {"max_episode_steps": STEPS, "terminate_when_unhealthy": False, "reset_noise_scale": 0.1}


TALKER = """
import random

import gymnasium
import numpy as np


class Talker(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    render_mode = None
    reward = None

    def __init__(self):
        self.action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        self.count = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count += 1
        self.steps = 0
        return np.random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        self.steps += 1
        measures = {"error_m": 0.5 * self.count, "fell": self.count == 2, "name": "talker"}
        if self.count == 2:
            measures["error_m"] = float("nan")
        if self.count == 3:
            measures["late_s"] = np.float32(4.0)
        info = {"measures": "none" if self.count == 4 else measures}
        reward = random.random() + np.random.random() if self.reward is None else self.reward
        return np.zeros(2, np.float32), reward, self.steps == 5, False, info


class Endless(Talker):
    reward = float("inf")


class Blinded(Talker):
    def step(self, action):
        observation, *others = super().step(action)
        return observation * float("nan"), *others


def make_env(xml, seed, kind="Talker"):
    return globals()[kind]()
"""


TORN = """
import pathlib

import numpy as np
from orchestrator.worker.tasks.forward import Forward


class Torn(Forward):
    # Physics diverges in every episode that begins once the policy is saved.
    def initial_state(self, rng):
        qpos, qvel = super().initial_state(rng)
        is_trained = pathlib.Path(__file__).with_name("model.zip").exists()
        return qpos, np.full_like(qvel, 1e300) if is_trained else qvel
"""


def cart(directory: Path, **changes: Any) -> WorkerSpec:
    """A job of the cart, whose files lie in ``directory``."""
    (directory / "robot").mkdir(parents=True, exist_ok=True)
    (directory / "robot/cart.xml").write_text(CART)
    given: dict[str, Any] = {
        "task": "forward",
        "xml": "robot/cart.xml",
        "task_options": PLAIN,
        "eval_episodes": 3,
    }
    return helpers.spec(**given | changes)


def policy(spec: WorkerSpec, directory: Path, **changes: Any) -> PPO:
    """As it comes from a little training, normalisation included."""
    venv = env_factory.make(spec, directory, n_envs=spec.n_envs, seed=spec.seed)
    env = env_factory.normalized_env(spec, venv) if spec.normalize else venv
    model = PPO("MlpPolicy", env, seed=spec.seed, device="cpu", **{**helpers.SMALL_PPO, **changes})
    return model.learn(2 * spec.n_envs * model.n_steps)


def evaluate(spec: WorkerSpec, directory: Path, model: PPO) -> Any:
    return evaluation.evaluate(spec, directory, model, lambda: None)[0]


def disturb(model: PPO) -> None:
    """As if something else had happened before."""
    random.seed(99)
    np.random.seed(99)
    torch.manual_seed(99)
    if model.use_sde:
        model.policy.reset_noise(7)


@pytest.mark.parametrize(
    "hyperparameters",
    [
        pytest.param({}, id="plain"),
        pytest.param({"use_sde": True}, id="gSDE", marks=pytest.mark.nightly),
        pytest.param({"use_sde": True, "sde_sample_freq": 4}, id="often"),
    ],
)
def test_evaluation_is_the_same_whatever_happened_before_and_disturbs_nothing(
    tmp_path: Path, hyperparameters: Mapping[str, Any]
) -> None:
    spec = cart(tmp_path, normalize=True)
    model = policy(spec, tmp_path, **hyperparameters)
    first = evaluate(spec, tmp_path, model)
    disturb(model)
    normalization = model.get_vec_normalize_env()
    assert normalization is not None
    parameters = {name: tensor.clone() for name, tensor in model.policy.state_dict().items()}
    statistics = pickle.dumps((normalization.obs_rms, normalization.ret_rms))
    again = evaluate(spec, tmp_path, model)
    assert again == first
    assert helpers.same_bits(dict(model.policy.state_dict()), parameters)
    assert pickle.dumps((normalization.obs_rms, normalization.ret_rms)) == statistics
    assert normalization.training


def test_exploration_has_no_part_in_it(tmp_path: Path) -> None:
    spec = cart(tmp_path)
    model = policy(spec, tmp_path)
    told = evaluate(spec, tmp_path, model)
    with torch.no_grad():
        model.policy.log_std.fill_(3.0)
    assert evaluate(spec, tmp_path, model) == told


def test_figures_are_those_of_the_episodes(tmp_path: Path) -> None:
    spec = cart(tmp_path, eval_episodes=5)
    model = policy(spec, tmp_path)
    told = evaluate(spec, tmp_path, model)
    assert (told["episodes"], told["n_envs"]) == (5, 5)
    part = told["deterministic"]
    returns = np.array(part["returns"])
    assert (part["mean"], part["std"]) == pytest.approx((returns.mean(), returns.std()))
    assert len(set(returns.round(6))) == 5, "the starts differ"
    assert (part["lengths"], part["length_mean"]) == ([STEPS] * 5, STEPS)
    distances = part["measures"]["distance_m"]
    assert len(distances["values"]) == 5
    assert distances["mean"] == pytest.approx(np.mean(distances["values"]))
    assert distances["std"] == pytest.approx(np.std(distances["values"]))


def test_distance_is_how_far_the_robot_got_along_x(tmp_path: Path) -> None:
    spec = cart(tmp_path, n_envs=1, eval_episodes=1)
    model = policy(spec, tmp_path)
    told = evaluate(spec, tmp_path, model)
    longer = {**PLAIN, "max_episode_steps": 2 * STEPS}
    replay = Simulation.from_xml(
        tmp_path / "robot/cart.xml", "forward", n_envs=1, seed=told["seed"], task_options=longer
    )
    observations = replay.reset()
    start = float(replay.states.qpos[0, 0])
    for _ in range(STEPS):
        observations = replay.step(model.predict(observations, deterministic=True)[0]).observations
    moved = float(replay.states.qpos[0, 0]) - start
    assert abs(moved) > 0.01
    assert told["deterministic"]["measures"]["distance_m"]["values"] == pytest.approx(
        [moved], abs=1e-9
    )


def talker(
    directory: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any
) -> tuple[WorkerSpec, PPO]:
    (directory / "talker.py").write_text(TALKER)
    monkeypatch.syspath_prepend(directory)
    monkeypatch.delitem(sys.modules, "talker", raising=False)
    spec = helpers.spec(entry_point="talker:make_env", n_envs=1, **changes)
    made = env_factory.make(spec, directory, n_envs=1, seed=0)
    return spec, PPO("MlpPolicy", made, device="cpu", seed=0)


def test_measures_of_a_users_own_environment_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, model = talker(tmp_path, monkeypatch, eval_episodes=4)
    told = evaluate(spec, tmp_path, model)
    assert told["deterministic"]["measures"] == {
        "error_m": {"mean": 1.0, "std": 0.5, "values": [0.5, None, 1.5, None]},
        "fell": {
            "mean": pytest.approx(1 / 3),
            "std": pytest.approx(2**0.5 / 3),
            "values": [0.0, 1.0, 0.0, None],
        },
        "late_s": {"mean": 4.0, "std": 0.0, "values": [None, None, 4.0, None]},
    }


def test_a_return_that_is_not_finite_is_counted_and_left_out_of_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, model = talker(tmp_path, monkeypatch, eval_episodes=2, env_kwargs={"kind": "Endless"})
    figures = evaluate(spec, tmp_path, model)["deterministic"]
    assert (figures["diverged"], figures["returns"], figures["mean"]) == (2, [None, None], None)
    assert figures["lengths"] == [5, 5]


def test_an_observation_that_is_not_finite_ends_the_evaluation_as_diverged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, model = talker(tmp_path, monkeypatch, eval_episodes=1, env_kwargs={"kind": "Blinded"})
    with pytest.raises(Diverged, match="observation"):
        evaluate(spec, tmp_path, model)


@pytest.mark.parametrize("on_divergence", ["fail", "end-episode"])
def test_physics_that_diverges_in_the_evaluation_leaves_the_job_succeeded_and_is_counted(
    tmp_path: Path, on_divergence: str
) -> None:
    (tmp_path / "torn.py").write_text(TORN)
    spec = cart(
        tmp_path,
        task="torn:Torn",
        search_path=str(tmp_path),
        on_divergence=on_divergence,
        total_timesteps=128,
    )
    paths = helpers.job(tmp_path, spec)
    record, log = helpers.train_here(paths)
    assert record.code == ExitCode.SUCCEEDED, log
    figures = json.loads(paths.eval.read_text())["deterministic"]
    assert (figures["diverged"], len(figures["returns"])) == (3, 3)
    assert record.eval_mean == pytest.approx(np.mean(figures["returns"]))
    assert "3 of 3 episodes of the evaluation diverged" in log


def test_an_episode_that_does_not_end_leaves_the_job_without_an_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "LONGEST", 20)
    spec = helpers.spec(env="Pendulum-v1", env_kwargs={"max_episode_steps": 10**6}, eval_episodes=5)
    paths = helpers.job(tmp_path, spec)
    record, log = helpers.train_here(paths)
    assert (record.code, record.eval_mean) == (ExitCode.SUCCEEDED, None)
    assert "an episode has not ended after 20 steps" in log
    assert paths.model.exists()
    assert not paths.eval.exists()


def test_an_environment_whose_episodes_are_enough_may_go_on_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Ends:
        """Its first environment ends one episode after five steps, the second one every fifteen."""

        step_number = 0

        def reset(self) -> np.ndarray:
            return np.zeros((2, 1))

        def step(self, actions: np.ndarray) -> tuple[Any, ...]:
            self.step_number += 1
            dones = np.array([self.step_number == 5, self.step_number % 15 == 0])
            return self.reset(), actions, dones, [{"episode": {"r": 1.0, "l": 15}}] * 2

    class Still:
        def predict(self, observations: np.ndarray, **_: Any) -> tuple[np.ndarray, None]:
            return observations, None

    monkeypatch.setattr(evaluation, "LONGEST", 20)
    model: Any = Still()

    def evaluated(*remaining: int) -> list[int]:
        left = np.array(remaining)
        return [
            episode.env
            for episode in evaluation._run_episodes(model, Ends(), left, lambda: None, None)
        ]

    assert evaluated(1, 2) == [0, 1, 1]
    with pytest.raises(evaluation.EndlessEpisodeError):
        evaluated(2, 2)


@pytest.mark.nightly
def test_killed_or_stopped_during_evaluation_and_resumed_it_evaluates_the_same(
    tmp_path: Path,
) -> None:
    options = {**PLAIN, "max_episode_steps": 1000}
    changes = {"normalize": True, "eval_episodes": 8, "task_options": options}
    undisturbed = helpers.job(tmp_path / "undisturbed", cart(tmp_path / "undisturbed", **changes))
    assert helpers.train_here(undisturbed)[0].code == ExitCode.SUCCEEDED
    for ending, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, ExitCode.INTERRUPTED)):
        resumed = helpers.job(tmp_path / ending.name, cart(tmp_path / ending.name, **changes))
        with helpers.Worker(resumed, channel=True) as worker:
            wait_for_evaluation(worker)
            worker.process.send_signal(ending)
            assert worker.wait() == code
            assert not resumed.eval.exists()
        helpers.train_to_its_end(resumed, 1)
        assert resumed.eval.read_bytes() == undisturbed.eval.read_bytes()


def wait_for_evaluation(worker: helpers.Worker) -> None:
    with (
        contextlib.closing(worker.channel.dup()) as channel,
        channel.makefile("rb", buffering=0) as lines,
    ):
        assert any(Progress.from_line(line).phase == "evaluating" for line in lines), worker.log


BY_HAND = """
import json, sys; sys.modules['orchestrator'] = None
import gymnasium
from stable_baselines3 import PPO
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
facts = json.load(open(sys.argv[3]))
venv = DummyVecEnv([lambda: Monitor(gymnasium.make('Hopper-v5'))] * facts['n_envs'])
venv = VecNormalize.load(sys.argv[2], venv)
venv.training = False
venv.seed(facts['seed'])
model, observations, returns = PPO.load(sys.argv[1], device='cpu'), venv.reset(), []
while len(returns) < 3:
    observations, _, _, infos = venv.step(model.predict(observations, deterministic=True)[0])
    returns += [float(info['episode']['r']) for info in infos if 'episode' in info]
print(json.dumps(returns))
"""


@pytest.mark.nightly
def test_evaluation_is_reproduced_by_stable_baselines3_alone(tmp_path: Path) -> None:
    paths = helpers.job(
        tmp_path / "job", helpers.spec(env="Hopper-v5", normalize=True, eval_episodes=3)
    )
    helpers.train_to_its_end(paths)
    files = map(str, (paths.model, paths.vecnormalize, paths.eval))
    answer = subprocess.run(
        [sys.executable, "-c", BY_HAND, *files],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.stdout, answer.stderr
    # Dealt out beforehand: one episode to the first environment, two to the second.
    expected = json.loads(paths.eval.read_text())["deterministic"]["returns"]
    assert len(expected) == 3
    assert set(expected[:2]) <= set(json.loads(answer.stdout))
