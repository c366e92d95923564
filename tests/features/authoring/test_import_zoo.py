"""``import-zoo``: hyperparameters of RL Baselines3 Zoo in the words of a job file, and nothing of
them evaluated."""

from __future__ import annotations

import builtins
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.errors import UsageError
from orchestrator.features.authoring import written_view, zoo_import, zoo_values
from orchestrator.features.authoring.zoo_import import ZooJobFile
from orchestrator.jobfile import from_mapping
from orchestrator.jobfile.job_file_text import toml

PPO = """
shared: &shared
  normalize: "dict(norm_obs=True, norm_reward=False)"
  n_envs: 2
  policy: 'MlpPolicy'
HalfCheetah-v4:
  <<: *shared
  n_timesteps: !!float 3e5
  n_steps: 128
  batch_size: 64
  learning_rate: lin_2e-3
  clip_range: lin_0.3
  ent_coef: 1e-4
  gamma: 0.97
  max_grad_norm: 2
  policy_kwargs: "dict(log_std_init=-1.5, ortho_init=False, activation_fn=nn.ReLU, net_arch=dict(pi=[32, 16], vf=[32]))"
  env_wrapper: some.package.Wrapper
  colour: blue
Hopper-v5:
  normalize: true
  n_timesteps: 200000.0
  n_steps: 30
  n_envs: 4
  batch_size: 50
  policy: CnnPolicy
  policy_kwargs: {net_arch: [{pi: [8], vf: [8]}], optimizer_class: torch.optim.SGD}
Reacher-v2: {n_timesteps: 1000, frame_skip: 3}
Pendulum-v1: {n_timesteps: 1e5, use_sde: True, sde_sample_freq: 4, normalize: False}
LunarLander-v2: {n_timesteps: 1000}
BreakoutNoFrameskip-v4: {n_timesteps: 1000}
atari: {frame_stack: 4}
"""


def imported(
    tmp_path: Path, text: str, name: str = "ppo.yml", **more: Any
) -> tuple[ZooJobFile, dict[str, Any]]:
    """The job file, and its jobs by name; the job file must be valid."""
    path = tmp_path / name
    path.write_text(text)
    made = zoo_import.draft(
        path, **{"algo": None, "names": [], "target": tmp_path / "jobs.toml", **more}
    )
    content = tomllib.loads(made.text)
    assert len(from_mapping(content, source="jobs.toml", base=tmp_path).jobs) == made.jobs
    return made, {job["name"]: job for job in content["jobs"]}


def test_hyperparameters_keep_their_meaning(tmp_path: Path) -> None:
    made, jobs = imported(tmp_path, PPO)
    cheetah = jobs["HalfCheetah-v4"]
    assert (cheetah["task"], cheetah["total_timesteps"], cheetah["n_envs"]) == (
        "gymnasium:HalfCheetah-v5",
        300_000,
        2,
    )
    assert cheetah["ppo"] == {
        **{
            "n_steps": 128,
            "batch_size": 64,
            "learning_rate": "linear(2e-3, 0)",
            "clip_range": "linear(0.3, 0)",
        },
        **{"ent_coef": 1e-4, "gamma": 0.97, "max_grad_norm": 2},
    }
    assert cheetah["policy_kwargs"] == {
        **{"log_std_init": -1.5, "ortho_init": False, "activation_fn": "relu"},
        "net_arch": {"pi": [32, 16], "vf": [32]},
    }
    assert (jobs["Reacher-v2"]["env"], jobs["Reacher-v2"]["n_envs"]) == ("Reacher-v5", 1)
    assert (jobs["Pendulum-v1"]["env"], jobs["Pendulum-v1"]["normalize"]) == ("Pendulum-v1", False)
    assert jobs["Pendulum-v1"]["ppo"] == {"use_sde": True, "sde_sample_freq": 4}
    assert jobs["Hopper-v5"]["policy_kwargs"] == {"net_arch": {"pi": [8], "vf": [8]}}
    assert made.algo == tomllib.loads(made.text)["defaults"]["algo"] == "ppo"


