"""The lean ``VecNormalize`` gives stock's bits."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import worker_helpers as helpers
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from orchestrator.worker.envs import env_factory
from orchestrator.worker.envs.normalize import FastVecNormalize
from orchestrator.worker.envs.vec_env import MujocoVecEnv
from orchestrator.worker.training import training_state

MJCF = Path(__file__).parents[3] / "mjcf"
SHAPES = [(1,), (3,), (17,), (40,), (2, 3), ()]
CLIPS = st.sampled_from([10.0, 5, 0.1, 1e-3]) | st.floats(1e-3, 100)


class Stream(VecEnv):
    """Random observations, rewards and ends of episodes, the same ones for the same seed.

    :param make: observations of ``(generator, shape)``; without it, some are large, some tiny and
        some constant.
    """

    def __init__(self, seed: int, n_envs: int, space: spaces.Space[Any], make: Any = None) -> None:
        self.rng = np.random.default_rng(seed)
        self.make = make or self.box
        self.shape = shape = space.shape or ()
        self.scales = 10.0 ** self.rng.uniform(-20, 6, shape) * self.rng.integers(0, 2, shape)
        self.centres = self.rng.normal(size=shape) * 10.0 ** self.rng.uniform(-3, 6, shape)
        self.reward_scale = 10.0 ** self.rng.uniform(-3, 6)
        super().__init__(n_envs, space, spaces.Box(-1, 1, (2,)))

    def box(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return (rng.normal(size=shape) * self.scales + self.centres).astype(
            self.observation_space.dtype
        )

    def observations(self) -> Any:
        return self.make(self.rng, (self.num_envs, *self.shape))

    def reset(self) -> Any:
        return self.observations()

    def step_async(self, actions: np.ndarray) -> None:
        """The stream takes no notice."""

    def step_wait(self) -> Any:
        rewards = (self.rng.normal(size=self.num_envs) * self.reward_scale).astype(np.float32)
        dones = self.rng.random(self.num_envs) < self.rng.choice([0, 0.2, 1])
        infos: list[dict[str, Any]] = [{} for _ in dones]
        for env in dones.nonzero()[0]:
            if self.rng.random() < 0.9:
                infos[env]["terminal_observation"] = self.make(self.rng, self.shape)
        return self.observations(), rewards, dones, infos

    def close(self) -> None:
        """Nothing is held."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None] * self.num_envs

    set_attr = env_method = env_is_wrapped = None  # nobody asks for them


