"""TQC, CrossQ and recurrent PPO of sb3-contrib: LSTM states last as episodes do.

That nothing is lost when they are killed or pause is shown with the other algorithms, in
``e2e/test_resume.py`` and ``test_stages.py``.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import worker_helpers as helpers
from stable_baselines3.common.evaluation import evaluate_policy

import orchestrator
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.worker_spec import CONTRIB, WorkerSpec
from orchestrator.worker.envs import env_factory
from orchestrator.worker.runtime.failures import MissingPackageError
from orchestrator.worker.training import (
    algorithms,
    contrib,
    learners,
    start_policy,
    start_policy_reader,
    training_state,
    weights,
)
from orchestrator.worker.training.acting import ActingPolicy
from orchestrator.worker.training.training_state import LoopState

MEMORY = """
import gymnasium
import numpy as np


class Memory(gymnasium.Env):
    '''Its first observation says which action is rewarded in the rest of the episode.'''

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    render_mode = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cue, self.steps = int(self.np_random.integers(2)), 0
        return np.array([2 * self.cue - 1], np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), float(action == self.cue), self.steps == 6, False, {}


def make_env(xml, seed):
    return Memory()
"""


def model_of(spec: WorkerSpec, directory: Path = Path()) -> Any:
    return learners.build(
        spec, env_factory.make(spec, directory, n_envs=spec.n_envs, seed=spec.seed)
    ).model


slow = pytest.mark.nightly


def test_lstm_states_are_those_in_the_middle_of_an_episode_and_are_all_restored() -> None:
    spec = helpers.algorithm("recurrent-ppo", n_envs=3)
    model, fresh = model_of(spec), model_of(spec)
    assert all(not state.any() for part in contrib.lstm_states(model) or () for state in part)
    model.learn(192)
    state = training_state.capture(model, LoopState())
    assert [[part.shape for part in states] for states in state["lstm_states"]] == [
        [(1, 3, 8)] * 2
    ] * 2
    assert all(part.any() for states in state["lstm_states"] for part in states)
    content = io.BytesIO()
    torch.save(state, content)
    training_state.restore(fresh, torch.load(io.BytesIO(content.getvalue()), weights_only=False))
    assert type(fresh._last_lstm_states) is type(model._last_lstm_states)
    for part, restored in zip(model._last_lstm_states, fresh._last_lstm_states, strict=True):
        assert all(map(torch.equal, part, restored))


def test_running_statistics_of_crossq_are_in_its_checkpoints_and_in_the_hash() -> None:
    spec = helpers.algorithm("crossq")
    model, fresh = model_of(spec), model_of(spec)
    model.learn(200)
    state = training_state.capture(model, LoopState())
    names = [name for name in state["policy"] if name.endswith(("ra_mean", "ra_var", "steps"))]
    assert {name.split(".")[0] for name in names} == {"actor", "critic"}
    assert all(
        not torch.equal(state["policy"][name], fresh.policy.state_dict()[name]) for name in names
    )
    before = weights.sha256(model)
    model.policy.actor.latent_pi[0].ra_mean += 1e-3
    assert weights.sha256(model) != before


# -- acting


def memory(directory: Path, **changes: Any) -> WorkerSpec:
    (directory / "memory.py").write_text(MEMORY)
    hyperparameters = {"n_steps": 48, "batch_size": 96, "n_epochs": 10, "learning_rate": 1e-2}
    given = {
        "hyperparameters": hyperparameters,
        "entry_point": "memory:make_env",
        "search_path": str(directory),
    }
    return helpers.algorithm("recurrent-ppo", n_envs=4, **{**given, **changes})


def test_a_recurrent_policy_remembers_its_own_episode_and_no_other(tmp_path: Path) -> None:
    """Each environment's actions are those of an environment of its own, whenever the others'
    episodes end."""
    model = model_of(helpers.algorithm("recurrent-ppo", n_envs=2))
    rng = np.random.default_rng(0)
    observations = rng.normal(0, 1, (8, 2, 3)).astype(np.float32)
    together = ActingPolicy(model, 2, deterministic=True)
    alone = [ActingPolicy(model, 1, deterministic=True) for _ in range(2)]
    for step, rows in enumerate(observations):
        actions = together.act(rows)
        for index in range(2):
            np.testing.assert_allclose(
                actions[index], alone[index].act(rows[index : index + 1])[0], atol=1e-6
            )
        dones = np.array([step == 2, step == 4])
        together.see_ends(dones)
        for index in range(2):
            alone[index].see_ends(dones[index : index + 1])
    assert not np.allclose(
        actions, ActingPolicy(model, 2, deterministic=True).act(observations[-1])
    )
    together.begin()
    anew = ActingPolicy(model, 2, deterministic=True)
    assert np.array_equal(together.act(observations[0]), anew.act(observations[0]))


@slow
def test_what_only_memory_can_learn_is_learnt_and_evaluated(tmp_path: Path) -> None:
    spec = memory(tmp_path, total_timesteps=6_000, eval_episodes=10, checkpoint_every=3_000)
    paths = helpers.job(tmp_path / "job", spec)
    helpers.train_to_its_end(paths)
    told = json.loads(paths.eval.read_text())["deterministic"]
    assert told["mean"] == 6, "a policy without memory has 3.5"


@pytest.mark.nightly
def test_evaluate_policy_has_the_returns_of_the_evaluation_with_a_recurrent_policy(
    tmp_path: Path,
) -> None:
    paths = helpers.job(
        tmp_path / "job-s3",
        helpers.algorithm("recurrent-ppo", total_timesteps=512, eval_episodes=3),
    )
    helpers.train_to_its_end(paths)
    told = json.loads(paths.eval.read_text())
    for checkpoint in (None, "latest"):
        model, env = orchestrator.load(paths.root, n_envs=told["n_envs"], checkpoint=checkpoint)
        rewards, _ = evaluate_policy(model, env, 3, return_episode_rewards=True)
        assert rewards == told["deterministic"]["returns"]


# -- starting from another policy


@pytest.mark.parametrize("algo", CONTRIB)
def test_a_model_zip_says_its_algorithm_and_is_copied_exactly(tmp_path: Path, algo: str) -> None:
    spec = helpers.algorithm(algo)
    model, target = model_of(spec), model_of(helpers.algorithm(algo, seed=4))
    model.save(tmp_path / "model.zip")
    initial = start_policy_reader.read(tmp_path / "model.zip")
    assert (initial.algo, initial.activation) == (
        algo,
        "tanh" if algo == "recurrent-ppo" else "relu",
    )
    assert initial.temperature is None or torch.equal(initial.temperature, model.log_ent_coef)
    assert "exact copy" in start_policy.start(target, initial)
    assert helpers.same_bits(target.policy.state_dict(), model.policy.state_dict())


# -- the package


@slow
def test_the_package_is_loaded_for_its_own_algorithms_alone() -> None:
    code = (
        "import sys, orchestrator.worker.training.train as _\n"
        "from orchestrator.worker.training import algorithms\n"
        "algorithms.class_of('sac'); print('sb3_contrib' in sys.modules)\n"
        "algorithms.class_of('tqc'); print('sb3_contrib' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=helpers.REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "True"]


def test_without_the_package_the_job_fails_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sb3_contrib", None)
    with pytest.raises(MissingPackageError):
        algorithms.class_of("crossq")
    record, _ = helpers.train_here(helpers.job(tmp_path / "job", helpers.algorithm("tqc")))
    assert record.code == ExitCode.ERROR
    assert record.message.startswith(
        'algo = "tqc" needs the package sb3-contrib, which is not installed here: pip'
    )
    assert '".[contrib]"' in record.message


def test_a_model_loads_with_the_class_of_sb3_contrib_alone(tmp_path: Path) -> None:
    for algo in CONTRIB:
        path = tmp_path / f"{algo}.zip"
        model_of(helpers.algorithm(algo)).save(path)
        with zipfile.ZipFile(path) as archive:
            assert b"orchestrator" not in archive.read("data")
