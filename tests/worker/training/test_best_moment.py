"""The pose that an evaluation keeps for a still: which moment it is, and that nothing else depends
on it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import worker_helpers as helpers
from stable_baselines3 import PPO

from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.envs import env_factory
from orchestrator.worker.training import evaluation
from orchestrator.worker.training.best_moment import STRIDE, BestMoment

HOPPER = Path(__file__).parents[3] / "mjcf/hopper.xml"


class Counter:
    """An environment whose pose is the number of its control step, from 0, and of its episode."""

    def __init__(self) -> None:
        self.at = [0, 0]

    unwrapped = simulation = task = states = property(lambda self: self)
    goals = (None,)

    def goal_marker(self, goal: object) -> None:
        return None

    def ground(self, env: int) -> None:
        return None

    def physics(self, env: int) -> np.ndarray:
        return np.array(self.at, float)


def chosen(*episodes: Sequence[float]) -> tuple[int, int]:
    """Episode and control step of the best moment."""
    venv, moment = Counter(), BestMoment()
    moment.begin(venv)
    for number, rewards in enumerate(episodes):
        for step, reward in enumerate(rewards, start=1):
            ended = step == len(rewards)
            venv.at = [number + 1, 0] if ended else [number, step]
            moment.step(reward, step, ended=ended)
    content = moment.content()
    assert content is not None
    episode, step = np.load(io.BytesIO(content))["state"]
    return int(episode), int(step)


def test_it_is_after_the_highest_rewards_of_the_first_episode() -> None:
    low, high = [0.0] * STRIDE, [1.0] * STRIDE
    assert chosen([*low, *high, *low], high * 3) == (0, 2 * STRIDE)


def test_of_a_short_episode_it_is_the_start() -> None:
    assert chosen([1.0], [1.0]) == (0, 0)


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
    assert len(kept.moment) < 4096