def test_what_a_job_file_cannot_express_is_a_comment_with_its_reason(tmp_path: Path) -> None:
    made, jobs = imported(tmp_path, PPO)
    assert {entry.what for entry in made.entries_left_out} == {
        *("shared", "LunarLander-v2", "BreakoutNoFrameskip-v4", "atari")
    }
    changes = {entry.what: entry.reason for entry in made.changes}
    assert made.newer == 2
    assert "HalfCheetah-v4 in the Zoo" in made.text
    assert "only observations in the Zoo" in changes["HalfCheetah-v4, normalize"]
    assert "entry_point" in changes["HalfCheetah-v4, env_wrapper"]
    assert "unknown key" in changes["HalfCheetah-v4, ppo.colour"]
    assert "optimiser" in changes["Hopper-v5, policy_kwargs.optimizer_class"]
    assert "vector" in changes["Hopper-v5, policy"]
    assert jobs["HalfCheetah-v4"]["normalize"] is True
    for key, reason in changes.items():
        assert key.partition(", ")[2] in made.text
        assert reason[:40] in made.text


def test_a_minibatch_that_does_not_divide_the_rollout_is_changed(tmp_path: Path) -> None:
    made, jobs = imported(tmp_path, PPO)
    assert 120 % jobs["Hopper-v5"]["ppo"]["batch_size"] == 0
    assert any(
        entry.what == "Hopper-v5, ppo.batch_size" and "50 in the Zoo" in entry.reason
        for entry in made.changes
    )


def test_off_policy_files_are_imported(tmp_path: Path) -> None:
    text = """
Ant-v3: {n_timesteps: 1e6, policy: MlpPolicy, learning_starts: 10000, noise_type: 'normal', noise_std: 0.1,
         train_freq: !!python/tuple [1, 'episode'], gradient_steps: -1}
Swimmer-v4: {n_timesteps: 1e4, learning_starts: 10000, noise_type: ornstein-uhlenbeck, noise_std: 0.5, use_sde: true}
"""
    made, jobs = imported(tmp_path, text, "td3.yml")
    ant, swimmer = jobs["Ant-v3"], jobs["Swimmer-v4"]
    assert ant["td3"] == {
        **{"learning_starts": 10_000, "action_noise": 0.1, "train_freq": [1, "episode"]},
        "gradient_steps": -1,
    }
    assert ant["resources"] == {"memory": "3 GiB"}
    assert swimmer["td3"] == {"action_noise": 0.5}
    changes = {entry.what: entry.reason for entry in made.changes}
    assert "ornstein-uhlenbeck" in changes["Swimmer-v4, td3.action_noise"]
    assert "not below total_timesteps" in changes["Swimmer-v4, td3.learning_starts"]
    assert (
        "use_sde" in changes["Swimmer-v4, td3.use_sde"]
        or "unknown key" in changes["Swimmer-v4, td3.use_sde"]
    )
    sac, jobs = imported(
        tmp_path, "Ant-v4: {ent_coef: auto_0.5, tau: 0.02, buffer_size: !!float 3e5}", "sac.yml"
    )
    assert jobs["Ant-v4"]["sac"] == {"ent_coef": "auto_0.5", "tau": 0.02, "buffer_size": 300_000}
    assert sac.algo == "sac"
    _, jobs = imported(
        tmp_path, "Ant-v4: {top_quantiles_to_drop_per_net: 5, n_timesteps: 1e5}", "tqc.yml"
    )
    assert jobs["Ant-v4"]["tqc"] == {"top_quantiles_to_drop_per_net": 5}
    with pytest.raises(UsageError, match="discrete actions"):
        imported(tmp_path, "CartPole-v1: {}", "sac.yml")


