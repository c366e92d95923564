"""One update over several ranks is that of one process over all their data: to rounding, whoever
takes the step."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import numpy as np
import pytest
import ranks_helpers as helpers
import torch
from stable_baselines3.common.logger import Logger

from orchestrator.core.worker_spec import Backend, Mode, WorkerSpec
from orchestrator.worker.envs import env_factory
from orchestrator.worker.ranks.ranks import ALONE, Ranks, own_share
from orchestrator.worker.training import algorithms, learners

pytestmark = pytest.mark.nightly

MODES = get_args(Mode)
GROUPS: tuple[tuple[int, Backend], ...] = ((2, "auto"), (4, "gloo"))
"""Of ranks: on one machine ``auto`` is over shared memory, and ``gloo`` over the network."""
N_ENVS, N_STEPS, ROWS = 4, 32, 40
ROUNDING = 3e-6
"""Of float32, over the steps of an update; relative to how far the update went."""

PPO = {"n_steps": N_STEPS, "batch_size": 40, "n_epochs": 2, "learning_rate": 1e-3}
"""128 samples: the last minibatch of each epoch has 8, of which each of four ranks has two."""
PPO_CASES: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "far enough to be clipped": {
        "learning_rate": 1e-2,
        "clip_range": 0.05,
        "clip_range_vf": 0.02,
        "ent_coef": 0.01,
    },
    "advantages as they are": {"normalize_advantage": False, "ent_coef": 0.01},
    "gradients hardly clipped": {"max_grad_norm": 100.0, "vf_coef": 0.01},
    "one sample a rank in the last minibatch": {"batch_size": 124},
    "ended by target_kl": {"target_kl": 0.001, "learning_rate": 1e-2},
}
SAC = {
    "buffer_size": 400,
    "batch_size": 32,
    "learning_starts": 10**6,
    "train_freq": ROWS,
    "learning_rate": 1e-3,
}
SAC_CASES: dict[str, dict[str, Any]] = {
    "one step": {"gradient_steps": 1},
    "two steps, target network after the first": {"gradient_steps": 2, "target_update_interval": 2},
    "three steps": {"gradient_steps": 3},
    "three steps at a given temperature": {"gradient_steps": 3, "ent_coef": 0.2},
}

Case = tuple[str, str]
CASES: dict[Case, WorkerSpec] = {
    **{
        (learner, name): helpers.spec(
            learner=learner,
            normalize=False,
            hyperparameters=PPO | changes,
            policy_kwargs={"net_arch": [16, 16]},
        )
        for learner in ("fast", "sb3")
        for name, changes in PPO_CASES.items()
    },
    ("sb3", "discrete actions"): helpers.spec(
        learner="sb3",
        normalize=False,
        env="CartPole-v1",
        hyperparameters=PPO,
        policy_kwargs={"net_arch": [16]},
    ),
    **{
        ("sac", name): helpers.spec(
            "sac",
            normalize=False,
            hyperparameters=SAC | changes,
            policy_kwargs={"net_arch": [16, 16]},
        )
        for name, changes in SAC_CASES.items()
    },
}

Data = dict[str, np.ndarray]
"""Of a buffer: ``(rows, n_envs, …)`` each."""


def build(spec: WorkerSpec, ranks: Ranks = ALONE) -> Any:
    ours = own_share(spec.n_envs, ranks)
    venv = env_factory.make(spec, Path(), n_envs=len(ours), seed=spec.seed, first_env=ours.start)
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "You have specified a mini-batch size"
        )  # a ragged last one is meant
        model = learners.build(dataclasses.replace(spec, ranks=ranks.size), venv, ranks).model
    model.set_logger(Logger(None, []))
    return model


def buffer_of(model: Any) -> Any:
    return model.replay_buffer if isinstance(model, algorithms.OffPolicy) else model.rollout_buffer


def collected(model: Any) -> Data:
    """One rollout of all environments."""
    _, callback = model._setup_learn(10**6, None)
    algorithms.collect(model, model.env, callback)
    arrays = {
        name: value
        for name, value in vars(buffer_of(model)).items()
        if isinstance(value, np.ndarray)
    }
    return {name: array.copy() for name, array in arrays.items()}


def give(model: Any, data: Data, envs: range) -> None:
    buffer = buffer_of(model)
    for name, array in data.items():
        setattr(buffer, name, array[:, envs.start : envs.stop].copy())
    if isinstance(model, algorithms.OffPolicy):
        buffer.pos = ROWS
    else:
        buffer.full = True


# -- the randomness of an update, dealt out


def dealt(spec: WorkerSpec, size: int, rank: int) -> dict[str, list[np.ndarray]]:
    """What a rank is to draw during its update: permutations of its samples; or rows and
    environments, and noise."""
    dice = np.random.default_rng([size, rank])
    n_envs, hyper = spec.n_envs // size, spec.hyperparameters
    if spec.algo == "ppo":
        return {
            "permutation": [dice.permutation(N_STEPS * n_envs) for _ in range(hyper["n_epochs"])]
        }
    rows, steps = hyper["batch_size"] // size, hyper["gradient_steps"]
    picks = [(dice.integers(0, ROWS, rows), dice.integers(0, n_envs, rows)) for _ in range(steps)]
    return {
        "randint": [array for pick in picks for array in pick],
        "noise": [dice.normal(size=(rows, 1)).astype(np.float32) for _ in range(2 * steps)],
    }


def united(spec: WorkerSpec, size: int) -> dict[str, list[np.ndarray]]:
    """What one process is to draw so that its minibatches are those of all ranks together."""
    hands = [dealt(spec, size, rank) for rank in range(size)]
    firsts = [rank * spec.n_envs // size for rank in range(size)]
    if spec.algo == "ppo":
        ours = spec.hyperparameters["batch_size"] // size
        everywhere = [
            [
                first * N_STEPS + order for order in hand["permutation"]
            ]  # counted environment by environment
            for first, hand in zip(firsts, hands, strict=True)
        ]
        orders = []
        for epoch in zip(*everywhere, strict=True):
            begins = range(0, len(epoch[0]), ours)
            orders.append(
                np.concatenate([order[begin : begin + ours] for begin in begins for order in epoch])
            )
        return {"permutation": orders}
    drawn = list(zip(*(hand["randint"] for hand in hands), strict=True))
    drawn[1::2] = [
        tuple(envs + first for envs, first in zip(each, firsts, strict=True))
        for each in drawn[1::2]
    ]
    noise = zip(*(hand["noise"] for hand in hands), strict=True)
    return {
        "randint": [np.concatenate(each) for each in drawn],
        "noise": [np.concatenate(each) for each in noise],
    }


def updated(model: Any, hand: Mapping[str, list[np.ndarray]], spec: WorkerSpec) -> dict[str, Any]:
    """What an update with that hand makes of ``model``."""
    piles = {
        name: map(torch.from_numpy, arrays) if name == "noise" else arrays
        for name, arrays in hand.items()
    }
    with (
        mock.patch("numpy.random.permutation", side_effect=piles.get("permutation")),
        mock.patch("numpy.random.randint", side_effect=piles.get("randint")),
        mock.patch("torch.distributions.normal._standard_normal", side_effect=piles.get("noise")),
    ):
        if spec.algo == "ppo":
            model.train()
        else:
            model.train(
                gradient_steps=spec.hyperparameters["gradient_steps"], batch_size=model.batch_size
            )
    return {
        "parameters": parameters(model),
        "moments": flat(
            value
            for optimizer in algorithms.optimizers(model).values()
            for moments in optimizer.state_dict()["state"].values()
            for value in moments.values()
        ),
        "logs": dict(model.logger.name_to_value),
        "steps": [
            float(moments["step"])
            for optimizer in algorithms.optimizers(model).values()
            for moments in optimizer.state_dict()["state"].values()
        ],
        "epochs": model._n_updates,
    }


def parameters(model: Any) -> np.ndarray:
    temperature = algorithms.temperature(model)
    return flat(
        [*model.policy.state_dict().values(), *([] if temperature is None else [temperature])]
    )


def flat(tensors: Any) -> np.ndarray:
    tensors = [tensor.detach().numpy().ravel() for tensor in tensors]
    return np.concatenate(tensors) if tensors else np.empty(0, np.float32)


# -- the two sides


def on_ranks(
    ranks: Ranks, cases: Mapping[Case, tuple[Any, Data]]
) -> dict[tuple[Case, Mode], dict[str, Any]]:
    """Every case's update in both modes. :param cases: policy and data."""
    results = {}
    for case, (policy, data) in cases.items():
        spec = CASES[case]
        for mode in MODES:
            model = build(dataclasses.replace(spec, mode=mode), ranks)
            model.policy.load_state_dict(policy)
            give(model, data, own_share(N_ENVS, ranks))
            results[case, mode] = updated(model, dealt(spec, ranks.size, ranks.rank), spec)
    return results