def bits(value: Any) -> Any:
    """Equal where types, shapes and bits are; all that are not a number are alike."""
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.kind == "f":
            array = np.where(np.isnan(array), np.asarray(np.nan, array.dtype), array)
        return type(value).__name__, array.dtype, array.shape, array.strides, array.tobytes()
    if isinstance(value, dict):
        return {name: bits(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [bits(part) for part in value]
    if hasattr(value, "__dict__"):
        return type(value).__name__, bits(vars(value))
    return type(value).__name__, value


def state(env: VecNormalize) -> dict[str, Any]:
    names = ("obs_rms", "ret_rms", "returns", "old_obs", "old_reward")
    return {name: bits(vars(env)[name]) for name in names if name in vars(env)}


def assert_same_steps(lean: VecNormalize, stock: VecNormalize, steps: int = 1) -> None:
    actions = np.zeros((lean.num_envs, *lean.action_space.shape), np.float32)
    for _ in range(steps):
        assert bits(lean.step(actions)) == bits(stock.step(actions))
        assert state(lean) == state(stock)


def continued(env: VecNormalize) -> VecNormalize:
    """Another one, in the state that a checkpoint holds of this one."""
    saved = {
        name: getattr(env, name) for name in training_state._NORMALIZATION if hasattr(env, name)
    }
    settings = (
        "training",
        "norm_obs",
        "norm_reward",
        "clip_obs",
        "clip_reward",
        "gamma",
        "epsilon",
    )
    other = type(env)(env.venv, **{name: getattr(env, name) for name in settings})
    vars(other).update(pickle.loads(pickle.dumps(saved)))
    return other


CHANGES = st.one_of(
    st.tuples(st.sampled_from(["training", "norm_obs", "norm_reward"]), st.booleans()),
    st.tuples(st.sampled_from(["clip_obs", "clip_reward"]), CLIPS),
    st.just(("checkpoint", None)),
    st.just(("reset", None)),
)


@settings(deadline=None, max_examples=20)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_envs=st.integers(1, 9) | st.sampled_from([16, 33, 128, 200]),
    shape=st.sampled_from(SHAPES),
    dtype=st.sampled_from([np.float32, np.float64]),
    options=st.fixed_dictionaries(
        {},
        optional={
            "training": st.booleans(),
            "norm_reward": st.booleans(),
            "clip_obs": CLIPS,
            "clip_reward": CLIPS,
            "gamma": st.sampled_from([0.9, 0.995, 1.0, 0.0]),
            "epsilon": st.sampled_from([1e-8, 1e-3, 1]),
        },
    ),
    changes=st.lists(CHANGES, max_size=6),
)
def test_every_number_of_every_step_is_stocks_own(
    seed, n_envs, shape, dtype, options, changes
) -> None:
    space = spaces.Box(-np.inf, np.inf, shape, dtype)
    lean = FastVecNormalize(Stream(seed, n_envs, space), **options)
    stock = VecNormalize(Stream(seed, n_envs, space), **options)
    assert bits(lean.reset()) == bits(stock.reset())
    for name, value in [*changes, ("training", True)]:
        assert_same_steps(lean, stock, steps=3)
        if name == "checkpoint":
            lean, stock = continued(lean), continued(stock)
        elif name == "reset":
            assert bits(lean.reset()) == bits(stock.reset())
        else:
            setattr(lean, name, value)
            setattr(stock, name, value)
    assert_same_steps(lean, stock, steps=3)


BOX = spaces.Box(-np.inf, np.inf, (4,), np.float32)


@pytest.mark.parametrize(
    ("space", "options", "make"),
    [
        pytest.param(BOX, {"norm_obs": False}, None, id="rewards only"),
        pytest.param(
            spaces.Discrete(5),
            {"norm_obs": False},
            lambda rng, shape: rng.integers(0, 5, shape),
            id="discrete",
        ),
        pytest.param(
            spaces.Box(0, 255, (8, 8, 3), np.uint8),
            {"norm_obs": False},
            lambda rng, shape: rng.integers(0, 256, shape, np.uint8),
            id="images",
        ),
        pytest.param(
            spaces.Dict({"a": BOX, "b": BOX}),
            {"norm_obs_keys": ["b"]},
            lambda rng, shape: {
                name: rng.normal(size=(*shape, 4)).astype(np.float32) for name in "ab"
            },
            id="dictionary",
        ),
    ],
)
def test_what_is_not_one_box_of_numbers_is_left_to_stock(
    space: Any, options: Any, make: Any
) -> None:
    lean, stock = (
        kind(Stream(3, 3, space, make), **options) for kind in (FastVecNormalize, VecNormalize)
    )
    assert bits(lean.reset()) == bits(stock.reset())
    assert_same_steps(lean, stock, steps=20)


@pytest.mark.parametrize("n_envs", [1, 8])
@pytest.mark.parametrize(("xml", "task"), [("hopper.xml", "forward"), ("balancer.xml", "balance")])
def test_robots_are_normalised_as_stock_does(n_envs: int, xml: str, task: str) -> None:
    def made(kind: type[VecNormalize]) -> VecNormalize:
        return kind(
            MujocoVecEnv(
                MJCF / xml, task, n_envs=n_envs, seed=5, task_options={"max_episode_steps": 30}
            )
        )

    lean, stock = made(FastVecNormalize), made(VecNormalize)
    rng = np.random.default_rng(0)
    assert bits(lean.reset()) == bits(stock.reset())
    for _ in range(100):
        actions = rng.uniform(-1, 1, (n_envs, *lean.action_space.shape)).astype(np.float32)
        (*ours, our_infos), (*theirs, their_infos) = lean.step(actions), stock.step(actions)
        assert bits(ours) == bits(theirs)
        for our, their in zip(our_infos, their_infos, strict=True):
            assert bits(our.get("terminal_observation")) == bits(their.get("terminal_observation"))
        assert state(lean) == state(stock)
    assert lean._fast is not None


def test_a_policy_trained_over_it_checkpointed_and_restored_is_that_over_stock(
    tmp_path: Path,
) -> None:
    torch.set_num_threads(1)

    def model(kind: type[VecNormalize]) -> PPO:
        env = kind(MujocoVecEnv(MJCF / "hopper.xml", "forward", n_envs=4, seed=5))
        made = PPO("MlpPolicy", env, n_steps=32, batch_size=64, n_epochs=2, seed=1, device="cpu")
        made._setup_learn(384, None)
        return made

    def learned(made: PPO, total: int) -> PPO:
        made.learn(total - made.num_timesteps, reset_num_timesteps=False)
        return made

    stock = learned(model(VecNormalize), 384)
    halfway = io.BytesIO()
    torch.save(
        training_state.capture(learned(model(FastVecNormalize), 128), training_state.LoopState()),
        halfway,
    )
    halfway.seek(0)
    lean = model(FastVecNormalize)
    training_state.restore(lean, torch.load(halfway, weights_only=False))
    learned(lean, 384)
    assert helpers.same_bits(stock.policy.state_dict(), lean.policy.state_dict())
    assert state(lean.get_vec_normalize_env()) == state(stock.get_vec_normalize_env())


def test_what_a_step_gives_is_not_overwritten_by_later_steps() -> None:
    env = FastVecNormalize(Stream(4, 8, BOX))
    env.reset()
    observations, rewards, *_ = env.step(np.zeros((8, 2)))
    kept = [
        observations,
        rewards,
        env.obs_rms.mean,
        env.obs_rms.var,
        env.ret_rms.mean,
        env.ret_rms.var,
        env.returns,
    ]
    before = bits(kept)
    for _ in range(50):
        env.step(np.zeros((8, 2)))
    assert bits(kept) == before


def test_jobs_are_trained_with_it(tmp_path: Path) -> None:
    spec = helpers.spec(normalize=True)
    venv = env_factory.make(spec, tmp_path, n_envs=2, seed=0)
    assert type(env_factory.normalized_env(spec, venv)) is FastVecNormalize


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickled_by_any_protocol_it_is_a_stock_one_that_names_nothing_of_this_package(
    protocol: int,
) -> None:
    """``test_worker.py`` shows that such files load where it is not installed."""
    pair = [kind(Stream(7, 3, BOX), gamma=0.9) for kind in (VecNormalize, FastVecNormalize)]
    for env in pair:
        env.reset()
    pickled = [pickle.dumps(env, protocol) for env in pair]
    assert b"orchestrator" not in pickled[1]
    stock, ours = map(pickle.loads, pickled)
    assert type(stock) is type(ours) is VecNormalize
    assert vars(stock).keys() == vars(ours).keys()
    assert (stock.obs_rms.mean == ours.obs_rms.mean).all()