def test_the_zoos_name_of_recurrent_ppo_and_of_its_policy_are_understood(tmp_path: Path) -> None:
    text = "Pendulum-v1: {n_envs: 4, n_steps: 100, policy: MlpLstmPolicy, policy_kwargs: 'dict(lstm_hidden_size=64)'}"
    made, jobs = imported(tmp_path, text, "ppo_lstm.yml")
    assert made.algo == "recurrent-ppo"
    assert jobs["Pendulum-v1"]["policy"] == "MlpPolicy"
    assert jobs["Pendulum-v1"]["policy_kwargs"] == {"lstm_hidden_size": 64}
    assert 400 % jobs["Pendulum-v1"]["recurrent-ppo"]["batch_size"] == 0


def test_chosen_environments_and_algorithm(tmp_path: Path) -> None:
    _, jobs = imported(tmp_path, PPO, "tuned.yml", algo="ppo", names=["Hopper-v5", "Reacher-v2"])
    assert list(jobs) == ["Hopper-v5", "Reacher-v2"]
    with pytest.raises(UsageError, match="did you mean Hopper-v5"):
        imported(tmp_path, PPO, names=["Hoper-v5"])
    with pytest.raises(UsageError, match="--algo"):
        imported(tmp_path, PPO, "dqn.yml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "is not valid YAML"),
        ("a: !!python/object/apply:os.system ['true']", "is not valid YAML"),
        ("", "expected a table"),
        ("- a", "expected a table"),
        ("atari: {}", "none of 1 entries can be imported"),
        ("Ant-v4: 3", "none of 1 entries"),
        ("a: \x01", "is not valid YAML"),
        ("[" * 1500, "cannot be read|is not valid YAML"),
    ],
)
def test_what_is_no_hyperparameter_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        imported(tmp_path, text)


def test_huge_values_of_a_few_lines_are_left_out(tmp_path: Path) -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    made, jobs = imported(
        tmp_path, "\n".join([*lines, "Ant-v4: {policy_kwargs: {net_arch: *a11}, gamma: 0.9}"])
    )
    assert jobs["Ant-v4"]["ppo"] == {"gamma": 0.9}
    assert any("nested too deeply" in entry.reason for entry in made.changes)


def test_what_is_not_shown_is_in_comments_of_the_job_file(tmp_path: Path) -> None:
    made, _ = imported(
        tmp_path, "Ant-v4: {gamma: 0.9}\n" + "\n".join(f"Game{n}-v1: {{}}" for n in range(25))
    )
    shown = written_view.zoo(made, tmp_path / "jobs.toml")
    assert all(f"# Game{n}-v1: " in made.text for n in range(25))
    assert ("and 5 more; comments in" in shown, "check" in shown) == (True, False)


def test_a_control_character_in_the_name_of_the_file_is_no_error(tmp_path: Path) -> None:
    made, _ = imported(tmp_path, "Ant-v4: {gamma: 0.9}", name="a\x7fb.yml", algo="ppo")
    assert tomllib.loads(made.text)["name"] == "ppo"
    text = "".join(map(chr, range(0xA0)))
    assert tomllib.loads(f"a = {toml({text: text})}") == {"a": {text: text}}


def test_python_in_values_is_parsed_and_never_evaluated() -> None:
    assert zoo_values.parse("dict(a=-2, b=(1, 'x'), c={'d': [1.5, None, True]}, e=nn.ReLU)") == {
        **{"a": -2, "b": [1, "x"], "c": {"d": [1.5, None, True]}},
        "e": zoo_values.PythonName("nn.ReLU"),
    }
    for text in (
        *(
            "__import__('os').system('true')",
            "dict(**x)",
            "dict([1])",
            "[x for x in y]",
            "1 +",
            "f(1)",
            "{1: 2}",
            "\0",
        ),
        *("(" * 500, "x" * 20_000, "9 ** 9 ** 9"),
    ):
        with pytest.raises(ValueError, match="cannot be read"):
            zoo_values.parse(text)


def test_without_pyyaml_the_command_to_install_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def absent(name: str, *arguments: Any, **more: Any) -> Any:
        if name == "yaml":
            raise ModuleNotFoundError(name)
        return real(name, *arguments, **more)

    monkeypatch.delitem(sys.modules, "yaml", raising=False)
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(UsageError, match=r"needs PyYAML.*pip install .*\[zoo\]"):
        imported(tmp_path, PPO)
