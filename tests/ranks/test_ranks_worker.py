"""Workers that are ranks of one attempt: what they have in common stays so, and what is each one's
own does too."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import ranks_helpers as helpers
import torch
import worker_helpers as worker
from stable_baselines3.common.running_mean_std import RunningMeanStd

from orchestrator.core.numbers.changing_numbers import TrainingMoment
from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.envs import env_factory
from orchestrator.worker.ranks.process_group import ProcessGroup
from orchestrator.worker.ranks.ranks import own_share
from orchestrator.worker.runtime.attempt_facts import AttemptFacts
from orchestrator.worker.runtime.failures import Interrupted, ReachedRung
from orchestrator.worker.runtime.progress import ProgressReporter
from orchestrator.worker.training import algorithms, learners, rank_synchronizer
from orchestrator.worker.training.attempt import Attempt
from orchestrator.worker.training.rank_synchronizer import RankSynchronizer
from orchestrator.worker.training.train import Training

HOPPER = worker.REPOSITORY / "mjcf/hopper.xml"

# -- fifty updates of three ranks, undisturbed and resumed

SIZE, UPDATES = 3, 50
WAYS = [
    f"{learner} {mode}"
    for learner in ("fast", "sb3", "sac")
    for mode in ("allreduce", "parameter-server")
]
RESUMED = ("fast parameter-server", "sb3 allreduce", "sac allreduce")
TINY_PPO = {"n_steps": 8, "batch_size": 48, "n_epochs": 1}
TINY_SAC = {"buffer_size": 600, "batch_size": 12, "learning_starts": 60, "train_freq": 4}


def training(way: str, seed: int = 3) -> WorkerSpec:
    """Of ``UPDATES`` updates, with one checkpoint in their midst."""
    learner, mode = way.split()
    algo = "sac" if learner == "sac" else "ppo"
    total = UPDATES * 48 if algo == "ppo" else 60 + UPDATES * 24
    return helpers.spec(
        algo,
        learner="auto" if algo == "sac" else learner,
        mode=mode,
        ranks=SIZE,
        n_envs=6,
        seed=seed,
        total_timesteps=total,
        checkpoint_every=10**6,
        hyperparameters=TINY_PPO if algo == "ppo" else TINY_SAC,
    )


def all_ways(group: ProcessGroup, root: Path) -> dict[str, dict[str, Any]]:
    """What this rank has after every training."""
    os.environ[rank_synchronizer.COMPARE_VARIABLE] = "1"
    trained = {}
    for way in WAYS:
        trained[way] = train(group, training(way), root / way)
    for way in RESUMED:
        half = training(way).total_timesteps // 2
        with pytest.raises(Interrupted):
            train(group, training(way), root / f"{way} resumed", leave_at=half)
        with pytest.raises(ReachedRung):
            train(group, replace(training(way), pause_at=half * 3 // 2), root / f"{way} resumed")
        trained[f"{way} resumed"] = train(group, training(way), root / f"{way} resumed")
    trained["another seed"] = train(
        group, training("fast allreduce", seed=4), root / "another seed"
    )
    return trained


def train(
    group: ProcessGroup, spec: WorkerSpec, directory: Path, leave_at: int | None = None
) -> dict[str, Any]:
    """As a worker does it. :param leave_at: env_steps after which the last rank is asked to
    leave."""
    ours = own_share(spec.n_envs, group)
    venv = env_factory.make(spec, directory, n_envs=len(ours), seed=spec.seed, first_env=ours.start)
    model: Any = learners.build(spec, env_factory.normalized_env(spec, venv), group).model
    asked = leave_at is not None and group.rank == SIZE - 1
    facts = AttemptFacts(started=0.0)
    trained = Training(
        Attempt(
            spec=spec,
            paths=JobPaths(directory),
            model=model,
            facts=facts,
            reporter=ProgressReporter(None, facts),
            ranks=group,
        )
    )
    losses: dict[str, float] = {}

    def leave() -> bool:
        return asked and model.num_timesteps >= leave_at

    with mock.patch.object(
        algorithms, "dump_logs", side_effect=lambda *_: losses.update(model.logger.name_to_value)
    ):
        trained.train(leave)
    return {
        "common": common(model),
        "own": own(model),
        "updates": model._n_updates,
        "losses": losses,
    }


def common(model: Any) -> dict[str, Any]:
    normalization, temperature = model.get_vec_normalize_env(), algorithms.temperature(model)
    optimizers = algorithms.optimizers(model).values()
    return {
        "parameters": as_bytes(model.policy.state_dict().values()),
        "temperature": as_bytes([] if temperature is None else [temperature]),
        "optimizers": as_bytes(
            value
            for one in optimizers
            for state in one.state_dict()["state"].values()
            for value in state.values()
        ),
        "statistics": [
            (np.array(each.mean).tobytes(), np.array(each.var).tobytes(), each.count)
            for each in (normalization.obs_rms, normalization.ret_rms)
        ],
        "episodes": [(episode["r"], episode["l"]) for episode in model.ep_info_buffer],
        "counts": (model.num_timesteps, model._n_updates, model._episode_num),
    }


def own(model: Any) -> dict[str, bytes]:
    buffer = (
        model.replay_buffer if isinstance(model, algorithms.OffPolicy) else model.rollout_buffer
    )
    return {
        "observations": buffer.observations.tobytes(),
        "actions": buffer.actions.tobytes(),
        "last observations": model._last_obs.tobytes(),
        "numpy's generator": np.random.get_state()[1].tobytes(),  # type: ignore[union-attr]
        "torch's generator": torch.get_rng_state().numpy().tobytes(),
    }


def as_bytes(tensors: Any) -> list[bytes]:
    return [tensor.detach().numpy().tobytes() for tensor in tensors]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Any]]]:
    root = tmp_path_factory.mktemp("trained")
    return helpers.together(SIZE, root / "together", all_ways, root)


every_way = pytest.mark.parametrize("way", WAYS)


@pytest.mark.nightly
@every_way
def test_after_fifty_updates_all_ranks_have_the_same_bits(
    trained: list[dict[str, Any]], way: str
) -> None:
    first, *others = (rank[way]["common"] for rank in trained)
    assert trained[0][way]["updates"] >= UPDATES
    assert first["episodes"], "some have ended"
    for other in others:
        if "parameter-server" in way:  # rank 0 alone has optimisers
            assert {**other, "optimizers": None} == {**first, "optimizers": None}
        else:
            assert other == first


@pytest.mark.nightly
@every_way
def test_every_rank_has_seen_something_of_its_own(trained: list[dict[str, Any]], way: str) -> None:
    for name in trained[0][way]["own"]:
        assert len({rank[way]["own"][name] for rank in trained}) == SIZE, name


@pytest.mark.nightly
@pytest.mark.parametrize("way", RESUMED)
def test_asked_to_leave_and_paused_at_a_rung_all_ranks_have_the_bits_of_a_training_that_never_stopped(
    trained: list[dict[str, Any]], way: str
) -> None:
    for rank in trained:
        resumed, undisturbed = rank[f"{way} resumed"], rank[way]
        for part in ("common", "own"):
            for name, value in undisturbed[part].items():
                if name != "optimizers" or "allreduce" in way or rank is trained[0]:
                    assert resumed[part][name] == value, name


# -- a short training of two ranks


def few_updates(group: ProcessGroup, root: Path) -> dict[str, Any]:
    spec = replace(training("fast allreduce"), ranks=2, total_timesteps=5 * 48)
    return train(group, spec, root / "trained")


def test_two_ranks_end_with_the_same_bits(tmp_path: Path) -> None:
    first, other = helpers.together(2, tmp_path / "together", few_updates, tmp_path)
    assert first["updates"] == 5
    assert first["common"] == other["common"]
    for name, value in first["own"].items():
        assert other["own"][name] != value, f"{name} of each rank are its own"


# -- environments


@pytest.mark.nightly
@pytest.mark.parametrize(
    "changes",
    [{"env": "Pendulum-v1"}, {"task": "forward", "xml": str(HOPPER)}],
    ids=["gymnasium", "built-in task"],
)
@pytest.mark.parametrize("size", [2, 4])
def test_the_environments_of_all_ranks_are_those_that_one_process_has(
    size: int, changes: dict[str, Any]
) -> None:
    spec = helpers.spec(ranks=1, normalize=False, hyperparameters=worker.SMALL_PPO, **changes)

    def shown(first: int, count: int) -> np.ndarray:
        """→ ``(steps, count, …)``, over the ends of episodes."""
        venv = env_factory.make(spec, Path(), n_envs=count, seed=spec.seed, first_env=first)
        learners.build(spec, venv)  # seeds them once more, as every algorithm does
        actions = np.random.default_rng(0).uniform(
            -1, 1, (250, spec.n_envs, *venv.action_space.shape)
        )
        seen = [
            venv.reset(),
            *(venv.step(each[first : first + count])[0] for each in actions.astype(np.float32)),
        ]
        return np.stack(seen)

    parts = [own_share(spec.n_envs, SimpleNamespace(rank=rank, size=size)) for rank in range(size)]  # type: ignore[arg-type]
    together = np.concatenate([shown(part.start, len(part)) for part in parts], axis=1)
    assert np.array_equal(together, shown(0, spec.n_envs))
    assert len({together[0, env].tobytes() for env in range(spec.n_envs)}) == spec.n_envs


# -- statistics and episodes


def synchronizer_of(rank: Any, **attributes: Any) -> RankSynchronizer:
    """Of a model without parameters that has these attributes."""
    model: Any = SimpleNamespace(
        policy=SimpleNamespace(state_dict=dict),
        get_vec_normalize_env=lambda: None,
        ep_info_buffer=deque(),
        ep_success_buffer=deque(),
        _episode_num=0,
    )
    vars(model).update(attributes)
    return RankSynchronizer(model, rank, parameter_server=False)


def rounds_of_data() -> list[list[np.ndarray]]:
    """By round and rank: far from zero, of growing numbers; some ranks have nothing new in some
    rounds."""
    dice = np.random.default_rng(5)
    counts = [(5, 3, 8), (0, 40, 1), (0, 0, 0), (200, 0, 0), (1, 1, 1), (3000, 2500, 2000)]
    return [[dice.normal(50.0, 0.5, (count, 4)) for count in of_round] for of_round in counts]


@pytest.mark.nightly
def test_merged_statistics_are_those_of_one_who_saw_everything() -> None:
    rounds = rounds_of_data()

    def merged(rank: Any) -> list[RunningMeanStd]:
        normalization: Any = SimpleNamespace(
            obs_rms=RunningMeanStd(shape=(4,)), ret_rms=RunningMeanStd(shape=())
        )
        synchronizer = synchronizer_of(rank, get_vec_normalize_env=lambda: normalization)
        for of_round in rounds:
            synchronizer.begin_iteration(TrainingMoment(0.0, stage=1))
            ours = of_round[rank.rank]
            for batch in np.array_split(ours, 3) if len(ours) >= 3 else [ours]:
                if len(batch):
                    normalization.obs_rms.update(batch)
                    normalization.ret_rms.update(batch[:, 0])
            synchronizer.after_update(1)
        return [normalization.obs_rms, normalization.ret_rms]

    first, *others = helpers.in_threads(SIZE, merged)
    everything = np.concatenate([ours for of_round in rounds for ours in of_round])
    for number, numbers in enumerate((everything, everything[:, 0])):
        whole = RunningMeanStd(shape=numbers.shape[1:])
        whole.update(numbers)
        assert first[number].count == pytest.approx(whole.count, rel=1e-12)
        np.testing.assert_allclose(first[number].mean, whole.mean, rtol=1e-12)
        np.testing.assert_allclose(first[number].var, whole.var, rtol=1e-9)  # 50² lies over 0.5²
        for other in others:
            for part in ("mean", "var", "count"):
                assert np.array_equal(getattr(other[number], part), getattr(first[number], part))


@pytest.mark.nightly
def test_episodes_of_all_ranks_are_known_to_all_in_order_of_rank() -> None:
    def moments_over_ranks(rank: Any) -> Any:
        buffer = deque([{"r": -1}], maxlen=4)
        synchronizer = synchronizer_of(rank, ep_info_buffer=buffer, _episode_num=1)
        model = synchronizer._model
        for number in range(2):
            synchronizer.begin_iteration(TrainingMoment(0.0, stage=1))
            ended = [{"r": 100 * number + 10 * rank.rank + index} for index in range(rank.rank)]
            model.ep_info_buffer.extend(ended)
            model._episode_num += len(ended)
            synchronizer.after_update(1)
        return (
            [episode["r"] for episode in model.ep_info_buffer],
            model._episode_num,
            model.ep_info_buffer.maxlen,
        )

    assert helpers.in_threads(3, moments_over_ranks) == [([21, 110, 120, 121], 7, 4)] * 3