class Sides:
    """Cases, done by one process and by so many ranks."""

    def __init__(
        self, size: int, backend: Backend, directory: Path, chosen: Collection[Case] = CASES
    ) -> None:
        self.size = size
        self.before: dict[Case, np.ndarray] = {}
        self.alone: dict[Case, dict[str, Any]] = {}
        cases = {}
        for case in chosen:
            spec = CASES[case]
            model = build(spec)
            data, policy = collected(model), copy.deepcopy(model.policy.state_dict())
            cases[case] = policy, data
            self.before[case] = parameters(model)
            give(model, data, range(N_ENVS))
            self.alone[case] = updated(model, united(spec, size), spec)
        self.ranks = helpers.together(size, directory, on_ranks, cases, backend=backend)


@pytest.fixture(scope="module", params=GROUPS, ids=lambda group: f"{group[0]} ranks {group[1]}")
def sides(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sides:
    return Sides(*request.param, tmp_path_factory.mktemp("ranks") / "together")


def distance(one: np.ndarray, other: np.ndarray, before: np.ndarray) -> float:
    return float(np.linalg.norm(one - other) / np.linalg.norm(other - before))


every_case = pytest.mark.parametrize("case", CASES, ids=[" ".join(case) for case in CASES])
every_mode = pytest.mark.parametrize("mode", MODES)


@every_mode
@every_case
def test_an_update_of_all_ranks_is_that_of_one_process_over_all_their_data(
    sides: Sides, case: Case, mode: Mode
) -> None:
    alone, first = sides.alone[case], sides.ranks[0][case, mode]
    assert distance(first["parameters"], alone["parameters"], sides.before[case]) < ROUNDING
    assert distance(first["moments"], alone["moments"], np.zeros_like(alone["moments"])) < ROUNDING
    assert (first["epochs"], first["steps"]) == (alone["epochs"], alone["steps"])


@every_mode
@every_case
def test_all_ranks_come_to_the_same_bits(sides: Sides, case: Case, mode: Mode) -> None:
    first, *others = (rank[case, mode] for rank in sides.ranks)
    for other in others:
        assert other["parameters"].tobytes() == first["parameters"].tobytes()
        if mode == "allreduce":
            assert other["moments"].tobytes() == first["moments"].tobytes()


@every_mode
@every_case
def test_what_is_logged_is_of_all_ranks(sides: Sides, case: Case, mode: Mode) -> None:
    alone, logs = sides.alone[case]["logs"], [rank[case, mode]["logs"] for rank in sides.ranks]
    assert logs[0].keys() == alone.keys()
    for name, value in alone.items():
        if (
            case[0] == "sac"
        ):  # each rank knows its own losses only; their mean is that of the whole minibatch
            assert np.mean([of_rank[name] for of_rank in logs]) == pytest.approx(value, rel=1e-4), (
                name
            )
        elif name != "train/explained_variance":  # of each rank's own values
            assert {of_rank[name] for of_rank in logs} == {logs[0][name]}, name
            assert logs[0][name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("learner", ["fast", "sb3"])
def test_clipping_takes_part(sides: Sides, learner: str) -> None:
    assert sides.alone[learner, "far enough to be clipped"]["logs"]["train/clip_fraction"] > 0.05


@pytest.mark.parametrize("learner", ["fast", "sb3"])
def test_target_kl_ends_the_update_of_all_in_its_middle(sides: Sides, learner: str) -> None:
    case = (learner, "ended by target_kl")
    most = PPO["n_epochs"] * np.ceil(N_ENVS * N_STEPS / PPO["batch_size"])
    for result in (
        sides.alone[case],
        *(rank[case, mode] for rank in sides.ranks[:1] for mode in MODES),
    ):
        assert 0 < result["steps"][0] < most
