"""The fast learner's files are Stable-Baselines3's, in both directions; its bits depend on seed and
data alone."""

from __future__ import annotations

import base64
import io
import json
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fast_helpers as fast
import numpy as np
import pytest
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.utils import LinearSchedule
from torch import nn

from orchestrator.worker.training.fast import epochs, loss, network, policy, rollout, update
from orchestrator.worker.training.fast.ppo import FastPPO

OPTIONS: dict[str, Any] = {
    "n_steps": 32,
    "batch_size": 16,
    "n_epochs": 3,
    "learning_rate": LinearSchedule(1e-3, 1e-4, 1.0),
    "clip_range_vf": 0.2,
    "policy_kwargs": {
        "net_arch": {"pi": [16, 8], "vf": [8]},
        "activation_fn": nn.ELU,
        "log_std_init": -0.5,
    },
}
KINDS = [(FastPPO, PPO), (PPO, FastPPO)]


def envs() -> Any:
    return fast.smooth_envs(2, limit=10)


def saved(model: PPO) -> io.BytesIO:
    file = io.BytesIO()
    model.save(file)
    file.seek(0)
    return file


def tensors(model: PPO) -> dict[str, bytes]:
    """Every tensor of policy and optimiser."""
    found = {name: tensor.numpy().tobytes() for name, tensor in model.policy.state_dict().items()}
    for index, state in model.policy.optimizer.state_dict()["state"].items():
        found |= {f"{index}.{name}": tensor.numpy().tobytes() for name, tensor in state.items()}
    return found


# -- files


@pytest.mark.parametrize(
    ("first", "second"), KINDS, ids=["fast, stock, fast", "stock, fast, stock"]
)
def test_a_model_is_saved_loaded_and_trained_further_by_the_other_learner_and_back(
    first: type[PPO], second: type[PPO]
) -> None:
    model = fast.make(first, envs(), **OPTIONS).learn(128)
    for kind in (second, first):
        loaded = kind.load(saved(model), envs(), device="cpu")
        assert type(loaded) is kind
        assert tensors(loaded) == tensors(model)
        assert (loaded.num_timesteps, loaded._n_updates) == (model.num_timesteps, model._n_updates)
        begun, seen = (
            loaded.num_timesteps,
            np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32),
        )
        np.testing.assert_allclose(
            loaded.predict(seen, deterministic=True)[0],
            model.predict(seen, deterministic=True)[0],
            rtol=1e-6,
        )
        loaded.learn(128, reset_num_timesteps=False)
        assert loaded.num_timesteps == begun + 128
        assert tensors(loaded) != tensors(model)
        assert fast.steps_taken(loaded) == {begun / 64 * 12 + 24}
        model = loaded


@pytest.mark.parametrize(("first", "second"), KINDS, ids=["fast to stock", "stock to fast"])
def test_after_loading_the_next_update_is_the_same_by_both(
    first: type[PPO], second: type[PPO]
) -> None:
    model = fast.make(first, envs(), **OPTIONS).learn(128)
    other = second.load(saved(model), envs(), device="cpu")
    other.set_logger(model.logger)
    fast.fill(model, np.random.default_rng(0))
    fast.fill(other, np.random.default_rng(0))
    before = fast.parameters(model)
    for each in (model, other):
        np.random.seed(5)
        each.train()
    size = np.linalg.norm(fast.parameters(model) - before)
    assert size > 0
    assert np.linalg.norm(fast.parameters(model) - fast.parameters(other)) <= 1e-5 * size
    for name in ("exp_avg", "exp_avg_sq"):
        theirs = fast.moments(other, name)
        assert np.linalg.norm(fast.moments(model, name) - theirs) <= 1e-5 * np.linalg.norm(theirs)


def test_a_model_that_was_saved_and_loaded_learns_the_bits_of_one_that_was_not() -> None:
    model = fast.make(FastPPO, envs(), **OPTIONS).learn(128)
    loaded = FastPPO.load(saved(model), device="cpu")
    for each in (model, loaded):
        each.set_env(envs())
        each.set_random_seed(9)
        each.learn(128)
    assert tensors(model) == tensors(loaded)


def test_a_saved_model_names_nothing_of_this_package(tmp_path: Path) -> None:
    """``test_worker.py`` shows that such models load where it is not installed."""
    model = fast.make(FastPPO, envs(), **OPTIONS).learn(128)
    model.save(tmp_path / "model.zip")
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        contents = [archive.read(name) for name in archive.namelist()]
        attributes = json.loads(archive.read("data"))
    coded = [
        each[":serialized:"]
        for each in attributes.values()
        if isinstance(each, dict) and ":serialized:" in each
    ]
    pickled = [base64.b64decode(each) for each in coded]
    assert len(pickled) > 5
    assert not any(b"orchestrator" in content for content in contents + pickled)


def test_parameters_are_got_and_set_and_honoured_at_the_next_rollout_and_update() -> None:
    model, other = (fast.make(FastPPO, envs(), **OPTIONS) for _ in range(2))
    model.learn(128)
    other.set_parameters(model.get_parameters())
    assert tensors(other) == tensors(model)
    # Between iterations, as a callback or a user's own loop does it.
    quiet = {name: torch.zeros_like(tensor) for name, tensor in model.policy.state_dict().items()}
    model.policy.load_state_dict(quiet)
    torch.manual_seed(3)
    fast.collect(model, fast.begin(model))
    torch.manual_seed(3)
    noise = torch.randn(32, 2, 2).numpy()
    np.testing.assert_array_equal(
        model.rollout_buffer.actions, noise
    )  # means of zero, standard deviations of one
    np.testing.assert_array_equal(model.rollout_buffer.values, 0.0)


# -- bits


def learnt(seed: int) -> dict[str, bytes]:
    return tensors(fast.make(FastPPO, envs(), seed=seed, **OPTIONS).learn(192))


def test_the_same_seed_gives_the_same_bits_and_another_one_others() -> None:
    first = learnt(3)
    assert learnt(3) == first
    assert learnt(4) != first


def test_where_arrays_lie_in_memory_makes_no_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = learnt(3)
    shifted = Shifted(16)
    for module in (epochs, loss, network, policy, rollout, update):
        monkeypatch.setattr(module, "np", shifted)
    assert learnt(3) == expected
    assert shifted.made > 50


class Shifted(types.SimpleNamespace):
    """NumPy, but that new arrays begin ``offset`` bytes after a multiple of 64. (``malloc`` gives
    multiples of 16.)"""

    def __init__(self, offset: int) -> None:
        super().__init__(**vars(np))
        self.offset, self.made = offset, 0
        for name in ("empty", "zeros", "ones", "full", "empty_like", "zeros_like"):
            setattr(self, name, self.moving(getattr(np, name)))

    def moving(self, function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
        def make(*arguments: Any, **options: Any) -> np.ndarray:
            array = function(*arguments, **options)
            room = np.empty(array.nbytes + 64, np.uint8)
            begin = (self.offset - room.ctypes.data) % 64
            moved = room[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
            moved[...] = array
            assert moved.ctypes.data % 64 == self.offset
            self.made += 1
            return moved

        return make
