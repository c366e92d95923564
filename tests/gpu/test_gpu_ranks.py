"""Ranks on GPUs: nccl in a group of one rank where there is one GPU, and two ranks where there are
two."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import command_helpers as commands
import gpu_helpers
import pytest

from orchestrator.machine.gpu import detect_gpus

pytestmark = pytest.mark.nightly

ONE_RANK = """
import json, sys, warnings
import numpy as np
import torch
import torch.distributed as dist
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from orchestrator.worker.ranks.process_group import ProcessGroup
from orchestrator.worker.ranks.distributed_ppo import DistributedPPO
from torch.nn.utils import parameters_to_vector

device, folder = torch.device(sys.argv[1], 0) if sys.argv[1] == "cuda" else torch.device("cpu"), sys.argv[2]
backend = "nccl" if device.type == "cuda" else "gloo"
ranks = ProcessGroup(backend, dist.FileStore(f"{folder}/store", 1), 0, 1, device, "a secret of at least 32 characters")
array = np.arange(5.0)
for collective in (ranks.all_reduce, ranks.broadcast):
    collective(array)
answers = {"array": array.tolist(), "gathered": ranks.all_gather_array(array).tolist()}
answers["objects"] = ranks.all_gather_object({"a": 1})


def trained(kind, mode=None):
    settings = dict(n_steps=64, batch_size=32, n_epochs=2, seed=3, device=device)
    model = kind("MlpPolicy", make_vec_env("Pendulum-v1", n_envs=2, seed=3), **settings)
    before = parameters_to_vector(model.policy.parameters()).detach().clone()
    if mode is not None:
        model.join(ranks, mode)
    model.learn(128)
    return (parameters_to_vector(model.policy.parameters()).detach() - before).cpu()


alone = trained(PPO)
for mode in ("allreduce", "parameter-server"):
    moved = trained(DistributedPPO, mode)
    answers[mode] = float((moved - alone).norm() / alone.norm())
ranks.close()
print(json.dumps(answers))
"""


@pytest.mark.parametrize("device", gpu_helpers.ON_BOTH)
def test_a_group_of_one_rank_trains_as_stock_ppo_does(tmp_path: Path, device: str) -> None:
    command = [sys.executable, "-c", ONE_RANK, device, tmp_path]
    done = commands.finish(command, cwd=tmp_path, env=commands.environment(OMP_NUM_THREADS="1"))
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    assert answers["array"] == [0, 1, 2, 3, 4]
    assert answers["gathered"] == [[0, 1, 2, 3, 4]]
    assert answers["objects"] == [{"a": 1}]
    assert answers["allreduce"] < 0.01
    assert answers["parameter-server"] < 0.01


@pytest.mark.parametrize("device", gpu_helpers.ON_GPU)
def test_two_ranks_train_each_on_a_gpu_of_its_own(tmp_path: Path, device: str) -> None:
    if device == "cuda" and len(gpus := detect_gpus()) < 2:
        pytest.skip(f"two ranks need two GPUs, and there is {len(gpus)}")
    job = {
        "name": "wide",
        "env": "Pendulum-v1",
        "learner": "sb3",
        "distributed": {"backend": "auto"},
    }
    job["resources"] = {**gpu_helpers.resources(device, 1), "ranks": 2}
    jobs = commands.write_experiment(tmp_path, job)
    done = commands.give("run", jobs, "--run-dir", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (row,) = commands.summary(tmp_path / "run").values()
    assert (row["state"], row["ranks"]) == ("SUCCEEDED", 2)
