"""The pose that an evaluation keeps for a still: which moment it is, and that nothing else depends
on it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest
import worker_helpers as helpers
from stable_baselines3 import PPO

from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.envs import env_factory
from orchestrator.worker.envs.sequential import SequentialVecEnv
from orchestrator.worker.training import best_moment, evaluation
from orchestrator.worker.training.best_moment import STRIDE, BestMoment

HOPPER = Path(__file__).parents[3] / "mjcf/hopper.xml"


class Counter:
    """An environment whose pose is the number of its control step, from 0, and of its episode."""

    def __init__(self, rewards: Sequence[Sequence[float]]) -> None:
        self.num_envs, self.episodes, self.at = 1, list(rewards), [0, 0]

    unwrapped = simulation = task = states = property(lambda self: self)
    goals = (None,)

    def goal_marker(self, goal: object) -> None:
        return None

    def ground(self, env: int) -> None:
        return None

    def physics(self, env: int) -> np.ndarray:
        return np.array(self.at, float)


def chosen(*episodes: Sequence[float], counted: int | None = None) -> tuple[int, int]:
    """Episode and control step of the best moment. :param counted: number of the first episodes
    that count."""
    venv, moment = Counter(episodes), BestMoment()
    moment.begin(venv)
    for number, rewards in enumerate(episodes):
        for step, reward in enumerate(rewards, start=1):
            ended = step == len(rewards)
            venv.at = [number + 1, 0] if ended else [number, step]
            does_count = np.array([counted is None or number < counted])
            total, length = np.array([sum(rewards[:step])]), np.array([step])
            moment.step(np.array([reward]), total, length, np.array([ended]), does_count)
    content = moment.content()
    assert content is not None
    episode, step = np.load(io.BytesIO(content))["state"]
    return int(episode), int(step)


def bump(length: int, at: int) -> list[float]:
    """Rewards that are highest at one control step."""
    return [
        float(STRIDE - abs(step - at)) if abs(step - at) < STRIDE else 0.0
        for step in range(1, length + 1)
    ]


def test_it_is_where_the_rewards_around_are_highest() -> None:
    assert chosen(bump(12 * STRIDE, 7 * STRIDE)) == (0, 7 * STRIDE)


def test_it_is_in_the_episode_with_the_highest_return() -> None:
    low = [0.0] * (6 * STRIDE) + [5.0] * (2 * STRIDE) + [-9.0] * (4 * STRIDE)
    assert chosen(low, bump(12 * STRIDE, 3 * STRIDE), low) == (1, 3 * STRIDE)


def test_of_equal_rewards_it_is_the_latest_and_not_the_last_steps_before_an_end() -> None:
    assert chosen([1.0] * (8 * STRIDE)) == (0, 6 * STRIDE)


def test_a_short_episode_has_its_latest_pose() -> None:
    assert chosen([1.0] * 3) == (0, 0)
    assert chosen([1.0] * (STRIDE + 3)) == (0, STRIDE)


def test_episodes_that_do_not_count_are_left_out() -> None:
    assert chosen([1.0] * 5, [9.0] * 5, counted=1) == (0, 0)


class Chain(gymnasium.Env[Any, Any]):
    """An environment whose robot has one joint more in each episode, which has one step."""

    observation_space = action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, joints: int) -> None:
        self.joints = joints
        self.reset()

    def reset(self, **_: Any) -> Any:
        self.joints += 1
        body = '<body><geom size="0.1"/><joint axis="0 1 0"/></body>'
        self.model = mujoco.MjModel.from_xml_string(
            f"<mujoco><worldbody>{body * self.joints}</worldbody></mujoco>"
        )
        self.data = mujoco.MjData(self.model)
        return np.zeros(1, np.float32), {}

    def step(self, _: Any) -> Any:
        return np.zeros(1, np.float32), 1.0, True, False, {}


# -- real evaluations


def evaluated(spec: WorkerSpec, folder: Path) -> evaluation.EvaluationResult:
    venv = env_factory.make(spec, folder, n_envs=spec.n_envs, seed=spec.seed)
    model = PPO("MlpPolicy", venv, seed=spec.seed, device="cpu", **helpers.SMALL_PPO)
    return evaluation.evaluate(spec, folder, model, lambda: None)


def of_hopper(folder: Path, **changes: Any) -> WorkerSpec:
    (folder / "robot").mkdir(parents=True, exist_ok=True)
    (folder / "robot/hopper.xml").write_bytes(HOPPER.read_bytes())
    given: dict[str, Any] = {"task": "forward", "xml": "robot/hopper.xml", "eval_episodes": 2}
    return helpers.spec(**given | changes)


def test_it_changes_nothing_else_of_an_evaluation(tmp_path: Path) -> None:
    plain, kept = (
        evaluated(of_hopper(tmp_path, preview=preview), tmp_path) for preview in (False, True)
    )
    assert plain.to_json() == kept.to_json()
    assert plain.moment is None
    assert kept.moment is not None
    arrays = np.load(io.BytesIO(kept.moment), allow_pickle=False)
    model = mujoco.MjModel.from_xml_path(str(HOPPER))
    assert arrays["state"].size == mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION)
    assert np.isfinite(arrays["state"]).all()
    assert (arrays["model"].size, len(kept.moment) < 4096) == (0, True)


def test_it_does_not_decide_a_training_and_a_job_with_a_video_keeps_no_pose(tmp_path: Path) -> None:
    spec = of_hopper(tmp_path)
    assert of_hopper(tmp_path, preview=True).fingerprint() == spec.fingerprint()
    assert evaluated(of_hopper(tmp_path, preview=True, video=True), tmp_path).moment is None


def test_an_environment_of_gymnasium_is_kept_with_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = helpers.spec(env="InvertedPendulum-v5", eval_episodes=1, preview=True)
    content = evaluated(spec, tmp_path).moment
    assert content is not None
    arrays = np.load(io.BytesIO(content))
    model = mujoco.MjModel.from_binary_path("a.mjb", {"a.mjb": arrays["model"].tobytes()})
    assert arrays["state"].size == mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION)
    monkeypatch.setattr(best_moment, "MOST_MODEL_BYTES", 1000)
    assert evaluated(spec, tmp_path).moment is None, "a model that is too large is left out"


def test_it_is_drawn_with_the_model_of_its_own_environment_and_episode() -> None:
    envs = [Chain(0), Chain(10)]
    venv, moment = SequentialVecEnv([lambda env=env: env for env in envs]), BestMoment()
    venv.reset()
    moment.begin(venv)
    venv.step(np.zeros((2, 1), np.float32))
    all_, rewards = np.ones(2, bool), np.array([0.0, 9.0])
    moment.step(rewards, rewards, np.ones(2, int), all_, all_)
    content = moment.content()
    assert content is not None
    arrays = np.load(io.BytesIO(content))
    model = mujoco.MjModel.from_binary_path("a.mjb", {"a.mjb": arrays["model"].tobytes()})
    assert (model.nv, envs[1].model.nv) == (12, 13), "the next episode has another robot"
    assert arrays["state"].size == mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION)


def test_without_mujoco_there_is_no_pose_and_no_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        evaluated(helpers.spec(env="CartPole-v1", eval_episodes=1, preview=True), tmp_path).moment
        is None
    )
    assert "preview" not in capsys.readouterr().out


def test_an_error_of_the_users_code_ends_the_search_for_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("orchestrator.worker.envs.simulation.Simulation.physics", lambda *_: 1 / 0)
    result = evaluated(of_hopper(tmp_path, preview=True), tmp_path)
    assert result.moment is None
    assert len(result.deterministic.episodes) == 2
    assert capsys.readouterr().out.count("no preview: ZeroDivisionError") == 1
