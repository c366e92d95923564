"""The tables of hyperparameters in a job file have Stable-Baselines3's own names and defaults."""

from __future__ import annotations

import inspect
from typing import get_args

import pytest

from orchestrator.core.worker_spec import Algorithm
from orchestrator.jobfile.hyperparameters import ALGORITHMS, POLICY_KEYS, PolicyKwargs
from orchestrator.jobfile.toml_models import Settings
from orchestrator.worker.training import algorithms

CLASSES = {name: algorithms.class_of(name) for name in ALGORITHMS}
NOT_IN_A_JOB_FILE = {
    "policy",
    "env",
    "policy_kwargs",
    "verbose",
    "seed",
    "device",
    "tensorboard_log",
    "_init_setup_model",
}
CLASSES_OF_BUFFERS = {
    f"{kind}_buffer_{what}" for kind in ("rollout", "replay") for what in ("class", "kwargs")
} | {"optimize_memory_usage"}
OF_CODE = {
    "observation_space",
    "action_space",
    "lr_schedule",
    "use_sde",
    "optimizer_class",
    "optimizer_kwargs",
} | {
    "features_extractor_class",
    "features_extractor_kwargs",
}


def test_algorithms_of_job_file_and_worker_are_the_same() -> None:
    assert set(ALGORITHMS) == {*algorithms.CLASSES} == set(POLICY_KEYS) == set(get_args(Algorithm))
    assert {"policy_kwargs", *ALGORITHMS} <= Settings.model_fields.keys()


@pytest.mark.parametrize("algo", CLASSES)
def test_names_and_defaults_are_those_of_stable_baselines3(algo: str) -> None:
    parameters = inspect.signature(CLASSES[algo]).parameters
    ours = ALGORITHMS[algo]().model_dump()
    assert {name: parameters[name].default for name in ours} == ours
    left_out = parameters.keys() - ours.keys()
    assert left_out <= NOT_IN_A_JOB_FILE | CLASSES_OF_BUFFERS


@pytest.mark.parametrize("algo", CLASSES)
def test_policy_kwargs_are_those_of_its_policies(algo: str) -> None:
    defaults = PolicyKwargs().model_dump()
    for policy in ("MlpPolicy", "CnnPolicy", "MultiInputPolicy"):
        parameters = inspect.signature(algorithms.policy_class(algo, policy)).parameters
        assert POLICY_KEYS[algo] <= parameters.keys()
        missing = parameters.keys() - POLICY_KEYS[algo] - OF_CODE
        assert missing <= {"dist_kwargs"}, policy
        for key in POLICY_KEYS[algo]:
            assert defaults[key] in (None, parameters[key].default)
