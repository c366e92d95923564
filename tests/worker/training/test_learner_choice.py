"""Which learner a job gets, and where one sees it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import command_helpers as commands
import numpy as np
import pytest
from command_helpers import BALANCER, invoke, succeed, write_experiment
from gymnasium import spaces
from report_helpers import Page
from stable_baselines3 import PPO
from stable_baselines3.common.preprocessing import is_image_space
from supervisor_helpers import make_spec

from orchestrator.core.worker_spec import Activation
from orchestrator.worker.envs.image_spaces import is_image
from orchestrator.worker.training.algorithms import activation
from orchestrator.worker.training.fast import qualify
from orchestrator.worker.training.fast.ppo import FastPPO

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
PIXELS = spaces.Box(0, 255, (36, 36, 3), np.uint8)
BOXES = [
    VECTOR,
    PIXELS,
    spaces.Box(0, 255, (36, 36), np.uint8),
    spaces.Box(0, 254, (36, 36, 3), np.uint8),
    spaces.Box(1, 255, (36, 36, 3), np.uint8),
    spaces.Box(0, 255, (36, 36, 3), np.int16),
    spaces.Box(0, 255, (36, 36, 3), np.float32),
    spaces.Box(0, 255, (3, 36, 36), np.uint8),
    spaces.Box(-np.inf, np.inf, (2, 2, 2), np.float64),
]
POLICY_VALUES: dict[str, list[Any]] = {
    "net_arch": [[], [8, 8], {"pi": [8], "vf": []}],
    "activation_fn": list(get_args(Activation)),
    "ortho_init": [True, False],
    "log_std_init": [-1.0],
    "full_std": [True, False],
    "use_expln": [True, False],
    "squash_output": [False],
    "share_features_extractor": [True, False],
    "normalize_images": [True, False],
}


# -- what suits


@pytest.mark.parametrize("box", BOXES, ids=str)
def test_images_are_what_stable_baselines3_takes_for_images(box: spaces.Box) -> None:
    assert is_image(box) == is_image_space(box)
    assert (qualify.unfit_spaces(box, VECTOR) is None) == (not is_image_space(box))


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, some in POLICY_VALUES.items() for value in some]
)
def test_the_fast_learner_trains_what_qualifies(key: str, value: Any) -> None:
    spec = make_spec("a", policy_kwargs={key: value})
    arguments: dict[str, Any] = {
        "policy": "MlpPolicy",
        "env": "Pendulum-v1",
        "n_steps": 8,
        "batch_size": 8,
        "device": "cpu",
        "policy_kwargs": {key: activation(value) if key == "activation_fn" else value},
    }
    space = PPO(**arguments)
    if qualify.unfit(spec, space.observation_space, space.action_space) is None:
        FastPPO(**arguments).learn(8)
    else:
        assert key == "activation_fn"


@pytest.mark.nightly
def test_ledger_summary_status_and_report_say_which_learner_it_was_and_why(tmp_path: Path) -> None:
    jobs = write_experiment(
        tmp_path,
        {"name": "balancer", "xml": BALANCER, "task": "balance"},
        {"name": "pole", "env": "CartPole-v1"},
        head="max_parallel = 2",
    )
    done = succeed("run", jobs, "--run-dir", "run", cwd=tmp_path)
    why = "auto: its actions are no one-dimensional Box of float32 or float64"
    line = f"learner: fast × 1, sb3 × 1 ({why}: pole-s0)"
    rows = commands.summary(tmp_path / "run")
    assert {name: row["learner"] for name, row in rows.items()} == {
        "balancer-s0": "fast",
        "pole-s0": "sb3",
    }
    assert rows["pole-s0"]["learner_reason"] == why
    assert line in done.stdout
    assert line in invoke("status", "run", cwd=tmp_path).stdout
    assert why in (tmp_path / "run/summary.csv").read_text()
    assert (
        f"learner sb3 ({why})" in (tmp_path / "run/jobs/pole-s0/attempts/0/worker.log").read_text()
    )
    page = Page(Path(tmp_path, invoke("report", "run", cwd=tmp_path).stdout.strip()))
    assert line.removeprefix("learner: ") in page.text
    facts = json.loads((tmp_path / "run/report/report.json").read_text())
    assert {job["job_id"]: job["learner_reason"] for job in facts["jobs"]}["pole-s0"] == why


@pytest.mark.parametrize(
    ("job", "where"),
    [
        ({"env": "CartPole-v1"}, "jobs[0]"),
        ({"xml": BALANCER, "ppo": {"use_sde": True}}, "--set learner"),
    ],
)
def test_a_fast_learner_that_cannot_be_is_refused_before_anything_is_launched(
    job: dict[str, Any], where: str, tmp_path: Path
) -> None:
    jobs = write_experiment(tmp_path, {"name": "odd", **job}, {"name": "sound", "xml": BALANCER})
    done = invoke("run", jobs, "--run-dir", "run", "--learner", "fast", cwd=tmp_path)
    assert done.returncode == 2
    assert f"{where}: " in done.stderr
    assert 'learner = "fast" is not possible: ' in done.stderr
    assert 'set learner = "auto"' in done.stderr
    assert not list(tmp_path.glob("run/jobs/*"))
