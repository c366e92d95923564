"""``weights_sha256``: the same for the same bits, another for one bit that differs, and to be
checked by anybody."""

from __future__ import annotations

import hashlib
import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import worker_helpers as worker
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from orchestrator.worker.training import weights


@pytest.fixture
def model() -> PPO:
    env = VecNormalize(make_vec_env("CartPole-v1", n_envs=2, seed=1))
    return PPO("MlpPolicy", env, n_steps=32, batch_size=32, n_epochs=1, seed=1, device="cpu").learn(
        64
    )


def by_hand(job: Path) -> str:
    """From what a job leaves, as ``docs/verify.md`` says."""
    arrays: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(job / "model.zip") as archive:
        policy, optimizer = (
            torch.load(io.BytesIO(archive.read(name)), weights_only=True)
            for name in ("policy.pth", "policy.optimizer.pth")
        )
    arrays |= {f"policy.{name}": tensor.numpy() for name, tensor in policy.items()}
    for index, moments in optimizer["state"].items():
        arrays |= {f"optimizer.{index}.{name}": tensor.numpy() for name, tensor in moments.items()}
    normalization = pickle.loads((job / "vecnormalize.pkl").read_bytes())
    for name in ("obs_rms", "ret_rms"):
        running = getattr(normalization, name)
        arrays |= {
            f"normalization.{name}.{part}": np.asarray(getattr(running, part))
            for part in ("mean", "var", "count")
        }
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(
            f"{name} {arrays[name].dtype} {arrays[name].shape}\n".encode() + arrays[name].tobytes()
        )
    return digest.hexdigest()


def test_a_finished_training_tells_the_hash_of_what_it_left(tmp_path: Path) -> None:
    record, log = worker.train_here(worker.job(tmp_path, worker.spec(normalize=True)))
    assert record.weights_sha256 == by_hand(tmp_path), log


def test_one_bit_of_anything_changes_the_hash(model: PPO) -> None:
    found = [weights.sha256(model)]
    assert weights.sha256(model) == found[0]
    normalization = model.get_vec_normalize_env()
    assert normalization is not None
    for array in (
        next(model.policy.parameters()).detach().numpy(),
        model.policy.optimizer.state_dict()["state"][0]["exp_avg_sq"].numpy(),
        normalization.obs_rms.mean,
    ):
        array.reshape(-1).view(np.uint8)[0] ^= 1
        found.append(weights.sha256(model))
    normalization.ret_rms.var = np.nextafter(normalization.ret_rms.var, np.inf)
    found.append(weights.sha256(model))
    assert len(set(found)) == 5
