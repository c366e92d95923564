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
    env_state.restore([fresh], env_state.save([original]))
    assert trajectory(fresh, chosen[45:80]) == trajectory(original, chosen[45:80])
    # What was restored can be saved and restored again.
    env_state.restore([third], env_state.save([fresh]))
    assert trajectory(third, chosen[80:]) == trajectory(original, chosen[80:])


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
    env_state.restore([fresh], state)
    assert trajectory(fresh, chosen[10:]) == trajectory(original, chosen[10:])


def test_changed_masses_of_a_simulation_are_saved_too() -> None:
    original, fresh = gymnasium.make("Hopper-v5"), gymnasium.make("Hopper-v5")
    original.reset(seed=11)
    original.unwrapped.model.body_mass[2] *= 1.5  # type: ignore[attr-defined]
    original.unwrapped.model.opt.gravity[2] = -3.0  # type: ignore[attr-defined]
    original.unwrapped.model.opt.timestep = 0.003  # type: ignore[attr-defined]
    chosen = actions(original, 60)
    env_state.restore([fresh], env_state.save([original]))
    assert trajectory(fresh, chosen) == trajectory(original, chosen)


def test_arrays_of_its_own_beside_a_simulation_are_saved_again_and_again() -> None:
    first, second, third = (gymnasium.make("Hopper-v5") for _ in range(3))
    for env in (first, second, third):
        env.reset(seed=3)
        env.unwrapped.target = np.zeros(2)  # type: ignore[attr-defined]
    first.unwrapped.target[:] = 7  # type: ignore[attr-defined]
    env_state.restore([second], env_state.save([first]))
    env_state.restore([third], env_state.save([second]))
    assert third.unwrapped.target.tolist() == [7, 7]  # type: ignore[attr-defined]


class Bare(gymnasium.Env[np.ndarray, np.ndarray]):
    """An environment whose attributes each test chooses."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class SpeaksForItself(Bare):
    def __init__(self) -> None:
        super().__init__(handle=iter(range(10)), taken=0)

    def get_state(self) -> dict[str, int]:
        return {"taken": self.taken}

    def set_state(self, state: dict[str, int]) -> None:
        self.taken = state["taken"]


def test_environment_with_get_state_and_set_state_speaks_for_itself() -> None:
    original, fresh = SpeaksForItself(), SpeaksForItself()
    original.taken = 4
    original.reset(seed=3)
    env_state.restore([fresh], env_state.save([original]))
    assert fresh.taken == 4
    assert fresh.np_random.random() == original.np_random.random()


class Helper:
    def __init__(self) -> None:
        self.count = 0
        self.me = self

    def method(self) -> None:
        self.count += 1


class Slotted:
    __slots__ = ("__dict__", "count")


def test_objects_of_plain_data_are_saved_whole() -> None:
    original, fresh = Bare(helper=Helper(), again=[]), Bare(helper=Helper(), again=[])
    original.helper.method()  # type: ignore[attr-defined]
    original.again.append(original.again)  # type: ignore[attr-defined]
    env_state.restore([fresh], env_state.save([original]))
    helper = fresh.helper  # type: ignore[attr-defined]
    assert (helper.count, helper.me) == (1, helper)


SHARED = np.zeros(4)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"file": iter([1])}, "Bare.file is a builtins.list_iterator"),
        ({"nested": {"deep": [object()]}}, "Bare.nested is a builtins.object"),
        (
            {"whole": SHARED, "part": SHARED[1:]},
            "Bare.part is an array that shares its memory with another array",
        ),
        (
            {"foreign": np.frombuffer(bytearray(8))},
            "Bare.foreign is an array over memory that another object owns",
        ),
        ({"bound": Helper().method}, "Bare.bound is a builtins.method"),
        ({"bound": [].append}, "Bare.bound is a builtins.builtin_function_or_method"),
        ({"slotted": Slotted()}, "Bare.slotted is a .*Slotted"),
        ({"whole": Bare()}, "Bare.whole is a .*Bare"),
        ({"env": Bare()}, "Bare.env is a .*Bare"),
        ({"objects": np.array([object()])}, "Bare.objects is an array of objects"),
    ],
)
def test_what_cannot_be_saved_is_named(attributes: dict[str, Any], reason: str) -> None:
    with pytest.raises(env_state.Unsaveable, match=reason):
        env_state.save([Bare(**attributes)])


def test_a_view_into_an_array_of_another_layer_cannot_be_saved() -> None:
    inner = Bare(whole=np.zeros(4))
    outer = gymnasium.Wrapper(inner)
    outer.part = inner.whole[:2]  # type: ignore[attr-defined]
    with pytest.raises(
        env_state.Unsaveable, match="is an array that shares its memory with another array"
    ):
        env_state.save([outer])


def test_attributes_that_share_an_object_share_it_again() -> None:
    shared = [1, 2]
    original, fresh = Bare(one=shared, other=shared), Bare(one=[], other=[])
    env_state.restore([fresh], env_state.save([original]))
    fresh.one.append(3)  # type: ignore[attr-defined]
    assert fresh.other == [1, 2, 3]  # type: ignore[attr-defined]


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


def test_unstable_physics_is_noticed_where_the_model_is_of_another_binding() -> None:
    env = NewDataAtEveryReset()
    real = env.model

    def step(action: Any) -> Any:
        mujoco.mj_step(real, env.data)
        return env.data.qpos.copy(), 0.0, False, False, {}

    env.model, env.step = object(), step  # type: ignore[assignment,method-assign]
    checked = DivergenceCheck(env, "slider")
    with pytest.raises(Diverged, match="of degree of freedom 0 is not finite"):
        collections.deque((checked.step(None) for _ in range(3000)), maxlen=0)


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
