"""Environments saved in the middle of an episode go on bit-identically in fresh ones."""

from __future__ import annotations

import collections
import pickle
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest
import worker_helpers as helpers
from gymnasium.wrappers import (
    FrameStackObservation,
    NormalizeObservation,
    NormalizeReward,
    RescaleAction,
    TimeLimit,
)
from stable_baselines3.common.vec_env import DummyVecEnv

from orchestrator.worker.envs import env_factory, env_state
from orchestrator.worker.envs.divergence_wrapper import DivergenceCheck
from orchestrator.worker.runtime.failures import Diverged

IDS = (
    "Ant-v5",
    "HalfCheetah-v5",
    "Hopper-v5",
    "Humanoid-v5",
    "Pusher-v5",
    "Reacher-v5",
    "Swimmer-v5",
    "Walker2d-v5",
    "Acrobot-v1",
    "CartPole-v1",
    "FrozenLake-v1",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
)


def actions(env: gymnasium.Env[Any, Any], count: int) -> list[Any]:
    env.action_space.seed(7)
    return [env.action_space.sample() for _ in range(count)]


def trajectory(env: gymnasium.Env[Any, Any], chosen: list[Any]) -> list[bytes]:
    """Everything an agent sees, new episodes included, as bytes."""
    seen = []
    for action in chosen:
        observation, reward, terminated, truncated, _ = env.step(action)
        seen.append(
            pickle.dumps(
                (
                    np.asarray(observation).tobytes(),
                    float(reward),
                    bool(terminated),
                    bool(truncated),
                )
            )
        )
        if terminated or truncated:
            seen.append(np.asarray(env.reset()[0]).tobytes())
    return seen


@pytest.mark.parametrize("env_id", IDS)
def test_saved_in_the_middle_of_an_episode_goes_on_bit_identically(
    env_id: str, tmp_path: Path
) -> None:
    spec = helpers.spec(env=env_id)
    original, fresh, third = (
        env_factory.make(spec, tmp_path, n_envs=1, seed=0).envs[0] for _ in range(3)
    )
    original.reset(seed=11)
    chosen = actions(original, 300)
    trajectory(original, chosen[:45])
    restored = [fresh]
    env_state.restore(restored, env_state.save([original]))
    assert trajectory(restored[0], chosen[45:80]) == trajectory(original, chosen[45:80])
    # What was restored can be saved and restored again.
    again = [third]
    env_state.restore(again, env_state.save(restored))
    assert trajectory(again[0], chosen[80:]) == trajectory(original, chosen[80:])


def test_wrappers_with_a_state_of_their_own_are_saved_too() -> None:
    def make() -> gymnasium.Env[Any, Any]:
        env = NormalizeReward(NormalizeObservation(gymnasium.make("Pendulum-v1")))
        return FrameStackObservation(RescaleAction(env, np.float32(-1), np.float32(1)), 3)

    original, fresh = make(), make()
    original.reset(seed=11)
    chosen = actions(original, 60)
    trajectory(original, chosen[:10])
    state = env_state.save([original])
    fresh.reset(seed=5)
    restored = [fresh]
    env_state.restore(restored, state)
    assert trajectory(restored[0], chosen[10:]) == trajectory(original, chosen[10:])


class Bare(gymnasium.Env[np.ndarray, np.ndarray]):
    """An environment whose attributes each test chooses."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class SpeaksForItself(Bare):
    def __init__(self) -> None:
        super().__init__(handle=lambda: None, taken=0)

    def get_state(self) -> dict[str, int]:
        return {"taken": self.taken}

    def set_state(self, state: dict[str, int]) -> None:
        self.taken = state["taken"]


def test_environment_with_get_state_and_set_state_speaks_for_itself() -> None:
    original, fresh = SpeaksForItself(), SpeaksForItself()
    original.taken = 4
    original.reset(seed=3)
    restored: list[Any] = [TimeLimit(fresh, 10)]
    env_state.restore(restored, env_state.save([TimeLimit(original, 10)]))
    assert restored[0].unwrapped is fresh
    assert fresh.taken == 4
    assert fresh.np_random.random() == original.np_random.random()


class Helper:
    def __init__(self) -> None:
        self.count = 0
        self.me = self

    def method(self) -> None:
        self.count += 1


def test_objects_are_saved_whole() -> None:
    original, fresh = Bare(helper=Helper(), again=[]), Bare(helper=Helper(), again=[])
    original.helper.method()  # type: ignore[attr-defined]
    original.again.append(original.again)  # type: ignore[attr-defined]
    restored: list[Any] = [fresh]
    env_state.restore(restored, env_state.save([original]))
    helper = restored[0].helper
    assert (helper.count, helper.me) == (1, helper)


SHARED = np.zeros(4)


@pytest.mark.parametrize(
    "attributes",
    [
        {"functions": [lambda: None]},
        {"nested": {"deep": [(number for number in range(3))]}},
        {"whole": SHARED, "part": SHARED[1:]},
        {"foreign": np.frombuffer(bytearray(8))},
    ],
)
def test_what_cannot_be_saved_is_refused(attributes: dict[str, Any]) -> None:
    with pytest.raises(env_state.Unsaveable):
        env_state.save([Bare(**attributes)])


class NewDataAtEveryReset(gymnasium.Env[np.ndarray, np.ndarray]):
    """A slider on a spring that pushes: beyond all numbers within seconds."""

    def __init__(self) -> None:
        self.model = mujoco.MjModel.from_xml_string(
            "<mujoco><worldbody><body><joint type='slide' stiffness='-9e6'/><geom size='1' mass='1'/></body>"
            "</worldbody></mujoco>"
        )
        self.data = mujoco.MjData(self.model)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.data = mujoco.MjData(self.model)
        self.data.qpos[:] = 1
        return self.data.qpos.copy(), {}

    def step(self, action: Any) -> Any:
        mujoco.mj_step(self.model, self.data)
        return self.data.qpos.copy(), 0.0, False, False, {}


def test_unstable_physics_is_noticed_in_a_simulation_made_anew_at_reset() -> None:
    mujoco.set_mju_user_warning(lambda _: None)
    env = DivergenceCheck(NewDataAtEveryReset(), "slider")
    env.reset()
    with pytest.raises(Diverged, match="slider: physics diverged"):
        collections.deque((env.step(None) for _ in range(1000)), maxlen=0)


def test_of_a_dict_observation_the_parts_that_are_numbers_are_normalised() -> None:
    parts = {
        "joints": gymnasium.spaces.Box(-1, 1, (2,)),
        "camera": gymnasium.spaces.Box(0, 255, (36, 36, 3), np.uint8),
        "mode": gymnasium.spaces.Discrete(3),
    }
    venv = DummyVecEnv(
        [lambda: Bare(observation_space=gymnasium.spaces.Dict(parts), render_mode=None)]
    )
    normalized = env_factory.normalized_env(helpers.spec(normalize=True), venv)
    assert (normalized.norm_obs, normalized.norm_obs_keys) == (True, ["joints"])
    del parts["joints"]
    venv = DummyVecEnv(
        [lambda: Bare(observation_space=gymnasium.spaces.Dict(parts), render_mode=None)]
    )
    assert not env_factory.normalized_env(helpers.spec(normalize=True), venv).norm_obs
